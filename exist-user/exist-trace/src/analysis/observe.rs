//! One pass over a file for the analyses of time: stays on CPUs and waits, with whose they are.
//!
//! Takes pieces, gives [`Seen`] and the threads. A generation's stays come before its waits, so when a wait is given,
//! every stay on its CPU that ended before it is known.

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
        for ran in steps.drain(..).filter_map(|step| ran(&sched.threads, step)) {
            sink(Observed::Ran(ran));
        }
        if let Piece::Generation(generation, _) = &piece {
            generation.waits.iter().for_each(|wait| sink(Observed::Wait(wait)));
        }
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
