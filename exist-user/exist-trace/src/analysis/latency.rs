//! Scheduler latency: runnable and not running, for the target and for each CPU, and who had the CPU meanwhile.
//!
//! Takes stays and waits as [`observe`](super::observe) gives them. Gives distributions. Refuses nothing; a stretch with a
//! wake-up that nobody saw is not there, and counted.
//!
//! Of a stretch, the time that threads of the target ran on that CPU is known from their stays. The rest is put down to
//! whoever had the CPU last ([`Wait::holder`]): others, the kernel, or nobody – the CPU was idle and had to wake up. Where
//! that was a thread of the target, the rest is not known. A thread that comes in on another, idle CPU had been queued
//! where it was and was moved; one that comes in there after somebody had queued there at the end. A throttled one waited
//! for its quota, whoever ran.

use std::collections::{BTreeMap, HashMap, VecDeque};

use exist_common::{Wait, holder, wait_flags};
use serde::Serialize;

use super::{
    observe::{Observed, Ran, Who},
    states::{Part, stretch},
    tally::{Stretches, Tally},
};

/// The last stays of a CPU that are looked at.
const STAYS: usize = 4096;
/// Threads whose last CPU is kept.
const MOST_THREADS: usize = 1 << 16;

/// What a runnable thread waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Threads of the target ran.
    Target,
    /// Threads that are not the target's ran.
    Other,
    /// Threads of the kernel ran.
    Kernel,
    /// Its CPU was idle.
    Idle,
    /// It was moved to an idle CPU.
    Moved,
    /// Its cgroup's quota was used up.
    Throttled,
    /// Not known.
    Unknown,
}

impl Cause {
    /// The name in JSON and in text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Other => "other",
            Self::Kernel => "kernel",
            Self::Idle => "idle",
            Self::Moved => "moved",
            Self::Throttled => "throttled",
            Self::Unknown => "unknown",
        }
    }
}

/// All rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Of the target.
    pub all: Row,
    /// Of each CPU that a thread came in on.
    pub cpus: Vec<CpuRow>,
    /// Waits whose wake-up nobody saw.
    pub unseen: u64,
}

/// One CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpuRow {
    pub cpu: u32,
    #[serde(flatten)]
    pub row: Row,
}

/// Stretches of time runnable, and what they were for. A stretch with two causes counts for both, each with its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub part: Part,
    /// Only causes that occurred.
    pub causes: Vec<CauseRow>,
}

/// One cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CauseRow {
    pub cause: &'static str,
    #[serde(flatten)]
    pub stretches: Stretches,
}

impl Row {
    /// Time put down to a cause, nanoseconds.
    #[must_use]
    pub fn of(&self, cause: Cause) -> u64 {
        let row = self.causes.iter().find(|row| row.cause == cause.as_str());
        row.map_or(0, |row| row.stretches.total_ns)
    }
}

/// A stretch of time runnable, split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    pub who: Who,
    pub cpu: u32,
    pub from: u64,
    pub to: u64,
    /// Time that the target ran there meanwhile; the rest is put down to `cause`.
    pub target_ns: u64,
    pub cause: Cause,
    /// It comes in on another CPU than it went out from.
    pub moved: bool,
}

/// Splits each stretch as it comes.
#[derive(Clone, Debug, Default)]
pub struct Split {
    stays: BTreeMap<u32, VecDeque<(u64, u64)>>,
    last_cpu: HashMap<Who, u16>,
}

impl Split {
    /// Takes what comes next; gives the stretch of a wait whose wake-up was seen.
    pub fn take(&mut self, observed: Observed<'_>) -> Option<Queued> {
        match observed {
            Observed::Ran(ran) => {
                self.ran(ran);
                None
            }
            Observed::Wait(wait) => self.wait(wait),
        }
    }

    fn ran(&mut self, ran: Ran) {
        let stays = self.stays.entry(ran.cpu).or_default();
        if stays.len() == STAYS {
            stays.pop_front();
        }
        stays.push_back((ran.from, ran.to));
    }

    fn wait(&mut self, wait: &Wait) -> Option<Queued> {
        let who = Who::of(wait);
        if self.last_cpu.len() >= MOST_THREADS && !self.last_cpu.contains_key(&who) {
            self.last_cpu.clear();
        }
        let moved = self.last_cpu.insert(who, wait.cpu).is_some_and(|last| last != wait.cpu);
        let from = wait.runnable_from()?;
        let (cpu, to) = (u32::from(wait.cpu), wait.run_ns.max(from));
        let is_throttled = !wait.slept() && wait.flags & wait_flags::THROTTLED != 0;
        let target_ns = if is_throttled || moved {
            0
        } else {
            self.ran_between(cpu, from, to)
        };
        let cause = match wait.holder {
            _ if is_throttled => Cause::Throttled,
            holder::IDLE if moved => Cause::Moved,
            holder::IDLE => Cause::Idle,
            holder::KERNEL => Cause::Kernel,
            // All the time is the target's only where its stays say so.
            holder::TARGET if moved => Cause::Target,
            holder::TARGET => Cause::Unknown,
            _ => Cause::Other,
        };
        Some(Queued {
            who,
            cpu,
            from,
            to,
            target_ns,
            cause,
            moved,
        })
    }

    /// How long threads of the target ran on a CPU, as far back as it is kept.
    fn ran_between(&self, cpu: u32, from: u64, to: u64) -> u64 {
        let stays = self.stays.get(&cpu).into_iter().flat_map(|stays| stays.iter().rev());
        // A CPU's stays are in order and do not overlap.
        stays
            .skip_while(|stay| stay.0 >= to)
            .take_while(|stay| stay.1 > from)
            .map(|stay| stay.1.min(to).saturating_sub(stay.0.max(from)))
            .fold(0, u64::saturating_add)
            .min(to - from)
    }
}

#[derive(Clone, Debug, Default)]
struct Sums {
    all: Tally,
    causes: BTreeMap<Cause, Tally>,
}

/// Sums stretches up.
#[derive(Clone, Debug, Default)]
pub struct Collect {
    all: Sums,
    cpus: BTreeMap<u32, Sums>,
    unseen: u64,
}

impl Collect {
    /// Takes one.
    pub fn queued(&mut self, queued: &Queued) {
        self.all.take(queued);
        self.cpus.entry(queued.cpu).or_default().take(queued);
    }

    /// A wait without a wake-up.
    pub const fn unseen(&mut self) {
        self.unseen += 1;
    }

    #[must_use]
    pub fn finish(self) -> Latency {
        let cpus = (self.cpus.into_iter())
            .map(|(cpu, sums)| CpuRow { cpu, row: sums.row() })
            .collect();
        Latency {
            all: self.all.row(),
            cpus,
            unseen: self.unseen,
        }
    }
}

impl Sums {
    fn take(&mut self, q: &Queued) {
        let whole = stretch(q.who, q.from, q.to);
        self.all.add(whole);
        let parts = [(Cause::Target, q.target_ns), (q.cause, whole.ns - q.target_ns)];
        for (cause, ns) in parts.into_iter().filter(|part| part.1 > 0) {
            let part = super::tally::Stretch { ns, ..whole };
            self.causes.entry(cause).or_default().add(part);
        }
    }

    fn row(&self) -> Row {
        let causes = (self.causes.iter())
            .map(|(cause, tally)| CauseRow {
                cause: cause.as_str(),
                stretches: tally.stretches(),
            })
            .collect();
        Row {
            part: (&self.all).into(),
            causes,
        }
    }
}

#[cfg(test)]
mod tests {
    use exist_common::WAIT_BYTES;

    use super::*;

    fn wait(cpu: u16, from: u64, to: u64, by: u8) -> Wait {
        let mut wait = Wait::from_bytes(&[0; WAIT_BYTES]).unwrap();
        (wait.off_ns, wait.runnable_ns, wait.run_ns) = (from, from, to);
        (wait.pid, wait.tid, wait.cpu, wait.holder) = (1, 1, cpu, by);
        wait
    }

    #[test]
    fn time_is_put_down_to_who_ran() {
        let mut split = Split::default();
        for (from, to) in [(0, 100), (110, 150), (150, 190)] {
            split.take(Observed::Ran(Ran {
                who: Who { pid: 1, tid: 2 },
                cpu: 0,
                from,
                to,
            }));
        }
        let mut check = |wait: Wait, target_ns, cause, moved| {
            let queued = split.take(Observed::Wait(&wait)).unwrap();
            assert_eq!(
                (queued.target_ns, queued.cause, queued.moved),
                (target_ns, cause, moved)
            );
        };
        check(wait(0, 90, 200, holder::TARGET), 90, Cause::Unknown, false);
        check(wait(0, 140, 160, holder::OTHER), 20, Cause::Other, false);
        check(wait(0, 195, 200, holder::IDLE), 0, Cause::Idle, false);
        check(wait(1, 195, 200, holder::IDLE), 0, Cause::Moved, true);
        check(wait(0, 90, 200, holder::OTHER), 0, Cause::Other, true);
        let mut throttled = wait(0, 0, 200, holder::OTHER);
        throttled.flags = wait_flags::THROTTLED;
        check(throttled, 0, Cause::Throttled, false);
        // A hostile file's.
        check(wait(0, 200, 90, holder::OTHER), 0, Cause::Other, false);
    }

    #[test]
    fn the_causes_add_up_to_the_whole() {
        let mut collect = Collect::default();
        for i in 0..1000u64 {
            collect.queued(&Queued {
                who: Who { pid: 1, tid: 1 },
                cpu: (i % 3) as u32,
                from: i,
                to: i + i % 50,
                target_ns: i % 50 / 2,
                cause: if i % 2 == 0 { Cause::Other } else { Cause::Idle },
                moved: false,
            });
        }
        let latency = collect.finish();
        let sum = |row: &Row| row.causes.iter().map(|c| c.stretches.total_ns).sum::<u64>();
        assert_eq!(sum(&latency.all), latency.all.part.stretches.total_ns);
        let cpus: u64 = latency.cpus.iter().map(|cpu| sum(&cpu.row)).sum();
        assert_eq!((cpus, latency.cpus.len()), (sum(&latency.all), 3));
    }
}
