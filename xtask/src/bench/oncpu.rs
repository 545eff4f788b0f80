//! Time on CPU of each thread in an interval, from the switches of any recorder.

use std::collections::BTreeMap;

/// A thread came in or went out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Nanoseconds, on any clock.
    pub t_ns: u64,
    /// The thread.
    pub tid: u32,
    /// `true`: it came in.
    pub came_in: bool,
}

/// Start and end of each run of each thread, in order and apart.
pub type Runs = BTreeMap<u32, Vec<(u64, u64)>>;

/// When each thread ran in `from..to`, clipped to it. The switches may be in any order.
///
/// A thread whose first switch goes out ran before it, one whose last switch comes in ran on.
pub fn runs(switches: &[Switch], from: u64, to: u64) -> Runs {
    let mut ordered = switches.to_vec();
    ordered.sort_by_key(|switch| switch.t_ns);
    let mut since: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    let mut all = Runs::new();
    let mut ran = |tid: u32, start: u64, end: u64| {
        let (start, end) = (start.max(from), end.min(to));
        if start < end {
            all.entry(tid).or_default().push((start, end));
        }
    };
    for switch in &ordered {
        let start = since.entry(switch.tid).or_insert((!switch.came_in).then_some(0));
        if switch.came_in {
            // Coming in twice (a start-of-recording record and the switch itself): the first holds.
            start.get_or_insert(switch.t_ns);
        } else if let Some(start) = start.take() {
            ran(switch.tid, start, switch.t_ns);
        }
    }
    for (tid, start) in since {
        if let Some(start) = start {
            ran(tid, start, u64::MAX);
        }
    }
    all
}

/// The runs of one thread in two recordings, joined where they overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// A run in the one and in the other.
    pub pairs: Vec<[(u64, u64); 2]>,
    /// How many runs of the one, and of the other, have none left to be joined with.
    pub alone: [usize; 2],
}

/// Joins the runs of one thread, each with the first that it overlaps.
pub fn join(one: &[(u64, u64)], other: &[(u64, u64)]) -> Joined {
    let mut joined = Joined::default();
    let (mut i, mut k) = (0, 0);
    while let (Some(&a), Some(&b)) = (one.get(i), other.get(k)) {
        if a.0 < b.1 && b.0 < a.1 {
            joined.pairs.push([a, b]);
            (i, k) = (i + 1, k + 1);
        } else if a.0 < b.0 {
            joined.alone[0] += 1;
            i += 1;
        } else {
            joined.alone[1] += 1;
            k += 1;
        }
    }
    joined.alone[0] += one.len() - i;
    joined.alone[1] += other.len() - k;
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `I5` is in at 5, `O9` out at 9, all of thread 1.
    fn check(switches: &str, expect: u64) {
        let switches: Vec<_> = switches
            .split_whitespace()
            .map(|word| Switch {
                t_ns: word[1..].parse().unwrap(),
                tid: 1,
                came_in: word.starts_with('I'),
            })
            .collect();
        let time: u64 = runs(&switches, 10, 20)
            .values()
            .flatten()
            .map(|run| run.1 - run.0)
            .sum();
        assert_eq!(time, expect, "{switches:?}");
    }

    #[test]
    fn clipped_to_the_interval() {
        check("", 0);
        check("I12 O15", 3);
        check("I5 O15", 5);
        check("I12 O25", 8);
        check("I5 O25", 10);
        check("I5 O8", 0);
        check("I22 O25", 0);
        check("I12 O13 I18 O19", 2);
        check("I18 O19 I12 O13", 2);
    }

    #[test]
    fn open_at_the_ends() {
        check("O15", 5);
        check("O25", 10);
        check("I15", 5);
        check("I5", 10);
        check("O12 I18", 4);
        check("I12 I12 O15", 3);
    }

    #[test]
    fn threads_are_apart() {
        let switches = [(1, 10, true), (2, 12, true), (1, 15, false), (2, 20, false)]
            .map(|(tid, t_ns, came_in)| Switch { t_ns, tid, came_in });
        assert_eq!(
            runs(&switches, 0, 100),
            Runs::from([(1, vec![(10, 15)]), (2, vec![(12, 20)])])
        );
    }

    #[test]
    fn runs_are_joined_where_they_overlap() {
        let one = [(10, 20), (30, 40), (50, 60)];
        let check = |other: &[(u64, u64)], pairs: usize, alone: [usize; 2]| {
            let joined = join(&one, other);
            assert_eq!((joined.pairs.len(), joined.alone), (pairs, alone), "{other:?}");
        };
        check(&one, 3, [0, 0]);
        check(&[(11, 19), (31, 39), (49, 61)], 3, [0, 0]);
        check(&[(10, 20), (50, 60)], 2, [1, 0]);
        check(&[(10, 20), (22, 25), (30, 40), (50, 60), (70, 80)], 3, [0, 2]);
        // The other did not see 20 and 30.
        check(&[(10, 40), (50, 60)], 2, [1, 0]);
        check(&[], 0, [3, 0]);
    }
}
