//! The memory allocator against equal splits and against hindsight: generated loads, and switch logs of `exist record`.
//! Run it with `cargo xtask sim plan [FILE…]`, which passes traces on.
//!
//! A load is a sequence of windows; in each, the target runs for a time on each CPU, and that CPU's trace takes bytes: its
//! rate (100 to 500 MB/s) times its busy time. The plan for a window knows only the eight before it. Buffers are filled from
//! the window's start, so what is covered of a CPU's time is `min(1, buffer / bytes)`. Hindsight is the exact optimum for
//! the window itself; `law` is the exact optimum for one who knows the load's law and state before the window, and all but
//! chance: the most that the past can tell (200 draws of the window stand for its distribution). Nothing here is measured
//! on hardware.
//!
//! The forecast's constants were chosen with seeds 101 to 120. Those that are judged here are others.

mod loads;
mod recorded;

use std::{ops::RangeInclusive, process::ExitCode};

use exist_trace::units::Cpu;
use exist_user::alloc::{Bounds, CpuUsage, Every, Objective, forecast, solve};

use loads::{Generator, Load, PERIOD_S, Random, Window};

const LOOK_BACK: usize = 8;
/// Windows that are judged for each seed.
const JUDGED: usize = 4;
/// Held out: nothing was chosen with them.
const SEEDS: RangeInclusive<u64> = 1001..=1024;
const MIB: u64 = 1 << 20;
const BUDGETS_MIB: [u64; 5] = [16, 64, 256, 1024, 4096];
/// On average over all windows of a load and a number of CPUs, an equal split may be better by so many points.
const MOST_REGRET: f64 = 0.5;

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

/// A window with all that is known about it.
struct Case<'a> {
    before: &'a [Window],
    now: &'a Window,
    allowed: &'a [bool],
    /// Where the load's law is known.
    law: Option<&'a Objective>,
}

/// Covered shares of a window: the plan, equal over all CPUs, equal over the used ones, the law, hindsight.
fn judge(case: &Case<'_>, budget: u64, bounds: Bounds) -> [f64; 5] {
    let allowed = case.allowed;
    let truth = Objective::exact(&usage(std::slice::from_ref(case.now), allowed));
    let places = (0..allowed.len()).filter(|cpu| allowed[*cpu]);
    let pick = |buffers: Vec<u64>| places.clone().map(|cpu| buffers[cpu]).collect::<Vec<_>>();
    // Less than a thousandth of a CPU is no use.
    let used = |cpu: usize| case.before.iter().any(|window| window[cpu].on_cpu_ns > PERIOD_S * 1e6);
    [
        truth.total(&solve(
            &forecast(&usage(case.before, allowed)),
            budget,
            bounds,
            Every::None,
        )),
        truth.total(&pick(equal(allowed.iter().map(|_| true), budget, bounds))),
        truth.total(&pick(equal((0..allowed.len()).map(used), budget, bounds))),
        case.law
            .map_or(f64::NAN, |law| truth.total(&solve(law, budget, bounds, Every::None))),
        truth.total(&solve(&truth, budget, bounds, Every::None)),
    ]
}

const PLAN: usize = 0;
const ALL: usize = 1;
const USED: usize = 2;
const LAW: usize = 3;
const BEST: usize = 4;

#[derive(Default)]
struct Sums {
    n: f64,
    sums: [f64; 5],
    /// The most that an equal split was better by in a window.
    regret: f64,
}

impl Sums {
    fn add(&mut self, shares: [f64; 5]) {
        self.n += 1.0;
        self.regret = self.regret.max(shares[ALL].max(shares[USED]) - shares[PLAN]);
        self.sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
    }

    fn merge(&mut self, other: &Self) {
        self.n += other.n;
        self.regret = self.regret.max(other.regret);
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, of)| *sum += of);
    }

    fn mean(&self, which: usize) -> f64 {
        self.sums[which] / self.n * 100.0
    }

    /// The points by which an equal split is better on average; below 0: none is.
    fn mean_regret(&self) -> f64 {
        self.mean(ALL).max(self.mean(USED)) - self.mean(PLAN)
    }

    fn row(&self, what: &str) {
        let of_best = |which| self.mean(which) / self.mean(BEST) * 100.0;
        let law = match of_best(LAW) {
            share if share.is_finite() => format!("{share:9.2}"),
            _ => format!("{:>9}", "-"),
        };
        println!(
            "{what:24} {:7.2} {:7.2} {:7.2} {:7.2} {:9.2} {law} {:9.2} {:9.2}",
            self.mean(PLAN),
            self.mean(ALL),
            self.mean(USED),
            self.mean(BEST),
            of_best(PLAN),
            self.mean_regret(),
            self.regret * 100.0
        );
    }
}

fn generated(load: Load, cpus: usize, budgets_mib: &[u64]) -> Sums {
    let mut sums = Sums::default();
    for seed in SEEDS {
        let mut random = Random(seed << 8 | cpus as u64);
        let mut generator = Generator::new(load, cpus, &mut random);
        let allowed = generator.allowed.clone();
        let mut windows: Vec<Window> = (0..LOOK_BACK).map(|_| generator.window(&mut random)).collect();
        for at in LOOK_BACK..LOOK_BACK + JUDGED {
            let draws = generator.draws(&mut Random(!random.0));
            let law = Objective::exact(&usage(&draws, &allowed));
            windows.push(generator.window(&mut random));
            let case = Case {
                before: &windows[at - LOOK_BACK..at],
                now: &windows[at],
                allowed: &allowed,
                law: Some(&law),
            };
            for budget in budgets_mib {
                sums.add(judge(&case, budget * MIB, Bounds::default()));
            }
        }
    }
    sums
}

fn of_trace(windows: &[Window]) -> Sums {
    let allowed = vec![true; windows[0].len()];
    let mut sums = Sums::default();
    // As small beside the need as a real budget on a large node.
    let bounds = Bounds {
        least_bytes: MIB,
        most_bytes: 128 * MIB,
    };
    for at in LOOK_BACK..windows.len() {
        let case = Case {
            before: &windows[at - LOOK_BACK..at],
            now: &windows[at],
            allowed: &allowed,
            law: None,
        };
        for budget in [4, 8, 16] {
            if case.now.iter().any(|cpu| cpu.on_cpu_ns > 0.0) {
                sums.add(judge(&case, budget * MIB, bounds));
            }
        }
    }
    sums
}

fn main() -> ExitCode {
    let mut all = Sums::default();
    let mut worst = (f64::NEG_INFINITY, String::new());
    println!(
        "covered share of the target's on-CPU time, %; seeds {} to {} (held out), {JUDGED} windows of {PERIOD_S} s a seed",
        SEEDS.start(),
        SEEDS.end()
    );
    println!(
        "/best: in % of hindsight; regret: points by which the better equal split is ahead, on average and at most"
    );
    println!(
        "{:24} {:>7} {:>7} {:>7} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "load", "plan", "all", "used", "best", "plan/best", "law/best", "regret", "at most"
    );
    let loads = [
        ("skewed", Load::Skewed),
        ("bursty", Load::Bursty(0.2)),
        ("pinned", Load::Pinned),
        ("migrating", Load::Migrating(0.1)),
    ];
    for (name, load) in loads {
        for cpus in [4, 16, 64, 192] {
            let row = generated(load, cpus, &BUDGETS_MIB);
            let name = format!("{name}, {cpus} CPUs");
            row.row(&name);
            all.merge(&row);
            if row.mean_regret() > worst.0 {
                worst = (row.mean_regret(), name);
            }
        }
    }
    all.row("all of these");
    println!("other laws than those that the constants were chosen with:");
    for (name, load) in [
        ("bursty, 5 % change", Load::Bursty(0.05)),
        ("bursty, 50 % change", Load::Bursty(0.5)),
        ("migrating, 2 % move", Load::Migrating(0.02)),
        ("migrating, 40 % move", Load::Migrating(0.4)),
    ] {
        generated(load, 64, &BUDGETS_MIB).row(name);
    }
    println!("a compressor with a thread on each of 16 CPUs, four of them with most of the work:");
    for budget in [64, 128, 256, 512] {
        generated(Load::Compressor, 16, &[budget]).row(&format!("compressor, {budget} MiB"));
    }
    let mut failed = false;
    for path in std::env::args().skip(1) {
        match recorded::recorded(&path) {
            Err(error) => {
                eprintln!("{error}");
                failed = true;
            }
            Ok(None) => {
                eprintln!("{path}: shorter than {} windows of 50 ms", LOOK_BACK + 1);
                failed = true;
            }
            Ok(Some(windows)) => of_trace(&windows).row(path.rsplit('/').next().unwrap_or(&path)),
        }
    }
    let demands = [
        (
            format!(
                "the mean is at least 95 % of hindsight: {:.2} %",
                all.mean(PLAN) / all.mean(BEST) * 100.0
            ),
            all.mean(PLAN) >= 0.95 * all.mean(BEST),
        ),
        (
            "above an equal split over all CPUs".to_owned(),
            all.mean(PLAN) > all.mean(ALL),
        ),
        (
            "above an equal split over the used CPUs".to_owned(),
            all.mean(PLAN) > all.mean(USED),
        ),
        (
            format!(
                "for no load is an equal split better by more than {MOST_REGRET} points on average; the most is {:.2}, {}",
                worst.0, worst.1
            ),
            worst.0 <= MOST_REGRET,
        ),
    ];
    for (demand, met) in demands {
        println!("{demand}: {}", if met { "yes" } else { "NO" });
        failed |= !met;
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
