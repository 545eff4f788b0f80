//! The critical path of a thread: what each moment of an interval was spent on, through the threads that it waited for.
//!
//! Takes a file and an interval, gives segments without gaps or overlaps. While a thread waits for another one, the path is
//! that of the other one, up to its wake-up; so at its end stands what must get faster. A wake-up is followed where the
//! waker is a thread of the target and ran then. It is not followed for waits that an interrupt ends (time, disk, page): the
//! thread named there was only stopped by it; a futex that times out looks like one that was woken. Of a socket or a poll that
//! cannot be told apart: these are followed and marked.
//!
//! ```text
//!   main     ─ runs ─┐ waits for a lock ────────────────────────┌─ runs ─
//!   worker           └▶ its path: runs ─┐ fsync ───┌─ runs ────┘ wakes
//!   path     main    │  worker          │ fsync    │ worker     │ main
//! ```

use std::{cmp::Reverse, collections::BTreeMap};

use exist_common::{Wait, WaitKind};
use serde::Serialize;

use super::observe::{Observed, Ran, Who, observe};
use crate::file::Piece;

/// Stays and waits of an interval that are kept; of more, the first ones are not known.
const MOST: usize = 1 << 21;
/// Threads that wait for each other.
const DEEPEST: usize = 32;
/// Segments of a path; what is before them is one segment that is not known.
const MOST_SEGMENTS: usize = 1 << 16;
/// A waker's stay may be stamped later than its wake-up, on another CPU's clock.
const SKEW_NS: u64 = 50_000;

/// A part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Segment {
    pub from_ns: u64,
    pub to_ns: u64,
    pub pid: u32,
    pub tid: u32,
    /// `running`, `runnable`, a kind of wait, or `unknown`.
    pub what: &'static str,
    pub syscall: Option<u16>,
    /// Threads between the first one and this one.
    pub depth: u32,
    /// It is there by a wake-up that may have been an interrupt's.
    pub inferred: bool,
}

/// A path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Path {
    /// In order of time.
    pub segments: Vec<Segment>,
    /// Time by thread and what, the longest first.
    pub sums: Vec<Sum>,
}

/// Time of a thread on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sum {
    pub pid: u32,
    pub tid: u32,
    pub what: &'static str,
    pub syscall: Option<u16>,
    pub ns: u64,
}

/// What threads did in an interval.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// As asked; what is kept begins at `from`, later when there was too much.
    asked_from: u64,
    from: u64,
    to: u64,
    threads: BTreeMap<u32, Thread>,
    kept: usize,
    last: Option<(u64, u32)>,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    pid: u32,
    /// In order, each from and to.
    stays: Vec<(u64, u64)>,
    /// In order of their ends.
    waits: Vec<Wait>,
}

impl History {
    /// What a file tells of `from..to`, CLOCK_MONOTONIC.
    #[must_use]
    pub fn read(pieces: impl IntoIterator<Item = Piece>, from: u64, to: u64) -> Self {
        let mut history = Self::new(from, to);
        observe(pieces, |observed| history.take(observed));
        history.settle();
        history
    }

    const fn new(from: u64, to: u64) -> Self {
        Self {
            asked_from: from,
            from,
            to,
            threads: BTreeMap::new(),
            kept: 0,
            last: None,
        }
    }

    fn take(&mut self, observed: Observed<'_>) {
        let (from, to, who) = match observed {
            Observed::Ran(ran) => (ran.from, ran.to, ran.who),
            Observed::Wait(wait) => (wait.off_ns, wait.run_ns, Who::of(wait)),
        };
        if to < self.from || from > self.to {
            return;
        }
        if self.kept == MOST {
            // The latest half decides how the interval ends.
            let middle = self.from + self.to.saturating_sub(self.from) / 2;
            self.forget(middle);
        }
        self.kept += 1;
        let thread = self.threads.entry(who.tid).or_default();
        thread.pid = who.pid;
        match observed {
            Observed::Ran(Ran { from, to, .. }) => {
                self.last = self.last.max(Some((to.min(self.to), who.tid)));
                thread.stays.push((from, to));
            }
            Observed::Wait(wait) => thread.waits.push(*wait),
        }
    }

    fn forget(&mut self, before: u64) {
        self.from = before;
        for thread in self.threads.values_mut() {
            thread.stays.retain(|stay| stay.1 >= before);
            thread.waits.retain(|wait| wait.run_ns >= before);
        }
        self.kept = self.threads.values().map(|t| t.stays.len() + t.waits.len()).sum();
        if self.kept == MOST {
            // They all are at one moment: a file that nobody wrote so.
            self.threads.clear();
            self.kept = 0;
        }
    }

    fn settle(&mut self) {
        for thread in self.threads.values_mut() {
            thread.stays.sort_unstable();
            thread.waits.sort_by_key(|wait| (wait.run_ns, wait.off_ns));
        }
    }

    /// Who ran last in the interval: where its path begins when no thread is asked for.
    #[must_use]
    pub fn last_to_run(&self) -> Option<u32> {
        self.last.map(|(_, tid)| tid)
    }

    /// The path of a thread through the whole interval.
    #[must_use]
    pub fn path(&self, tid: u32) -> Path {
        let mut walk = Walk {
            history: self,
            backwards: Vec::new(),
        };
        walk.thread(tid, self.from, self.to, 0, false);
        let forgotten = On {
            tid,
            pid: self.threads.get(&tid).map_or(0, |thread| thread.pid),
            depth: 0,
            inferred: false,
        };
        walk.push(forgotten, self.asked_from, self.from, "unknown", None);
        let mut segments = walk.backwards;
        segments.reverse();
        let mut sums: BTreeMap<_, u64> = BTreeMap::new();
        for s in &segments {
            let sum = sums.entry((s.pid, s.tid, s.what, s.syscall)).or_default();
            *sum = sum.saturating_add(s.to_ns - s.from_ns);
        }
        let mut sums: Vec<_> = (sums.into_iter())
            .map(|((pid, tid, what, syscall), ns)| Sum {
                pid,
                tid,
                what,
                syscall,
                ns,
            })
            .collect();
        sums.sort_by_key(|sum| Reverse(sum.ns));
        Path { segments, sums }
    }
}

struct Walk<'a> {
    history: &'a History,
    backwards: Vec<Segment>,
}

/// Whose path it is, and how it got there.
#[derive(Clone, Copy)]
struct On {
    tid: u32,
    pid: u32,
    depth: usize,
    inferred: bool,
}

impl Walk<'_> {
    /// From the end of an interval to its begin.
    fn thread(&mut self, tid: u32, from: u64, to: u64, depth: usize, inferred: bool) {
        let history = self.history;
        let thread = history.threads.get(&tid);
        let on = On {
            tid,
            pid: thread.map_or(0, |thread| thread.pid),
            depth,
            inferred,
        };
        let mut at = to;
        let waits = thread.map(|thread| &thread.waits[..]).unwrap_or_default();
        // Waits of a thread do not overlap, so those that end after the interval are one at most.
        let end = waits.partition_point(|wait| wait.run_ns <= to);
        for wait in waits[..(end + 1).min(waits.len())].iter().rev() {
            if at <= from {
                return;
            }
            if wait.off_ns >= at {
                continue;
            }
            self.ran(on, wait.run_ns.clamp(from, at), at);
            at = self.wait(on, wait, from, at.min(wait.run_ns));
        }
        self.ran(on, from, at);
    }

    /// A wait up to `at`; gives when it began.
    fn wait(&mut self, on: On, wait: &Wait, from: u64, at: u64) -> u64 {
        let off = wait.off_ns.max(from).min(at);
        let until = wait.waited_until().clamp(off, at);
        let syscall = wait.slept_in();
        if wait.slept() {
            self.push(on, until, at, "runnable", None);
        }
        let waking = wait.waking_ns.clamp(off, until);
        if let Some(inferred) = self.leads_to_waker(wait).filter(|_| on.depth < DEEPEST && waking > off) {
            self.push(on, waking, until, "runnable", None);
            self.thread(wait.waker, off, waking, on.depth + 1, on.inferred || inferred);
        } else {
            self.push(on, off, until, wait.kind().as_str(), syscall);
        }
        off
    }

    /// Whether a wait leads on, and whether that is only inferred.
    fn leads_to_waker(&self, wait: &Wait) -> Option<bool> {
        let inferred = match wait.kind() {
            WaitKind::Sync | WaitKind::Pipe | WaitKind::Child | WaitKind::New => false,
            WaitKind::Net | WaitKind::Poll | WaitKind::Other => true,
            _ => return None,
        };
        let waker = self
            .history
            .threads
            .get(&wait.waker)
            .filter(|_| wait.waker != wait.tid)?;
        let at = waker
            .stays
            .partition_point(|stay| stay.0 <= wait.waking_ns.saturating_add(SKEW_NS));
        let ran = at.checked_sub(1).and_then(|at| waker.stays.get(at))?;
        (ran.1.saturating_add(SKEW_NS) >= wait.waking_ns).then_some(inferred)
    }

    /// Between two waits: it ran, as far as its stays say so.
    fn ran(&mut self, on: On, from: u64, to: u64) {
        let stays = self
            .history
            .threads
            .get(&on.tid)
            .map(|thread| &thread.stays[..])
            .unwrap_or_default();
        let mut at = to;
        let end = stays.partition_point(|stay| stay.0 < to);
        for &(start, end) in stays[..end].iter().rev() {
            if at <= from || end <= from {
                break;
            }
            self.push(on, end.clamp(from, at), at, "unknown", None);
            at = at.min(end);
            let start = start.clamp(from, at);
            self.push(on, start, at, "running", None);
            at = start;
        }
        self.push(on, from, at, "unknown", None);
    }

    fn push(&mut self, on: On, from_ns: u64, to_ns: u64, what: &'static str, syscall: Option<u16>) {
        if from_ns >= to_ns {
            return;
        }
        if self.backwards.len() >= MOST_SEGMENTS {
            if let Some(last) = self.backwards.last_mut() {
                (last.from_ns, last.what, last.syscall) = (from_ns, "unknown", None);
            }
            return;
        }
        self.backwards.push(Segment {
            from_ns,
            to_ns,
            pid: on.pid,
            tid: on.tid,
            what,
            syscall,
            depth: on.depth as u32,
            inferred: on.inferred,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stays as `TID FROM-TO`; waits as `TID OFF-RUN SYSCALL WAKING WAKER`; a path as `TID:FROM-TO what`.
    fn check(stays: &str, waits: &str, tid: u32, interval: (u64, u64), expect: &str) {
        let numbers = |line: &str| -> Vec<u64> {
            let words = line.split([' ', '-']).filter(|w| !w.is_empty());
            words.map(|word| word.parse().unwrap()).collect()
        };
        let mut history = History::new(interval.0 * 1_000_000, interval.1 * 1_000_000);
        for n in stays.split(',').map(numbers) {
            history.take(Observed::Ran(Ran {
                who: Who {
                    pid: 1,
                    tid: n[0] as u32,
                },
                cpu: 0,
                from: n[1] * 1_000_000,
                to: n[2] * 1_000_000,
            }));
        }
        for n in waits.split(',').map(numbers) {
            let mut wait = Wait::from_bytes(&[0; exist_common::WAIT_BYTES]).unwrap();
            (wait.pid, wait.tid, wait.state, wait.syscall) = (1, n[0] as u32, 1, n[3] as u16);
            (wait.off_ns, wait.run_ns) = (n[1] * 1_000_000, n[2] * 1_000_000);
            (wait.waking_ns, wait.runnable_ns) = (n[4] * 1_000_000, n[4] * 1_000_000);
            wait.waker = n[5] as u32;
            history.take(Observed::Wait(&wait));
        }
        history.settle();
        let path = history.path(tid);
        let given: Vec<_> = (path.segments.iter())
            .map(|s| format!("{}:{}-{} {}", s.tid, s.from_ns / 1_000_000, s.to_ns / 1_000_000, s.what))
            .collect();
        assert_eq!(given.join(", "), expect);
        let sum: u64 = path.sums.iter().map(|s| s.ns).sum();
        assert_eq!(sum, (interval.1 - interval.0) * 1_000_000);
    }

    #[test]
    fn the_path_goes_through_whoever_was_waited_for() {
        // As drawn above: thread 2 is woken by 1's fsync.
        check(
            "1 0-10, 2 8-20, 2 60-80, 1 81-100",
            "1 10-81 202 80 2, 2 20-60 74 59 9",
            1,
            (0, 100),
            "1:0-10 running, 2:10-20 running, 2:20-59 fsync, 2:59-60 runnable, 2:60-80 running, 1:80-81 runnable, 1:81-100 running",
        );
        // Only a part of it: the wake-up is still to come.
        check(
            "1 0-10, 2 8-20, 2 60-80, 1 81-100",
            "1 10-81 202 80 2, 2 20-60 74 59 9",
            1,
            (30, 70),
            "2:30-59 fsync, 2:59-60 runnable, 2:60-70 running",
        );
        // The waker did not run then: an interrupt, told as the wait itself.
        check(
            "1 0-10, 2 0-20, 1 81-100",
            "1 10-81 202 80 2",
            1,
            (0, 100),
            "1:0-10 running, 1:10-80 sync, 1:80-81 runnable, 1:81-100 running",
        );
        // Nothing is known of a thread that did not come back.
        check("1 0-10", "1 0-0 202 0 2", 1, (0, 50), "1:0-10 running, 1:10-50 unknown");
    }

    #[test]
    fn what_was_too_much_is_not_known_and_said() {
        let mut history = History::new(0, 100);
        for (from, to) in [(0, 40), (60, 100)] {
            history.take(Observed::Ran(Ran {
                who: Who { pid: 1, tid: 2 },
                cpu: 0,
                from,
                to,
            }));
        }
        history.forget(50);
        let path = history.path(2);
        let given: Vec<_> = path.segments.iter().map(|s| (s.from_ns, s.to_ns, s.what)).collect();
        assert_eq!(given, [(0, 50, "unknown"), (50, 60, "unknown"), (60, 100, "running")]);
    }

    #[test]
    fn wake_ups_in_a_circle_end() {
        check(
            "1 0-10, 2 0-10, 1 90-100, 2 90-100",
            "1 10-90 202 90 2, 2 10-90 202 90 1",
            1,
            (0, 100),
            "1:0-10 running, 1:10-90 sync, 1:90-100 running",
        );
    }
}
