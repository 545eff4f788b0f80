//! One recording at work: takes an [`Input`] at a time, asks the controller, and carries out what it decides.

use std::{
    ops::ControlFlow,
    path::Path,
    time::{Duration, Instant},
};

use exist_trace::{
    file::model::{ControlKind, ControlOp, End, Generation, Loss, LossKind},
    units::{Cpu, MonoNs, Pid},
};

use super::{
    Input, Progress,
    inputs::Inputs,
    pace::Pace,
    presence::Watch,
    streams::{Streams, op},
    tracers::Tracers,
    writer::FileWriter,
};
use crate::{
    aggregate::{Aggregator, Totals},
    alloc::WindowFill,
    capture::{Change, Hotplug, Report},
    control::{self, Command, Controller, EndReason, PeriodId},
    hook::{Notice, NoticeKind, Notices},
    sys::{clock, cpu, roots::Roots},
    target::{Presence, Resolved},
};

/// The only period of a recording.
pub const PERIOD: PeriodId = PeriodId(1);

/// How long the hook runs before the period, to learn which CPUs the target uses.
const LOOK_BACK: Duration = Duration::from_millis(50);
/// Longest wait for the tracers of the look-back.
const START_WAIT: Duration = Duration::from_secs(1);
const CLOCK_PAIR_NS: u64 = 100_000_000;
const LOOK_NS: u64 = 100_000_000;
const COUNT_NS: u64 = 1_000_000_000;
/// Between two looks while the period is over and a tracer or the disk is not done yet.
const FINISHING: Duration = Duration::from_millis(2);

/// What a recording is made of.
pub struct Parts {
    pub streams: Streams,
    /// Until the real-time thread has them.
    pub notices: Option<Notices>,
    pub tracers: Tracers,
    pub aggregator: Aggregator,
    pub writer: FileWriter,
    pub controller: Controller,
    pub target: Resolved,
    pub roots: Roots,
    /// Whether the hook has looked already which CPUs the target uses.
    pub looked: bool,
}

/// How a recording ended.
pub struct Ended {
    pub start: MonoNs,
    pub totals: Totals,
    pub reason: EndReason,
    pub end: MonoNs,
    pub writer: FileWriter,
    pub target: Resolved,
    pub fill: WindowFill,
    /// What is not as it should be, in words.
    pub warnings: Vec<String>,
}

/// A recording at work.
pub struct Recorder {
    parts: Parts,
    pace: Pace,
    drained_at: Instant,
    hotplug: Hotplug,
    start: MonoNs,
    /// On each CPU: until the period began, then in it.
    on_cpu_ns: Vec<(Cpu, u64)>,
    paired_at: u64,
    looked_at: u64,
    counted_at: u64,
    watch: Watch,
    /// When the hook ended; then only tracers and the disk are waited for.
    ended: Option<MonoNs>,
    finished: Option<EndReason>,
    /// Reused.
    full: Vec<Generation>,
}

impl Recorder {
    pub fn new(parts: Parts, start: MonoNs) -> Self {
        let online = cpu::online(Path::new("/sys")).unwrap_or_default();
        Self {
            parts,
            pace: Pace::default(),
            drained_at: Instant::now(),
            hotplug: Hotplug::new(&online),
            start,
            on_cpu_ns: Vec::new(),
            paired_at: 0,
            looked_at: 0,
            counted_at: start.0,
            watch: Watch::default(),
            ended: None,
            finished: None,
            full: Vec::new(),
        }
    }

    /// Until when to wait for the next input; then [`Input::Drain`] is due.
    pub fn due(&self) -> Instant {
        if self.ended.is_some() {
            return self.drained_at + FINISHING;
        }
        let deadline = self
            .parts
            .controller
            .next_deadline()
            .map(|at| Duration::from_nanos(at.0.saturating_sub(clock::mono_ns())));
        let drain = self.drained_at + self.pace.interval();
        // A deadline centuries away is no time that `Instant` can tell.
        match deadline.and_then(|wait| Instant::now().checked_add(wait)) {
            Some(deadline) => drain.min(deadline),
            None => drain,
        }
    }

    /// Whether nothing was recorded: neither a record nor a part of the file.
    pub fn is_empty(&self) -> bool {
        self.parts.aggregator.totals().records == 0 && self.parts.writer.is_empty()
    }

    /// What was recorded so far.
    pub fn progress(&self) -> Progress {
        Progress {
            elapsed_ns: clock::mono_ns().saturating_sub(self.start.0),
            totals: self.parts.aggregator.totals(),
            bytes: self.parts.writer.bytes(),
        }
    }

    /// Takes the next input; `Break` when the recording is over.
    ///
    /// # Errors
    /// When a stream of the kernel fails; the recording cannot go on.
    pub fn handle(&mut self, input: Input) -> anyhow::Result<ControlFlow<()>> {
        match input {
            Input::Drain => self.drain()?,
            Input::Notices => self.notices()?,
            Input::Interrupt => self.step(control::Input::Interrupt)?,
            Input::CommandEnded => self.step(control::Input::TargetExited { period: PERIOD })?,
            Input::Tracer(Report::Notice(notice)) => self.take_notices([notice])?,
            Input::Tracer(report) => {
                if let Some(input) = self.parts.tracers.take(report, &mut self.parts.aggregator) {
                    self.step(input)?;
                }
            }
            Input::WriteFailed(reason) => self.step(control::Input::Failed { period: PERIOD, reason })?,
        }
        let Parts {
            tracers,
            aggregator,
            writer,
            ..
        } = &mut self.parts;
        tracers.write(aggregator, writer);
        if self.ended.is_some() && self.parts.tracers.all_written() {
            self.step(control::Input::Drained { period: PERIOD })?;
        }
        Ok(if self.finished.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
    }

    /// Opens the period. With a processor trace the hook looks first which CPUs the target uses, and the period starts when
    /// their tracers run.
    ///
    /// # Errors
    /// As [`Self::handle`].
    pub async fn look_back(&mut self, inputs: &mut Inputs) -> anyhow::Result<()> {
        // A command waits still, so there is nothing to see of it.
        let worthwhile = self.parts.tracers.exist() && self.parts.target.command.is_none();
        let mut look_back = Vec::new();
        if worthwhile {
            if !self.parts.looked {
                tokio::time::sleep(LOOK_BACK).await;
            }
            let seen = self
                .waiting_notices()
                .into_iter()
                .filter(|n| n.kind() == Some(NoticeKind::CpuSeen));
            look_back.extend(seen.map(|notice| Cpu(notice.cpu)));
        }
        self.step(control::Input::Begin {
            period: PERIOD,
            ends_at: None,
            look_back,
        })?;
        let late = Instant::now() + START_WAIT;
        while !self.parts.tracers.all_started() {
            match inputs.next(late).await {
                Input::Drain => break, // one that takes so long is late, and its loss says so
                input => {
                    if self.handle(input)?.is_break() {
                        return Ok(());
                    }
                }
            }
        }
        if self.ended.is_none()
            && let Some(notices) = self.parts.notices.take()
        {
            self.parts.notices = self.parts.tracers.watch(notices);
        }
        if worthwhile && self.ended.is_none() {
            self.start = MonoNs(clock::mono_ns());
            self.parts.aggregator.starts_at(self.start);
            self.parts.streams.hook().begin_period(2)?;
        }
        self.on_cpu_ns = self.parts.streams.hook().on_cpu_ns()?;
        Ok(())
    }

    /// Reads the target's processes as they stand.
    pub fn snapshot(&mut self) {
        let target = &self.parts.target;
        let pids: Vec<_> = match target.only_pid {
            Some(process) => vec![process.pid],
            None => target
                .roots
                .iter()
                .filter_map(|root| root.processes().ok())
                .flatten()
                .map(Pid)
                .collect(),
        };
        self.parts.aggregator.snapshot(pids, MonoNs(clock::mono_ns()));
    }

    /// Lets the command begin, if the target is one.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub fn release(&mut self) -> anyhow::Result<()> {
        match &mut self.parts.target.command {
            Some(command) => Ok(command.release()?),
            None => Ok(()),
        }
    }

    /// The period is this long.
    ///
    /// # Errors
    /// As [`Self::handle`].
    pub fn ends_after(&mut self, period_ns: u64) -> anyhow::Result<()> {
        let time = MonoNs(self.start.0.saturating_add(period_ns));
        self.step(control::Input::EndsAt { period: PERIOD, time })
    }

    /// The recording cannot go on, for this reason.
    pub fn give_up(&mut self, reason: String) {
        self.finished = Some(EndReason::Error(reason));
    }

    /// Closes the file's last generation and takes the hook out of the kernel.
    pub fn finish(self) -> Ended {
        let Parts {
            streams,
            mut aggregator,
            writer,
            target,
            tracers,
            ..
        } = self.parts;
        let end = self.ended.unwrap_or(MonoNs(clock::mono_ns()));
        let fill = tracers.fill(&self.on_cpu_ns, self.start, end);
        let reason = self.finished.unwrap_or(EndReason::Error("stopped".to_owned()));
        let (detached, warnings) = streams.detach();
        aggregator.op(detached);
        let mut full = Vec::new();
        let totals = aggregator.finish(
            End {
                time: end,
                reason: reason.to_string(),
            },
            &mut full,
        );
        full.into_iter().for_each(|generation| writer.write(generation));
        Ended {
            start: self.start,
            totals,
            reason,
            end,
            writer,
            target,
            fill,
            warnings,
        }
    }

    fn step(&mut self, input: control::Input) -> anyhow::Result<()> {
        let mut commands = Vec::new();
        self.parts
            .controller
            .step(MonoNs(clock::mono_ns()), input, &mut commands);
        // Before the tracers stop: none may start any more.
        if commands.iter().any(|command| matches!(command, Command::Drain(_))) {
            self.parts.tracers.end_watch();
        }
        for command in commands {
            match command {
                Command::Enable(cpu) => self.parts.tracers.enable(cpu),
                Command::Disable(cpu) => self.parts.tracers.disable(cpu),
                Command::Abandon(cpu) => self.parts.tracers.abandon(cpu),
                Command::Drain(_) => self.end()?,
                Command::Finish(_, reason) => self.finished = Some(reason),
            }
        }
        Ok(())
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        // While the disk is behind, the rings are left to fill: what they then lose is counted by the hook.
        if self.ended.is_none() && !self.parts.writer.is_behind() {
            self.drain_once()?;
        }
        let now = clock::mono_ns();
        if self.ended.is_none() && is_due(&mut self.looked_at, now, LOOK_NS) {
            self.look(now)?;
        }
        self.drained_at = Instant::now();
        self.step(control::Input::Tick)
    }

    fn drain_once(&mut self) -> anyhow::Result<()> {
        let Parts {
            streams,
            aggregator,
            writer,
            ..
        } = &mut self.parts;
        let drained = streams.drain(aggregator)?;
        self.pace.drained(drained.fill);
        let now = clock::mono_ns();
        if is_due(&mut self.paired_at, now, CLOCK_PAIR_NS) {
            aggregator.clock_pair(clock::pair());
        }
        if is_due(&mut self.counted_at, now, COUNT_NS) {
            streams.count(aggregator)?;
        }
        aggregator.advance(drained.complete_to, &mut self.full);
        self.full.drain(..).for_each(|generation| writer.write(generation));
        Ok(())
    }

    /// Looks at what gives no notice: whether the target still has a process, and which CPUs are online.
    fn look(&mut self, now: u64) -> anyhow::Result<()> {
        let presence = match self.parts.target.only_pid {
            Some(process) if process.lives(&self.parts.roots) => Presence::Populated,
            Some(_) => Presence::Gone,
            None => self.parts.target.presence().unwrap_or(Presence::Populated),
        };
        if self.watch.has_ended(MonoNs(now), presence) {
            self.step(control::Input::TargetExited { period: PERIOD })?;
        }
        let online = cpu::online(Path::new("/sys")).unwrap_or_default();
        if online.is_empty() {
            return Ok(());
        }
        for change in self.hotplug.look(&online) {
            self.parts.streams.follow(change)?;
            self.parts.aggregator.loss(Loss {
                from: MonoNs(now.saturating_sub(LOOK_NS)),
                to: MonoNs(now),
                cpu: Some(change_cpu(change)),
                kind: LossKind::CpuHotplug,
                records: 0,
                bytes: 0,
                reason: match change {
                    Change::Offline(_) => "the CPU went offline".to_owned(),
                    Change::Online(_) => "the CPU came online; mappings made on it just before are missing".to_owned(),
                },
            });
            self.step(match change {
                Change::Offline(cpu) => control::Input::Offline { cpu },
                Change::Online(cpu) => control::Input::Online { cpu },
            })?;
        }
        Ok(())
    }

    fn notices(&mut self) -> anyhow::Result<()> {
        let waiting = self.waiting_notices();
        self.take_notices(waiting)
    }

    /// The notices that wait, unless the real-time thread takes them.
    fn waiting_notices(&mut self) -> Vec<Notice> {
        let mut waiting = Vec::new();
        if let Some(notices) = &mut self.parts.notices {
            notices.take(|notice| waiting.push(notice));
        }
        waiting
    }

    fn take_notices(&mut self, notices: impl IntoIterator<Item = Notice>) -> anyhow::Result<()> {
        let mut judge = false;
        let mut drain = false;
        for notice in notices {
            match notice.kind() {
                Some(NoticeKind::CpuSeen) => self.seen(&notice)?,
                Some(NoticeKind::TargetRemoved) => self.removed()?,
                Some(NoticeKind::Attached) => judge = true,
                Some(NoticeKind::RingHigh) => drain = true,
                Some(NoticeKind::TargetsFull) | None => {} // the counters tell it as a loss
            }
        }
        if judge && self.ended.is_none() {
            self.parts.streams.judge_again()?;
        }
        if drain { self.drain() } else { Ok(()) }
    }

    fn seen(&mut self, notice: &Notice) -> anyhow::Result<()> {
        let (cpu, time) = (Cpu(notice.cpu), MonoNs(notice.time_ns));
        self.parts.aggregator.op(ControlOp {
            from: time,
            ..op(ControlKind::CpuSeen, time, Some(cpu))
        });
        self.parts.tracers.seen(cpu, time);
        self.step(control::Input::Seen { period: PERIOD, cpu })
    }

    /// One root of several may go; the target is gone with the last.
    fn removed(&mut self) -> anyhow::Result<()> {
        if self.parts.target.roots.iter().any(|root| root.exists()) {
            return Ok(());
        }
        self.step(control::Input::TargetExited { period: PERIOD })
    }

    /// The period is over: nothing more is recorded, and what was is taken out of the rings.
    fn end(&mut self) -> anyhow::Result<()> {
        let until = self.parts.streams.hook().on_cpu_ns()?;
        let before = std::mem::take(&mut self.on_cpu_ns);
        let ran = |((cpu, until), (_, before)): ((Cpu, u64), (Cpu, u64))| (cpu, until.saturating_sub(before));
        self.on_cpu_ns = until
            .into_iter()
            .zip(before)
            .map(ran)
            .filter(|(_, ns)| *ns > 0)
            .collect();
        let ended = self.parts.streams.hook().end()?;
        self.ended = Some(ended);
        let Parts {
            streams, aggregator, ..
        } = &mut self.parts;
        streams.drain(aggregator)?;
        streams.count(aggregator)?;
        aggregator.clock_pair(clock::pair());
        Ok(())
    }
}

fn change_cpu(change: Change) -> Cpu {
    match change {
        Change::Offline(cpu) | Change::Online(cpu) => cpu,
    }
}

/// Whether `every_ns` have passed since `last`, which is then set to `now`.
fn is_due(last: &mut u64, now: u64, every_ns: u64) -> bool {
    let due = now.saturating_sub(*last) >= every_ns;
    if due {
        *last = now;
    }
    due
}
