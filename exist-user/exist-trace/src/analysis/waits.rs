//! Where the time of each thread went while it did not run: runnable, and each kind of wait.
//!
//! Takes: waits in any order. Gives: a row for each thread. Refuses nothing: times that go backwards count as 0.

use std::collections::BTreeMap;

use exist_common::{Wait, WaitKind};
use serde::Serialize;

/// Some stretches of time, nanoseconds. Quantiles are of the sorted stretches by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stretches {
    pub count: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
}

/// Waits of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KindRow {
    pub kind: &'static str,
    #[serde(flatten)]
    pub stretches: Stretches,
}

/// The waits of a thread that ended in the recording. One that began before it, or lasts to its end, is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadWaits {
    pub pid: u32,
    pub tid: u32,
    /// Runnable and not running: after each wake-up, and all the time when it was preempted, throttled, new, or had yielded.
    pub runnable: Stretches,
    /// Wake-ups that nobody saw: their time runnable counts as waiting.
    pub unseen: u64,
    /// Only kinds that occurred, the longest total first. A wait that slept counts up to when it was runnable.
    pub kinds: Vec<KindRow>,
}

#[derive(Default)]
struct Gathered {
    runnable: Vec<u64>,
    unseen: u64,
    kinds: BTreeMap<WaitKind, Vec<u64>>,
}

/// Sums the waits up by thread; the thread that waited longest first.
#[must_use]
pub fn waits(all: impl IntoIterator<Item = Wait>) -> Vec<ThreadWaits> {
    let mut threads: BTreeMap<(u32, u32), Gathered> = BTreeMap::new();
    for wait in all {
        let thread = threads.entry((wait.pid, wait.tid)).or_default();
        let unseen = wait.slept() && wait.runnable_ns == 0;
        let runnable_ns = if unseen {
            wait.run_ns
        } else {
            wait.runnable_ns.max(wait.off_ns)
        };
        if unseen {
            thread.unseen += 1;
        } else {
            thread.runnable.push(wait.run_ns.saturating_sub(runnable_ns));
        }
        let to = if wait.slept() { runnable_ns } else { wait.run_ns };
        let of_kind = thread.kinds.entry(wait.kind()).or_default();
        of_kind.push(to.saturating_sub(wait.off_ns));
    }
    let mut rows: Vec<_> = threads
        .into_iter()
        .map(|((pid, tid), gathered)| {
            let mut kinds: Vec<_> = gathered
                .kinds
                .into_iter()
                .map(|(kind, of_kind)| KindRow {
                    kind: kind.as_str(),
                    stretches: stretches(of_kind),
                })
                .collect();
            kinds.sort_by_key(|row| std::cmp::Reverse(row.stretches.total_ns));
            ThreadWaits {
                pid,
                tid,
                runnable: stretches(gathered.runnable),
                unseen: gathered.unseen,
                kinds,
            }
        })
        .collect();
    let waited = |row: &ThreadWaits| {
        row.kinds
            .iter()
            .map(|k| k.stretches.total_ns)
            .fold(0, u64::saturating_add)
    };
    rows.sort_by_key(|row| std::cmp::Reverse(waited(row)));
    rows
}

fn stretches(mut all: Vec<u64>) -> Stretches {
    all.sort_unstable();
    let rank = |share: f64| {
        let at = (all.len() as f64 * share).ceil() as usize;
        all.get(at.saturating_sub(1)).copied().unwrap_or_default()
    };
    Stretches {
        count: all.len() as u64,
        total_ns: all.iter().copied().fold(0, u64::saturating_add),
        max_ns: all.last().copied().unwrap_or_default(),
        p50_ns: rank(0.5),
        p99_ns: rank(0.99),
    }
}

#[cfg(test)]
mod tests {
    use exist_common::{WAIT_BYTES, wait_flags};

    use super::*;

    fn wait(times: [u64; 3], syscall: u16, state: u8, flags: u8) -> Wait {
        let [off_ns, runnable_ns, run_ns] = times;
        let mut wait = Wait::from_bytes(&[0; WAIT_BYTES]).unwrap();
        (wait.pid, wait.tid) = (7, 8);
        (wait.off_ns, wait.runnable_ns, wait.run_ns) = (off_ns, runnable_ns, run_ns);
        (wait.syscall, wait.state, wait.flags) = (syscall, state, flags);
        wait
    }

    #[test]
    fn a_sleep_ends_when_it_is_runnable_and_a_preemption_when_it_runs() {
        let rows = waits([
            wait([100, 150, 160], 202, 1, 0),
            wait([200, 290, 300], 202, 1, 0),
            wait([400, 400, 405], Wait::NO_SYSCALL, 0, wait_flags::PREEMPT),
            wait([500, 0, 560], 230, 1, 0),
            // A hostile file's times.
            wait([900, 1, 2], 230, 1, 0),
        ]);
        assert_eq!((rows.len(), rows[0].pid, rows[0].tid, rows[0].unseen), (1, 7, 8, 1));
        let brief = |s: Stretches| (s.count, s.total_ns, s.max_ns, s.p50_ns, s.p99_ns);
        assert_eq!(brief(rows[0].runnable), (4, 25, 10, 5, 10));
        let kinds: Vec<_> = rows[0].kinds.iter().map(|k| (k.kind, brief(k.stretches))).collect();
        assert_eq!(
            kinds,
            [
                ("sync", (2, 140, 90, 50, 90)),
                ("sleep", (2, 60, 60, 0, 60)),
                ("preempted", (1, 5, 5, 5, 5)),
            ]
        );
    }

    #[test]
    fn nothing_gives_nothing() {
        assert_eq!(waits([]), []);
    }
}
