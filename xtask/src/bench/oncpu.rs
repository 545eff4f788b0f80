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

/// Nanoseconds that each thread ran in `from..to`. The switches may be in any order.
///
/// A thread whose first switch goes out ran before it, one whose last switch comes in ran on.
pub fn running(switches: &[Switch], from: u64, to: u64) -> BTreeMap<u32, u64> {
    let mut ordered = switches.to_vec();
    ordered.sort_by_key(|switch| switch.t_ns);
    let mut since: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    let mut time = BTreeMap::new();
    for switch in &ordered {
        let start = since.entry(switch.tid).or_insert((!switch.came_in).then_some(0));
        if switch.came_in {
            // Coming in twice (a start-of-recording record and the switch itself): the first holds.
            start.get_or_insert(switch.t_ns);
        } else if let Some(start) = start.take() {
            *time.entry(switch.tid).or_insert(0) += overlap(start, switch.t_ns, from, to);
        }
    }
    for (tid, start) in since {
        if let Some(start) = start {
            *time.entry(tid).or_insert(0) += overlap(start, u64::MAX, from, to);
        }
    }
    time
}

fn overlap(start: u64, end: u64, from: u64, to: u64) -> u64 {
    end.min(to).saturating_sub(start.max(from))
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
        assert_eq!(
            running(&switches, 10, 20).get(&1).copied().unwrap_or(0),
            expect,
            "{switches:?}"
        );
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
        assert_eq!(running(&switches, 0, 100), BTreeMap::from([(1, 5), (2, 8)]));
    }
}
