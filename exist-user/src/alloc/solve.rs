//! The best buffers within a budget, exactly.
//!
//! Each CPU gets one of the sizes 0, least, 2·least, … most; the worth of the whole is the sum over the CPUs: a
//! multiple-choice knapsack, solved by dynamic programming over the budget in units of the least size. The largest machine
//! and budget of the defaults (192 CPUs, 4 GiB by 4 MiB) take 192 × 1024 × 7 steps.
//! (Kellerer, Pferschy, Pisinger: Knapsack Problems, 2004, chapter 11.)

use super::usage::Objective;

/// The sizes that a buffer may have: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub least_bytes: u64,
    pub most_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            least_bytes: 4 << 20,
            most_bytes: 128 << 20,
        }
    }
}

/// Whether a CPU may go without a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// Every CPU gets some, as far as the budget holds the least size for all.
    Some,
    /// A CPU may get none.
    None,
}

/// More units than this are not looked at one by one: then the least size is larger than was asked.
const MOST_UNITS: u64 = 1 << 16;

/// A buffer for each CPU, in the order of the objective; 0: none. No other choice of these sizes within the budget is worth
/// more; of equals, the one that takes fewer bytes. Sizes below 1/65536 of the budget are not considered.
#[must_use]
pub fn solve(objective: &Objective, budget_bytes: u64, bounds: Bounds, every: Every) -> Vec<u64> {
    let cpus = objective.cpus().count();
    let most = 1_u64 << bounds.most_bytes.max(1).ilog2();
    let budget = budget_bytes.min(most.saturating_mul(cpus as u64));
    let unit = bounds
        .least_bytes
        .max(1)
        .checked_next_power_of_two()
        .unwrap_or(most)
        .max((budget / MOST_UNITS).checked_next_power_of_two().unwrap_or(most))
        .min(most);
    let all = usize::try_from(budget / unit).expect("at most MOST_UNITS");
    // Units that each CPU has before anything is chosen.
    let given = match every {
        Every::Some => usize::from(all >= cpus),
        Every::None => 0,
    };
    let units = all - given * cpus;
    let choices = (most / unit).ilog2() + 1;
    // best[b]: the worth of the CPUs so far within b units. took[cpu][b]: what the last of them has, as a power, 0: none.
    let mut best = vec![0.0_f64; units + 1];
    let mut took = vec![0_u8; cpus * (units + 1)];
    for (place, row) in took.chunks_exact_mut(units + 1).enumerate() {
        let worth: Vec<f64> = (0..choices)
            .map(|power| objective.value(place, unit << power))
            .collect();
        let least = if given > 0 {
            worth.first().copied().unwrap_or(0.0)
        } else {
            0.0
        };
        for b in (0..=units).rev() {
            let (mut top, mut choice) = (best[b] + least, given as u8);
            let more = (0_u8..).zip(&worth).skip(given);
            for (power, worth) in more.take_while(|(power, _)| (1_usize << power) - given <= b) {
                let with = best[b - ((1 << power) - given)] + worth;
                // A rounding error is no gain.
                if with > top + 1e-15 {
                    (top, choice) = (with, power + 1);
                }
            }
            (best[b], row[b]) = (top, choice);
        }
    }
    let mut left = units;
    let mut buffers = vec![0; cpus];
    for place in (0..cpus).rev() {
        if let Some(power) = took[place * (units + 1) + left].checked_sub(1) {
            buffers[place] = unit << power;
            left -= (1 << power) - given;
        }
    }
    buffers
}

#[cfg(test)]
mod tests {
    use exist_trace::units::Cpu;

    use super::{
        super::{
            forecast,
            usage::{CpuUsage, Use},
        },
        *,
    };

    /// Reproducible numbers from 0 to 1 (SplitMix64).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ z >> 31) as f64 / u64::MAX as f64
        }
    }

    fn brute_force(objective: &Objective, budget: u64, sizes: &[u64], chosen: &mut Vec<u64>) -> f64 {
        if chosen.len() == objective.cpus().count() {
            return objective.total(chosen);
        }
        let mut best = 0.0;
        for &size in sizes.iter().filter(|size| **size <= budget) {
            chosen.push(size);
            best = f64::max(best, brute_force(objective, budget - size, sizes, chosen));
            chosen.pop();
        }
        best
    }

    #[test]
    fn nothing_is_better_by_brute_force() {
        let mut random = Random(1);
        let bounds = Bounds {
            least_bytes: 4,
            most_bytes: 32,
        };
        for case in 0..400 {
            let cpus = 1 + (random.next() * 5.0) as u32;
            let slots = (random.next() * 4.0) as usize;
            let usage: Vec<_> = (0..cpus)
                .map(|cpu| CpuUsage {
                    cpu: Cpu(cpu),
                    slots: (0..slots)
                        .map(|_| Use {
                            bytes: random.next() * 80.0,
                            on_cpu_ns: (random.next() * 3.0).floor() * random.next(),
                        })
                        .collect(),
                })
                .collect();
            let objective = match case % 2 {
                0 => forecast(&usage),
                _ => Objective::exact(&usage),
            };
            let budget = (random.next() * 100.0) as u64;
            let every = if case % 3 == 0 { Every::Some } else { Every::None };
            let buffers = solve(&objective, budget, bounds, every);
            let all = every == Every::Some && budget / 4 >= u64::from(cpus);
            let sizes = if all { &[4, 8, 16, 32][..] } else { &[0, 4, 8, 16, 32] };
            let best = brute_force(&objective, budget, sizes, &mut Vec::new());
            let ours = objective.total(&buffers);
            assert!(
                (ours - best).abs() < 1e-9,
                "case {case}: {ours} is not {best}: {buffers:?} of {budget}"
            );
            assert!(buffers.iter().sum::<u64>() <= budget);
            assert!(
                buffers
                    .iter()
                    .all(|b| *b == 0 && !all || b.is_power_of_two() && (4..=32).contains(b))
            );
        }
    }

    #[test]
    fn what_is_used_gets_the_memory() {
        let usage: Vec<_> = [(900.0, 60.0), (0.0, 0.0), (100.0, 60.0)]
            .iter()
            .zip(0..)
            .map(|(&(on_cpu_ns, mib), cpu)| CpuUsage {
                cpu: Cpu(cpu),
                slots: vec![
                    Use {
                        bytes: mib * 1048576.0,
                        on_cpu_ns,
                    };
                    8
                ],
            })
            .collect();
        let mib = |budget: u64| -> Vec<u64> {
            let objective = forecast(&usage);
            solve(&objective, budget << 20, Bounds::default(), Every::None)
                .iter()
                .map(|b| b >> 20)
                .collect()
        };
        assert_eq!(mib(3), [0, 0, 0]);
        assert_eq!(mib(64), [64, 0, 0]);
        assert_eq!(mib(128), [64, 0, 64]);
        // More than the known ones need: the CPU that may turn up gets the rest.
        let [a, unseen, b] = mib(192)[..] else { panic!() };
        assert!(a >= 64 && b >= 64 && unseen > 0, "{a} {unseen} {b}");
    }

    #[test]
    fn odd_bounds_do_no_harm() {
        let objective = Objective::new(vec![(Cpu(0), vec![])]);
        for (least, most) in [(0, 0), (1, u64::MAX), (u64::MAX, u64::MAX), (8, 4), (3, 5)] {
            for budget in [0, 1, 7, 1 << 40, u64::MAX] {
                let bounds = Bounds {
                    least_bytes: least,
                    most_bytes: most,
                };
                assert!(solve(&objective, budget, bounds, Every::None)[0] <= budget);
                assert!(solve(&objective, budget, bounds, Every::Some)[0] <= budget);
            }
        }
        assert!(solve(&Objective::new(vec![]), 1 << 30, Bounds::default(), Every::None).is_empty());
    }
}
