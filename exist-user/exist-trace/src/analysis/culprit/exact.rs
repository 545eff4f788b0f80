//! Whether a thing is more frequent among the slow calls than among the typical ones: exact tests of 2 × 2 tables.
//!
//! ```text
//!              with    without
//!   slow         a        ·      slow
//!   typical      ·        ·      typical
//!               with             slow + typical
//! ```
//! With all margins given and no association, `a` is hypergeometric (Fisher's exact test; Agresti, Categorical Data Analysis,
//! 3rd ed., 3.5.1). With a third thing held fixed there is a table for each of its values, and the sum of the `a` is judged
//! (the exact conditional test of Gart, 1970; Agresti, 7.3.5). Both are two-sided: every outcome no more likely than the one seen
//! counts. Several tests are corrected together by Holm's method, which assumes nothing about their dependence (Holm, 1979).

/// A 2 × 2 table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub slow_with: u64,
    pub slow: u64,
    pub typical_with: u64,
    pub typical: u64,
}

impl Table {
    /// Share of the slow and of the typical calls that have it.
    #[must_use]
    pub fn shares(&self) -> (f64, f64) {
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        (share(self.slow_with, self.slow), share(self.typical_with, self.typical))
    }

    /// How many times higher the odds of being slow are with it; half a call is added to each cell, so it is finite
    /// (Haldane–Anscombe).
    #[must_use]
    pub fn odds_ratio(&self) -> f64 {
        let half = |n: u64| n as f64 + 0.5;
        half(self.slow_with) * half(self.typical - self.typical_with)
            / (half(self.slow - self.slow_with) * half(self.typical_with))
    }
}

/// Logarithms of the factorials of 0, 1, … so many.
#[derive(Clone, Debug)]
pub struct Factorials {
    ln: Vec<f64>,
}

/// Outcomes less likely than the most likely one by this (a natural logarithm) are not summed up.
const NEGLIGIBLE: f64 = -745.0;
/// Two outcomes whose likelihoods differ by less are equally likely: rounding.
const ROUNDING: f64 = 1e-7;

impl Factorials {
    #[must_use]
    pub fn up_to(n: u64) -> Self {
        let mut sum = 0.0;
        let ln = (0..=n)
            .map(|i| {
                sum += (i.max(1) as f64).ln();
                sum
            })
            .collect();
        Self { ln }
    }

    fn choose(&self, n: u64, k: u64) -> f64 {
        let ln = |i: u64| self.ln[i as usize];
        ln(n) - ln(k) - ln(n - k)
    }

    /// The logarithm of the likelihood of each possible `a`, from the least on.
    fn hypergeometric(&self, table: &Table) -> (u64, Vec<f64>) {
        let with = table.slow_with + table.typical_with;
        let (least, most) = (with.saturating_sub(table.typical), with.min(table.slow));
        let all = self.choose(table.slow + table.typical, with);
        let ln = |a| self.choose(table.slow, a) + self.choose(table.typical, with - a) - all;
        (least, (least..=most).map(ln).collect())
    }

    /// The natural logarithm of the two-sided p-value of one table.
    #[must_use]
    pub fn fisher(&self, table: &Table) -> f64 {
        let (least, ln) = self.hypergeometric(table);
        two_sided(&ln, (table.slow_with - least) as usize)
    }

    /// The same for the two tables of a third thing's presence and absence.
    #[must_use]
    pub fn given(&self, tables: &[Table; 2]) -> f64 {
        let [(least_a, a), (least_b, b)] = [self.hypergeometric(&tables[0]), self.hypergeometric(&tables[1])];
        let seen = tables[0].slow_with - least_a + tables[1].slow_with - least_b;
        let mut sum = vec![0.0; a.len() + b.len() - 1];
        let likely = |ln: &[f64]| -> Vec<(usize, f64)> {
            let most = ln.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let near = ln.iter().copied().enumerate();
            near.filter(|(_, ln)| ln - most > NEGLIGIBLE / 2.0)
                .map(|(at, ln)| (at, ln.exp()))
                .collect()
        };
        let b = likely(&b);
        for (i, x) in likely(&a) {
            for (j, y) in &b {
                sum[i + j] += x * y;
            }
        }
        let ln: Vec<f64> = sum.into_iter().map(f64::ln).collect();
        two_sided(&ln, seen as usize)
    }
}

/// The logarithm of the sum of all outcomes that are no more likely than the one at `seen`; at most 0.
fn two_sided(ln: &[f64], seen: usize) -> f64 {
    let limit = ln[seen] + ROUNDING;
    let counted = || ln.iter().copied().filter(|ln| *ln <= limit);
    let most = counted().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return most;
    }
    let sum: f64 = counted()
        .filter(|ln| ln - most > NEGLIGIBLE)
        .map(|ln| (ln - most).exp())
        .sum();
    (most + sum.ln()).min(0.0)
}

/// Holm's correction of logarithms of p-values that stand in ascending order, of `looked_at` tests in all: at most 0, and
/// ascending.
#[must_use]
pub fn holm(ln_p: &[f64], looked_at: usize) -> Vec<f64> {
    let mut most = f64::NEG_INFINITY;
    let corrected = ln_p.iter().enumerate().map(|(rank, ln)| {
        most = most
            .max(ln + (looked_at.saturating_sub(rank).max(1) as f64).ln())
            .min(0.0);
        most
    });
    corrected.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table([a, b, c, d]: [u64; 4]) -> Table {
        Table {
            slow_with: a,
            slow: a + b,
            typical_with: c,
            typical: c + d,
        }
    }

    fn close(ln: f64, expect: f64) {
        assert!((ln.exp() / expect - 1.0).abs() < 1e-6, "{} is not {expect}", ln.exp());
    }

    /// By R's fisher.test and by hand (1/252 on each side of choose(10, 5)).
    #[test]
    fn fisher_s_own_tables() {
        let f = Factorials::up_to(1000);
        close(f.fisher(&table([3, 1, 1, 3])), 34.0 / 70.0);
        close(f.fisher(&table([5, 0, 0, 5])), 2.0 / 252.0);
        close(f.fisher(&table([1, 9, 11, 3])), 0.002_759_456_185_220_083);
        close(f.fisher(&table([0, 0, 3, 4])), 1.0);
        close(f.fisher(&table([4, 4, 4, 4])), 1.0);
    }

    #[test]
    fn a_p_value_smaller_than_any_float_has_a_logarithm() {
        let f = Factorials::up_to(20_000);
        let ln = f.fisher(&table([5000, 0, 0, 15_000]));
        assert!(ln < -10_000.0 && ln.is_finite(), "{ln}");
    }

    #[test]
    fn with_the_cause_held_fixed_a_confounder_has_no_association() {
        let f = Factorials::up_to(10_000);
        // In each stratum the same share of slow and typical calls; together a strong association.
        let strata = [table([80, 20, 40, 10]), table([2, 18, 100, 900])];
        let marginal = table([82, 38, 140, 910]);
        assert!(f.fisher(&marginal) < -50.0);
        assert!(f.given(&strata).exp() > 0.5);
        // One stratum that says nothing changes nothing.
        let alone = table([9, 1, 2, 18]);
        close(f.given(&[alone, table([0, 0, 5, 5])]), f.fisher(&alone).exp());
    }

    #[test]
    fn the_conditional_distribution_is_the_sum_of_both() {
        let f = Factorials::up_to(100);
        // choose(2, 1)² / choose(4, 2) = 2/3 for a = 1, 1/6 for 0 and 2; the sum of two is 4 with 1/36.
        close(f.given(&[table([2, 0, 0, 2]), table([2, 0, 0, 2])]), 2.0 / 36.0);
    }

    #[test]
    fn holm_by_hand() {
        let ln: Vec<f64> = [0.01, 0.02, 0.03, 0.5].iter().map(|p: &f64| p.ln()).collect();
        let got: Vec<f64> = holm(&ln, 4).into_iter().map(f64::exp).collect();
        let expect = [0.04, 0.06, 0.06, 0.5];
        assert!(got.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-12), "{got:?}");
        assert_eq!(holm(&[-1.0], 1000), [0.0]);
    }

    /// Of tables without association no more than the level are below it.
    #[test]
    fn the_level_is_kept() {
        let f = Factorials::up_to(400);
        for (slow, typical, with) in [(10, 30, 8), (5, 300, 40), (100, 100, 3)] {
            let (least, ln) = f.hypergeometric(&Table {
                slow_with: 0,
                slow,
                typical_with: with,
                typical,
            });
            let p_of = |at: usize| two_sided(&ln, at).exp();
            for level in [0.01, 0.05, 0.2] {
                let below: f64 = (0..ln.len())
                    .filter(|at| p_of(*at) <= level)
                    .map(|at| ln[at].exp())
                    .sum();
                assert!(
                    below <= level + 1e-9,
                    "{slow} {typical} {with} from {least}: {below} of {level}"
                );
            }
        }
    }
}
