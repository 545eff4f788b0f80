//! Small statistics for measurements: medians, quantiles, paired comparison with a bootstrap bound.
//! Every random choice comes from [`Random`] with a fixed seed: the same samples give the same figures.

/// Resamples of a bootstrap. The bound's own error is then well below what 20 pairs can tell.
const RESAMPLES: usize = 10_000;

/// A SplitMix64 generator (Steele, Lea, Flood 2014): enough for shuffling and resampling.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed gives the same sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` (0 for a bound of 0); the bias of at most `bound / 2^64` does not matter here.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Uniform in `(0, 1]`.
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Puts the items in random order (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// The `q`-quantile (`0.0..=1.0`) of the samples, interpolated between neighbours; NaN when there are none.
#[must_use]
pub fn quantile(samples: &[f64], q: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_sorted(&sorted, q)
}

/// The median of the samples; NaN when there are none.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

fn quantile_sorted(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let position = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

/// A figure with the bounds between which it lies with 90 % confidence: so `upper` is the one-sided 95 % bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median of the samples.
    pub median: f64,
    /// 5 % of the resampled medians lie below.
    pub lower: f64,
    /// 95 % of the resampled medians lie below.
    pub upper: f64,
    /// How many samples it rests on.
    pub samples: usize,
}

/// The median with its bounds by the percentile bootstrap.
#[must_use]
pub fn estimate(samples: &[f64]) -> Estimate {
    estimate_with(samples, RESAMPLES)
}

fn estimate_with(samples: &[f64], resamples: usize) -> Estimate {
    let mut random = Random::new(samples.len() as u64);
    let mut resample = vec![0.0; samples.len()];
    let mut medians: Vec<f64> = (0..if samples.is_empty() { 0 } else { resamples })
        .map(|_| {
            resample.fill_with(|| samples[random.below(samples.len())]);
            resample.sort_by(f64::total_cmp);
            quantile_sorted(&resample, 0.5)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    Estimate {
        median: median(samples),
        lower: quantile_sorted(&medians, 0.05),
        upper: quantile_sorted(&medians, 0.95),
        samples: samples.len(),
    }
}

/// One-sided sign test (exact): how likely so many of the differences, or more, are above 0 if half of all are. Zeros are
/// left out; 1 when nothing is left.
#[must_use]
pub fn sign_test(differences: &[f64]) -> f64 {
    let (above, below) = (
        differences.iter().filter(|&&d| d > 0.0).count(),
        differences.iter().filter(|&&d| d < 0.0).count(),
    );
    let n = above + below;
    // C(n, k) / 2^n, from k = n down to `above`.
    let mut term = 0.5f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut sum = 0.0;
    for k in (above..=n).rev() {
        sum += term;
        term *= k as f64 / (n - k + 1) as f64;
    }
    sum.min(1.0)
}

/// `with / without` of each pair, in the order given.
#[must_use]
#[allow(dead_code)] // for benches of one program with and without
pub fn ratios(pairs: &[(f64, f64)]) -> Vec<f64> {
    pairs.iter().map(|(without, with)| with / without).collect()
}

/// Measures `pairs` pairs `(without, with)`, one right after the other, in random order within each pair,
/// so that drift and order fall on both sides alike.
///
/// # Errors
/// The first error of a measurement.
#[allow(dead_code)] // for benches of one program with and without
pub fn interleaved<E>(
    pairs: usize,
    seed: u64,
    mut without: impl FnMut() -> Result<f64, E>,
    mut with: impl FnMut() -> Result<f64, E>,
) -> Result<Vec<(f64, f64)>, E> {
    let mut random = Random::new(seed);
    (0..pairs)
        .map(|_| {
            if random.below(2) == 0 {
                let first = without()?;
                Ok((first, with()?))
            } else {
                let first = with()?;
                Ok((without()?, first))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quantiles_interpolate() {
        assert!(median(&[]).is_nan());
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[0.0, 10.0], 0.99), 9.9);
        assert_eq!(quantile(&[5.0, 1.0], 0.0), 1.0);
        assert_eq!(quantile(&[5.0, 1.0], 1.0), 5.0);
    }

    #[test]
    fn bound_is_repeatable_and_holds_the_median() {
        let samples: Vec<f64> = (0..21).map(|i| f64::from(i * 8 % 21)).collect();
        let first = estimate(&samples);
        assert_eq!(first, estimate(&samples));
        assert_eq!(first.median, 10.0);
        assert!(first.lower < 10.0 && 10.0 < first.upper, "{first:?}");
    }

    /// The bound must do what its name says: over many draws from one distribution, the true median lies
    /// above the upper bound in about 5 % of them.
    #[test]
    fn upper_bound_covers_the_true_median_about_95_times_of_100() {
        let mut random = Random::new(7);
        let trials = 300;
        let missed = (0..trials)
            .filter(|_| {
                let samples: Vec<f64> = (0..20).map(|_| random.unit()).collect();
                estimate_with(&samples, 1_000).upper < 0.5
            })
            .count();
        assert!(
            (3..=30).contains(&missed),
            "{missed} of {trials} missed, expected about 15"
        );
    }

    #[test]
    fn sign_test_gives_the_binomial_tail() {
        let signs = |above: usize, below: usize| [vec![1.0; above], vec![-1.0; below], vec![0.0; 3]].concat();
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} {want}");
        close(sign_test(&[]), 1.0);
        close(sign_test(&signs(0, 5)), 1.0);
        close(sign_test(&signs(1, 1)), 0.75);
        close(sign_test(&signs(5, 0)), 1.0 / 32.0);
        close(sign_test(&signs(17, 3)), 1351.0 / 1_048_576.0);
        close(sign_test(&signs(18, 2)), 211.0 / 1_048_576.0);
    }

    #[test]
    fn no_samples_give_no_number() {
        let none = estimate(&[]);
        assert!(none.median.is_nan() && none.upper.is_nan() && none.samples == 0);
    }

    #[test]
    fn pairs_are_interleaved_in_both_orders() {
        use std::cell::RefCell;
        let order = RefCell::new(String::new());
        let pairs = interleaved::<()>(
            32,
            1,
            || {
                order.borrow_mut().push('a');
                Ok(2.0)
            },
            || {
                order.borrow_mut().push('b');
                Ok(3.0)
            },
        )
        .unwrap();
        assert_eq!(pairs, [(2.0, 3.0); 32]);
        assert_eq!(ratios(&pairs), [1.5; 32]);
        let order = order.into_inner();
        let chunks: Vec<_> = order.as_bytes().chunks(2).collect();
        assert!(chunks.contains(&&b"ab"[..]) && chunks.contains(&&b"ba"[..]), "{order}");
        assert!(chunks.iter().all(|pair| pair[0] != pair[1]), "{order}");
    }

    #[test]
    fn an_error_ends_the_pairs() {
        assert_eq!(interleaved(3, 1, || Ok(1.0), || Err("gone")), Err("gone"));
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
