//! How much a buffer on a CPU is worth: the objective that [`super::solve()`] makes greatest.
//!
//! What a period will bring to CPU *i* is a few samples: with probability `p(i,s)` the targets run there for `t(i,s)`, each
//! target's time multiplied with its weight, and the CPU's trace takes `n(i,s)` bytes. A buffer of *b* bytes holds the first
//! `min(1, b / n(i,s))` of it: the trace stops when the buffer is full, and it holds the packets of whoever runs there. So
//!
//! ```text
//!   value(i, b) = Σs p(i,s) · t(i,s) · min(1, b / n(i,s))  /  Σi,s p(i,s) · t(i,s)
//! ```
//! and the sum over the CPUs is the expected share of the targets' on-CPU time that fits. The samples come from a look-back
//! ([`super::forecast()`]). The published system (EXIST, ASPLOS 2025) does not give its formula; this one is ours.

use std::collections::BTreeMap;

use exist_trace::units::Cpu;

/// What a CPU's trace takes when nothing is known: more than the largest buffer.
const UNKNOWN_BYTES: f64 = (1_u64 << 40) as f64;

/// What one CPU does in a period, or in a slot of a look-back scaled to a period.
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

/// Several targets' usage as one: times by weight; the bytes of a CPU, which hold whoever runs there, are those of the target that
/// saw most. All have the same number of slots.
#[must_use]
pub fn together(targets: &[(f64, Vec<CpuUsage>)]) -> Vec<CpuUsage> {
    let mut all: BTreeMap<Cpu, Vec<Use>> = BTreeMap::new();
    for (weight, cpu) in targets
        .iter()
        .flat_map(|(weight, cpus)| cpus.iter().map(move |cpu| (*weight, cpu)))
    {
        let slots = all.entry(cpu.cpu).or_default();
        if slots.len() < cpu.slots.len() {
            slots.resize(cpu.slots.len(), Use::default());
        }
        for (sum, slot) in slots.iter_mut().zip(&cpu.slots) {
            sum.on_cpu_ns += positive(weight) * positive(slot.on_cpu_ns);
            sum.bytes = sum.bytes.max(positive(slot.bytes));
        }
    }
    all.into_iter().map(|(cpu, slots)| CpuUsage { cpu, slots }).collect()
}

/// One of the things that a period may bring to a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// How likely, or any weight that has the same meaning for all samples of an objective.
    pub weight: f64,
    pub of: Use,
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
    /// From samples of each CPU. Those that are no finite, positive numbers count as nothing; without any other, each byte on
    /// any CPU is worth the same.
    #[must_use]
    pub fn new(cpus: Vec<(Cpu, Vec<Sample>)>) -> Self {
        let time = |s: &Sample| positive(s.weight) * positive(s.of.on_cpu_ns);
        let total: f64 = cpus.iter().flat_map(|(_, samples)| samples).map(time).sum();
        let alike = 1.0 / cpus.len().max(1) as f64;
        let of = |(cpu, samples): (Cpu, Vec<Sample>)| Samples {
            cpu,
            samples: match total > 0.0 {
                false => vec![(alike, UNKNOWN_BYTES)],
                true => samples
                    .iter()
                    .map(|s| (time(s) / total, positive(s.of.bytes)))
                    .filter(|(share, _)| *share > 0.0)
                    .collect(),
            },
        };
        Self {
            cpus: cpus.into_iter().map(of).collect(),
        }
    }

    /// From slots that are all there is, each as likely as the others: hindsight.
    #[must_use]
    pub fn exact(usage: &[CpuUsage]) -> Self {
        let samples = |cpu: &CpuUsage| cpu.slots.iter().map(|&of| Sample { weight: 1.0, of }).collect();
        Self::new(usage.iter().map(|cpu| (cpu.cpu, samples(cpu))).collect())
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

    /// The share of all on-CPU time that is expected on the CPU at this place.
    #[must_use]
    pub fn share(&self, place: usize) -> f64 {
        self.cpus
            .get(place)
            .map_or(0.0, |cpu| cpu.samples.iter().map(|(share, _)| share).sum())
    }

    /// The bytes that its trace is expected to take, each sample's by the time in it.
    #[must_use]
    pub fn need_bytes(&self, place: usize) -> f64 {
        let whole = |cpu: &Samples| cpu.samples.iter().map(|(share, need)| share * need).sum::<f64>();
        match self.share(place) {
            share if share > 0.0 => self.cpus.get(place).map_or(0.0, whole) / share,
            _ => 0.0,
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

/// A finite, positive number, or 0.
pub(super) fn positive(x: f64) -> f64 {
    if x.is_finite() && x > 0.0 { x } else { 0.0 }
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
        let objective = Objective::exact(&usage);
        let close = |got: f64, expect: f64| assert!((got - expect).abs() < 1e-12, "{got} is not {expect}");
        close(objective.value(0, 50), (30.0 * 0.5 + 10.0) / 100.0);
        close(objective.value(0, 1000), 0.4);
        close(objective.value(1, 50), 60.0 * 0.25 / 100.0);
        close(objective.total(&[1000, 1000]), 1.0);
        close(objective.total(&[0, 0]), 0.0);
    }

    #[test]
    fn several_targets_share_by_weight_and_a_cpu_has_one_stream() {
        let (a, b) = (usage(&[&[(30.0, 100.0)], &[(10.0, 5.0)]]), usage(&[&[(10.0, 80.0)]]));
        let both = together(&[(1.0, a), (3.0, b)]);
        let slot = |cpu: usize| (both[cpu].slots[0].on_cpu_ns, both[cpu].slots[0].bytes);
        assert_eq!((both.len(), slot(0), slot(1)), (2, (60.0, 100.0), (10.0, 5.0)));
    }

    #[test]
    fn nothing_known_and_nonsense_make_every_cpu_alike() {
        for slots in [&[][..], &[(0.0, 0.0)], &[(f64::NAN, f64::INFINITY)], &[(-1.0, 5.0)]] {
            let objective = Objective::exact(&usage(&[slots, slots]));
            let (a, b) = (objective.value(0, 4096), objective.value(1, 4096));
            assert!(
                a == b && a > 0.0 && a.is_finite() && objective.value(0, 8192) > a,
                "{slots:?}: {a}"
            );
        }
    }
}
