//! Generated loads: what each window brings to each CPU.

use exist_user::alloc::Use;

pub const PERIOD_S: f64 = 0.5;

/// What happens in a window on each CPU.
pub type Window = Vec<Use>;

/// Reproducible numbers from 0 to 1 (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) as f64 / u64::MAX as f64
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() * n as f64) as usize).min(n - 1)
    }
}

#[derive(Clone, Copy)]
pub enum Load {
    Skewed,
    /// Each CPU goes from busy to idle, or back, with this chance a window.
    Bursty(f64),
    Pinned,
    /// Each thread moves to any CPU with this chance a window.
    Migrating(f64),
    /// Threads of a compressor: one on every CPU, some of them with most of the work, at the highest rates.
    Compressor,
}

/// A load as it stands before a window: all that decides, but chance, what comes.
#[derive(Clone)]
pub struct Generator {
    load: Load,
    /// Bytes of trace a busy second, of each CPU.
    rates: Vec<f64>,
    /// Share of each CPU that others use.
    others: Vec<f64>,
    /// CPUs, the busiest first.
    order: Vec<usize>,
    /// How many are busy, or threads.
    some: usize,
    on: Vec<bool>,
    threads: Vec<usize>,
    /// Which CPUs the target may use.
    pub allowed: Vec<bool>,
}

impl Generator {
    pub fn new(load: Load, cpus: usize, random: &mut Random) -> Self {
        let rates = (0..cpus)
            .map(|_| match load {
                Load::Compressor => 400e6 + 100e6 * random.next(),
                _ => 100e6 + 400e6 * random.next(),
            })
            .collect();
        let others = (0..cpus).map(|_| 0.3 * random.next()).collect();
        let mut order: Vec<usize> = (0..cpus).collect();
        (1..cpus).rev().for_each(|i| order.swap(i, random.below(i + 1)));
        let some = (cpus / 4).max(1);
        let mut allowed = vec![true; cpus];
        if matches!(load, Load::Pinned) {
            order[some..].iter().for_each(|cpu| allowed[*cpu] = false);
        }
        Self {
            load,
            rates,
            others,
            order,
            some,
            on: (0..cpus).map(|_| random.next() < 0.5).collect(),
            threads: (0..some).map(|_| random.below(cpus)).collect(),
            allowed,
        }
    }

    /// The next window.
    pub fn window(&mut self, random: &mut Random) -> Window {
        let cpus = self.rates.len();
        let mut busy = vec![0.0_f64; cpus];
        match self.load {
            Load::Skewed => (0..)
                .zip(&self.order)
                .for_each(|(rank, cpu)| busy[*cpu] = 1.0 / f64::from(rank + 1)),
            Load::Compressor => (0..)
                .zip(&self.order)
                .for_each(|(rank, cpu)| busy[*cpu] = if rank < self.some { 0.95 } else { 0.25 }),
            Load::Pinned => self.order[..self.some]
                .iter()
                .for_each(|cpu| busy[*cpu] = 0.3 + 0.7 * random.next()),
            Load::Bursty(changes) => {
                for (cpu, on) in self.on.iter_mut().enumerate() {
                    *on ^= random.next() < changes;
                    busy[cpu] = if *on { 0.8 } else { 0.02 };
                }
            }
            Load::Migrating(moves) => {
                for thread in &mut self.threads {
                    if random.next() < moves {
                        *thread = random.below(cpus);
                    }
                    busy[*thread] += 0.7;
                }
            }
        }
        (0..cpus)
            .map(|cpu| {
                let target = (busy[cpu] * (0.8 + 0.4 * random.next())).min(1.0);
                let whole = (target + self.others[cpu]).min(1.0);
                Use {
                    on_cpu_ns: target * PERIOD_S * 1e9,
                    bytes: whole * PERIOD_S * self.rates[cpu] * (0.9 + 0.2 * random.next()),
                }
            })
            .collect()
    }

    /// What the next window may bring, by the load's own law: no forecast from the past can know more.
    pub fn draws(&self, random: &mut Random) -> Vec<Window> {
        (0..DRAWS).map(|_| self.clone().window(random)).collect()
    }
}

const DRAWS: usize = 200;
