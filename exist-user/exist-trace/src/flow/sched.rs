//! Pieces of a trace file → where each thread ran.
//!
//! Records are paired CPU by CPU: each CPU's records are in order and numbered, so a pair with no gap between is
//! certain, whatever the clocks of other CPUs say. What a gap hides is a step of its own, with its bounds.
//!
//! ```text
//!   CPU 0   In(a) ───── Ran ───── Out(a)     In(b) ── gap ──── In(c) ──…
//!                                              └ Unknown(b) ┘
//! ```

use std::collections::HashMap;

use super::{
    state::TaskState,
    threads::{ThreadIx, Threads},
};
use crate::{
    file::{
        Gap, Generation, Piece,
        model::{Loss, LossKind, Record, SwitchOp, flags},
    },
    units::{Cpu, MonoNs},
};

/// Why there is a record, or why a stay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A context switch.
    Switch,
    /// Moved into or out of the target.
    Moved,
    /// The recording began or ended, or the file did.
    Recording,
}

/// What is known next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is a record that the thread came in.
    In {
        thread: ThreadIx,
        cpu: Cpu,
        time: MonoNs,
        why: Why,
    },
    /// There is a record that it went out.
    Out {
        thread: ThreadIx,
        cpu: Cpu,
        time: MonoNs,
        why: Why,
        state: TaskState,
        preempt: bool,
    },
    /// It ran, without a pause. Steps of a CPU do not overlap and are in order.
    Ran {
        thread: ThreadIx,
        cpu: Cpu,
        from: MonoNs,
        to: MonoNs,
        state: TaskState,
    },
    /// It ran for a part of this time, from none to all of it.
    Unknown {
        thread: ThreadIx,
        cpu: Cpu,
        from: MonoNs,
        to: MonoNs,
        is_blind: bool,
    },
}

/// What the whole file showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The time that the file covers.
    pub start: MonoNs,
    pub end: MonoNs,
    /// Migrations whose coming in is stamped before its going out: clocks of CPUs differ.
    pub skewed: u64,
    /// By at most this.
    pub skew_max_ns: u64,
    /// Halves of pairs that are missing though no gap shows why.
    pub unpaired: u64,
    /// Times in which switches are missing; sorted, and disjoint.
    pub blind: Vec<(MonoNs, MonoNs)>,
}

impl Seen {
    /// Time in which switches are missing, nanoseconds.
    #[must_use]
    pub fn blind_ns(&self) -> u64 {
        self.blind.iter().map(|(from, to)| to.0 - from.0).sum()
    }
}

/// A thread on a CPU.
#[derive(Clone, Copy, Debug)]
struct Stay {
    thread: ThreadIx,
    since: MonoNs,
}

#[derive(Clone, Copy, Debug, Default)]
struct CpuSide {
    stay: Option<Stay>,
    /// Time of its last record.
    last: Option<MonoNs>,
    /// For whom the gap before the present record was already said to be unknown.
    said: Option<ThreadIx>,
}

/// Pairs the records of a recording.
#[derive(Debug, Default)]
pub struct Sched {
    pub threads: Threads,
    cpus: Vec<CpuSide>,
    seen: Seen,
    started: bool,
    /// Stays that were cut by damage, and where it began; those that the next generation confirms go on.
    cut: HashMap<u16, Stay>,
    cut_at: Option<MonoNs>,
}

impl Sched {
    /// Takes the next piece; gives its steps.
    pub fn piece(&mut self, piece: &Piece, sink: &mut impl FnMut(Step)) {
        match piece {
            Piece::Generation(g, gaps) => self.generation(g, gaps, sink),
            Piece::Loss(loss) if matches!(loss.kind, LossKind::FileDamaged | LossKind::FileCut) => self.damage(loss),
            Piece::Loss(_) => {}
            Piece::Unseen(loss) => self.blind(loss.from, loss.to),
        }
    }

    /// At the end of the file: who still ran, ran until then.
    pub fn finish(mut self, sink: &mut impl FnMut(Step)) -> (Threads, Seen) {
        let end = self.seen.end;
        let cut = std::mem::take(&mut self.cut);
        let open = self
            .cpus
            .iter()
            .enumerate()
            .filter_map(|(cpu, side)| Some((cpu as u32, side.stay?)));
        for (cpu, stay) in open.chain(cut.into_iter().map(|(cpu, stay)| (cpu.into(), stay))) {
            let (thread, from) = (stay.thread, stay.since);
            sink(Step::Ran {
                thread,
                cpu: Cpu(cpu),
                from,
                to: end.max(from),
                state: TaskState::Runnable,
            });
        }
        let (start, mut blind) = (self.seen.start, std::mem::take(&mut self.seen.blind));
        blind.sort_unstable();
        for (from, to) in blind {
            let (from, to) = (from.clamp(start, end), to.clamp(start, end));
            match self.seen.blind.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ if from < to => self.seen.blind.push((from, to)),
                _ => {}
            }
        }
        (self.threads, self.seen)
    }

    fn generation(&mut self, g: &Generation, gaps: &[Gap], sink: &mut impl FnMut(Step)) {
        if !self.started {
            (self.seen.start, self.seen.end) = (g.start, g.start);
        }
        for status in &g.threads {
            let thread = self.threads.listed(status.pid, status.tid, &status.name);
            if let Some((cpu, since)) = status.running
                && (!self.started || self.cut_at.is_some())
            {
                self.resume(thread, cpu, since);
            }
        }
        self.started = true;
        self.close_cut(g.start, sink);

        let mut names = g.names.iter().peekable();
        let mut gaps = gaps.iter().peekable();
        for (i, record) in g.records.iter().enumerate() {
            while let Some(n) = names.next_if(|n| n.time.0 <= record.time_ns) {
                self.threads.named(n.pid, n.tid, &n.name);
            }
            while let Some(gap) = gaps.next_if(|gap| gap.before <= i) {
                self.gap(gap, sink);
            }
            self.record(record, sink);
        }
        names.for_each(|n| self.threads.named(n.pid, n.tid, &n.name));
        let end = g.end_of_recording.as_ref().map_or(g.end, |end| end.time);
        self.seen.end = self.seen.end.max(end);
    }

    /// A thread's status says that it runs: at the file's start, or after damage.
    fn resume(&mut self, thread: ThreadIx, cpu: Cpu, since: MonoNs) {
        let Ok(number) = u16::try_from(cpu.0) else { return };
        let since = match self.cut.get(&number) {
            Some(stay) if stay.thread == thread && stay.since == since => {
                self.cut.remove(&number);
                since
            }
            // What was before is another stay, or is not in the file.
            _ => since.max(self.cut_at.unwrap_or(self.seen.start)),
        };
        self.side(number).stay = Some(Stay { thread, since });
    }

    fn close_cut(&mut self, until: MonoNs, sink: &mut impl FnMut(Step)) {
        let Some(at) = self.cut_at.take() else { return };
        let mut cut: Vec<_> = std::mem::take(&mut self.cut).into_iter().collect();
        cut.sort_unstable_by_key(|(cpu, _)| *cpu);
        for (cpu, Stay { thread, since }) in cut {
            let cpu = Cpu(cpu.into());
            sink(Step::Ran {
                thread,
                cpu,
                from: since,
                to: at.max(since),
                state: TaskState::Runnable,
            });
            sink(Step::Unknown {
                thread,
                cpu,
                from: at.max(since),
                to: until.max(at).max(since),
                is_blind: true,
            });
        }
        for side in &mut self.cpus {
            side.last = side.last.max(Some(until));
        }
    }

    fn damage(&mut self, loss: &Loss) {
        if !self.started || loss.from == loss.to {
            return;
        }
        self.blind(loss.from, loss.to);
        self.cut_at.get_or_insert(self.seen.end);
        for (cpu, side) in self.cpus.iter_mut().enumerate() {
            if let Some(stay) = side.stay.take() {
                self.cut.insert(cpu as u16, stay);
            }
        }
    }

    fn gap(&mut self, gap: &Gap, sink: &mut impl FnMut(Step)) {
        self.blind(gap.from, gap.to);
        let side = self.side(gap.cpu.0 as u16);
        let Some(Stay { thread, since }) = side.stay.take() else {
            return;
        };
        side.said = Some(thread);
        let (cpu, known) = (gap.cpu, gap.from.max(since));
        if known > since {
            sink(Step::Ran {
                thread,
                cpu,
                from: since,
                to: known,
                state: TaskState::Runnable,
            });
        }
        sink(Step::Unknown {
            thread,
            cpu,
            from: known,
            to: gap.to.max(known),
            is_blind: true,
        });
    }

    fn record(&mut self, r: &Record, sink: &mut impl FnMut(Step)) {
        let time = MonoNs(r.time_ns);
        match r.op() {
            Some(SwitchOp::In) => self.comes_in(r, time, sink),
            Some(SwitchOp::Out) => self.goes_out(r, time, sink),
            Some(SwitchOp::Fork) => self.threads.forked(r, time),
            Some(SwitchOp::Exec) => {
                let here = self.side(r.cpu).stay.map(|stay| stay.thread);
                self.threads.executed(r, time, here);
            }
            Some(SwitchOp::Exit) => self.threads.exits(r, time),
            Some(SwitchOp::AttachIn | SwitchOp::AttachOut) | None => {}
        }
    }

    fn comes_in(&mut self, r: &Record, time: MonoNs, sink: &mut impl FnMut(Step)) {
        let thread = self.threads.comes_in(r, time);
        let side = self.side(r.cpu);
        let (cpu, why) = (Cpu(r.cpu.into()), why(r.flags));
        (side.last, side.said) = (Some(time), None);
        match side.stay.replace(Stay { thread, since: time }) {
            // Its status said so already.
            Some(stay) if stay.thread == thread && why == Why::Recording => side.stay = Some(stay),
            Some(stay) => {
                self.seen.unpaired += 1;
                sink(unpaired(stay.thread, cpu, stay.since, time));
            }
            None => {}
        }
        sink(Step::In { thread, cpu, time, why });
    }

    fn goes_out(&mut self, r: &Record, time: MonoNs, sink: &mut impl FnMut(Step)) {
        let thread = self.threads.goes_out(r, time);
        let start = self.seen.start;
        let side = self.side(r.cpu);
        let (cpu, state) = (Cpu(r.cpu.into()), TaskState::from_raw(r.state));
        let (stay, before, said) = (side.stay.take(), side.last.replace(time), side.said.take());
        match stay {
            Some(stay) if stay.thread == thread => {
                let (from, to) = (stay.since, time.max(stay.since));
                sink(Step::Ran {
                    thread,
                    cpu,
                    from,
                    to,
                    state,
                });
                if let Some(overlap_ns) = self.threads.overlap_ns(thread, cpu, stay.since, time) {
                    self.seen.skewed += 1;
                    self.seen.skew_max_ns = self.seen.skew_max_ns.max(overlap_ns);
                }
            }
            _ => {
                if let Some(stay) = stay {
                    self.seen.unpaired += 1;
                    sink(unpaired(stay.thread, cpu, stay.since, time));
                }
                if said != Some(thread) {
                    self.seen.unpaired += u64::from(said.is_none());
                    sink(unpaired(thread, cpu, before.unwrap_or(start), time));
                }
            }
        }
        let preempt = r.flags & flags::PREEMPT != 0;
        sink(Step::Out {
            thread,
            cpu,
            time,
            why: why(r.flags),
            state,
            preempt,
        });
    }

    fn blind(&mut self, from: MonoNs, to: MonoNs) {
        if from < to {
            self.seen.blind.push((from, to));
        }
    }

    fn side(&mut self, cpu: u16) -> &mut CpuSide {
        let i = usize::from(cpu);
        if i >= self.cpus.len() {
            self.cpus.resize(i + 1, CpuSide::default());
        }
        &mut self.cpus[i]
    }
}

fn unpaired(thread: ThreadIx, cpu: Cpu, from: MonoNs, to: MonoNs) -> Step {
    Step::Unknown {
        thread,
        cpu,
        from: from.min(to),
        to,
        is_blind: false,
    }
}

const fn why(f: u8) -> Why {
    if f & (flags::START | flags::END) != 0 {
        Why::Recording
    } else if f & flags::MOVED != 0 {
        Why::Moved
    } else {
        Why::Switch
    }
}
