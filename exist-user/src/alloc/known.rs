//! What is known of a target before a window: where it ran in a look-back and in earlier windows, and what it is allowed.
//!
//! Takes: a [`Look`] by the hook, and [`Earlier`] windows with what their buffers were filled with. Gives: [`CpuUsage`] for each
//! CPU that the target may use, scaled to the period. Refuses nothing.

use std::collections::{BTreeMap, BTreeSet};

use exist_trace::units::Cpu;
use serde::{Deserialize, Serialize};

use super::usage::{CpuUsage, Use};

/// Bytes of trace a nanosecond of the target's on-CPU time, when no window has shown it: 300 MB/s.
pub const DEFAULT_RATE: f64 = 0.3;
/// Earlier windows that count; older ones are forgotten.
pub const MOST_WINDOWS: usize = 8;
/// A CPU's own rate counts from so much traced on-CPU time on; below, that of all CPUs.
const LEAST_TRACED_NS: u64 = 1_000_000;

/// A look-back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Length of a slot.
    pub slot_ns: u64,
    /// On-CPU time of the target on each CPU, the oldest slot first.
    pub slots: Vec<BTreeMap<Cpu, u64>>,
    /// CPUs that its threads may use; `None`: unknown.
    pub allowed: Option<BTreeSet<Cpu>>,
    /// CPUs' worth of time that its cgroup's quota gives.
    pub quota_cpus: Option<f64>,
    /// Its threads, and how many of them were runnable; 0: unknown.
    pub threads: usize,
    pub runnable: usize,
}

impl Look {
    /// CPUs on which it ran.
    pub fn seen(&self) -> impl Iterator<Item = Cpu> {
        let seen = self.slots.iter().flatten().filter(|(_, ns)| **ns > 0);
        seen.map(|(cpu, _)| *cpu).collect::<BTreeSet<_>>().into_iter()
    }
}

/// What a window showed of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuFill {
    pub cpu: Cpu,
    /// On-CPU time of the target in the window.
    pub on_cpu_ns: u64,
    /// Bytes that were written to the buffer, and the part of the window in which it took any: until it was full.
    pub bytes: u64,
    pub traced_ns: u64,
}

/// A finished window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowFill {
    pub period_ns: u64,
    pub cpus: Vec<CpuFill>,
}

/// Windows of a target, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Earlier {
    pub windows: Vec<WindowFill>,
}

impl Earlier {
    /// Adds the window that has just ended.
    pub fn push(&mut self, window: WindowFill) {
        self.windows.push(window);
        let over = self.windows.len().saturating_sub(MOST_WINDOWS);
        self.windows.drain(..over);
    }

    /// Bytes a nanosecond of the target's on-CPU time: of this CPU, else of all, else [`DEFAULT_RATE`]. What others wrote
    /// there is in it: they fill the same buffer.
    #[must_use]
    pub fn rate(&self, cpu: Cpu) -> f64 {
        let of = |own: Option<Cpu>| {
            let windows = self
                .windows
                .iter()
                .flat_map(|w| w.cpus.iter().map(move |fill| (w.period_ns, fill)));
            let fills = windows.filter(|(_, fill)| own.is_none_or(|cpu| fill.cpu == cpu));
            let (bytes, ns) = fills.fold((0.0, 0.0), |(bytes, ns), (period_ns, fill)| {
                // The target is taken to run as much while the buffer takes bytes as after.
                let part = (fill.traced_ns as f64 / period_ns.max(1) as f64).min(1.0);
                (bytes + fill.bytes as f64, ns + fill.on_cpu_ns as f64 * part)
            });
            (ns >= LEAST_TRACED_NS as f64 && bytes > 0.0).then(|| bytes / ns)
        };
        of(Some(cpu)).or_else(|| of(None)).unwrap_or(DEFAULT_RATE)
    }
}

/// What each of `cpus` would do in a period of `period_ns`: a slot for each earlier window and one for the look-back; without
/// earlier windows, the look-back's own slots. In no slot does the target run longer than its quota and its threads allow.
#[must_use]
pub fn usage(cpus: &[Cpu], look: &Look, earlier: &Earlier, period_ns: u64) -> Vec<CpuUsage> {
    let period = period_ns as f64;
    let mut slots: Vec<(f64, BTreeMap<Cpu, u64>)> = Vec::new();
    if earlier.windows.is_empty() {
        slots.extend(look.slots.iter().map(|slot| (look.slot_ns as f64, slot.clone())));
    } else {
        for window in &earlier.windows {
            let ns = window.cpus.iter().map(|fill| (fill.cpu, fill.on_cpu_ns)).collect();
            slots.push((window.period_ns as f64, ns));
        }
        if !look.slots.is_empty() {
            let mut whole = BTreeMap::new();
            for (cpu, ns) in look.slots.iter().flatten() {
                *whole.entry(*cpu).or_insert(0) += ns;
            }
            slots.push((look.slot_ns as f64 * look.slots.len() as f64, whole));
        }
    }
    let threads = (look.threads > 0).then_some(look.threads as f64);
    let most = look.quota_cpus.into_iter().chain(threads).fold(f64::INFINITY, f64::min) * period;
    let scale: Vec<f64> = slots
        .iter()
        .map(|(length, slot)| {
            let scale = period / length.max(1.0);
            let whole: f64 = slot.values().map(|ns| *ns as f64 * scale).sum();
            scale * (most / whole.max(1.0)).min(1.0)
        })
        .collect();
    let of = |cpu: Cpu| {
        let rate = earlier.rate(cpu);
        let slots = slots.iter().zip(&scale).map(|((_, slot), scale)| {
            let on_cpu_ns = (slot.get(&cpu).copied().unwrap_or(0) as f64 * scale).min(period);
            Use {
                on_cpu_ns,
                bytes: on_cpu_ns * rate,
            }
        });
        CpuUsage {
            cpu,
            slots: slots.collect(),
        }
    };
    cpus.iter().map(|cpu| of(*cpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(slots: &[&[(u32, u64)]]) -> Look {
        let slot = |slot: &&[(u32, u64)]| slot.iter().map(|&(cpu, ns)| (Cpu(cpu), ns)).collect();
        Look {
            slot_ns: 10,
            slots: slots.iter().map(slot).collect(),
            ..Look::default()
        }
    }

    fn fill(cpu: u32, on_cpu_ns: u64, bytes: u64, traced_ns: u64) -> CpuFill {
        CpuFill {
            cpu: Cpu(cpu),
            on_cpu_ns,
            bytes,
            traced_ns,
        }
    }

    fn times(usage: &[CpuUsage]) -> Vec<Vec<u64>> {
        let of = |cpu: &CpuUsage| cpu.slots.iter().map(|slot| slot.on_cpu_ns.round() as u64).collect();
        usage.iter().map(of).collect()
    }

    #[test]
    fn a_look_back_alone_gives_its_slots_in_the_period_s_length() {
        let look = look(&[&[(0, 10), (1, 2)], &[(0, 5)]]);
        let usage = usage(&[Cpu(0), Cpu(1), Cpu(2)], &look, &Earlier::default(), 1000);
        assert_eq!(times(&usage), [[1000, 500], [200, 0], [0, 0]]);
        assert_eq!(usage[0].slots[1].bytes, 500.0 * DEFAULT_RATE);
        assert_eq!(look.seen().collect::<Vec<_>>(), [Cpu(0), Cpu(1)]);
    }

    #[test]
    fn nobody_runs_longer_than_quota_and_threads_allow() {
        let slots = look(&[&[(0, 10), (1, 10)]]);
        let quota = Look {
            quota_cpus: Some(0.5),
            threads: 8,
            ..slots.clone()
        };
        let all = |look: &Look| times(&usage(&[Cpu(0), Cpu(1)], look, &Earlier::default(), 1000));
        assert_eq!(all(&quota), [[250], [250]]);
        assert_eq!(all(&Look { threads: 1, ..slots }), [[500], [500]]);
    }

    #[test]
    fn the_rate_comes_from_what_was_filled() {
        let mut earlier = Earlier::default();
        assert_eq!(earlier.rate(Cpu(0)), DEFAULT_RATE);
        // Full after half the window: then half of the target's time wrote it.
        earlier.push(WindowFill {
            period_ns: 100_000_000,
            cpus: vec![fill(0, 80_000_000, 4_000_000, 50_000_000), fill(1, 10, 99, 100_000_000)],
        });
        assert_eq!(earlier.rate(Cpu(0)), 0.1);
        // Too little of its own: as all of them.
        let all = earlier.rate(Cpu(1));
        assert!((all - 0.1).abs() < 0.001 && all == earlier.rate(Cpu(7)), "{all}");
        let usage = usage(&[Cpu(0)], &look(&[&[(0, 5)], &[(0, 10)]]), &earlier, 1000);
        assert_eq!(
            times(&usage),
            [[1, 750]].map(|mut t| {
                t[0] = 800;
                t
            })
        );
        assert!((usage[0].slots[0].bytes - 80.0).abs() < 1e-9);
    }

    #[test]
    fn old_windows_are_forgotten() {
        let mut earlier = Earlier::default();
        (0..20).for_each(|i| {
            earlier.push(WindowFill {
                period_ns: i,
                cpus: vec![],
            })
        });
        assert_eq!(earlier.windows.len(), MOST_WINDOWS);
        assert_eq!(earlier.windows[0].period_ns, 12);
        // Hostile: a period of 0.
        assert!(earlier.rate(Cpu(0)) > 0.0);
    }
}
