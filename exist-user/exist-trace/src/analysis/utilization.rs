//! The least CPU that the target had in a window of each length.
//!
//! Takes stays on CPUs, gives the worst windows; the mathematics are those of Go's minimum mutator utilization
//! (`internal/trace/gc.go`, `MMUCurve`) over running time. Refuses windows in which anything is missing: what is given
//! is exact. Time without work counts like time without a CPU: switch records do not tell the two apart.
//!
//! ```text
//!   running    2 ┤      ┌───┐
//!              1 ┤ ┌────┘   └──┐        ┌──
//!              0 ┼─┘           └────────┘
//!                       [── window ──]        slides from edge to edge: between two edges the time that it
//!                    left          right      holds grows or falls steadily, so the least is at one of them
//! ```

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    ops::Range,
};

use serde::Serialize;

use crate::flow::{Seen, Step};

/// The shortest window, nanoseconds; each next one is ten times as long. Below it a single wait fills a window.
const SHORTEST_NS: u64 = 1_000_000;

/// Windows of each length that are told.
const WORST: usize = 3;

/// Windows of one length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UtilizationRow {
    /// Length.
    pub window_ns: u64,
    /// Least first, then earliest; no two overlap. At least one.
    pub worst: Vec<WindowRow>,
}

/// One window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WindowRow {
    /// CLOCK_MONOTONIC.
    pub start_ns: u64,
    /// Time that the target's threads ran in it, all CPUs together.
    pub on_cpu_ns: u64,
}

/// Collects where the target ran.
#[derive(Clone, Debug, Default)]
pub struct Utilization {
    /// The last stay of each CPU: one that goes on where it ends is the same.
    open: BTreeMap<u32, Range<u64>>,
    starts: Vec<u64>,
    ends: Vec<u64>,
    /// Stays that may have been, beside [`Seen::blind`].
    unknown: Vec<(u64, u64)>,
}

impl Utilization {
    /// Takes the next step.
    pub fn step(&mut self, step: &Step) {
        match *step {
            Step::Ran { cpu, from, to, .. } if from < to => {
                if let Some(open) = self.open.get_mut(&cpu.0) {
                    if open.end == from.0 {
                        open.end = to.0;
                        return;
                    }
                    let stay = std::mem::replace(open, from.0..to.0);
                    self.stay(stay);
                } else {
                    self.open.insert(cpu.0, from.0..to.0);
                }
            }
            Step::Unknown { from, to, .. } if from < to => self.unknown.push((from.0, to.0)),
            _ => {}
        }
    }

    /// The worst windows of each length that fits into the recording.
    #[must_use]
    pub fn finish(mut self, seen: &Seen) -> Vec<UtilizationRow> {
        for stay in std::mem::take(&mut self.open).into_values() {
            self.stay(stay);
        }
        let cuts = (seen.blind.iter().map(|(from, to)| (from.0, to.0))).chain(std::mem::take(&mut self.unknown));
        let whole = whole(seen.start.0..seen.end.0, cuts.collect());
        let running = Running::new(self.starts, self.ends);
        std::iter::successors(Some(SHORTEST_NS), |length| length.checked_mul(10))
            .map_while(|window_ns| {
                let worst = running.worst(window_ns, &whole);
                (!worst.is_empty()).then_some(UtilizationRow { window_ns, worst })
            })
            .collect()
    }

    fn stay(&mut self, stay: Range<u64>) {
        self.starts.push(stay.start);
        self.ends.push(stay.end);
    }
}

/// The parts of `all` that no cut touches, in order.
fn whole(all: Range<u64>, mut cuts: Vec<(u64, u64)>) -> Vec<Range<u64>> {
    cuts.sort_unstable();
    let (mut parts, mut from) = (Vec::new(), all.start);
    for (cut_from, cut_to) in cuts {
        if from < cut_from.min(all.end) {
            parts.push(from..cut_from.min(all.end));
        }
        from = from.max(cut_to);
    }
    if from < all.end {
        parts.push(from..all.end);
    }
    parts
}

/// On how many CPUs the target ran, at any time.
struct Running {
    /// Both sorted.
    starts: Vec<u64>,
    ends: Vec<u64>,
}

/// A time, and how long the target ran from some time before until then.
#[derive(Clone, Copy)]
struct Cursor {
    at: u64,
    /// Starts and ends up to then.
    started: usize,
    ended: usize,
    /// All CPUs together: more than 64 bits hold, if a file says so.
    ran_ns: u128,
}

impl Running {
    fn new(mut starts: Vec<u64>, mut ends: Vec<u64>) -> Self {
        starts.sort_unstable();
        ends.sort_unstable();
        Self { starts, ends }
    }

    /// Windows of this length within `parts`: again and again the least of those that overlap none taken before.
    fn worst(&self, window_ns: u64, parts: &[Range<u64>]) -> Vec<WindowRow> {
        let candidate = |part: Range<u64>| {
            let (on_cpu_ns, start) = self.least(window_ns, &part)?;
            Some(Reverse((on_cpu_ns, start, part.start, part.end)))
        };
        let mut candidates: BinaryHeap<_> = parts.iter().cloned().filter_map(candidate).collect();
        let mut worst = Vec::new();
        while let Some(Reverse((on_cpu_ns, start_ns, from, to))) = candidates.pop() {
            let on_cpu_ns = u64::try_from(on_cpu_ns).unwrap_or(u64::MAX);
            worst.push(WindowRow { start_ns, on_cpu_ns });
            if worst.len() == WORST {
                break;
            }
            candidates.extend(
                [from..start_ns, start_ns + window_ns..to]
                    .into_iter()
                    .filter_map(candidate),
            );
        }
        worst
    }

    /// The least time that a window within `part` holds, and its first start; `None` if it is longer than the part.
    fn least(&self, window_ns: u64, part: &Range<u64>) -> Option<(u128, u64)> {
        let last = part.end.checked_sub(window_ns).filter(|&last| last >= part.start)?;
        let mut left = self.cursor(part.start);
        let mut right = left;
        let end = part.start + window_ns;
        while right.at < end {
            let rest = end - right.at;
            self.advance(&mut right, rest);
        }
        let mut least = (right.ran_ns - left.ran_ns, left.at);
        while left.at < last {
            let step = (self.until_edge(&left).min(self.until_edge(&right))).min(last - left.at);
            self.advance(&mut left, step);
            self.advance(&mut right, step);
            least = least.min((right.ran_ns - left.ran_ns, left.at));
        }
        Some(least)
    }

    fn cursor(&self, at: u64) -> Cursor {
        Cursor {
            at,
            started: self.starts.partition_point(|&start| start <= at),
            ended: self.ends.partition_point(|&end| end <= at),
            ran_ns: 0,
        }
    }

    /// How far it is to the next edge.
    fn until_edge(&self, cursor: &Cursor) -> u64 {
        let next = |edges: &[u64], i: usize| edges.get(i).copied().unwrap_or(u64::MAX);
        next(&self.starts, cursor.started).min(next(&self.ends, cursor.ended)) - cursor.at
    }

    /// Goes on by `step`, but no further than to the next edge.
    fn advance(&self, cursor: &mut Cursor, step: u64) {
        let step = step.min(self.until_edge(cursor));
        // A stay starts before it ends, so no more have ended than started.
        cursor.ran_ns += u128::from(step) * (cursor.started - cursor.ended) as u128;
        cursor.at += step;
        let passed = |edges: &[u64], from: usize| edges[from..].iter().take_while(|&&edge| edge <= cursor.at).count();
        let (started, ended) = (passed(&self.starts, cursor.started), passed(&self.ends, cursor.ended));
        cursor.started += started;
        cursor.ended += ended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        flow::{ThreadIx, state::TaskState},
        units::{Cpu, MonoNs},
    };

    const MS: u64 = 1_000_000;

    fn ran(cpu: u32, from: u64, to: u64) -> Step {
        Step::Ran {
            thread: ThreadIx(0),
            cpu: Cpu(cpu),
            from: MonoNs(from),
            to: MonoNs(to),
            state: TaskState::Runnable,
        }
    }

    fn rows(period: Range<u64>, stays: &[(u32, u64, u64)], blind: &[(u64, u64)]) -> Vec<UtilizationRow> {
        let mut utilization = Utilization::default();
        for &(cpu, from, to) in stays {
            utilization.step(&ran(cpu, from, to));
        }
        utilization.finish(&Seen {
            start: MonoNs(period.start),
            end: MonoNs(period.end),
            blind: blind.iter().map(|&(from, to)| (MonoNs(from), MonoNs(to))).collect(),
            ..Seen::default()
        })
    }

    /// Times in µs. Stays are (CPU, from, to); a row is (window, its worst windows as (start, on CPU)).
    fn check(end: u64, stays: &[(u32, u64, u64)], blind: &[(u64, u64)], expect: &[(u64, &[(u64, u64)])]) {
        let stays: Vec<_> = stays.iter().map(|&(cpu, a, b)| (cpu, a * 1000, b * 1000)).collect();
        let blind: Vec<_> = blind.iter().map(|&(a, b)| (a * 1000, b * 1000)).collect();
        let given = rows(0..end * 1000, &stays, &blind);
        let expect: Vec<_> = (expect.iter())
            .map(|(window, worst)| UtilizationRow {
                window_ns: window * 1000,
                worst: (worst.iter())
                    .map(|(start, on_cpu)| WindowRow {
                        start_ns: start * 1000,
                        on_cpu_ns: on_cpu * 1000,
                    })
                    .collect(),
            })
            .collect();
        assert_eq!(given, expect);
    }

    #[test]
    fn the_worst_windows_of_each_length() {
        // Always on one CPU, whoever runs.
        check(
            2000,
            &[(0, 0, 700), (0, 700, 2000)],
            &[],
            &[(1000, &[(0, 1000), (1000, 1000)])],
        );
        // A pause of 400 µs: the first window that holds it all; then there is no room for another.
        check(
            2500,
            &[(0, 0, 1000), (0, 1400, 2500)],
            &[],
            &[(1000, &[(400, 600), (1400, 1000)])],
        );
        // The same on a second CPU at half of the pause.
        check(
            2500,
            &[(0, 0, 1000), (1, 1200, 1400), (0, 1400, 2500)],
            &[],
            &[(1000, &[(200, 800), (1200, 1000)])],
        );
        // Nothing ran.
        check(3500, &[], &[], &[(1000, &[(0, 0), (1000, 0), (2000, 0)])]);
    }

    #[test]
    fn windows_that_do_not_fit_are_none() {
        check(999, &[(0, 0, 999)], &[], &[]);
        check(1000, &[(0, 0, 999)], &[], &[(1000, &[(0, 999)])]);
        let longer = rows(0..10 * MS, &[(0, 0, 10 * MS)], &[]);
        assert_eq!(longer.iter().map(|r| r.window_ns).collect::<Vec<_>>(), [MS, 10 * MS]);
    }

    #[test]
    fn what_is_missing_is_not_taken_for_a_pause() {
        let stays = [(0, 0, 1500), (0, 1900, 3000)];
        check(3000, &stays, &[(1500, 1900)], &[(1000, &[(0, 1000), (1900, 1000)])]);
        check(3000, &stays, &[(1000, 2001)], &[(1000, &[(0, 1000)])]);
        check(3000, &stays, &[(900, 2100)], &[]);
        // A half of a pair is missing, though no gap shows why.
        let mut utilization = Utilization::default();
        utilization.step(&ran(0, 0, 2 * MS));
        utilization.step(&Step::Unknown {
            thread: ThreadIx(0),
            cpu: Cpu(0),
            from: MonoNs(2 * MS),
            to: MonoNs(4 * MS),
            is_blind: false,
        });
        let seen = Seen {
            end: MonoNs(4 * MS),
            ..Seen::default()
        };
        let worst: Vec<_> = utilization.finish(&seen).into_iter().flat_map(|r| r.worst).collect();
        assert!(worst.len() == 2 && worst.iter().all(|w| w.on_cpu_ns == MS), "{worst:?}");
    }

    /// Every window that begins on a whole millisecond, counted millisecond by millisecond.
    #[test]
    fn as_by_trying_every_window() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % n
        };
        for _ in 0..200 {
            let (mut stays, mut busy) = (Vec::new(), [0u64; 60]);
            for cpu in 0..3 {
                let mut at = below(8);
                while at < 60 {
                    let to = (at + 1 + below(9)).min(60);
                    stays.push((cpu, at * MS, to * MS));
                    (at..to).for_each(|ms| busy[ms as usize] += 1);
                    at = to + below(12);
                }
            }
            for row in rows(0..60 * MS, &stays, &[]) {
                let n = (row.window_ns / MS) as usize;
                let mut taken = [false; 60];
                for given in &row.worst {
                    let free = (0..=60 - n).filter(|&ms| !taken[ms..ms + n].contains(&true));
                    let least = free.map(|ms| (busy[ms..ms + n].iter().sum::<u64>() * MS, ms)).min();
                    let start = (given.start_ns / MS) as usize;
                    assert_eq!(Some((given.on_cpu_ns, start)), least, "{n} ms in {stays:?}");
                    taken[start..start + n].fill(true);
                }
                assert_eq!(row.worst.len(), 3, "{n} ms in {stays:?}");
            }
        }
    }

    #[test]
    fn times_at_the_ends_of_the_clock_do_no_harm() {
        let all = [
            (0, 0, u64::MAX),
            (1, 0, u64::MAX),
            (2, u64::MAX - 1, u64::MAX),
            (0, 5, 3),
        ];
        let given = rows(0..u64::MAX, &all, &[]);
        assert_eq!(given.last().map(|r| r.window_ns), Some(10_000_000_000_000_000_000));
        assert_eq!(
            given.last().map(|r| r.worst[0].on_cpu_ns),
            Some(u64::MAX),
            "more than 64 bits hold"
        );
        rows(u64::MAX - 3 * MS..u64::MAX, &all, &[(0, u64::MAX)]);
        let backwards = Range { start: 7, end: 3 };
        rows(backwards, &all, &[(9, 1)]);
    }
}
