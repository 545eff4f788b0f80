//! One pass over a file for the analyses of time: stays on CPUs and waits, with whose they are.
//!
//! Takes pieces, gives [`Seen`] and the threads. Stays come in the order of their ends, each wait after those that ended
//! before it did: so whoever looks back from a wait needs few of them.

use exist_common::Wait;

use crate::{
    file::Piece,
    flow::{Sched, Seen, Step, Threads},
};

/// A thread as waits and records name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    pub pid: u32,
    pub tid: u32,
}

/// A stay of a thread on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    pub who: Who,
    pub cpu: u32,
    pub from: u64,
    pub to: u64,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub enum Observed<'a> {
    Ran(Ran),
    Wait(&'a Wait),
}

impl Who {
    /// Whose wait it is.
    #[must_use]
    pub const fn of(wait: &Wait) -> Self {
        Self {
            pid: wait.pid,
            tid: wait.tid,
        }
    }
}

/// Gives everything in a file to `sink`.
pub fn observe(pieces: impl IntoIterator<Item = Piece>, mut sink: impl FnMut(Observed<'_>)) -> (Threads, Seen) {
    let mut sched = Sched::default();
    let mut steps = Vec::new();
    for piece in pieces {
        sched.piece(&piece, &mut |step| steps.push(step));
        let stays = steps.drain(..).filter_map(|step| ran(&sched.threads, step));
        let mut stays = stays.peekable();
        if let Piece::Generation(generation, _) = &piece {
            for wait in &generation.waits {
                while let Some(ran) = stays.next_if(|ran| ran.to <= wait.run_ns) {
                    sink(Observed::Ran(ran));
                }
                sink(Observed::Wait(wait));
            }
        }
        stays.for_each(|ran| sink(Observed::Ran(ran)));
    }
    let (threads, seen) = sched.finish(&mut |step| steps.push(step));
    for ran in steps.into_iter().filter_map(|step| ran(&threads, step)) {
        sink(Observed::Ran(ran));
    }
    (threads, seen)
}

fn ran(threads: &Threads, step: Step) -> Option<Ran> {
    let Step::Ran {
        thread, cpu, from, to, ..
    } = step
    else {
        return None;
    };
    let thread = threads.get(thread);
    Some(Ran {
        who: Who {
            pid: thread.pid.0,
            tid: thread.tid.0,
        },
        cpu: cpu.0,
        from: from.0,
        to: to.0.max(from.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analysis::latency::{Cause, Split},
        file::model::{Generation, Header, Record, SwitchOp, holder},
        units::MonoNs,
    };

    /// However many stays a generation holds, those before a wait are known to it.
    #[test]
    fn a_wait_comes_after_the_stays_that_ended_before_it() {
        const STAYS: u64 = 20_000;
        let header: Header = crate::analysis::diagnose::header_of_tests();
        let start = header.start.0;
        let mut g = Generation::empty(header, 0, MonoNs(start), MonoNs(start + 2 * STAYS * 1000));
        let mut record = |time_ns, tid, op: SwitchOp| {
            let seq = g.records.len() as u16;
            g.records.push(Record {
                time_ns,
                ip: 0,
                pid: 1,
                tid,
                cpu: 0,
                op: op as u8,
                flags: 0,
                state: 0,
                seq,
            });
        };
        // Two threads by turns; each is runnable while the other one runs.
        for i in 0..STAYS {
            record(start + i * 1000, (i % 2) as u32 + 1, SwitchOp::In);
            record(start + i * 1000 + 1000, (i % 2) as u32 + 1, SwitchOp::Out);
        }
        for i in 2..STAYS {
            let mut wait = Wait::from_bytes(&[0; exist_common::WAIT_BYTES]).unwrap();
            (wait.pid, wait.tid, wait.holder) = (1, (i % 2) as u32 + 1, holder::TARGET);
            (wait.off_ns, wait.run_ns) = (start + i * 1000 - 1000, start + i * 1000);
            g.waits.push(wait);
        }
        let mut split = Split::default();
        let mut unknown_ns = 0;
        observe([Piece::Generation(Box::new(g), Vec::new())], |observed| {
            if let Some(queued) = split.take(observed) {
                assert_eq!(queued.cause, Cause::Unknown);
                unknown_ns += queued.to - queued.from - queued.target_ns;
            }
        });
        assert_eq!(unknown_ns, 0);
    }
}
