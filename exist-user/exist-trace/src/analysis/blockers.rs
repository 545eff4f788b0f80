//! Many waits that end at one instant, and the one thread that all of them waited for.
//!
//! Takes a file twice: waits of threads for threads (futexes, pipes) are put together where their wake-ups follow each
//! other within [`GAP_NS`]; then what the blocking thread did meanwhile is summed up. Gives the worst ones and sums for each
//! blocking thread. Refuses to guess: where the wake-ups lead to several threads, each gets its own waiters. One thing cannot
//! be told apart: a futex wait that times out is ended by an interrupt, and the thread that this stopped stands as the waker.
//!
//! ```text
//!   holder   ─ has the lock ────────────┐ wakes a
//!   a            └ waits ───────────────┘─ has it ─┐ wakes b     within GAP_NS of each other: a and b are
//!   b               └ waits ───────────────────────┘             waiters, and what woke them leads to the holder
//! ```

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use exist_common::{Wait, WaitKind};
use serde::Serialize;

use super::observe::{Observed, Who, observe};
use crate::{file::Piece, flow::Threads};

/// Between two wake-ups of one instant at most, and between the first and the last.
const GAP_NS: u64 = 1_000_000;
const INSTANT_NS: u64 = 5_000_000;
/// A shorter wait is none that blocks.
const SHORTEST_NS: u64 = 200_000;
/// Threads that wait for one: fewer are no crowd.
const FEWEST: usize = 3;
/// Waits that are sorted by their wake-ups together, and how far wake-ups come out of order: a thread may stand on a run
/// queue before its wait is told.
const BUFFER: usize = 1 << 16;
const SETTLED_NS: u64 = 100_000_000;
/// Instants that are told.
const MOST: usize = 32;
/// Blocking threads that are told.
const MOST_THREADS: usize = 1024;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Blockers {
    /// Threads that blocked others, the longest first.
    pub threads: Vec<Blocker>,
    /// The worst instants, most blocked time first.
    pub worst: Vec<Instant>,
}

/// A thread that many waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocker {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// Instants at which it ended waits of several threads.
    pub times: u64,
    /// For how long threads waited for it; and the sum over them.
    pub blocks_ns: u64,
    pub blocked_ns: u64,
}

/// Waits that ended together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Instant {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// From the first wait's begin to the first wake-up.
    pub from_ns: u64,
    pub until_ns: u64,
    pub waiters: u64,
    /// The threads, the first eight of them.
    pub waiter_tids: Vec<u32>,
    /// Sum of their waits until then.
    pub blocked_ns: u64,
    /// What the blocking thread did in this time, the longest first.
    pub doing: Vec<Doing>,
}

/// A part of a thread's time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Doing {
    /// `running`, `runnable`, or a kind of wait.
    pub what: &'static str,
    pub syscall: Option<u16>,
    pub ns: u64,
}

/// Finds them. Both times the pieces of the same file.
#[must_use]
pub fn blockers(first: impl IntoIterator<Item = Piece>, second: impl IntoIterator<Item = Piece>) -> Blockers {
    let mut find = Find::default();
    let (threads, _) = observe(first, |observed| {
        if let Observed::Wait(wait) = observed {
            find.wait(wait);
        }
    });
    find.finish(&threads, second)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    waking_ns: u64,
    off_ns: u64,
    tid: u32,
    waker: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    blocked_ns: u64,
    tid: u32,
    from_ns: u64,
    until_ns: u64,
    waiters: Vec<u32>,
}

#[derive(Debug, Default)]
struct Find {
    buffer: Vec<Candidate>,
    worst: BTreeSet<Found>,
    sums: HashMap<u32, (u64, u64, u64)>,
}

impl Find {
    fn wait(&mut self, wait: &Wait) {
        let blocks = matches!(wait.kind(), WaitKind::Sync | WaitKind::Pipe);
        if !blocks || wait.waker == 0 || wait.waking_ns.saturating_sub(wait.off_ns) < SHORTEST_NS {
            return;
        }
        self.buffer.push(Candidate {
            waking_ns: wait.waking_ns,
            off_ns: wait.off_ns,
            tid: wait.tid,
            waker: wait.waker,
        });
        if self.buffer.len() >= BUFFER {
            let latest = self.buffer.iter().map(|c| c.waking_ns).max().unwrap_or_default();
            self.settle(latest.saturating_sub(SETTLED_NS));
            if self.buffer.len() >= BUFFER / 2 {
                self.settle(u64::MAX);
            }
        }
    }

    fn settle(&mut self, until: u64) {
        self.buffer.sort_unstable();
        let rest = self
            .buffer
            .split_off(self.buffer.partition_point(|c| c.waking_ns <= until));
        let settled = std::mem::replace(&mut self.buffer, rest);
        let mut from = 0;
        for at in 1..=settled.len() {
            let ends = settled.get(at).is_none_or(|next| {
                next.waking_ns - settled[at - 1].waking_ns > GAP_NS
                    || next.waking_ns - settled[from].waking_ns > INSTANT_NS
            });
            if ends {
                self.instant(&settled[from..at]);
                from = at;
            }
        }
    }

    /// Wake-ups that follow each other.
    fn instant(&mut self, all: &[Candidate]) {
        if all.len() < FEWEST {
            return;
        }
        let mut root: HashMap<u32, u32> = HashMap::new();
        let mut by_root: BTreeMap<u32, Vec<Candidate>> = BTreeMap::new();
        for candidate in all {
            // In the order of wake-ups, so whoever waited itself is known by then.
            let blocker = root.get(&candidate.waker).copied().unwrap_or(candidate.waker);
            if blocker != candidate.tid {
                root.insert(candidate.tid, blocker);
                by_root.entry(blocker).or_default().push(*candidate);
            }
        }
        for (tid, waits) in by_root {
            let until_ns = waits.iter().map(|c| c.waking_ns).min().unwrap_or_default();
            let waits = waits
                .iter()
                .filter(|c| c.off_ns.saturating_add(SHORTEST_NS) <= until_ns);
            let waiters: BTreeSet<u32> = waits.clone().map(|c| c.tid).collect();
            if waiters.len() < FEWEST {
                continue;
            }
            let from_ns = waits.clone().map(|c| c.off_ns).min().unwrap_or_default();
            let blocked_ns = waits.map(|c| until_ns - c.off_ns).fold(0, u64::saturating_add);
            if self.sums.len() < MOST_THREADS || self.sums.contains_key(&tid) {
                let (times, blocks, blocked) = self.sums.entry(tid).or_default();
                *times += 1;
                *blocks = blocks.saturating_add(until_ns - from_ns);
                *blocked = blocked.saturating_add(blocked_ns);
            }
            self.worst.insert(Found {
                blocked_ns,
                tid,
                from_ns,
                until_ns,
                waiters: waiters.into_iter().collect(),
            });
            if self.worst.len() > MOST {
                self.worst.pop_first();
            }
        }
    }

    fn finish(mut self, threads: &Threads, second: impl IntoIterator<Item = Piece>) -> Blockers {
        self.settle(u64::MAX);
        // Whoever is not of the target was stopped there by the interrupt that woke.
        let ours: HashMap<u32, (u32, String)> = (threads.iter())
            .map(|(_, t)| (t.tid.0, (t.pid.0, t.name.to_string())))
            .collect();
        let mut worst: Vec<_> = (self.worst.into_iter().rev())
            .filter_map(|found| {
                let (pid, name) = ours.get(&found.tid)?.clone();
                Some(Instant {
                    pid,
                    tid: found.tid,
                    name,
                    from_ns: found.from_ns,
                    until_ns: found.until_ns,
                    waiters: found.waiters.len() as u64,
                    waiter_tids: found.waiters.into_iter().take(8).collect(),
                    blocked_ns: found.blocked_ns,
                    doing: Vec::new(),
                })
            })
            .collect();
        doing(&mut worst, second);
        let mut threads: Vec<_> = (self.sums.into_iter())
            .filter_map(|(tid, (times, blocks_ns, blocked_ns))| {
                let (pid, name) = ours.get(&tid)?.clone();
                Some(Blocker {
                    pid,
                    tid,
                    name,
                    times,
                    blocks_ns,
                    blocked_ns,
                })
            })
            .collect();
        threads.sort_by_key(|blocker| (Reverse(blocker.blocked_ns), blocker.tid));
        Blockers { threads, worst }
    }
}

/// Fills in what each blocking thread did.
fn doing(instants: &mut [Instant], pieces: impl IntoIterator<Item = Piece>) {
    let mut of: HashMap<Who, Vec<usize>> = HashMap::new();
    for (at, instant) in instants.iter().enumerate() {
        let who = Who {
            pid: instant.pid,
            tid: instant.tid,
        };
        of.entry(who).or_default().push(at);
    }
    let mut sums: Vec<BTreeMap<(&'static str, Option<u16>), u64>> = vec![BTreeMap::new(); instants.len()];
    let mut add = |who: Who, from: u64, to: u64, what, syscall| {
        for &at in of.get(&who).into_iter().flatten() {
            let ns = to
                .min(instants[at].until_ns)
                .saturating_sub(from.max(instants[at].from_ns));
            if ns > 0 {
                let sum = sums[at].entry((what, syscall)).or_default();
                *sum = sum.saturating_add(ns);
            }
        }
    };
    observe(pieces, |observed| match observed {
        Observed::Ran(ran) => add(ran.who, ran.from, ran.to, "running", None),
        Observed::Wait(wait) => {
            let who = Who::of(wait);
            let syscall = wait.slept_in();
            add(who, wait.off_ns, wait.waited_until(), wait.kind().as_str(), syscall);
            if wait.slept() {
                add(who, wait.waited_until(), wait.run_ns, "runnable", None);
            }
        }
    });
    for (instant, sums) in instants.iter_mut().zip(sums) {
        instant.doing = (sums.into_iter())
            .map(|((what, syscall), ns)| Doing { what, syscall, ns })
            .collect();
        instant.doing.sort_by_key(|doing| Reverse(doing.ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Waits as (thread, off, waking, waker), times in µs; expects (blocker, waiters, from, until) in µs.
    fn check(waits: &[(u32, u64, u64, u32)], expect: &[(u32, usize, u64, u64)]) {
        let mut find = Find::default();
        for &(tid, off, waking, waker) in waits {
            let mut wait = Wait::from_bytes(&[0; exist_common::WAIT_BYTES]).unwrap();
            (wait.tid, wait.waker, wait.state, wait.syscall) = (tid, waker, 1, 202);
            (wait.off_ns, wait.waking_ns) = (off * 1000, waking * 1000);
            find.wait(&wait);
        }
        find.settle(u64::MAX);
        let mut found: Vec<_> = (find.worst.iter())
            .map(|f| (f.tid, f.waiters.len(), f.from_ns / 1000, f.until_ns / 1000))
            .collect();
        found.sort_unstable();
        assert_eq!(found, expect, "{waits:?}");
    }

    #[test]
    fn wake_ups_lead_to_the_one_that_all_waited_for() {
        // One wakes all.
        check(
            &[(2, 1000, 9000, 1), (3, 2000, 9010, 1), (4, 3000, 9020, 1)],
            &[(1, 3, 1000, 9000)],
        );
        // Each wakes the next one.
        check(
            &[(2, 1000, 9000, 1), (3, 2000, 9100, 2), (4, 3000, 9200, 3)],
            &[(1, 3, 1000, 9000)],
        );
        // Two are no crowd; two crowds are two.
        check(&[(2, 1000, 9000, 1), (3, 2000, 9010, 1), (4, 3000, 9020, 7)], &[]);
        let six = [1, 2, 3].map(|i| (10 + i, 1000, 9000 + u64::from(i), 1));
        let more = [4, 5, 6].map(|i| (10 + i, 500, 9000 + u64::from(i), 2));
        check(&[six, more].concat(), &[(1, 3, 1000, 9001), (2, 3, 500, 9004)]);
        // Wake-ups that are apart, and waits that are short.
        check(&[(2, 1000, 9000, 1), (3, 2000, 11000, 1), (4, 3000, 13000, 1)], &[]);
        check(&[(2, 8900, 9000, 1), (3, 8900, 9010, 1), (4, 8900, 9020, 1)], &[]);
        // Two threads that say of each other that they woke them.
        check(&[(2, 1000, 9000, 3), (3, 2000, 9010, 2), (2, 3000, 9020, 3)], &[]);
    }

    #[test]
    fn many_waits_need_little_memory() {
        let mut find = Find::default();
        let mut wait = Wait::from_bytes(&[0; exist_common::WAIT_BYTES]).unwrap();
        (wait.waker, wait.state, wait.syscall) = (7, 1, 202);
        for i in 0..400_000u64 {
            wait.tid = 10 + (i % 4) as u32;
            wait.off_ns = i / 4 * 2 * MS;
            wait.waking_ns = wait.off_ns + MS + i % 4;
            find.wait(&wait);
            assert!(find.buffer.len() <= BUFFER && find.worst.len() <= MOST);
        }
        find.settle(u64::MAX);
        assert_eq!(find.sums[&7].0, 100_000);
    }
}
