//! The processor trace of a recording: what was asked of the real-time thread, and what has come back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use exist_trace::{
    file::model::ControlKind,
    units::{Cpu, MonoNs},
};

use super::writer::FileWriter;
use crate::{
    aggregate::Aggregator,
    alloc::{CpuFill, WindowFill},
    capture::{Operator, Recording, Report, Request},
    control::Input,
    hook::Notices,
};

/// Tracers at work. Without an operator every request is done at once and leaves nothing.
#[derive(Default)]
pub struct Tracers {
    operator: Option<Operator>,
    /// CPUs whose tracer has been asked to start and has not handed over its recording.
    open: BTreeSet<Cpu>,
    /// CPUs whose enabling has not been answered.
    starting: BTreeSet<Cpu>,
    /// CPUs whose tracer runs.
    running: BTreeSet<Cpu>,
    /// When the target was first seen on a CPU.
    seen: BTreeMap<Cpu, MonoNs>,
    recordings: VecDeque<Recording>,
    /// Bytes of each CPU's recordings, and when the last ended before it was disabled.
    filled: BTreeMap<Cpu, (u64, Option<MonoNs>)>,
}

impl Tracers {
    pub fn new(operator: Option<Operator>) -> Self {
        Self {
            operator,
            ..Self::default()
        }
    }

    /// Whether there is a processor trace.
    pub fn exist(&self) -> bool {
        self.operator.is_some()
    }

    /// From now on a tracer starts as soon as the target comes to its CPU; the notices come back as [`Report::Notice`].
    /// Gives them back when there are no tracers.
    pub fn watch(&mut self, notices: Notices) -> Option<Notices> {
        match &mut self.operator {
            Some(operator) => {
                operator.request(Request::Watch(Box::new(notices)));
                None
            }
            None => Some(notices),
        }
    }

    /// The period is over.
    pub fn end_watch(&mut self) {
        if let Some(operator) = &mut self.operator {
            operator.request(Request::EndWatch);
        }
    }

    /// The target runs on this CPU since `time`.
    pub fn seen(&mut self, cpu: Cpu, time: MonoNs) {
        self.seen.entry(cpu).or_insert(time);
    }

    pub fn enable(&mut self, cpu: Cpu) {
        if let Some(operator) = &mut self.operator {
            self.open.insert(cpu);
            if !self.running.contains(&cpu) {
                self.starting.insert(cpu);
            }
            operator.request(Request::Enable {
                cpu,
                seen: self.seen.remove(&cpu),
            });
        }
    }

    pub fn disable(&mut self, cpu: Cpu) {
        if let Some(operator) = &mut self.operator {
            operator.request(Request::Disable(cpu));
        }
    }

    pub fn abandon(&mut self, cpu: Cpu) {
        if let Some(operator) = &mut self.operator {
            operator.request(Request::Abandon(cpu));
        }
    }

    /// How the buffers of a period were filled. `on_cpu_ns`: of the target in the period, where it ran.
    pub fn fill(&self, on_cpu_ns: &[(Cpu, u64)], start: MonoNs, end: MonoNs) -> WindowFill {
        let period_ns = end.0.saturating_sub(start.0);
        let of = |&(cpu, on_cpu_ns): &(Cpu, u64)| {
            let (bytes, full) = self.filled.get(&cpu).copied().unwrap_or((0, Some(start)));
            CpuFill {
                cpu,
                on_cpu_ns,
                bytes,
                traced_ns: full.map_or(period_ns, |full| full.0.saturating_sub(start.0)),
            }
        };
        WindowFill {
            period_ns,
            cpus: on_cpu_ns.iter().map(of).collect(),
        }
    }

    /// Whether every tracer that was asked to start runs, or has failed.
    pub fn all_started(&self) -> bool {
        self.starting.is_empty()
    }

    /// Whether every recording has come back and been written.
    pub fn all_written(&self) -> bool {
        self.open.is_empty() && self.recordings.is_empty()
    }

    /// Takes what the real-time thread says; gives what the controller must know of it.
    pub fn take(&mut self, report: Report, aggregator: &mut Aggregator) -> Option<Input> {
        match report {
            Report::Op(op) => {
                if let (Some(cpu), None) = (op.cpu, &op.error) {
                    match op.kind {
                        ControlKind::PtEnable => {
                            self.starting.remove(&cpu);
                            self.running.insert(cpu);
                        }
                        ControlKind::PtDisable => _ = self.running.remove(&cpu),
                        _ => {}
                    }
                }
                aggregator.op(op);
            }
            // Taken before it comes here.
            Report::Notice(_) => {}
            Report::Loss(loss) => aggregator.loss(loss),
            Report::EnableFailed(cpu) => {
                self.open.remove(&cpu);
                self.starting.remove(&cpu);
                return Some(Input::EnableFailed { cpu });
            }
            Report::BufferFull(cpu) => return Some(Input::BufferFull { cpu }),
            Report::Recorded(recording) => self.recordings.push_back(recording),
        }
        None
    }

    /// Hands over the recordings that wait, as far as the disk keeps up, and gives their tracers back.
    pub fn write(&mut self, aggregator: &mut Aggregator, writer: &FileWriter) {
        let mut full = Vec::new();
        while !writer.is_behind()
            && let Some(recording) = self.recordings.pop_front()
        {
            for piece in recording.pieces() {
                aggregator.pt(piece, &mut full);
                full.drain(..).for_each(|generation| writer.write(generation));
            }
            self.open.remove(&recording.cpu());
            let filled = self.filled.entry(recording.cpu()).or_default();
            *filled = (filled.0.saturating_add(recording.len() as u64), recording.full_since());
            aggregator.op(recording.close());
        }
    }
}
