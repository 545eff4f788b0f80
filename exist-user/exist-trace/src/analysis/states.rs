//! Where the time of each thread, and of each group of threads, went: running, runnable, and each kind of wait.
//!
//! Takes stays and waits in any order. Gives a row for each thread and for each group: threads whose names differ only in
//! numbers (`worker-1`, `worker-2`: `worker-*`). Refuses nothing: times that go backwards count as 0.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use exist_common::{Wait, WaitKind};
use serde::Serialize;

use super::{
    observe::{Observed, Who},
    tally::{Stretch, Stretches, Tally},
};
use crate::flow::Threads;

/// Threads that are told apart; those beyond it are told as one, of process 0 and thread 0.
const MOST_THREADS: usize = 1 << 14;
/// System calls that are told apart for a thread and kind; those beyond it are told as waits outside of any.
const MOST_CALLS: usize = 64;

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct States {
    /// The thread that was off the CPU longest first.
    pub threads: Vec<ThreadRow>,
    /// The same of groups.
    pub groups: Vec<GroupRow>,
    /// Of the whole target.
    pub all: Times,
}

/// A thread's time. A wait that began before the recording, or lasts to its end, is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadRow {
    pub pid: u32,
    pub tid: u32,
    /// The last name; empty: unknown.
    pub name: String,
    #[serde(flatten)]
    pub times: Times,
}

/// The time of all threads of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupRow {
    /// The threads' name with `*` for each number.
    pub group: String,
    pub threads: u64,
    #[serde(flatten)]
    pub times: Times,
}

/// Where time went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Stays on a CPU.
    pub running: Part,
    /// Runnable and not running: after each wake-up, and all the time when it was preempted, throttled, new, or had yielded.
    pub runnable: Part,
    /// Wake-ups that nobody saw: their time runnable counts as waiting.
    pub unseen: u64,
    /// Only kinds that occurred, the longest total first. A wait that slept counts up to when it was runnable.
    pub kinds: Vec<KindRow>,
}

/// Stretches, and the longest of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    #[serde(flatten)]
    pub stretches: Stretches,
    pub worst: Vec<Stretch>,
}

/// Waits of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KindRow {
    pub kind: &'static str,
    #[serde(flatten)]
    pub part: Part,
    /// The longest total first.
    pub calls: Vec<CallRow>,
}

/// Waits of one kind in one system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CallRow {
    /// Its number on x86-64; `null`: in none.
    pub syscall: Option<u16>,
    #[serde(flatten)]
    pub stretches: Stretches,
}

impl From<&Tally> for Part {
    fn from(tally: &Tally) -> Self {
        Self {
            stretches: tally.stretches(),
            worst: tally.worst().to_vec(),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Sums {
    running: Tally,
    runnable: Tally,
    unseen: u64,
    calls: BTreeMap<(WaitKind, u16), Tally>,
}

/// Sums time up.
#[derive(Clone, Debug, Default)]
pub struct Collect(BTreeMap<Who, Sums>);

impl Collect {
    /// Takes what comes next.
    pub fn take(&mut self, observed: Observed<'_>) {
        match observed {
            Observed::Ran(ran) => self.sums(ran.who).running.add(stretch(ran.who, ran.from, ran.to)),
            Observed::Wait(wait) => self.wait(wait),
        }
    }

    fn wait(&mut self, wait: &Wait) {
        let who = Who::of(wait);
        let sums = self.sums(who);
        match wait.runnable_from() {
            Some(from) => sums.runnable.add(stretch(who, from, wait.run_ns)),
            None => sums.unseen += 1,
        }
        let mut key = (wait.kind(), wait.slept_in().unwrap_or(Wait::NO_SYSCALL));
        if sums.calls.len() >= MOST_CALLS && !sums.calls.contains_key(&key) {
            key.1 = Wait::NO_SYSCALL;
        }
        let waited = stretch(who, wait.off_ns, wait.waited_until());
        sums.calls.entry(key).or_default().add(waited);
    }

    fn sums(&mut self, who: Who) -> &mut Sums {
        let is_known = self.0.len() < MOST_THREADS || self.0.contains_key(&who);
        self.0
            .entry(if is_known { who } else { Who { pid: 0, tid: 0 } })
            .or_default()
    }

    /// The rows, with the threads' names.
    #[must_use]
    pub fn finish(self, threads: &Threads) -> States {
        let names: HashMap<Who, &Arc<str>> = (threads.iter())
            .map(|(_, t)| {
                let (pid, tid) = (t.pid.0, t.tid.0);
                (Who { pid, tid }, &t.name)
            })
            .collect();
        let mut rows = Vec::new();
        let mut groups: BTreeMap<String, (u64, Sums)> = BTreeMap::new();
        for (who, sums) in &self.0 {
            let name = names.get(who).map(|name| name.to_string()).unwrap_or_default();
            let (count, group) = groups.entry(pattern(&name)).or_default();
            *count += 1;
            group.merge(sums);
            rows.push(ThreadRow {
                pid: who.pid,
                tid: who.tid,
                name,
                times: sums.times(),
            });
        }
        rows.sort_by_key(|row| Reverse(row.times.waited_ns()));
        let mut all = Sums::default();
        groups.values().for_each(|(_, sums)| all.merge(sums));
        let mut groups: Vec<_> = (groups.into_iter())
            .map(|(group, (threads, sums))| GroupRow {
                group,
                threads,
                times: sums.times(),
            })
            .collect();
        groups.sort_by_key(|row| Reverse(row.times.waited_ns()));
        States {
            threads: rows,
            groups,
            all: all.times(),
        }
    }
}

impl Times {
    /// Time off the CPU for whatever reason.
    #[must_use]
    pub fn waited_ns(&self) -> u64 {
        let all = self.kinds.iter().map(|kind| kind.part.stretches.total_ns);
        all.fold(0, u64::saturating_add)
    }

    /// The waits of a kind.
    #[must_use]
    pub fn kind(&self, kind: WaitKind) -> Option<&KindRow> {
        self.kinds.iter().find(|row| row.kind == kind.as_str())
    }
}

impl Sums {
    fn merge(&mut self, other: &Self) {
        self.running.merge(&other.running);
        self.runnable.merge(&other.runnable);
        self.unseen += other.unseen;
        for (key, tally) in &other.calls {
            self.calls.entry(*key).or_default().merge(tally);
        }
    }

    fn times(&self) -> Times {
        let mut kinds: BTreeMap<WaitKind, (Tally, Vec<CallRow>)> = BTreeMap::new();
        for ((kind, syscall), tally) in &self.calls {
            let (sum, calls) = kinds.entry(*kind).or_default();
            sum.merge(tally);
            calls.push(CallRow {
                syscall: (*syscall != Wait::NO_SYSCALL).then_some(*syscall),
                stretches: tally.stretches(),
            });
        }
        let mut kinds: Vec<_> = (kinds.into_iter())
            .map(|(kind, (sum, mut calls))| {
                calls.sort_by_key(|row| Reverse(row.stretches.total_ns));
                KindRow {
                    kind: kind.as_str(),
                    part: (&sum).into(),
                    calls,
                }
            })
            .collect();
        kinds.sort_by_key(|row| Reverse(row.part.stretches.total_ns));
        Times {
            running: (&self.running).into(),
            runnable: (&self.runnable).into(),
            unseen: self.unseen,
            kinds,
        }
    }
}

/// A stretch of a thread; 0 if it goes backwards.
#[must_use]
pub const fn stretch(who: Who, from: u64, to: u64) -> Stretch {
    Stretch {
        ns: to.saturating_sub(from),
        t_ns: from,
        pid: who.pid,
        tid: who.tid,
    }
}

/// A name with `*` for each number in it.
fn pattern(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !out.ends_with('*') {
            out.push('*');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use exist_common::{WAIT_BYTES, wait_flags};

    use super::*;
    use crate::analysis::observe::Ran;

    fn wait(tid: u32, times: [u64; 3], syscall: u16, state: u8, flags: u8) -> Wait {
        let [off_ns, runnable_ns, run_ns] = times;
        let mut wait = Wait::from_bytes(&[0; WAIT_BYTES]).unwrap();
        (wait.pid, wait.tid) = (7, tid);
        (wait.off_ns, wait.runnable_ns, wait.run_ns) = (off_ns, runnable_ns, run_ns);
        (wait.syscall, wait.state, wait.flags) = (syscall, state, flags);
        wait
    }

    fn brief(s: &Stretches) -> [u64; 6] {
        [s.count, s.total_ns, s.min_ns, s.max_ns, s.p50_ns, s.p99_ns]
    }

    #[test]
    fn a_sleep_ends_when_it_is_runnable_and_a_preemption_when_it_runs() {
        let mut collect = Collect::default();
        for wait in [
            wait(8, [100, 150, 160], 202, 1, 0),
            wait(8, [200, 290, 300], 202, 1, 0),
            wait(8, [400, 400, 405], Wait::NO_SYSCALL, 0, wait_flags::PREEMPT),
            wait(8, [500, 0, 560], 230, 1, 0),
            // A hostile file's times.
            wait(8, [900, 1, 2], 230, 1, 0),
            wait(9, [0, 7, 8], 449, 1, 0),
        ] {
            collect.take(Observed::Wait(&wait));
        }
        collect.take(Observed::Ran(Ran {
            who: Who { pid: 7, tid: 8 },
            cpu: 0,
            from: 160,
            to: 200,
        }));
        let states = collect.finish(&Threads::default());
        let row = &states.threads[0];
        assert_eq!((states.threads.len(), row.pid, row.tid, row.times.unseen), (2, 7, 8, 1));
        assert_eq!(brief(&row.times.runnable.stretches), [4, 25, 0, 10, 5, 10]);
        assert_eq!(brief(&row.times.running.stretches), [1, 40, 40, 40, 40, 40]);
        let kinds: Vec<_> = (row.times.kinds.iter())
            .map(|k| (k.kind, brief(&k.part.stretches), k.part.worst[0].t_ns))
            .collect();
        assert_eq!(
            kinds,
            [
                ("sync", [2, 140, 50, 90, 50, 90], 200),
                ("sleep", [2, 60, 0, 60, 0, 60], 500),
                ("preempted", [1, 5, 5, 5, 5, 5], 400),
            ]
        );
        // Both threads have no name, so they are one group; its futexes are two system calls.
        let group = &states.groups[0];
        assert_eq!((states.groups.len(), group.threads), (1, 2));
        let sync = group.times.kind(WaitKind::Sync).unwrap();
        assert_eq!(brief(&sync.part.stretches), [3, 147, 7, 90, 50, 90]);
        assert_eq!(group.times, states.all);
        let calls: Vec<_> = sync.calls.iter().map(|c| (c.syscall, c.stretches.total_ns)).collect();
        assert_eq!(calls, [(Some(202), 140), (Some(449), 7)]);
    }

    #[test]
    fn names_that_differ_in_numbers_are_one_group() {
        let check = |name, expect: &str| assert_eq!(pattern(name), expect);
        check("worker-12", "worker-*");
        check("tokio-3-rt-007", "tokio-*-rt-*");
        check("main", "main");
        check("", "");
    }

    #[test]
    fn nothing_gives_nothing() {
        assert_eq!(Collect::default().finish(&Threads::default()), States::default());
    }
}
