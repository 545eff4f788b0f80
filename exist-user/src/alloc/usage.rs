//! How much a buffer on a CPU is worth: the objective that [`super::solve()`] makes greatest.
//!
//! A look-back is cut into slots. In slot *s* the targets ran for `t(i,s)` on CPU *i*, each target's time multiplied with
//! its weight, and that CPU's trace would have taken `n(i,s)` bytes in a period. A buffer of *b* bytes holds the first
//! `min(1, b / n(i,s))` of it: the trace stops when the buffer is full, and it holds the packets of whoever runs there. A
//! slot is a sample of what the period will be, the later ones more than the earlier (`p(s)` falls by [`RECENCY`]), so
//!
//! ```text
//!   value(i, b) = Σs p(s) · t(i,s) · min(1, b / n(i,s))  /  Σs,i p(s) · t(i,s)
//! ```
//! and the sum over the CPUs is the expected share of the targets' on-CPU time that fits. One more sample, which weighs as
//! [`UNSEEN`] slots, has every CPU alike: what the target would do on a CPU to which it has not come yet. This is the reserve
//! for such a CPU, and it shrinks as the look-back grows. CPUs that the target may not use are left out. The published
//! system (EXIST, ASPLOS 2025) does not give its formula; this one is ours.

use exist_trace::units::Cpu;

/// How many slots the sample of a CPU that was not seen weighs.
pub const UNSEEN: f64 = 0.25;
/// How much less each slot weighs than the one after it: threads stay where they are for a while.
pub const RECENCY: f64 = 0.35;
/// What a CPU's trace takes when nothing is known: more than the largest buffer.
const UNKNOWN_BYTES: f64 = (1_u64 << 40) as f64;

/// One CPU in one slot of the look-back, scaled to the period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// What its trace takes in a period, bytes: of everybody who runs there.
    pub bytes: f64,
    /// Time that the targets ran there, nanoseconds, each multiplied with its weight.
    pub on_cpu_ns: f64,
}

/// A CPU that may be recorded, with its samples: as many for every CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuUsage {
    pub cpu: Cpu,
    pub slots: Vec<Use>,
}

/// The worth of a buffer on each CPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    cpus: Vec<Samples>,
}

#[derive(Clone, Debug, PartialEq)]
struct Samples {
    cpu: Cpu,
    /// Share of all on-CPU time, and the bytes that hold it whole.
    samples: Vec<(f64, f64)>,
}

impl Objective {
    /// From a look-back; with `unseen` slots' weight for what was not seen ([`UNSEEN`]; 0: the slots are all there is).
    /// Samples that are no finite, positive numbers count as nothing.
    #[must_use]
    pub fn new(usage: &[CpuUsage], unseen: f64) -> Self {
        let good = |x: f64| if x.is_finite() && x > 0.0 { x } else { 0.0 };
        let slots = usage.iter().map(|cpu| cpu.slots.len()).max().unwrap_or(0);
        let age = |slot: usize| i32::try_from(slots - 1 - slot).unwrap_or(i32::MAX);
        let weights: Vec<f64> = (0..slots).map(|slot| RECENCY.powi(age(slot))).collect();
        // Each sample's time, weighted, and its bytes.
        let samples = |cpu: &CpuUsage| -> Vec<(f64, f64)> {
            let slots = weights.iter().zip(&cpu.slots);
            slots
                .map(|(w, slot)| (w * good(slot.on_cpu_ns), good(slot.bytes)))
                .filter(|(time, _)| *time > 0.0)
                .collect()
        };
        let known: Vec<Vec<(f64, f64)>> = usage.iter().map(samples).collect();
        let time: f64 = known.iter().flatten().map(|(time, _)| time).sum();
        let whole: f64 = weights.iter().sum();
        // What a CPU that was not seen would take: as the used ones. Nothing is known: each byte is worth the same.
        let (unseen_time, total, bytes) = if time > 0.0 {
            let bytes = known.iter().flatten().map(|(time, bytes)| time * bytes).sum::<f64>() / time;
            let unseen_time = time * unseen / whole;
            (unseen_time, time + unseen_time, bytes)
        } else {
            (1.0, 1.0, UNKNOWN_BYTES)
        };
        let alike = (unseen_time / usage.len().max(1) as f64, bytes);
        let cpus = usage.iter().zip(known).map(|(cpu, known)| Samples {
            cpu: cpu.cpu,
            samples: known
                .into_iter()
                .chain([alike])
                .map(|(time, bytes)| (time / total, bytes))
                .filter(|(share, _)| *share > 0.0)
                .collect(),
        });
        Self { cpus: cpus.collect() }
    }

    /// The CPUs, in the order of the look-back.
    pub fn cpus(&self) -> impl Iterator<Item = Cpu> + '_ {
        self.cpus.iter().map(|cpu| cpu.cpu)
    }

    /// The worth of `bytes` on the CPU at this place: a share of all on-CPU time. Grows with the bytes, ever more slowly.
    #[must_use]
    pub fn value(&self, place: usize, bytes: u64) -> f64 {
        let held = |(share, need): &(f64, f64)| {
            share
                * if *need > 0.0 {
                    (bytes as f64 / need).min(1.0)
                } else {
                    1.0
                }
        };
        match (bytes, self.cpus.get(place)) {
            (0, _) | (_, None) => 0.0,
            (_, Some(cpu)) => cpu.samples.iter().map(held).sum(),
        }
    }

    /// The worth of buffers in the order of the CPUs.
    #[must_use]
    pub fn total(&self, buffers: &[u64]) -> f64 {
        buffers
            .iter()
            .enumerate()
            .map(|(place, bytes)| self.value(place, *bytes))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cpus: &[&[(f64, f64)]]) -> Vec<CpuUsage> {
        (0..)
            .zip(cpus)
            .map(|(cpu, slots)| CpuUsage {
                cpu: Cpu(cpu),
                slots: slots
                    .iter()
                    .map(|&(on_cpu_ns, bytes)| Use { bytes, on_cpu_ns })
                    .collect(),
            })
            .collect()
    }

    #[test]
    fn a_buffer_is_worth_the_share_of_time_that_fits() {
        let usage = usage(&[&[(30.0, 100.0), (10.0, 0.0)], &[(0.0, 50.0), (60.0, 200.0)]]);
        let objective = Objective::new(&usage, 0.0);
        let close = |got: f64, expect: f64| assert!((got - expect).abs() < 1e-12, "{got} is not {expect}");
        let all = 30.0 * RECENCY + 10.0 + 60.0;
        close(objective.value(0, 50), (30.0 * RECENCY * 0.5 + 10.0) / all);
        close(objective.value(0, 1000), (30.0 * RECENCY + 10.0) / all);
        close(objective.value(1, 50), 60.0 * 0.25 / all);
        close(objective.total(&[1000, 1000]), 1.0);
        close(objective.total(&[0, 0]), 0.0);
        // A CPU that was never used has some worth, and all of it is still 1.
        let usage = self::usage(&[&[(30.0, 100.0)], &[(0.0, 0.0)]]);
        let objective = Objective::new(&usage, UNSEEN);
        close(objective.value(1, 100), 0.25 / 1.25 / 2.0);
        close(objective.total(&[100, 100]), 1.0);
    }

    #[test]
    fn nothing_known_and_nonsense_make_every_cpu_alike() {
        for slots in [&[][..], &[(0.0, 0.0)], &[(f64::NAN, f64::INFINITY)], &[(-1.0, 5.0)]] {
            let objective = Objective::new(&usage(&[slots, slots]), UNSEEN);
            let (a, b) = (objective.value(0, 4096), objective.value(1, 4096));
            assert!(
                a == b && a > 0.0 && a.is_finite() && objective.value(0, 8192) > a,
                "{slots:?}: {a}"
            );
        }
    }
}
