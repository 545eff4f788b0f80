//! A recording from beginning to end: the one loop that knows all rooms.
//!
//! Takes: a [`Session`] and where the file shall be. Gives: the file and a [`Summary`]. Refuses: what cannot be recorded,
//! with the reason and the remedy, before anything is written. Whatever ends it, what was recorded is kept.
//!
//! ```text
//!  resolve ─▶ side-band, hook ─▶ look-back ─▶ plan, tracers ready ─▶ period: one `Input` at a time ─▶ drained ─▶ file closed
//!                                                                     timer, notices, signals, command, tracers, disk
//! ```
//!
//! The look-back, and the plan by it, are only taken where there is a processor trace; [`plan()`] shows them anywhere.
//!
//! With a processor trace the real-time thread takes the notices during the period: it starts a CPU's tracer as soon as the
//! target is seen there, and passes the notice on.

mod inputs;
mod look_back;
mod pace;
mod planned;
mod presence;
mod recorder;
mod streams;
mod tracers;
mod writer;

use std::{
    num::NonZeroU32,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use exist_trace::{
    file::model::{ControlOp, Header, Loss, PtSettings, ResolvedTarget},
    session::Session,
    units::{MonoNs, Pid},
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

pub use self::planned::{PlanOptions, Planned, plan};
pub use crate::{aggregate::Totals, control::EndReason};
use crate::{
    aggregate::{Aggregator, Live},
    alloc::{Earlier, WindowFill},
    capture::{LookBack, Operator, Report, Setup, Wanted, set_up_for},
    control::Controller,
    sys::{
        clock, cpu, memlock,
        privileges::{self, CapSet, Capability},
        roots::Roots,
        rt,
    },
    target::{self, Resolved, resolve},
};
use inputs::{Inputs, Signals};
use look_back::{Span, look};
use recorder::{Parts, Recorder};
use streams::Streams;
use tracers::Tracers;
use writer::FileWriter;

const SHOW_EVERY: Duration = Duration::from_millis(200);

/// What to record, and where to.
#[derive(Clone, Debug)]
pub struct Options {
    pub session: Session,
    pub out: PathBuf,
    pub roots: Roots,
    /// Bytes of each CPU's ring of switch records; `None`: the default.
    pub ring_bytes: Option<NonZeroU32>,
    pub privileges: Privileges,
    /// What earlier windows of the target showed.
    pub earlier: Earlier,
}

/// What becomes of the calling thread's capabilities, and so of those of the threads that a recording starts, once the hook is in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// All but [`WHILE_RECORDING`] are given up for ever (CAP_SYS_ADMIN stays where it stands for two of them).
    Drop,
    Keep,
}

/// What a recording that is set up needs still: maps of the hook (kernels before 5.19 ask for CAP_BPF at each call), tracers and side-band of CPUs
/// that come, mappings and build IDs of processes that come, the real-time thread, and the end of the command and of the file.
pub const WHILE_RECORDING: [Capability; 8] = [
    Capability::Bpf,
    Capability::Perfmon,
    Capability::IpcLock,
    Capability::SysPtrace,
    Capability::DacReadSearch,
    Capability::DacOverride,
    Capability::SysNice,
    Capability::Kill,
];

/// A recording as it goes.
#[derive(Clone, Debug)]
pub struct Progress {
    pub elapsed_ns: u64,
    pub totals: Totals,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What was recorded.
#[derive(Clone, Debug)]
pub struct Summary {
    pub target: ResolvedTarget,
    /// Only this process of it was followed.
    pub only_pid: Option<Pid>,
    pub period_ns: u64,
    pub totals: Totals,
    pub bytes: u64,
    pub reason: EndReason,
    /// Why a part could not be written.
    pub failure: Option<String>,
    /// Settings of the processor trace, or why there is none.
    pub pt: Result<PtSettings, String>,
    /// Where something is not as it was asked.
    pub notes: Vec<String>,
    /// For the next window's plan: where the target ran, and how its buffers were filled.
    pub fill: WindowFill,
    /// CPU time that this process used before it: most of it the kernel's, which verifies the programs.
    pub setup_cpu_ns: u64,
    /// CPU time that it used from then on.
    pub agent_cpu_ns: u64,
    /// Exit status of the command that was the target, as `wait` gives it.
    pub command_status: Option<i32>,
}

/// What the loop takes, one at a time.
pub enum Input {
    /// Time to drain the rings.
    Drain,
    /// The hook has notices.
    Notices,
    /// Ctrl-C, or a request to terminate.
    Interrupt,
    /// The command that is the target has ended.
    CommandEnded,
    /// The real-time thread has done something.
    Tracer(Report),
    /// The file cannot take more, for this reason.
    WriteFailed(String),
}

/// Records. `progress` is called now and then.
///
/// # Errors
/// When nothing could be recorded, or the file is not where it should be; with the reason and the remedy.
pub fn record(options: &Options, progress: impl FnMut(&Progress)) -> anyhow::Result<Summary> {
    let wanted = Wanted {
        request: &options.session.pt,
        period_ns: options.session.period_ns,
        earlier: &options.earlier,
    };
    let set_up = |look: LookBack<'_>| set_up_for(&wanted, Path::new("/sys"), &options.roots.proc, look);
    record_with(options, set_up, progress)
}

/// The same with tracers of another kind: `set_up` gives what [`crate::capture::set_up_for`] gives of this machine's Intel PT.
///
/// # Errors
/// As [`record`].
pub fn record_with(
    options: &Options,
    set_up: impl FnOnce(LookBack<'_>) -> anyhow::Result<Result<Setup, String>>,
    progress: impl FnMut(&Progress),
) -> anyhow::Result<Summary> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the event loop")?;
    // Before the set-up, which takes a while: whoever interrupts it gets a short recording, and nothing is left behind.
    let signals = {
        let _within = runtime.enter();
        Signals::listen().context("failed to wait for signals")?
    };
    // Rings are locked memory. Where the limit cannot be raised, whoever needs more says so.
    let _ = memlock::raise();
    let target = resolve(&options.roots, &options.session.target)?;
    runtime.block_on(record_target(options, target, signals, set_up, progress))
}

/// [`WHILE_RECORDING`]; with CAP_SYS_ADMIN, where it stands for the newer two that an engine did not give.
fn while_recording(have: CapSet) -> CapSet {
    let keep = CapSet::of(&WHILE_RECORDING);
    match have.has(Capability::Bpf) && have.has(Capability::Perfmon) {
        true => keep,
        false => CapSet(keep.0 | CapSet::of(&[Capability::SysAdmin]).0),
    }
}

async fn record_target(
    options: &Options,
    mut target: Resolved,
    signals: Signals,
    set_up: impl FnOnce(LookBack<'_>) -> anyhow::Result<Result<Setup, String>>,
    mut progress: impl FnMut(&Progress),
) -> anyhow::Result<Summary> {
    let cpu_before_ns = clock::process_cpu_ns();
    let (said, inbox) = unbounded_channel();
    let (mut streams, attached) = Streams::open(&target, options.ring_bytes, options.session.waits)?;
    // Before the other threads: each has its own capabilities, which it inherits from this one.
    if options.privileges == Privileges::Drop {
        privileges::effective()
            .and_then(|have| privileges::keep_only(while_recording(have)))
            .context("failed to give up privileges")?;
    }
    // A command waits still, so there is nothing to see of it.
    let (is_command, mut begun) = (target.command.is_some(), None);
    let setup = set_up(&mut || {
        if is_command {
            return Ok(None);
        }
        begun = Some(streams.begin()?);
        look(&mut streams, &target, &options.roots, Span::SHORT).map(Some)
    })?;
    let tracing = Tracing::start(setup, said.clone())?;
    let writer = FileWriter::start(&options.out, move |reason| {
        let _ = said.send(Input::WriteFailed(reason));
    })?;
    // After the other threads have started, which have priorities of their own.
    let in_time = rt::be_in_time();
    let notices = streams.hook().take_notices();
    let notices_fd = notices
        .as_ref()
        .context("the hook has no notices")?
        .as_fd()
        .try_clone_to_owned()?;
    let ends = |command: &mut target::Command| command.child().as_fd().try_clone_to_owned();
    let mut inputs = Inputs::new(
        notices_fd,
        target.command.as_mut().map(ends).transpose()?,
        signals,
        inbox,
    )?;

    let looked = begun.is_some();
    streams.open_side_bands()?;
    let begun = match begun {
        Some(begun) => begun,
        None => streams.begin()?,
    };
    let cpu_begun_ns = clock::process_cpu_ns();
    let header = header(options, &target, &tracing.pt, begun);
    let mut aggregator = Aggregator::new(header, Live::new(options.roots.clone()));
    aggregator.op(attached);
    aggregator.clock_pair(clock::pair());
    tracing.ops.into_iter().for_each(|op| aggregator.op(op));
    tracing.losses.into_iter().for_each(|loss| aggregator.loss(loss));
    let mut recorder = Recorder::new(
        Parts {
            streams,
            notices,
            tracers: Tracers::new(tracing.operator),
            aggregator,
            writer,
            controller: Controller::default(),
            target,
            roots: options.roots.clone(),
            looked,
        },
        begun,
    );
    let ran = match run(&mut recorder, &mut inputs, options, &mut progress).await {
        // A command that cannot be executed, for example: there is nothing to keep.
        Err(error) if recorder.is_empty() => return Err(error),
        Err(error) => {
            recorder.give_up(format!("{error:#}"));
            Err(error)
        }
        done => done,
    };

    let ended = recorder.finish();
    drop(in_time);
    let written = ended.writer.finish()?;
    let agent_cpu_ns = clock::process_cpu_ns().saturating_sub(cpu_begun_ns);
    ran?;
    let mut target = ended.target;
    let command_status = target
        .command
        .as_mut()
        .and_then(|command| command.child().try_wait().ok().flatten());
    Ok(Summary {
        target: target.header(),
        only_pid: target.only_pid.map(|process| process.pid),
        period_ns: ended.end.0.saturating_sub(ended.start.0),
        totals: Totals {
            losses: ended.totals.losses + written.losses,
            lost_records: ended.totals.lost_records + written.lost_records,
            ..ended.totals
        },
        bytes: written.bytes,
        reason: ended.reason,
        failure: written.failure,
        pt: tracing.pt,
        notes: tracing.notes.into_iter().chain(ended.warnings).collect(),
        fill: ended.fill,
        setup_cpu_ns: cpu_begun_ns.saturating_sub(cpu_before_ns),
        agent_cpu_ns,
        command_status,
    })
}

/// From the first switch to the end of the period and all that is drained after it.
async fn run(
    recorder: &mut Recorder,
    inputs: &mut Inputs,
    options: &Options,
    progress: &mut impl FnMut(&Progress),
) -> anyhow::Result<()> {
    recorder.look_back(inputs).await?;
    recorder.snapshot();
    recorder.release()?;
    if let Some(period_ns) = options.session.period_ns {
        recorder.ends_after(period_ns)?;
    }
    let mut shown = Instant::now();
    loop {
        let input = inputs.next(recorder.due()).await;
        if recorder.handle(input)?.is_break() {
            return Ok(());
        }
        if shown.elapsed() >= SHOW_EVERY {
            shown = Instant::now();
            progress(&recorder.progress());
        }
    }
}

/// The processor trace as it was set up.
struct Tracing {
    operator: Option<Operator>,
    pt: Result<PtSettings, String>,
    ops: Vec<ControlOp>,
    losses: Vec<Loss>,
    notes: Vec<String>,
}

impl Tracing {
    fn start(setup: Result<Setup, String>, said: UnboundedSender<Input>) -> anyhow::Result<Self> {
        let Setup { source, mut prepared } = match setup {
            Ok(setup) => setup,
            Err(reason) => {
                return Ok(Self {
                    operator: None,
                    pt: Err(reason),
                    ops: vec![],
                    losses: vec![],
                    notes: vec![],
                });
            }
        };
        let (pt, ops) = (prepared.settings.clone(), std::mem::take(&mut prepared.ops));
        let (losses, notes) = (
            std::mem::take(&mut prepared.losses),
            std::mem::take(&mut prepared.notes),
        );
        let report = Box::new(move |report| {
            let _ = said.send(Input::Tracer(report));
        });
        let operator = Operator::start(source, prepared, report).context("failed to start the tracers' thread")?;
        Ok(Self {
            operator: Some(operator),
            pt: Ok(pt),
            ops,
            losses,
            notes,
        })
    }
}

fn header(options: &Options, target: &Resolved, pt: &Result<PtSettings, String>, start: MonoNs) -> Header {
    let realtime_ns = clock::realtime_ns().saturating_sub(clock::mono_ns().saturating_sub(start.0));
    Header {
        // Two recordings of one node cannot start in the same nanosecond with the same process number.
        recording_id: realtime_ns ^ u64::from(std::process::id()).rotate_left(40),
        exist_version: env!("CARGO_PKG_VERSION").to_owned(),
        session: options.session.clone(),
        target: target.header(),
        node: cpu::node(&options.roots.proc, Path::new("/sys")).unwrap_or_default(),
        start,
        start_realtime_ns: realtime_ns,
        holds_foreign_packets: pt.is_ok(),
        pt: pt.clone(),
    }
}
