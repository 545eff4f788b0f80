//! The memory allocator against equal splits and against hindsight: generated loads, and switch logs of `exist record`.
//! Run it with `cargo xtask sim plan [FILE…]`, which passes traces on.
//!
//! A load is a sequence of windows; in each, the target runs for a time on each CPU, and that CPU's trace takes bytes: its
//! rate (100 to 500 MB/s) times its busy time. The plan for a window knows only the eight before it. Buffers are filled from
//! the window's start, so what is covered of a CPU's time is `min(1, buffer / bytes)`. Hindsight is the exact optimum for
//! the window itself. Nothing here is measured on hardware.

use std::{collections::BTreeMap, process::ExitCode};

use exist_trace::{
    file::Pieces,
    flow::{Sched, Step},
    units::Cpu,
};
use exist_user::alloc::{Bounds, CpuUsage, Objective, UNSEEN, Use, solve};

const PERIOD_S: f64 = 0.5;
const LOOK_BACK: usize = 8;
/// Windows that are judged for each seed.
const JUDGED: usize = 4;
const SEEDS: u64 = 20;
const MIB: u64 = 1 << 20;
const BUDGETS_MIB: [u64; 5] = [16, 64, 256, 1024, 4096];

/// What happens in a window on each CPU.
type Window = Vec<Use>;

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

    fn below(&mut self, n: usize) -> usize {
        ((self.next() * n as f64) as usize).min(n - 1)
    }
}

#[derive(Clone, Copy)]
enum Load {
    Skewed,
    Bursty,
    Pinned,
    Migrating,
    /// Threads of a compressor: one on every CPU, some of them with most of the work, at the highest rates.
    Compressor,
}

/// Windows, and which CPUs the target may use.
fn generate(load: Load, cpus: usize, seed: u64) -> (Vec<Window>, Vec<bool>) {
    let mut random = Random(seed << 8 | cpus as u64);
    let rates: Vec<f64> = (0..cpus)
        .map(|_| match load {
            Load::Compressor => 400e6 + 100e6 * random.next(),
            _ => 100e6 + 400e6 * random.next(),
        })
        .collect();
    let others: Vec<f64> = (0..cpus).map(|_| 0.3 * random.next()).collect();
    let mut order: Vec<usize> = (0..cpus).collect();
    (1..cpus).rev().for_each(|i| order.swap(i, random.below(i + 1)));
    let some = (cpus / 4).max(1);
    let mut allowed = vec![true; cpus];
    if matches!(load, Load::Pinned) {
        order[some..].iter().for_each(|cpu| allowed[*cpu] = false);
    }
    let mut on: Vec<bool> = (0..cpus).map(|_| random.next() < 0.5).collect();
    let mut threads: Vec<usize> = (0..some).map(|_| random.below(cpus)).collect();
    let windows = (0..LOOK_BACK + JUDGED)
        .map(|_| {
            let mut busy = vec![0.0_f64; cpus];
            match load {
                Load::Skewed => (0..)
                    .zip(&order)
                    .for_each(|(rank, cpu)| busy[*cpu] = 1.0 / f64::from(rank + 1)),
                Load::Compressor => {
                    (0..)
                        .zip(&order)
                        .for_each(|(rank, cpu)| busy[*cpu] = if rank < some { 0.95 } else { 0.25 });
                }
                Load::Pinned => order[..some]
                    .iter()
                    .for_each(|cpu| busy[*cpu] = 0.3 + 0.7 * random.next()),
                Load::Bursty => {
                    for cpu in 0..cpus {
                        on[cpu] ^= random.next() < 0.2;
                        busy[cpu] = if on[cpu] { 0.8 } else { 0.02 };
                    }
                }
                Load::Migrating => {
                    for thread in &mut threads {
                        if random.next() < 0.1 {
                            *thread = random.below(cpus);
                        }
                        busy[*thread] += 0.7;
                    }
                }
            }
            (0..cpus)
                .map(|cpu| {
                    let target = (busy[cpu] * (0.8 + 0.4 * random.next())).min(1.0);
                    let whole = (target + others[cpu]).min(1.0);
                    Use {
                        on_cpu_ns: target * PERIOD_S * 1e9,
                        bytes: whole * PERIOD_S * rates[cpu] * (0.9 + 0.2 * random.next()),
                    }
                })
                .collect()
        })
        .collect();
    (windows, allowed)
}

fn usage(windows: &[Window], allowed: &[bool]) -> Vec<CpuUsage> {
    (0..allowed.len())
        .filter(|cpu| allowed[*cpu])
        .map(|cpu| CpuUsage {
            cpu: Cpu(u32::try_from(cpu).expect("few CPUs")),
            slots: windows.iter().map(|window| window[cpu]).collect(),
        })
        .collect()
}

/// An equal share in powers of two; when it is too small, as many of the smallest as there is room for.
fn equal(cpus: impl Iterator<Item = bool> + Clone, budget: u64, bounds: Bounds) -> Vec<u64> {
    let used = cpus.clone().filter(|used| *used).count().max(1) as u64;
    let share = (budget / used).min(bounds.most_bytes).max(bounds.least_bytes);
    let size = 1 << share.ilog2();
    let mut left = budget / size;
    cpus.map(|used| {
        let has = used && left > 0;
        left -= u64::from(has);
        if has { size } else { 0 }
    })
    .collect()
}

/// Covered shares of a window: the plan, equal over all CPUs, equal over the used ones, hindsight.
fn judge(before: &[Window], window: &Window, allowed: &[bool], budget: u64, bounds: Bounds) -> [f64; 4] {
    let truth = usage(std::slice::from_ref(window), allowed);
    let truth = Objective::new(&truth, 0.0);
    let seen = Objective::new(&usage(before, allowed), UNSEEN);
    let places = (0..allowed.len()).filter(|cpu| allowed[*cpu]);
    let pick = |buffers: Vec<u64>| places.clone().map(|cpu| buffers[cpu]).collect::<Vec<_>>();
    // Less than a thousandth of a CPU is no use.
    let used = |cpu: usize| before.iter().any(|window| window[cpu].on_cpu_ns > PERIOD_S * 1e6);
    [
        truth.total(&solve(&seen, budget, bounds)),
        truth.total(&pick(equal(allowed.iter().map(|_| true), budget, bounds))),
        truth.total(&pick(equal((0..allowed.len()).map(used), budget, bounds))),
        truth.total(&solve(&truth, budget, bounds)),
    ]
}

#[derive(Default)]
struct Sums {
    n: f64,
    sums: [f64; 4],
    /// The most that an equal split was better by.
    regret: f64,
}

impl Sums {
    fn add(&mut self, shares: [f64; 4]) {
        self.n += 1.0;
        self.regret = self.regret.max(shares[1].max(shares[2]) - shares[0]);
        self.sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
    }

    fn mean(&self, which: usize) -> f64 {
        self.sums[which] / self.n * 100.0
    }

    fn row(&self, what: &str) {
        println!(
            "{what:24} {:7.2} {:7.2} {:7.2} {:7.2} {:9.2} {:9.2}",
            self.mean(0),
            self.mean(1),
            self.mean(2),
            self.mean(3),
            self.mean(0) / self.mean(3) * 100.0,
            self.regret * 100.0
        );
    }
}

/// Windows of 50 ms from a trace's switches, at 300 MB/s a busy CPU; `None`: too short to judge.
fn recorded(path: &str) -> Result<Option<Vec<Window>>, String> {
    const SLOT_NS: u64 = 50_000_000;
    let data = std::fs::read(path).map_err(|error| format!("failed to read {path}: {error}"))?;
    let pieces = Pieces::new(&data).map_err(|error| format!("failed to read {path}: {error}"))?;
    let cpus = pieces
        .header()
        .node
        .cpus
        .iter()
        .map(|cpu| cpu.cpu.0 as usize + 1)
        .max()
        .unwrap_or(0);
    let start = pieces.header().start.0;
    let mut slots: BTreeMap<u64, Window> = BTreeMap::new();
    let mut ran = |step: Step| {
        let Step::Ran { cpu, from, to, .. } = step else { return };
        let mut at = from.0.max(start);
        while at < to.0 {
            let slot = (at - start) / SLOT_NS;
            let until = to.0.min(start + (slot + 1) * SLOT_NS);
            let window = slots.entry(slot).or_insert_with(|| vec![Use::default(); cpus]);
            if let Some(cpu) = window.get_mut(cpu.0 as usize) {
                cpu.on_cpu_ns += (until - at) as f64;
                cpu.bytes += (until - at) as f64 * 0.3;
            }
            at = until;
        }
    };
    let mut sched = Sched::default();
    pieces.for_each(|piece| sched.piece(&piece, &mut ran));
    sched.finish(&mut ran);
    let last = slots.keys().max().copied().unwrap_or(0);
    let windows: Vec<_> = (0..=last)
        .map(|slot| slots.remove(&slot).unwrap_or_else(|| vec![Use::default(); cpus]))
        .collect();
    Ok((windows.len() > LOOK_BACK).then_some(windows))
}

fn main() -> ExitCode {
    let mut all = Sums::default();
    println!(
        "covered share of the target's on-CPU time, %; {SEEDS} seeds each, {JUDGED} windows of {PERIOD_S} s a seed"
    );
    println!(
        "{:24} {:>7} {:>7} {:>7} {:>7} {:>9} {:>9}",
        "load", "plan", "all", "used", "best", "plan/best", "regret"
    );
    let loads = [
        ("skewed", Load::Skewed),
        ("bursty", Load::Bursty),
        ("pinned", Load::Pinned),
        ("migrating", Load::Migrating),
    ];
    for (name, load) in loads {
        for cpus in [4, 16, 64, 192] {
            let mut row = Sums::default();
            for seed in 1..=SEEDS {
                let (windows, allowed) = generate(load, cpus, seed);
                for budget in BUDGETS_MIB {
                    for at in LOOK_BACK..windows.len() {
                        let (before, now) = (&windows[at - LOOK_BACK..at], &windows[at]);
                        let shares = judge(before, now, &allowed, budget * MIB, Bounds::default());
                        row.add(shares);
                        all.add(shares);
                    }
                }
            }
            row.row(&format!("{name}, {cpus} CPUs"));
        }
    }
    all.row("all of these");
    for budget in [64, 128, 256, 512] {
        let mut row = Sums::default();
        for seed in 1..=SEEDS {
            let (windows, allowed) = generate(Load::Compressor, 16, seed);
            for at in LOOK_BACK..windows.len() {
                row.add(judge(
                    &windows[at - LOOK_BACK..at],
                    &windows[at],
                    &allowed,
                    budget * MIB,
                    Bounds::default(),
                ));
            }
        }
        row.row(&format!("compressor, {budget} MiB"));
    }
    let mut failed = false;
    for path in std::env::args().skip(1) {
        match recorded(&path) {
            Err(error) => {
                eprintln!("{error}");
                failed = true;
            }
            Ok(None) => {
                eprintln!("{path}: shorter than {} windows of 50 ms", LOOK_BACK + 1);
                failed = true;
            }
            Ok(Some(windows)) => {
                let allowed = vec![true; windows[0].len()];
                let mut row = Sums::default();
                // As small beside the need as a real budget on a large node.
                let bounds = Bounds {
                    least_bytes: MIB,
                    most_bytes: 128 * MIB,
                };
                for at in LOOK_BACK..windows.len() {
                    let (before, now) = (&windows[at - LOOK_BACK..at], &windows[at]);
                    for budget in [4, 8, 16] {
                        if now.iter().any(|cpu| cpu.on_cpu_ns > 0.0) {
                            row.add(judge(before, now, &allowed, budget * MIB, bounds));
                        }
                    }
                }
                row.row(path.rsplit('/').next().unwrap_or(&path));
            }
        }
    }
    let demands = [
        (
            "the mean is at least 95 % of the best",
            all.mean(0) >= 0.95 * all.mean(3),
        ),
        ("above an equal split over all CPUs", all.mean(0) > all.mean(1)),
        ("above an equal split over the used CPUs", all.mean(0) > all.mean(2)),
    ];
    for (demand, met) in demands {
        println!("{demand}: {}", if met { "yes" } else { "NO" });
        failed |= !met;
    }
    println!(
        "the most that an equal split was better by in a window: {:.2} points",
        all.regret * 100.0
    );
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
