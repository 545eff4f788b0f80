//! The memory allocator: which CPUs get a buffer for the processor trace, and how large a one.
//!
//! Takes: what was asked, what the machine has. Gives: a [`Plan`], the same for the same input. Refuses: a budget too
//! small for the CPUs, CPUs that do not exist.
//!
//! Every CPU of a [`Plan`] gets the same. [`solve()`] gives the best sizes for what a look-back lets expect ([`forecast()`]);
//! recordings do not use it yet, only `cargo xtask sim plan` does.

mod cpus;
mod forecast;
mod locked;
mod solve;
mod usage;

use exist_trace::units::Cpu;
use thiserror::Error;

pub use cpus::{CpuSets, choose};
pub use forecast::forecast;
pub use locked::LockedMemory;
pub use solve::{Bounds, solve};
pub use usage::{CpuUsage, Objective, Sample, Use};

/// A CPU's buffer when nothing is asked.
pub const DEFAULT_BUFFER_BYTES: u64 = 16 << 20;
/// All buffers together when nothing is asked: this, or [`DEFAULT_BUDGET_PERCENT`] of memory if that is less.
pub const DEFAULT_BUDGET_BYTES: u64 = 512 << 20;
/// See [`DEFAULT_BUDGET_BYTES`].
pub const DEFAULT_BUDGET_PERCENT: u64 = 5;
/// The smallest buffer: room for two synchronization points (PSB), so that something can be decoded.
pub const LEAST_BUFFER_BYTES: u64 = 32 << 10;
/// The largest: what the driver's `aux_watermark` and the kernel's page count still hold.
pub const MOST_BUFFER_BYTES: u64 = 1 << 31;

/// What was asked; `None`: the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub buffer_bytes: Option<u64>,
    pub budget_bytes: Option<u64>,
}

/// Buffers, equal for all CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub cpus: Vec<Cpu>,
    /// Of each CPU, a power of two.
    pub buffer_bytes: u64,
    /// For the user: where the plan is not what was asked.
    notes: Vec<String>,
    /// The size that the kernel refused first, with what it said.
    refused: Option<(u64, String)>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AllocError {
    #[error("no CPU to record: {0}")]
    NoCpu(String),
    #[error(
        "a budget of {} for {cpus} CPUs leaves less than {} each; raise --budget, or name fewer CPUs with --cpus",
        size(*budget), size(LEAST_BUFFER_BYTES)
    )]
    Budget { budget: u64, cpus: usize },
    #[error("--buffer {} is out of range: {} to {}", size(*.0), size(LEAST_BUFFER_BYTES), size(MOST_BUFFER_BYTES))]
    Buffer(u64),
}

impl Plan {
    /// Divides the budget among `cpus` on a machine with `memory_bytes`.
    ///
    /// # Errors
    /// [`AllocError::Budget`], [`AllocError::Buffer`].
    pub fn new(cpus: Vec<Cpu>, asked: &Asked, memory_bytes: u64) -> Result<Self, AllocError> {
        let wanted = asked.buffer_bytes.unwrap_or(DEFAULT_BUFFER_BYTES);
        if !(LEAST_BUFFER_BYTES..=MOST_BUFFER_BYTES).contains(&wanted) {
            return Err(AllocError::Buffer(wanted));
        }
        let default_budget = DEFAULT_BUDGET_BYTES.min(memory_bytes / 100 * DEFAULT_BUDGET_PERCENT);
        let budget = asked.budget_bytes.unwrap_or(default_budget);
        let share = budget / (cpus.len() as u64).max(1);
        let buffer_bytes = power_of_two_below(wanted.min(share));
        if buffer_bytes < LEAST_BUFFER_BYTES {
            return Err(AllocError::Budget {
                budget,
                cpus: cpus.len(),
            });
        }
        let mut notes = Vec::new();
        if share < wanted {
            notes.push(format!(
                "buffers of {} a CPU, not {}: the budget of {} is shared by {} CPUs (--budget)",
                size(buffer_bytes),
                size(wanted),
                size(budget),
                cpus.len()
            ));
        } else if buffer_bytes != wanted {
            notes.push(format!(
                "buffers of {} a CPU, not {}: the next power of two below",
                size(buffer_bytes),
                size(wanted)
            ));
        }
        Ok(Self {
            cpus,
            buffer_bytes,
            notes,
            refused: None,
        })
    }

    /// The plan after the kernel refused the memory for `reason`: half the size for every CPU; `None`: it is the
    /// smallest already.
    #[must_use]
    pub fn smaller(self, reason: &str) -> Option<Self> {
        let refused = self.refused.unwrap_or((self.buffer_bytes, reason.to_owned()));
        let buffer_bytes = self.buffer_bytes / 2;
        (buffer_bytes >= LEAST_BUFFER_BYTES).then_some(Self {
            buffer_bytes,
            refused: Some(refused),
            ..self
        })
    }

    /// What to tell the user of it.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        let smaller = self.refused.as_ref().map(|(bytes, reason)| {
            format!(
                "buffers of {} a CPU, not {}: {reason}",
                size(self.buffer_bytes),
                size(*bytes)
            )
        });
        self.notes.iter().cloned().chain(smaller).collect()
    }

    /// All buffers together, bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.buffer_bytes * self.cpus.len() as u64
    }
}

/// A size for people: the largest binary unit that divides it, or one decimal of the largest that fits.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} B"),
        Some((shift, unit)) if bytes.trailing_zeros() >= shift => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
    }
}

fn power_of_two_below(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |log| 1 << log)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn plan(cpus: u32, buffer: Option<u64>, budget: Option<u64>, memory: u64) -> Result<Plan, AllocError> {
        let asked = Asked {
            buffer_bytes: buffer,
            budget_bytes: budget,
        };
        Plan::new((0..cpus).map(Cpu).collect(), &asked, memory)
    }

    /// `buffer` bytes each, and a note that holds `said` (empty: no note).
    fn check(made: Result<Plan, AllocError>, buffer: u64, said: &str) {
        let plan = made.unwrap();
        assert_eq!(plan.buffer_bytes, buffer, "{}", size(plan.buffer_bytes));
        match (&plan.said()[..], said) {
            ([], "") => {}
            ([note], said) if !said.is_empty() => assert!(note.contains(said), "{note}"),
            (notes, _) => panic!("{notes:?} do not say {said:?}"),
        }
    }

    #[test]
    fn the_default_is_16_mib_within_512_mib_or_5_percent() {
        check(plan(1, None, None, 64 * GIB), 16 * MIB, "");
        check(plan(32, None, None, 64 * GIB), 16 * MIB, "");
        check(
            plan(33, None, None, 64 * GIB),
            8 * MIB,
            "the budget of 512 MiB is shared by 33 CPUs",
        );
        check(plan(256, None, None, 1024 * GIB), 2 * MIB, "not 16 MiB");
        // 5 % of 2 GiB, for 8 CPUs.
        check(plan(8, None, None, 2 * GIB), 8 * MIB, "shared by 8 CPUs");
    }

    #[test]
    fn what_is_asked_is_kept_within_the_budget() {
        check(plan(4, Some(64 * MIB), Some(GIB), 64 * GIB), 64 * MIB, "");
        check(plan(4, Some(64 * MIB), None, 64 * GIB), 64 * MIB, "");
        check(
            plan(4, Some(64 * MIB), Some(16 * MIB), 64 * GIB),
            4 * MIB,
            "buffers of 4 MiB a CPU, not 64 MiB",
        );
        check(
            plan(2, Some(5 * MIB), None, 64 * GIB),
            4 * MIB,
            "the next power of two below",
        );
        check(
            plan(2, Some(64 * KIB), Some(100 * KIB), 64 * GIB),
            32 * KIB,
            "budget of 100 KiB",
        );
    }

    #[test]
    fn the_total_never_exceeds_the_budget() {
        for cpus in 1..300 {
            for budget in [MIB, 7 * MIB, 100 * MIB, 512 * MIB] {
                match plan(cpus, None, Some(budget), GIB) {
                    Ok(plan) => assert!(plan.total_bytes() <= budget && plan.buffer_bytes.is_power_of_two()),
                    Err(error) => assert!(budget / u64::from(cpus) < LEAST_BUFFER_BYTES, "{error}"),
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_remedy() {
        let error = plan(64, None, Some(MIB), GIB).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a budget of 1 MiB for 64 CPUs leaves less than 32 KiB each; raise --budget, or name fewer CPUs with --cpus"
        );
        for buffer in [0, 1, LEAST_BUFFER_BYTES - 1, MOST_BUFFER_BYTES + 1, u64::MAX] {
            assert_eq!(plan(1, Some(buffer), None, GIB), Err(AllocError::Buffer(buffer)));
        }
        assert!(plan(1, None, Some(0), GIB).is_err());
    }

    #[test]
    fn refused_memory_halves_every_buffer_until_the_smallest() {
        let mut plan = plan(2, Some(256 * KIB), None, 64 * GIB).unwrap();
        for expect in [128, 64, 32] {
            plan = plan.smaller("out of memory").unwrap();
            assert_eq!(plan.buffer_bytes, expect * KIB);
        }
        assert_eq!(plan.said(), ["buffers of 32 KiB a CPU, not 256 KiB: out of memory"]);
        assert_eq!(plan.smaller("out of memory"), None);
    }

    #[test]
    fn sizes_for_people() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (3 * GIB, "3 GiB"),
        ];
        sizes
            .into_iter()
            .for_each(|(bytes, text)| assert_eq!(size(bytes), text));
    }
}
