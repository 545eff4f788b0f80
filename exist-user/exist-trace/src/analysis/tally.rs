//! Stretches of time, summed up: count, total, least, greatest, quantiles, and the longest with their time.
//!
//! Takes stretches in any order; two tallies can be put together. Memory is bounded: up to [`EXACT`] stretches are kept as
//! they are and quantiles are exact; beyond that they are counted in buckets, 64 to each power of two, and a quantile is at
//! most 1/128 from the exact one (the idea is that of HdrHistogram). Refuses nothing.

use std::{cmp::Reverse, collections::BTreeMap};

use serde::Serialize;

/// Stretches that are kept as they are.
const EXACT: usize = 512;
/// Buckets to a power of two: `1 << BITS`.
const BITS: u32 = 6;
/// The longest that are told.
const WORST: usize = 3;

/// One stretch of time of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Stretch {
    pub ns: u64,
    /// Its begin, CLOCK_MONOTONIC.
    pub t_ns: u64,
    pub pid: u32,
    pub tid: u32,
}

/// Some stretches of time, nanoseconds. Quantiles by nearest rank; see the module for their error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stretches {
    pub count: u64,
    pub total_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
}

/// Collects stretches.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    count: u64,
    total_ns: u64,
    min_ns: u64,
    max_ns: u64,
    exact: Vec<u64>,
    /// Empty as long as `exact` holds all.
    buckets: BTreeMap<u16, u64>,
    /// Longest first.
    worst: Vec<Stretch>,
}

impl Tally {
    /// Takes one.
    pub fn add(&mut self, stretch: Stretch) {
        let ns = stretch.ns;
        self.min_ns = if self.count == 0 { ns } else { self.min_ns.min(ns) };
        self.max_ns = self.max_ns.max(ns);
        self.count += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.note(stretch);
        if self.buckets.is_empty() {
            self.exact.push(ns);
            if self.exact.len() > EXACT {
                self.count_in_buckets();
            }
        } else {
            *self.buckets.entry(bucket(ns)).or_default() += 1;
        }
    }

    /// Takes all of another.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min_ns = if self.count == 0 {
            other.min_ns
        } else {
            self.min_ns.min(other.min_ns)
        };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count += other.count;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        other.worst.iter().for_each(|stretch| self.note(*stretch));
        self.exact.extend(&other.exact);
        if self.exact.len() > EXACT || !self.buckets.is_empty() || !other.buckets.is_empty() {
            self.count_in_buckets();
        }
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += count;
        }
    }

    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    #[must_use]
    pub const fn total_ns(&self) -> u64 {
        self.total_ns
    }

    #[must_use]
    pub const fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The longest ones, longest first, then earliest.
    #[must_use]
    pub fn worst(&self) -> &[Stretch] {
        &self.worst
    }

    /// The numbers.
    #[must_use]
    pub fn stretches(&self) -> Stretches {
        let mut exact = self.exact.clone();
        exact.sort_unstable();
        let quantile = |share: f64| self.quantile(share, &exact);
        Stretches {
            count: self.count,
            total_ns: self.total_ns,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
        }
    }

    fn quantile(&self, share: f64, exact: &[u64]) -> u64 {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        if self.buckets.is_empty() {
            return exact.get(rank as usize - 1).copied().unwrap_or_default();
        }
        let mut below = 0;
        for (bucket, count) in &self.buckets {
            below += count;
            if below >= rank {
                return middle(*bucket).clamp(self.min_ns, self.max_ns);
            }
        }
        self.max_ns
    }

    fn count_in_buckets(&mut self) {
        for ns in std::mem::take(&mut self.exact) {
            *self.buckets.entry(bucket(ns)).or_default() += 1;
        }
    }

    fn note(&mut self, stretch: Stretch) {
        let place = |s: &Stretch| (Reverse(s.ns), s.t_ns, s.tid);
        if self.worst.len() == WORST && self.worst.last().is_some_and(|last| place(last) <= place(&stretch)) {
            return;
        }
        let at = self.worst.partition_point(|other| place(other) <= place(&stretch));
        self.worst.insert(at, stretch);
        self.worst.truncate(WORST);
    }
}

/// Values below 128 have one each; above, the highest seven bits decide.
fn bucket(ns: u64) -> u16 {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(BITS + 1);
    ((shift << BITS) + (ns >> shift) as u32) as u16
}

/// The middle of a bucket's values.
fn middle(bucket: u16) -> u64 {
    let shift = (u32::from(bucket) >> BITS).saturating_sub(1);
    let low = u64::from(u32::from(bucket) - (shift << BITS)) << shift;
    low + ((1u64 << shift) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(ns: u64) -> Stretch {
        Stretch {
            ns,
            t_ns: ns % 97,
            pid: 1,
            tid: 2,
        }
    }

    #[test]
    fn buckets_hold_what_they_say() {
        for ns in (0..70_000).chain([u64::MAX, u64::MAX / 2, 1 << 40, (1 << 40) - 1]) {
            let middle = middle(bucket(ns));
            assert!(middle.abs_diff(ns) <= ns / 128, "{ns}: {middle}");
            assert_eq!(bucket(middle), bucket(ns));
        }
    }

    /// Any size, any split into two tallies: the same as by sorting, within the stated error.
    #[test]
    fn as_by_sorting_all() {
        for seed in 0..30u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let (mut one, mut other, mut all) = (Tally::default(), Tally::default(), Vec::new());
            for _ in 0..seed * seed * 7 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let ns = random >> (random % 60);
                all.push(ns);
                let into = if random & 4096 == 0 { &mut one } else { &mut other };
                into.add(stretch(ns));
            }
            one.merge(&other);
            all.sort_unstable();
            let given = one.stretches();
            assert_eq!(given.count, all.len() as u64);
            assert_eq!(given.min_ns, all.first().copied().unwrap_or_default());
            assert_eq!(given.max_ns, all.last().copied().unwrap_or_default());
            assert_eq!(given.total_ns, all.iter().copied().fold(0, u64::saturating_add));
            let worst: Vec<_> = one.worst().iter().map(|s| s.ns).collect();
            assert_eq!(worst, all.iter().rev().take(3).copied().collect::<Vec<_>>());
            for (share, is) in [(0.5, given.p50_ns), (0.99, given.p99_ns)] {
                let rank = (all.len() as f64 * share).ceil() as usize;
                let exact = all.get(rank.saturating_sub(1)).copied().unwrap_or_default();
                let error = if all.len() > EXACT { exact / 128 } else { 0 };
                assert!(
                    is.abs_diff(exact) <= error,
                    "{share} of {}: {is}, not {exact}",
                    all.len()
                );
            }
            assert!(one.buckets.len() <= 64 * 64 && one.exact.len() <= EXACT);
        }
    }
}
