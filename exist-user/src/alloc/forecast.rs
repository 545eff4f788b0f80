//! What the next period will bring, from a look-back.
//!
//! Takes: each CPU's slots, the oldest first ([`CpuUsage`]). Gives: the samples of an [`Objective`]. Refuses nothing: numbers
//! that make no sense count as 0.
//!
//! Threads stay where they are, come and go, and move; which of these a target does shows in what its CPUs did so far, all of
//! them together. So three guesses are mixed for each CPU:
//!
//! ```text
//!   own       its own slots, each OWN_RECENCY times as likely as the next                            OWN
//!   alike     what followed on any CPU, in any slot, a level like its last one                       (1 − OWN) · seen / (seen + PRIOR)
//!   anywhere  what any CPU did in any slot: a CPU to which the target has not come yet, the reserve  the rest, at most ANYWHERE
//! ```
//! A level is the target's time in half-octaves below the highest one; `seen` is how often that level was left. Without enough
//! of it, `own` takes what is over. Bytes at a level come from a line through the CPU's own slots, whose slope is drawn to the
//! common one as by [`RIDGE`] slots. CPUs that the target may not use are left out of the look-back.
//!
//! Each of these is split: mostly it is as it says, and with [`LESS`] each the trace takes half, a quarter, an eighth.
//!
//! The constants were chosen with seeds 101 to 120 of `cargo xtask sim plan`, which judges with others; the result hardly
//! depends on them.

use super::usage::{CpuUsage, Objective, Sample, Use, positive};

/// Weight of a CPU's own slots.
const OWN: f64 = 0.3;
/// How likely each of them is, beside the one after it.
const OWN_RECENCY: f64 = 0.35;
/// How many observations the level of any CPU in any slot stands for.
const PRIOR: f64 = 0.5;
/// Its highest weight.
const ANYWHERE: f64 = 0.2;
/// How likely it is, beside what is expected, that the trace takes half, a quarter or an eighth of it: of two CPUs that are
/// worth about the same, both get something, so that one wrong guess does not cost the whole window.
const LESS: f64 = 0.005;
/// Levels: nothing, and half-octaves from the highest down.
const LEVELS: usize = 12;
/// Weight of the common slope, in slots that deviate from their mean by a twentieth of the highest level.
const RIDGE: f64 = 2.0;

/// The objective of the next period.
#[must_use]
pub fn forecast(usage: &[CpuUsage]) -> Objective {
    let usage: Vec<CpuUsage> = usage.iter().map(sane).collect();
    let all = || usage.iter().flat_map(|cpu| &cpu.slots);
    let highest = all().map(|slot| slot.on_cpu_ns).fold(0.0, f64::max);
    if highest <= 0.0 {
        return Objective::new(usage.iter().map(|cpu| (cpu.cpu, Vec::new())).collect());
    }
    let level = |slot: &Use| level(slot.on_cpu_ns / highest);
    let mut after = [[Seen::default(); LEVELS]; LEVELS];
    let mut anywhere = [Seen::default(); LEVELS];
    all().for_each(|slot| anywhere[level(slot)].add(slot));
    for pair in usage.iter().flat_map(|cpu| cpu.slots.windows(2)) {
        after[level(&pair[0])][level(&pair[1])].add(&pair[1]);
    }
    let (lines, unknown) = (Lines::new(&usage, highest), [Seen::default(); LEVELS]);
    let samples = |cpu: &CpuUsage| {
        let line = lines.of(cpu);
        let after = cpu.slots.last().map_or(&unknown, |last| &after[level(last)]);
        let seen: f64 = after.iter().map(|s| s.count).sum();
        let alike = (1.0 - OWN) * seen / (seen + PRIOR);
        let rest = (1.0 - OWN - alike).min(ANYWHERE);
        let from = |seen: &[Seen; LEVELS], weight: f64| {
            let count: f64 = seen.iter().map(|s| s.count).sum();
            let levels = seen.iter().filter(|s| s.count > 0.0);
            let sample = |s: &Seen| Sample {
                weight: weight * s.count / count,
                of: line.at(s.on_cpu_ns / s.count),
            };
            levels.map(sample).collect::<Vec<_>>()
        };
        let mut samples = own(cpu, 1.0 - alike - rest);
        samples.extend(from(after, alike));
        samples.extend(from(&anywhere, rest));
        let less: Vec<Sample> = [0.5, 0.25, 0.125]
            .into_iter()
            .flat_map(|part| samples.iter().map(move |sample| in_part(sample, part)))
            .collect();
        samples.extend(less);
        samples
    };
    Objective::new(usage.iter().map(|cpu| (cpu.cpu, samples(cpu))).collect())
}

fn sane(cpu: &CpuUsage) -> CpuUsage {
    let slot = |slot: &Use| Use {
        bytes: positive(slot.bytes),
        on_cpu_ns: positive(slot.on_cpu_ns),
    };
    CpuUsage {
        cpu: cpu.cpu,
        slots: cpu.slots.iter().map(slot).collect(),
    }
}

/// 0: less than a 64th of the highest.
fn level(share: f64) -> usize {
    if share <= 1.0 / 64.0 {
        return 0;
    }
    let top = (LEVELS - 1) as f64;
    (top + 2.0 * share.log2()).round().clamp(1.0, top) as usize
}

/// Slots of one level.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: f64,
    on_cpu_ns: f64,
}

impl Seen {
    fn add(&mut self, slot: &Use) {
        self.count += 1.0;
        self.on_cpu_ns += slot.on_cpu_ns;
    }
}

/// A CPU's own slots with `weight` in all, the later ones more.
fn own(cpu: &CpuUsage, weight: f64) -> Vec<Sample> {
    let ages = (0..cpu.slots.len()).map(|age| OWN_RECENCY.powi(i32::try_from(age).unwrap_or(i32::MAX)));
    let whole: f64 = ages.clone().sum();
    let slots = cpu.slots.iter().rev().zip(ages);
    slots
        .map(|(&of, age)| Sample {
            weight: weight * age / whole,
            of,
        })
        .collect()
}

/// The unlikely case that the trace takes only a part of the bytes.
fn in_part(sample: &Sample, part: f64) -> Sample {
    Sample {
        weight: sample.weight * LESS,
        of: Use {
            bytes: sample.of.bytes * part,
            ..sample.of
        },
    }
}

/// Bytes by on-CPU time, as a line through the mean of a CPU's slots.
#[derive(Clone, Copy, Debug)]
struct Line {
    mean: Use,
    slope: f64,
}

impl Line {
    fn at(&self, on_cpu_ns: f64) -> Use {
        let bytes = self.mean.bytes + self.slope * (on_cpu_ns - self.mean.on_cpu_ns);
        // Less time than ever takes some bytes still.
        let share = if self.mean.on_cpu_ns > 0.0 {
            on_cpu_ns / self.mean.on_cpu_ns
        } else {
            1.0
        };
        Use {
            on_cpu_ns,
            bytes: bytes.max(0.3 * self.mean.bytes * share.min(1.0)),
        }
    }
}

/// What the lines of all CPUs have in common.
#[derive(Clone, Copy, Debug)]
struct Lines {
    slope: f64,
    ridge: f64,
}

impl Lines {
    fn new(usage: &[CpuUsage], highest: f64) -> Self {
        let deviations = usage.iter().map(deviations);
        let (covariance, variance) = deviations.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let means = usage.iter().map(mean);
        let whole = means.fold(Use::default(), |sum, one| Use {
            bytes: sum.bytes + one.bytes,
            on_cpu_ns: sum.on_cpu_ns + one.on_cpu_ns,
        });
        let slope = if variance > 0.0 {
            covariance / variance
        } else {
            whole.bytes / whole.on_cpu_ns.max(1.0)
        };
        Self {
            slope: positive(slope),
            ridge: RIDGE * (highest / 20.0).powi(2),
        }
    }

    fn of(self, cpu: &CpuUsage) -> Line {
        let (covariance, variance) = deviations(cpu);
        Line {
            mean: mean(cpu),
            slope: (covariance + self.ridge * self.slope) / (variance + self.ridge),
        }
    }
}

fn mean(cpu: &CpuUsage) -> Use {
    let count = cpu.slots.len().max(1) as f64;
    let sum = |of: fn(&Use) -> f64| cpu.slots.iter().map(of).sum::<f64>() / count;
    Use {
        bytes: sum(|slot| slot.bytes),
        on_cpu_ns: sum(|slot| slot.on_cpu_ns),
    }
}

/// Sums of the products of deviations from the mean: time with bytes, time with itself.
fn deviations(cpu: &CpuUsage) -> (f64, f64) {
    let mean = mean(cpu);
    cpu.slots.iter().fold((0.0, 0.0), |(covariance, variance), slot| {
        let time = slot.on_cpu_ns - mean.on_cpu_ns;
        (covariance + time * (slot.bytes - mean.bytes), variance + time * time)
    })
}

#[cfg(test)]
mod tests {
    use exist_trace::units::Cpu;

    use super::*;

    /// Slots of each CPU as (time, bytes).
    fn worth(cpus: &[&[(f64, f64)]]) -> Objective {
        let usage = |(cpu, slots): (u32, &&[(f64, f64)])| CpuUsage {
            cpu: Cpu(cpu),
            slots: slots
                .iter()
                .map(|&(on_cpu_ns, bytes)| Use { bytes, on_cpu_ns })
                .collect(),
        };
        forecast(&(0..).zip(cpus).map(usage).collect::<Vec<_>>())
    }

    const ON: (f64, f64) = (100.0, 1000.0);
    const OFF: (f64, f64) = (0.0, 0.0);

    #[test]
    fn a_target_that_stays_is_expected_where_it_is() {
        let stays = worth(&[&[ON; 8], &[OFF; 8], &[OFF; 8], &[OFF; 8]]);
        assert!(stays.value(0, 1000) > 0.9, "{}", stays.value(0, 1000));
        // The reserve: no CPU is worth nothing.
        assert!(stays.value(3, 1000) > 0.0);
        assert!((stays.total(&[1000, 1000, 1000, 1000]) - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_target_that_moves_every_time_is_expected_elsewhere() {
        let moves = worth(&[&[ON, OFF, ON, OFF, ON], &[OFF, ON, OFF, ON, OFF]]);
        assert!(moves.value(1, 1000) > moves.value(0, 1000));
        // Of others' moves is known how long one that is away stays away.
        let alike = worth(&[
            &[ON, OFF, OFF, OFF],
            &[OFF, ON, OFF, OFF],
            &[OFF, OFF, ON, OFF],
            &[OFF, OFF, OFF, ON],
        ]);
        assert!(alike.value(0, 1000) > 0.1 && alike.value(3, 1000) < 0.6);
    }

    #[test]
    fn bytes_follow_the_level() {
        let line = Lines {
            slope: 10.0,
            ridge: 1.0,
        };
        let cpu = CpuUsage {
            cpu: Cpu(0),
            slots: vec![
                Use {
                    bytes: 500.0,
                    on_cpu_ns: 40.0
                };
                3
            ],
        };
        // Never seen busier: by the slope of the others.
        assert!((line.of(&cpu).at(60.0).bytes - 700.0).abs() < 1e-9);
        assert!(line.of(&cpu).at(0.0).bytes >= 0.0);
    }

    #[test]
    fn a_single_slot_and_none_and_nonsense() {
        let one = worth(&[&[ON], &[OFF]]);
        assert!(one.value(0, 1000) > 0.8 && one.value(1, 1000) > 0.0);
        for slots in [&[][..], &[OFF], &[(f64::NAN, f64::INFINITY)], &[(-1.0, 5.0)]] {
            let alike = worth(&[slots, slots]);
            assert!(
                alike.value(0, 4096) == alike.value(1, 4096) && alike.value(0, 4096) > 0.0,
                "{slots:?}"
            );
        }
        assert_eq!(forecast(&[]).cpus().count(), 0);
        // A CPU that came later has fewer slots.
        assert!(worth(&[&[ON, ON], &[ON]]).value(1, 1000) > 0.2);
    }
}
