//! The plan: which CPUs get a buffer, how large a one, and why.

use exist_trace::units::Cpu;
use thiserror::Error;

use super::{
    DEFAULT_BUDGET_BYTES, DEFAULT_BUDGET_PERCENT, DEFAULT_BUFFER_BYTES, LEAST_BUFFER_BYTES, MOST_BUFFER_BYTES,
    forecast,
    known::{Earlier, Look, usage},
    size,
    solve::{Bounds, Every, solve},
    usage::CpuUsage,
};

/// What was asked; `None`: the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// This size for every CPU, whatever is known of the target.
    pub buffer_bytes: Option<u64>,
    pub budget_bytes: Option<u64>,
    /// Limits of a buffer where the target decides.
    pub least_bytes: Option<u64>,
    pub most_bytes: Option<u64>,
}

/// What is known of a target, and how long the period is to be.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    pub look: &'a Look,
    pub earlier: &'a Earlier,
    pub period_ns: u64,
}

/// A CPU's part of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buffer {
    pub cpu: Cpu,
    /// A power of two; 0: none.
    pub bytes: u64,
    /// What is expected, where anything is known: this CPU's share of the targets' on-CPU time, the bytes that hold it whole,
    /// and the share of all on-CPU time that the buffer holds.
    pub expected: Option<Expected>,
}

/// See [`Buffer::expected`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    pub share: f64,
    pub need_bytes: f64,
    pub held: f64,
}

/// Memory for CPUs that turn up and have no buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Of each such CPU.
    pub buffer_bytes: u64,
    /// Of all of them together.
    pub total_bytes: u64,
}

/// Buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// By CPU, those without a buffer too.
    pub buffers: Vec<Buffer>,
    pub reserve: Reserve,
    pub budget_bytes: u64,
    /// For the user: where the plan is not what was asked.
    notes: Vec<String>,
    /// All buffers together when the kernel refused them first, with what it said.
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
    #[error("buffers of {} to {} are no range: a least size of {} at least, a largest of {} at most", size(*.0), size(*.1), size(LEAST_BUFFER_BYTES), size(MOST_BUFFER_BYTES))]
    Range(u64, u64),
    #[error("--buffer {} is out of range: {} to {}", size(*.0), size(LEAST_BUFFER_BYTES), size(MOST_BUFFER_BYTES))]
    Buffer(u64),
}

impl Plan {
    /// The same for every CPU, on a machine with `memory_bytes`: for a size that was asked, and where nothing is known.
    ///
    /// # Errors
    /// [`AllocError::Budget`], [`AllocError::Buffer`].
    pub fn equal(cpus: Vec<Cpu>, asked: &Asked, memory_bytes: u64) -> Result<Self, AllocError> {
        let wanted = asked.buffer_bytes.unwrap_or(DEFAULT_BUFFER_BYTES);
        if !(LEAST_BUFFER_BYTES..=MOST_BUFFER_BYTES).contains(&wanted) {
            return Err(AllocError::Buffer(wanted));
        }
        let budget = budget(asked, memory_bytes);
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
        let buffer = |cpu| Buffer {
            cpu,
            bytes: buffer_bytes,
            expected: None,
        };
        Ok(Self {
            buffers: cpus.into_iter().map(buffer).collect(),
            // A CPU that comes online.
            reserve: Reserve {
                buffer_bytes,
                total_bytes: u64::MAX,
            },
            budget_bytes: budget,
            notes,
            refused: None,
        })
    }

    /// The plan for a target: one size for all where that is asked or nothing is known, else [`Self::by_usage`] of the CPUs
    /// that it may use.
    ///
    /// # Errors
    /// As both.
    pub fn decide(cpus: Vec<Cpu>, known: &Known<'_>, asked: &Asked, memory_bytes: u64) -> Result<Self, AllocError> {
        if asked.buffer_bytes.is_some() {
            return Self::equal(cpus, asked, memory_bytes);
        }
        let allowed = known.look.allowed.as_ref();
        let may = |cpu: &Cpu| allowed.is_none_or(|allowed| allowed.contains(cpu));
        let its: Vec<Cpu> = cpus.iter().copied().filter(may).collect();
        // None of those that it may use is to be recorded: what it may use can change.
        let (its, every) = match its.len() {
            0 => (cpus, Every::None),
            n if n < cpus.len() => (its, Every::Some),
            _ => (its, Every::None),
        };
        let usage = usage(&its, known.look, known.earlier, known.period_ns);
        if usage
            .iter()
            .flat_map(|cpu| &cpu.slots)
            .all(|slot| slot.on_cpu_ns <= 0.0)
        {
            return Self::equal(its, asked, memory_bytes);
        }
        Self::by_usage(&usage, every, asked, memory_bytes)
    }

    /// The greatest expected share of the targets' on-CPU time within the budget, by what is known of them ([`super::usage()`]).
    /// With [`Every::Some`] of the CPUs: a target that is confined to them.
    ///
    /// # Errors
    /// [`AllocError::Budget`], [`AllocError::Range`].
    pub fn by_usage(usage: &[CpuUsage], every: Every, asked: &Asked, memory_bytes: u64) -> Result<Self, AllocError> {
        let default = Bounds::default();
        let bounds = Bounds {
            least_bytes: asked.least_bytes.unwrap_or(default.least_bytes),
            most_bytes: asked.most_bytes.unwrap_or(default.most_bytes),
        };
        let bounds = match (asked.least_bytes, asked.most_bytes) {
            (None, Some(most)) => Bounds {
                least_bytes: bounds.least_bytes.min(most),
                ..bounds
            },
            (Some(least), None) => Bounds {
                most_bytes: bounds.most_bytes.max(least),
                ..bounds
            },
            _ => bounds,
        };
        let Bounds {
            least_bytes,
            most_bytes,
        } = bounds;
        if least_bytes < LEAST_BUFFER_BYTES || most_bytes > MOST_BUFFER_BYTES || least_bytes > most_bytes {
            return Err(AllocError::Range(least_bytes, most_bytes));
        }
        let budget = budget(asked, memory_bytes);
        let cpus = usage.len().max(1) as u64;
        // Where not even every CPU (or one) gets the least, a smaller least.
        let share = match every {
            Every::Some => budget / cpus,
            Every::None => budget,
        };
        let least = power_of_two_below(least_bytes.min(share));
        if least < LEAST_BUFFER_BYTES {
            return Err(AllocError::Budget {
                budget,
                cpus: match every {
                    Every::Some => usage.len(),
                    Every::None => 1,
                },
            });
        }
        let mut notes = Vec::new();
        if least < power_of_two_below(least_bytes) {
            notes.push(format!(
                "buffers from {} on, not {}: the budget is {} (--budget)",
                size(least),
                size(least_bytes),
                size(budget)
            ));
        }
        let bounds = Bounds {
            least_bytes: least,
            most_bytes,
        };
        let objective = forecast(usage);
        let mut sizes = solve(&objective, budget, bounds, every);
        let mut reserve = Reserve::default();
        // Somebody has none: if it turns up, it is not to be refused for want of memory.
        if sizes.contains(&0) && budget / 4 >= least {
            reserve = Reserve {
                buffer_bytes: least,
                total_bytes: least,
            };
            sizes = solve(&objective, budget - least, bounds, every);
        }
        let buffers = objective
            .cpus()
            .zip(sizes)
            .enumerate()
            .map(|(place, (cpu, bytes))| Buffer {
                cpu,
                bytes,
                expected: Some(Expected {
                    share: objective.share(place),
                    need_bytes: objective.need_bytes(place),
                    held: objective.value(place, bytes),
                }),
            });
        Ok(Self {
            buffers: buffers.collect(),
            reserve,
            budget_bytes: budget,
            notes,
            refused: None,
        })
    }

    /// The plan after the kernel refused the memory for `reason`: half the size for every CPU, but none below the smallest;
    /// `None`: all are the smallest already.
    #[must_use]
    pub fn smaller(self, reason: &str) -> Option<Self> {
        let refused = self.refused.clone().unwrap_or((self.total_bytes(), reason.to_owned()));
        let half = |bytes: u64| match bytes {
            0 => 0,
            bytes => (bytes / 2).max(LEAST_BUFFER_BYTES),
        };
        let before = self.total_bytes();
        let smaller = Self {
            buffers: self
                .buffers
                .iter()
                .map(|buffer| Buffer {
                    bytes: half(buffer.bytes),
                    ..*buffer
                })
                .collect(),
            reserve: Reserve {
                buffer_bytes: half(self.reserve.buffer_bytes),
                ..self.reserve
            },
            refused: Some(refused),
            ..self
        };
        (smaller.total_bytes() < before).then_some(smaller)
    }

    /// What to tell the user of it.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        let smaller = self.refused.as_ref().map(|(bytes, reason)| {
            let all = self
                .buffers
                .iter()
                .map(|buffer| buffer.bytes)
                .filter(|bytes| *bytes > 0);
            let largest = all.clone().max().unwrap_or(0);
            let each = match all.min() == Some(largest) {
                true => format!("{} a CPU", size(largest)),
                false => format!("{} a CPU at most", size(largest)),
            };
            format!(
                "a smaller plan: buffers of {each}, {} together, not {}: {reason}",
                size(self.total_bytes()),
                size(*bytes)
            )
        });
        self.notes.iter().cloned().chain(smaller).collect()
    }

    /// The CPUs that get a buffer.
    pub fn traced(&self) -> impl Iterator<Item = (Cpu, u64)> + '_ {
        let with = self.buffers.iter().filter(|buffer| buffer.bytes > 0);
        with.map(|buffer| (buffer.cpu, buffer.bytes))
    }

    /// The expected share of the targets' on-CPU time that fits; `None`: nothing is known.
    #[must_use]
    pub fn held(&self) -> Option<f64> {
        self.buffers.iter().map(|buffer| Some(buffer.expected?.held)).sum()
    }

    /// All buffers together, bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }
}

/// What all buffers together may take.
fn budget(asked: &Asked, memory_bytes: u64) -> u64 {
    let default = DEFAULT_BUDGET_BYTES.min(memory_bytes / 100 * DEFAULT_BUDGET_PERCENT);
    asked.budget_bytes.unwrap_or(default)
}

fn power_of_two_below(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |log| 1 << log)
}

#[cfg(test)]
mod tests {
    use super::{super::usage::Use, *};

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn plan(cpus: u32, buffer: Option<u64>, budget: Option<u64>, memory: u64) -> Result<Plan, AllocError> {
        let asked = Asked {
            buffer_bytes: buffer,
            budget_bytes: budget,
            ..Asked::default()
        };
        Plan::equal((0..cpus).map(Cpu).collect(), &asked, memory)
    }

    /// `buffer` bytes each, and a note that holds `said` (empty: no note).
    fn check(made: Result<Plan, AllocError>, buffer: u64, said: &str) {
        let plan = made.unwrap();
        assert!(plan.traced().all(|(_, bytes)| bytes == buffer), "{plan:?}");
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
                    Ok(plan) => assert!(plan.total_bytes() <= budget && plan.traced().all(|b| b.1.is_power_of_two())),
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
            assert!(plan.traced().all(|(_, bytes)| bytes == expect * KIB));
        }
        assert_eq!(
            plan.said(),
            ["a smaller plan: buffers of 32 KiB a CPU, 64 KiB together, not 512 KiB: out of memory"]
        );
        assert_eq!(plan.smaller("out of memory"), None);
    }

    fn used(cpus: &[(u64, f64)]) -> Vec<CpuUsage> {
        let of = |(cpu, &(mib, on_cpu_ns)): (u32, &(u64, f64))| CpuUsage {
            cpu: Cpu(cpu),
            slots: vec![
                Use {
                    bytes: (mib * MIB) as f64,
                    on_cpu_ns,
                };
                8
            ],
        };
        (0..).zip(cpus).map(of).collect()
    }

    fn sizes(plan: &Plan) -> Vec<u64> {
        plan.buffers.iter().map(|buffer| buffer.bytes / MIB).collect()
    }

    #[test]
    fn memory_goes_where_the_target_runs_and_a_reserve_is_kept() {
        let usage = used(&[(60, 900.0), (0, 0.0), (60, 100.0), (0, 0.0)]);
        let asked = Asked {
            budget_bytes: Some(72 * MIB),
            ..Asked::default()
        };
        let plan = Plan::by_usage(&usage, Every::None, &asked, GIB).unwrap();
        let got = sizes(&plan);
        assert!(got[0] >= 32 && got[0] > got[2] && got[1] == 0, "{got:?}");
        assert_eq!(plan.reserve.total_bytes, 4 * MIB);
        assert!(plan.total_bytes() + plan.reserve.total_bytes <= 72 * MIB);
        let held = plan.held().unwrap();
        assert!(held > 0.7 && held < 1.0, "{held}");
        let first = plan.buffers[0].expected.unwrap();
        assert!(first.share > 0.7 && first.need_bytes > 50.0 * MIB as f64, "{first:?}");
    }

    #[test]
    fn a_confined_target_has_all_its_cpus_traced() {
        let usage = used(&[(60, 900.0), (0, 0.0), (0, 0.0), (0, 0.0)]);
        let by = |budget: u64| {
            let asked = Asked {
                budget_bytes: Some(budget),
                ..Asked::default()
            };
            Plan::by_usage(&usage, Every::Some, &asked, GIB)
        };
        assert_eq!(sizes(&by(44 * MIB).unwrap()), [32, 4, 4, 4]);
        // Less than 4 MiB each.
        let small = by(8 * MIB).unwrap();
        assert!(sizes(&small).iter().all(|mib| *mib == 2) && small.said()[0].contains("from 2 MiB on, not 4 MiB"));
        assert!(matches!(by(64 * KIB), Err(AllocError::Budget { cpus: 4, .. })));
    }

    #[test]
    fn one_size_is_for_who_asks_it_and_for_who_is_not_known() {
        let look = Look {
            slot_ns: 10,
            slots: vec![[(Cpu(1), 10)].into(); 4],
            allowed: Some([Cpu(1), Cpu(2)].into()),
            ..Look::default()
        };
        let decide = |look: &Look, buffer_bytes| {
            let known = Known {
                look,
                earlier: &Earlier::default(),
                period_ns: 100_000_000,
            };
            let asked = Asked {
                buffer_bytes,
                ..Asked::default()
            };
            Plan::decide((0..4).map(Cpu).collect(), &known, &asked, GIB).unwrap()
        };
        let cpus = |plan: &Plan| plan.traced().map(|(cpu, _)| cpu.0).collect::<Vec<_>>();
        let known = decide(&look, None);
        assert_eq!(cpus(&known), [1, 2]);
        assert!(known.held().unwrap() > 0.5, "{known:?}");
        let asked = decide(&look, Some(MIB));
        assert!(cpus(&asked) == [0, 1, 2, 3] && asked.held().is_none());
        let unknown = decide(&Look::default(), None);
        assert!(cpus(&unknown) == [0, 1, 2, 3] && unknown.held().is_none());
    }

    #[test]
    fn a_range_that_is_none_is_refused() {
        let by = |least_bytes, most_bytes| {
            let asked = Asked {
                least_bytes,
                most_bytes,
                ..Asked::default()
            };
            Plan::by_usage(&used(&[(60, 900.0)]), Every::None, &asked, GIB)
        };
        for (least, most) in [(Some(1), None), (None, Some(u64::MAX)), (Some(8 * MIB), Some(4 * MIB))] {
            assert!(
                matches!(by(least, most), Err(AllocError::Range(..))),
                "{least:?} {most:?}"
            );
        }
        assert_eq!(sizes(&by(None, Some(MIB)).unwrap()), [1]);
        assert_eq!(
            sizes(&by(Some(256 * MIB), None).unwrap_or_else(|_| by(None, Some(2 * MIB)).unwrap())).len(),
            1
        );
    }

    #[test]
    fn refused_memory_keeps_the_proportions_down_to_the_smallest() {
        let usage = used(&[(60, 900.0), (30, 300.0), (0, 1.0)]);
        let asked = Asked {
            budget_bytes: Some(112 * MIB),
            ..Asked::default()
        };
        let plan = Plan::by_usage(&usage, Every::Some, &asked, GIB).unwrap();
        let before = sizes(&plan);
        let smaller = plan.smaller("no memory").unwrap();
        let half: Vec<u64> = before.iter().map(|mib| mib / 2).collect();
        assert_eq!(sizes(&smaller), half);
        assert!(
            smaller.said()[0].starts_with("a smaller plan: buffers of"),
            "{:?}",
            smaller.said()
        );
        let mut smallest = smaller;
        while let Some(next) = smallest.clone().smaller("no memory") {
            smallest = next;
        }
        assert!(smallest.traced().all(|(_, bytes)| bytes == LEAST_BUFFER_BYTES));
    }
}
