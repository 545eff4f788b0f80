//! TSC ↔ CLOCK_MONOTONIC: the only place that converts between clocks.
//!
//! The kernel slews CLOCK_MONOTONIC against the TSC (by up to 500 ppm, `MAXFREQ` in include/linux/timex.h, changing at
//! any time), so one offset and one rate are not enough. Both clocks were read together now and then; between two
//! readings the conversion is linear (in two pieces where the rate is seen to change), and its error is stated:
//!
//! ```text
//!   tsc ▲            ┌ tsc_after                     the width of the readings on both sides
//!       │        ●───┘                             + the most that a change of rate between them can bend
//!       │    ────┘└ tsc_before                       the line, judged by the rates of its neighbours
//!       └─────────────▶ mono                       + rounding
//! ```

use super::{MonoNs, Tsc};

/// A reading of both clocks at one moment: the TSC was between `tsc_before` and `tsc_after` when CLOCK_MONOTONIC was `mono`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockPair {
    pub mono: MonoNs,
    pub tsc_before: Tsc,
    pub tsc_after: Tsc,
}

/// An interval of TSC readings, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscBracket {
    /// No earlier; 0 when nothing is known.
    pub lo: Tsc,
    /// No later; `u64::MAX` when nothing is known.
    pub hi: Tsc,
}

impl TscBracket {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self {
        lo: Tsc(0),
        hi: Tsc(u64::MAX),
    };

    /// Whether a moment known to lie in `other` may be one of `self`.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.lo <= other.hi && other.lo <= self.hi
    }
}

/// The kernel's limit on the slew of CLOCK_MONOTONIC, parts per million.
const MAX_SLEW_PPM: u64 = 500;
/// A reading this many times as wide as the usual one was interrupted: it says less than its neighbours do.
const WIDE: u64 = 8;

#[derive(Clone, Copy, Debug)]
struct Knot {
    mono: u64,
    tsc: u64,
    /// Half of the reading's width, rounded up, ticks.
    error: u64,
}

/// Converts between the two clocks within one recording.
#[derive(Clone, Debug)]
pub struct ClockMap {
    /// At least one; both clocks strictly rise.
    knots: Vec<Knot>,
    /// For each pair of neighbours: how far a change of rate can bend the line between them, ticks.
    bends: Vec<u64>,
    /// Beyond the readings, and with only one of them: ticks in a millisecond.
    tsc_khz: u64,
}

impl ClockMap {
    /// From readings in any order. `tsc_khz`: the nominal frequency, 0 when unknown.
    ///
    /// `None` without readings, and with only one and no frequency.
    #[must_use]
    pub fn new(pairs: &[ClockPair], tsc_khz: u64) -> Option<Self> {
        let mut widths: Vec<u64> = pairs
            .iter()
            .map(|p| p.tsc_after.0.wrapping_sub(p.tsc_before.0))
            .collect();
        widths.sort_unstable();
        let usual = widths.get(widths.len() / 2).copied()?.max(1);
        let mut knots: Vec<Knot> = pairs
            .iter()
            .filter(|p| p.tsc_before <= p.tsc_after && p.tsc_after.0 - p.tsc_before.0 <= usual.saturating_mul(WIDE))
            .map(|p| {
                let width = p.tsc_after.0 - p.tsc_before.0;
                Knot {
                    mono: p.mono.0,
                    tsc: p.tsc_before.0 + width / 2,
                    error: width.div_ceil(2),
                }
            })
            .collect();
        knots.sort_by_key(|k| (k.mono, k.error));
        knots.dedup_by_key(|k| k.mono);
        // Readings may touch when they are close together; the order of both clocks must be the same.
        let mut rising: Vec<Knot> = Vec::with_capacity(knots.len());
        for knot in knots {
            if rising.last().is_none_or(|last| last.tsc < knot.tsc) {
                rising.push(knot);
            }
        }
        if rising.is_empty() || rising.len() == 1 && tsc_khz == 0 {
            return None;
        }
        let knots = with_knees(&rising);
        let bends = bends(&knots);
        Some(Self { knots, bends, tsc_khz })
    }

    /// CLOCK_MONOTONIC when the TSC was `tsc`. Rises with it.
    #[must_use]
    pub fn mono(&self, tsc: Tsc) -> MonoNs {
        let after = self.knots.partition_point(|k| k.tsc <= tsc.0);
        let (knot, ticks, ns) = self.line(after);
        MonoNs(clamp(i128::from(knot.mono) + scale(tsc.0, knot.tsc, ns, ticks)))
    }

    /// What the TSC can have been when CLOCK_MONOTONIC was `mono`.
    #[must_use]
    pub fn tsc(&self, mono: MonoNs) -> TscBracket {
        let after = self.knots.partition_point(|k| k.mono <= mono.0);
        let (knot, ticks, ns) = self.line(after);
        let at = i128::from(knot.tsc) + scale(mono.0, knot.mono, ticks, ns);
        let error = i128::from(self.error_ticks(mono, after)) + i128::from(ticks.div_ceil(ns)) + 1;
        TscBracket {
            lo: Tsc(clamp(at - error)),
            hi: Tsc(clamp(at + error)),
        }
    }

    /// How far [`Self::mono`] can be off around this moment, nanoseconds.
    #[must_use]
    pub fn error_ns(&self, mono: MonoNs) -> u64 {
        let bracket = self.tsc(mono);
        let (_, ticks, ns) = self.line(self.knots.partition_point(|k| k.mono <= mono.0));
        let half = u128::from((bracket.hi.0 - bracket.lo.0).div_ceil(2));
        u64::try_from((half * u128::from(ns)).div_ceil(u128::from(ticks))).unwrap_or(u64::MAX)
    }

    /// The line that holds before knot `after`: a point of it, and its slope as ticks per nanoseconds (neither is zero).
    fn line(&self, after: usize) -> (Knot, u64, u64) {
        let last = self.knots.len() - 1;
        if last == 0 {
            return (self.knots[0], self.tsc_khz, 1_000_000);
        }
        let to = after.clamp(1, last);
        let (a, b) = (self.knots[to - 1], self.knots[to]);
        (a, b.tsc - a.tsc, b.mono - a.mono)
    }

    fn error_ticks(&self, mono: MonoNs, after: usize) -> u64 {
        let last = self.knots.len() - 1;
        let (_, ticks, ns) = self.line(after);
        if (1..=last).contains(&after) {
            return self.knots[after - 1].error.max(self.knots[after].error) + self.bends[after - 1];
        }
        // Beyond the readings the rate may change to anything that the kernel allows.
        let edge = if after == 0 { self.knots[0] } else { self.knots[last] };
        let neighbour = if last == 0 {
            0
        } else {
            self.bends[if after == 0 { 0 } else { last - 1 }]
        };
        let distance = u128::from(mono.0.abs_diff(edge.mono)) * u128::from(ticks) / u128::from(ns);
        let drift = distance * 2 * u128::from(MAX_SLEW_PPM) / 1_000_000;
        edge.error
            .saturating_add(neighbour)
            .saturating_add(u64::try_from(drift).unwrap_or(u64::MAX))
    }
}

/// Adds the points where the rate changed between two readings: where the line before meets the line after, if they
/// differ by more than the readings' own errors can make them.
fn with_knees(knots: &[Knot]) -> Vec<Knot> {
    let slope = |a: Knot, b: Knot| (b.tsc - a.tsc) as f64 / (b.mono - a.mono) as f64;
    let mut out: Vec<Knot> = Vec::with_capacity(knots.len());
    for (at, knot) in knots.iter().enumerate() {
        out.push(*knot);
        let around = (
            at.checked_sub(1).and_then(|i| knots.get(i)),
            knots.get(at + 1),
            knots.get(at + 2),
        );
        let (Some(first), Some(next), Some(last)) = around else {
            continue;
        };
        let (before, after) = (slope(*first, *knot), slope(*next, *last));
        let (ns, ticks) = (next.mono - knot.mono, next.tsc - knot.tsc);
        // How far the line before misses the next reading, and what all four readings can make of it.
        let miss = ticks as f64 - before * ns as f64;
        let error = knot.error.max(next.error).max(first.error).max(last.error);
        if miss.abs() <= 2.0 * error.max(1) as f64 {
            continue;
        }
        let until = (ticks as f64 - after * ns as f64) / (before - after);
        if !(until.is_finite() && until > ns as f64 / 64.0 && until < ns as f64 * 63.0 / 64.0) {
            continue;
        }
        let knee = Knot {
            mono: knot.mono + until as u64,
            tsc: knot.tsc + (before * until) as u64,
            error: error.saturating_mul(4),
        };
        if (knot.tsc + 1..next.tsc).contains(&knee.tsc) && (knot.mono + 1..next.mono).contains(&knee.mono) {
            out.push(knee);
        }
    }
    out
}

/// A rate that changes once, from that of the stretch before to that of the stretch after, leaves the line between the
/// two ends of this one by at most a quarter of its length times the change.
fn bends(knots: &[Knot]) -> Vec<u64> {
    let slope = |i: usize| {
        let (a, b) = (knots[i], knots[i + 1]);
        (b.tsc - a.tsc) as f64 / (b.mono - a.mono) as f64
    };
    let count = knots.len().saturating_sub(1);
    (0..count)
        .map(|i| {
            let (before, after) = (slope(i.saturating_sub(1)), slope((i + 1).min(count - 1)));
            let own = slope(i);
            let change = (before - own)
                .abs()
                .max((after - own).abs())
                .max((before - after).abs());
            (change * (knots[i + 1].mono - knots[i].mono) as f64 / 4.0).ceil() as u64
        })
        .collect()
}

/// `(at - from) * numerator / denominator`, rounded down, so that it rises with `at` on both sides of `from`.
fn scale(at: u64, from: u64, numerator: u64, denominator: u64) -> i128 {
    let product = u128::from(at.abs_diff(from)) * u128::from(numerator);
    let denominator = u128::from(denominator);
    let signed = |quotient: u128| i128::try_from(quotient).unwrap_or(i128::MAX / 2);
    if at >= from {
        signed(product / denominator)
    } else {
        -signed(product.div_ceil(denominator))
    }
}

fn clamp(value: i128) -> u64 {
    u64::try_from(value.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % limit
        }
    }

    fn pair(mono: u64, before: u64, after: u64) -> ClockPair {
        ClockPair {
            mono: MonoNs(mono),
            tsc_before: Tsc(before),
            tsc_after: Tsc(after),
        }
    }

    #[test]
    fn nothing_comes_from_nothing() {
        assert!(ClockMap::new(&[], 3_000_000).is_none());
        assert!(ClockMap::new(&[pair(5, 10, 12)], 0).is_none());
        assert!(ClockMap::new(&[pair(5, 12, 10)], 3_000_000).is_none());
    }

    #[test]
    fn one_reading_and_the_nominal_frequency() {
        let map = ClockMap::new(&[pair(1_000, 5_000, 5_010)], 3_000_000).unwrap();
        assert_eq!(map.mono(Tsc(5_005)), MonoNs(1_000));
        assert_eq!(map.mono(Tsc(5_005 + 3_000_000)), MonoNs(1_001_000));
        assert_eq!(map.mono(Tsc(0)), MonoNs(0));
        let second = map.tsc(MonoNs(1_000 + 1_000_000_000));
        let (low, high) = (3_000_000_000 - 3_000_000, 3_000_000_000 + 3_000_000);
        assert!(second.lo.0 <= 5_005 + low && second.lo.0 > low, "{second:?}");
        assert!(second.hi.0 >= 5_005 + high && second.hi.0 < 5_100 + high, "{second:?}");
    }

    #[test]
    fn linear_between_two_readings() {
        let map = ClockMap::new(&[pair(2_000, 16_000, 16_000), pair(1_000, 10_000, 10_000)], 0).unwrap();
        assert_eq!(map.mono(Tsc(13_000)), MonoNs(1_500));
        let bracket = map.tsc(MonoNs(1_500));
        assert!(bracket.lo <= Tsc(13_000) && Tsc(13_000) <= bracket.hi && bracket.hi.0 - bracket.lo.0 <= 16);
        assert!(map.error_ns(MonoNs(1_500)) <= 2);
    }

    #[test]
    fn an_interrupted_reading_does_not_widen_the_others() {
        let pairs = [
            pair(1_000, 10_000, 10_010),
            pair(2_000, 16_000, 90_000),
            pair(3_000, 22_000, 22_010),
        ];
        let map = ClockMap::new(&pairs, 0).unwrap();
        assert_eq!(map.mono(Tsc(16_005)), MonoNs(2_000));
        assert!(map.error_ns(MonoNs(2_000)) <= 3);
    }

    /// A TSC near its end, and a clock whose rate changes once a second by up to 500 ppm.
    #[test]
    fn the_truth_lies_in_the_bracket_and_time_never_goes_back() {
        for seed in 1..40 {
            let mut random = Random(seed * 0x9e37_79b9);
            let tsc_hz = 1_000_000_000 + random.below(4_000_000_000);
            let (mut mono, mut tsc) = (random.below(1 << 50), u64::MAX - (1 << 45) - random.below(1 << 40));
            let mut truth = vec![(mono, tsc)];
            for _ in 0..30 {
                let ppm = 1_000_000 + random.below(1_001) - 500;
                for _ in 0..20 {
                    mono += 50_000_000;
                    tsc += (u128::from(tsc_hz) * 50_000_000 / 1_000 / u128::from(ppm) * 1_000_000 / 1_000_000) as u64;
                    truth.push((mono, tsc));
                }
            }
            // A reading every tenth of a second; the moments between them are for checking.
            let pairs: Vec<ClockPair> = truth
                .iter()
                .step_by(2)
                .map(|&(mono, tsc)| pair(mono, tsc - random.below(300), tsc + random.below(300)))
                .collect();
            let map = ClockMap::new(&pairs, 0).unwrap();
            let mut last = MonoNs(0);
            for &(mono, tsc) in &truth {
                let bracket = map.tsc(MonoNs(mono));
                assert!(
                    bracket.lo.0 <= tsc && tsc <= bracket.hi.0,
                    "seed {seed}: {tsc} not in {bracket:?}"
                );
                let error = map.error_ns(MonoNs(mono));
                assert!(map.mono(Tsc(tsc)).0.abs_diff(mono) <= error + 1, "seed {seed}");
                for offset in [0, 1, 2, 1000] {
                    let now = map.mono(Tsc(tsc + offset));
                    assert!(now >= last, "seed {seed}");
                    last = last.max(now);
                }
                last = map.mono(Tsc(tsc));
            }
        }
    }

    #[test]
    fn a_change_of_rate_between_two_readings_is_found() {
        const HZ: u64 = 2_400_000_000;
        let change = 1_034_000_000;
        let truth = |mono: u64| {
            let slewed = mono.saturating_sub(change);
            mono * 12 / 5
                + u64::try_from(u128::from(slewed) * u128::from(HZ) * 200 / 1_000_000 / 1_000_000_000).unwrap()
        };
        let pairs: Vec<ClockPair> = (5..20)
            .map(|n| n * 100_000_000)
            .map(|mono| pair(mono, truth(mono) - 100, truth(mono) + 100))
            .collect();
        let map = ClockMap::new(&pairs, 0).unwrap();
        for mono in (600_000_000..1_800_000_000).step_by(1_234_567) {
            let bracket = map.tsc(MonoNs(mono));
            let middle = bracket.lo.0.midpoint(bracket.hi.0);
            assert!(
                middle.abs_diff(truth(mono)) < 100,
                "{mono}: {bracket:?}, not {}",
                truth(mono)
            );
            assert!(bracket.lo.0 <= truth(mono) && truth(mono) <= bracket.hi.0);
        }
    }

    #[test]
    fn the_ends_of_the_number_range_are_no_trouble() {
        let map = ClockMap::new(&[pair(1, 1, 2), pair(u64::MAX - 1, u64::MAX - 2, u64::MAX)], 0).unwrap();
        assert_eq!(map.mono(Tsc(0)), MonoNs(0));
        assert!(map.mono(Tsc(u64::MAX)).0 >= u64::MAX - 2);
        for mono in [0, 1, u64::MAX / 2, u64::MAX] {
            let bracket = map.tsc(MonoNs(mono));
            assert!(bracket.lo <= bracket.hi);
        }
    }
}
