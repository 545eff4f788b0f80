//! The tracing controller: decides, and does nothing else.
//!
//! Takes: the time and one [`Input`]. Gives: [`Command`]s, to be carried out in their order. Refuses nothing: an input
//! that makes no sense in the state it meets is ignored. No I/O, no clock, no threads.
//!
//! ```text
//!            first Seen of a CPU, or look-back        time, exit, Ctrl-C, all buffers full, failure
//!  Begin ──▶ running ──▶ Enable once for each CPU ──▶ draining ──▶ Disable once for each CPU, Drain
//!                                                        │ Drained, or a failure, or Ctrl-C again
//!                                                        ▼
//!                                                      Finish, and the period is forgotten
//! ```
//!
//! Several periods (targets) can be open at a time and share a CPU: its tracer is held by each of them, enabled for the
//! first and disabled after the last. So tracer operations are two for each CPU, whatever the number of switches.

mod tracers;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use exist_trace::units::{Cpu, MonoNs};

use tracers::{Change, Tracers};

/// Tells the periods of one controller apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeriodId(pub u32);

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A period starts. The CPUs of `look_back` ran the target shortly before: they are enabled at once.
    Begin {
        period: PeriodId,
        ends_at: Option<MonoNs>,
        look_back: Vec<Cpu>,
    },
    /// The period's length is known now: it ends then.
    EndsAt { period: PeriodId, time: MonoNs },
    /// The target runs on this CPU, for the first time in the period.
    Seen { period: PeriodId, cpu: Cpu },
    /// The tracer of this CPU could not be enabled; the command that asked for it has failed.
    EnableFailed { cpu: Cpu },
    /// The CPU's buffer is full and its tracer has stopped by itself.
    BufferFull { cpu: Cpu },
    /// The CPU was taken offline; the kernel has stopped its tracer.
    Offline { cpu: Cpu },
    /// The CPU came online.
    Online { cpu: Cpu },
    /// No task of the target is left, or its cgroup is gone.
    TargetExited { period: PeriodId },
    /// The user wants to stop everything.
    Interrupt,
    /// The period cannot go on, for this reason (disk full, folder gone).
    Failed { period: PeriodId, reason: String },
    /// Everything recorded up to the end of the period has been read and written.
    Drained { period: PeriodId },
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Open, map and enable the tracer of this CPU.
    Enable(Cpu),
    /// Disable it, read its buffer, close it.
    Disable(Cpu),
    /// The CPU is gone: read what its buffer holds and close it; there is nothing to disable.
    Abandon(Cpu),
    /// Read everything up to now; answer with [`Input::Drained`].
    Drain(PeriodId),
    /// The period is over for this reason: close its file.
    Finish(PeriodId, EndReason),
}

/// Why a period ended. `Display` gives the words of the trace file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    Period,
    Interrupted,
    TargetExited,
    BuffersFull,
    Error(String),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Period => f.write_str("period"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::TargetExited => f.write_str("target_exited"),
            Self::BuffersFull => f.write_str("buffers_full"),
            Self::Error(reason) => write!(f, "error: {reason}"),
        }
    }
}

#[derive(Debug)]
struct Period {
    ends_at: Option<MonoNs>,
    seen: BTreeSet<Cpu>,
    /// Set when the period is over and only waits for its drain.
    draining: Option<EndReason>,
}

/// The state of all open periods and of the tracers that they hold.
#[derive(Debug, Default)]
pub struct Controller {
    periods: BTreeMap<PeriodId, Period>,
    tracers: Tracers,
}

impl Controller {
    /// When [`Input::Tick`] is due at the latest; `None`: no running period ends by time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoNs> {
        self.running().filter_map(|(_, period)| period.ends_at).min()
    }

    /// Whether no period is open.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.periods.is_empty()
    }

    /// Takes what happened at `now` and appends what is to be done about it.
    pub fn step(&mut self, now: MonoNs, input: Input, commands: &mut Vec<Command>) {
        // What became of a tracer is true whatever the time is: a failed one must not be disabled.
        if let Input::EnableFailed { cpu } = input {
            self.tracers.failed(cpu);
        }
        self.end_due(now, commands);
        match input {
            Input::Begin {
                period,
                ends_at,
                look_back,
            } => self.begin(period, ends_at, look_back, commands),
            Input::EndsAt { period, time } => self.ends_at(period, time),
            Input::Seen { period, cpu } => self.seen(period, cpu, commands),
            Input::EnableFailed { .. } => self.end_full(commands),
            Input::BufferFull { cpu } => {
                self.tracers.full(cpu);
                self.end_full(commands);
            }
            Input::Offline { cpu } => self.offline(cpu, commands),
            Input::Online { cpu } => self.online(cpu, commands),
            Input::TargetExited { period } => self.end(period, EndReason::TargetExited, commands),
            Input::Interrupt => self.interrupt(commands),
            Input::Failed { period, reason } => self.fail(period, reason, commands),
            Input::Drained { period } => self.finish(period, commands),
            Input::Tick => {}
        }
        // A period whose time was up before it began, or that is due by now.
        self.end_due(now, commands);
    }

    fn running(&self) -> impl Iterator<Item = (PeriodId, &Period)> {
        self.periods
            .iter()
            .filter(|(_, period)| period.draining.is_none())
            .map(|(&id, period)| (id, period))
    }

    fn begin(&mut self, id: PeriodId, ends_at: Option<MonoNs>, look_back: Vec<Cpu>, commands: &mut Vec<Command>) {
        if self.periods.contains_key(&id) {
            return;
        }
        self.periods.insert(
            id,
            Period {
                ends_at,
                seen: BTreeSet::new(),
                draining: None,
            },
        );
        look_back.into_iter().for_each(|cpu| self.seen(id, cpu, commands));
    }

    fn ends_at(&mut self, id: PeriodId, time: MonoNs) {
        if let Some(period) = self.periods.get_mut(&id) {
            period.ends_at = Some(time);
        }
    }

    fn seen(&mut self, id: PeriodId, cpu: Cpu, commands: &mut Vec<Command>) {
        let Some(period) = self.periods.get_mut(&id).filter(|period| period.draining.is_none()) else {
            return;
        };
        if period.seen.insert(cpu) {
            self.tracers
                .hold(cpu)
                .map(Change::command)
                .into_iter()
                .for_each(|command| commands.push(command));
        }
    }

    fn offline(&mut self, cpu: Cpu, commands: &mut Vec<Command>) {
        commands.extend(self.tracers.offline(cpu).map(Change::command));
        self.end_full(commands);
    }

    /// The hook tells of a CPU once in a period, so the periods that have seen it get its tracer back now.
    fn online(&mut self, cpu: Cpu, commands: &mut Vec<Command>) {
        commands.extend(self.tracers.online(cpu).map(Change::command));
    }

    fn interrupt(&mut self, commands: &mut Vec<Command>) {
        let ids: Vec<_> = self.periods.keys().copied().collect();
        for id in ids {
            if self.periods[&id].draining.is_some() {
                self.finish(id, commands); // asked twice: do not wait for the drain
            } else {
                self.end(id, EndReason::Interrupted, commands);
            }
        }
    }

    fn fail(&mut self, id: PeriodId, reason: String, commands: &mut Vec<Command>) {
        self.end(id, EndReason::Error(reason.clone()), commands);
        if let Some(period) = self.periods.get_mut(&id) {
            period.draining = Some(EndReason::Error(reason));
        }
        self.finish(id, commands);
    }

    fn end_due(&mut self, now: MonoNs, commands: &mut Vec<Command>) {
        let due: Vec<_> = self
            .running()
            .filter(|(_, period)| period.ends_at.is_some_and(|end| end <= now))
            .map(|(id, _)| id)
            .collect();
        due.into_iter().for_each(|id| self.end(id, EndReason::Period, commands));
    }

    /// Ends the periods of which every tracer that was running has a full buffer.
    fn end_full(&mut self, commands: &mut Vec<Command>) {
        let full: Vec<_> = self
            .running()
            .filter(|(_, period)| self.tracers.all_full(&period.seen))
            .map(|(id, _)| id)
            .collect();
        full.into_iter()
            .for_each(|id| self.end(id, EndReason::BuffersFull, commands));
    }

    fn end(&mut self, id: PeriodId, reason: EndReason, commands: &mut Vec<Command>) {
        let Some(period) = self.periods.get_mut(&id).filter(|period| period.draining.is_none()) else {
            return;
        };
        period.draining = Some(reason);
        for &cpu in &period.seen {
            commands.extend(self.tracers.release(cpu).map(Change::command));
        }
        commands.push(Command::Drain(id));
    }

    fn finish(&mut self, id: PeriodId, commands: &mut Vec<Command>) {
        if self.periods.get(&id).is_some_and(|period| period.draining.is_some())
            && let Some(reason) = self.periods.remove(&id).and_then(|period| period.draining)
        {
            commands.push(Command::Finish(id, reason));
        }
    }
}

#[cfg(test)]
mod tests;
