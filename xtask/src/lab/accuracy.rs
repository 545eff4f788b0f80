//! `cargo xtask lab accuracy`: runs each workload in the guest under `exist record --pt on`, decodes the trace file as
//! `exist dump branches` does, and holds every thread's branches against the ground truth.
//!
//! A difference is a branch that ran outside recorded losses and is not decoded in its place, or is decoded and did not
//! run there. What the decoder gives to no thread, since it cannot tell, is a loss. The time before a CPU's tracer was
//! enabled is told apart.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};
use exist_lab_truth::{Reader, Record, Tally, Traced, Verdict, Visit, Visits};
use exist_trace::{file::model::SwitchOp, units::MonoNs};

use super::{
    GuestArgs, Lab,
    decoded::{self, Decoded},
    guest::Outcome,
    workloads,
};
use crate::{
    bench::{Report, Row},
    process,
};

/// Arguments of `cargo xtask lab accuracy`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// Only the rows whose name contains this; can be given more than once
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// Print one JSON object a row instead of a table
    #[arg(long)]
    json: bool,
    /// This exist, instead of building one
    #[arg(long, value_name = "PATH")]
    exist: Option<PathBuf>,
    /// Hold the last run's files against each other once more, without a guest
    #[arg(long)]
    again: bool,
}

/// The most that may be lost of the branches that ran while the tracer was on, percent.
const MOST_LOST: f64 = 0.1;
/// Fewer branches than this prove nothing: the program was over before the tracer was enabled.
const ENOUGH: usize = 5_000;
/// The most that switch records and packets may be apart, microseconds at p99.9.
const MOST_APART_US: f64 = 2.0;

/// The frequency goes up and down by 200 ppm (in 2^-16 ppm) while the clock is read.
const SLEWED: &str =
    "labctl clock 800; adjtimex -f 13107200; labctl clock 800; adjtimex -f -13107200; labctl clock 900";

/// A program, and what happens to it meanwhile.
struct Case {
    what: &'static str,
    workload: &'static str,
    arguments: &'static [&'static str],
    time: MtcPeriods,
    /// A command of the guest's shell that runs beside it.
    beside: &'static str,
}

/// Which periods of MTC packets the guest's processor offers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MtcPeriods {
    /// Skylake's, of which exist takes the finest: a recording of a second or two fills its buffers.
    All,
    /// Only a coarse one.
    Coarse,
}

/// Packets are lost now and then as long as the workload runs.
const OVERFLOWS: &str = "while true; do sleep 0.02; labctl ovf 300; done";

const CASES: [Case; 8] = [
    Case {
        what: "C, one thread",
        workload: "single",
        arguments: &["4000"],
        time: MtcPeriods::Coarse,
        beside: "",
    },
    Case {
        what: "C, threads",
        workload: "threads",
        arguments: &["4", "600"],
        time: MtcPeriods::Coarse,
        beside: "",
    },
    Case {
        what: "C++, exceptions, virtual calls, signals, longjmp",
        workload: "objects",
        arguments: &["60"],
        time: MtcPeriods::Coarse,
        beside: "",
    },
    Case {
        what: "Rust, threads and channels",
        workload: "channels",
        arguments: &["300"],
        time: MtcPeriods::All,
        beside: "",
    },
    Case {
        what: "libraries and vDSO",
        workload: "libraries",
        arguments: &["200"],
        time: MtcPeriods::Coarse,
        beside: "",
    },
    Case {
        what: "fork and exec",
        workload: "family",
        arguments: &["20"],
        time: MtcPeriods::Coarse,
        beside: "",
    },
    Case {
        what: "20 threads that wake each other",
        workload: "wakers",
        arguments: &["20", "80"],
        time: MtcPeriods::All,
        beside: "",
    },
    Case {
        what: "overflows",
        workload: "threads",
        arguments: &["4", "3000"],
        time: MtcPeriods::Coarse,
        beside: OVERFLOWS,
    },
];

/// Runs `cargo xtask lab accuracy`.
///
/// # Errors
/// A recording that fails, and a row that is not ok.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let exist = if args.again {
        PathBuf::new()
    } else {
        exist(args.exist.as_deref())?
    };
    let mut report = Report::new(args.json);
    let wanted = |what: &str| args.only.is_empty() || args.only.iter().any(|only| what.contains(only.as_str()));
    for case in CASES.iter().filter(|case| wanted(case.what)) {
        let done = record(&lab, args, &exist, case).and_then(|outcome| compare(case, &outcome, args, &mut report));
        unless(done, case.what, &mut report);
    }
    for (what, command) in [("clock", "labctl clock 2500"), ("slewed clock", SLEWED)] {
        if wanted(what) {
            let done = clock(&lab, args, &exist, (what, command), &mut report);
            unless(done, what, &mut report);
        }
    }
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

/// A run that gives no figure is a row that is not ok; the others go on.
fn unless(done: Result<()>, what: &str, report: &mut Report) {
    if let Err(error) = done {
        report.row(
            Row::new(what, "")
                .must("recorded and compared", false)
                .note(format!("{error:#}")),
        );
    }
}

/// The `exist` that is given, or one that is built the way it is released.
///
/// # Errors
/// If it does not build.
pub fn exist(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_path_buf());
    }
    let root = process::workspace();
    let mut build = Command::new("cargo");
    build.args(["build", "--quiet", "--release", "-p", "exist-user"]);
    process::output(build.current_dir(&root))?;
    Ok(root.join("target/release/exist"))
}

fn run_name(args: &Args, what: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("{}-{}", args.guest.name, what.chars().map(plain).collect::<String>())
}

fn record(lab: &Lab, args: &Args, exist: &Path, case: &Case) -> Result<Outcome> {
    let (program, workload) = workloads::build(case.workload)?;
    let name = run_name(args, case.what);
    if args.again {
        return lab.last(&name);
    }
    let mut guest = args.guest.clone();
    guest.copy.extend([program.clone(), exist.to_path_buf()]);
    guest.coarse_mtc |= case.time == MtcPeriods::Coarse;
    let command = format!("/lab/bin/{} {}", workload.name, case.arguments.join(" "));
    let beside = if case.beside.is_empty() {
        String::new()
    } else {
        format!("({}) &\n", case.beside)
    };
    let script = format!("{beside}labctl run exist record --pt on -o trace.exist -- {command} > plain\n");
    let outcome = lab.run(&guest.plan(script, false), &name)?;
    if outcome.code != 0 {
        bail!(
            "{}: exist record ended with {} in the guest: {}",
            case.what,
            outcome.code,
            outcome.text("stderr")?.trim()
        );
    }
    let here = process::output(Command::new(&program).args(case.arguments))?;
    if outcome.text("plain")?.trim() != here.trim() {
        bail!(
            "{} prints something else than on this machine: the emulation changes what it does; see {}",
            workload.name,
            outcome.folder.display()
        );
    }
    Ok(outcome)
}

/// The threads of the target: those that have switch records, and any that share an address space with one of them and
/// were started after the first.
fn target(decoded: &Decoded, cpus: &[Visits]) -> BTreeSet<u64> {
    let mut target: BTreeSet<u64> = decoded
        .trace
        .records
        .iter()
        .filter(|record| matches!(record.op(), Some(SwitchOp::In | SwitchOp::Out)))
        .map(|record| record.tid.into())
        .collect();
    let first = target.first().copied().unwrap_or(u64::MAX);
    let mut lives: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let visits = || cpus.iter().flat_map(|cpu| &cpu.visits);
    for visit in visits().filter(|visit| target.contains(&visit.tid)) {
        let life = lives.entry(visit.cr3).or_insert((visit.entered, visit.left));
        *life = (life.0.min(visit.entered), life.1.max(visit.left));
    }
    for visit in visits().filter(|visit| visit.tid > first) {
        if lives
            .get(&visit.cr3)
            .is_some_and(|life| life.0 <= visit.entered && visit.left <= life.1)
        {
            target.insert(visit.tid);
        }
    }
    target
}

fn compare(case: &Case, outcome: &Outcome, args: &Args, report: &mut Report) -> Result<()> {
    let decoded = decoded::of(&outcome.file("trace.exist")?, &outcome.folder.join("root"))?;
    let mut cpus = Vec::new();
    for bytes in outcome.truths(args.guest.cpus)? {
        let visits = Visits::read(&bytes)?;
        if let Some((from, to)) = visits.unexplained.first() {
            bail!("the lab cannot explain how control came from {from:#x} to {to:#x}: the run proves nothing");
        }
        cpus.push(visits);
    }
    let target = target(&decoded, &cpus);
    let none = Vec::new();
    let verdicts: Vec<Verdict> = (0..)
        .zip(&cpus)
        .map(|(cpu, truth)| {
            let pieces = decoded.cpus.get(&cpu).unwrap_or(&none);
            Verdict::new(&truth.visits, pieces, |tid| target.contains(&tid))
        })
        .collect();
    let mut sum = Tally::default();
    for tally in verdicts.iter().flat_map(|verdict| verdict.threads.values()) {
        sum.ran += tally.ran;
        sum.exact += tally.exact;
        sum.lost += tally.lost;
        sum.untold += tally.untold;
        sum.different += tally.different;
        sum.gap += tally.gap;
    }
    sum.different += out_of_order(&decoded, &verdicts, &cpus);
    let overflows: usize = cpus.iter().map(|cpu| cpu.overflows).sum();
    let stops: usize = cpus.iter().map(|cpu| cpu.stops).sum();
    for difference in verdicts.iter().flat_map(|verdict| &verdict.differences) {
        eprintln!("{}: {difference}", case.what);
    }
    for (error, count) in &decoded.errors {
        eprintln!("{}: {count} times: {error}", case.what);
    }
    if sum.ran == 0 {
        bail!("no thread of the target ran while the tracer was on");
    }

    let percent = |part: usize| part as f64 * 100.0 / sum.ran as f64;
    let counts = decoded.coverage.counts;
    let note = format!(
        "{} branches of {} threads, {} exact; switches: {} by address, {} by time, {} ambiguous",
        sum.ran,
        target.len(),
        sum.exact,
        counts.exact,
        counts.by_time,
        counts.ambiguous
    );
    report.row(
        Row::new(format!("{}: differences", case.what), "branches")
            .ours(sum.different as f64)
            .at_most(0.0)
            .must("enough ran traced", sum.ran >= ENOUGH)
            .note(note),
    );
    // What the lab loses on purpose is no loss of ours, but it has to be in the file.
    let told = decoded.coverage.overflows as usize;
    let injected = if case.beside.is_empty() { 0 } else { sum.lost };
    let lost = sum.lost - injected + sum.untold;
    let must_tell = told >= overflows && (case.beside.is_empty() || overflows > 0);
    report.row(
        Row::new(format!("{}: lost", case.what), "%")
            .ours(percent(lost))
            .at_most(MOST_LOST)
            .must("each overflow is told", must_tell)
            .note(format!(
                "{} given to no thread, {injected} in {overflows} injected overflows, {stops} stops; {} ran before the tracer or after it",
                sum.untold, sum.gap
            )),
    );
    Ok(())
}

/// Steps of pieces that a thread is said to have run before one that it ran earlier.
fn out_of_order(decoded: &Decoded, verdicts: &[Verdict], cpus: &[Visits]) -> usize {
    let mut wrong = 0;
    for (tid, order) in &decoded.order {
        let mut last = 0;
        for (cpu, at) in order {
            let visit = verdicts
                .get(*cpu as usize)
                .and_then(|verdict| verdict.visit_of.get(*at).copied().flatten());
            let Some(visit) = visit else { continue };
            let visit: &Visit = &cpus[*cpu as usize].visits[visit];
            if visit.tid != u64::from(*tid) || visit.traced == Traced::No {
                continue;
            }
            if visit.entered < last {
                wrong += visit.count;
            }
            last = last.max(visit.entered);
        }
    }
    wrong
}

/// How far the file's clock map is from the truth: labctl marks what CLOCK_MONOTONIC was at a TSC.
fn clock(lab: &Lab, args: &Args, exist: &Path, (what, command): (&str, &str), report: &mut Report) -> Result<()> {
    let name = run_name(args, what);
    let outcome = if args.again {
        lab.last(&name)?
    } else {
        let mut guest = args.guest.clone();
        guest.copy.push(exist.to_path_buf());
        guest.coarse_mtc = true;
        let script = format!("labctl run exist record --pt on -o trace.exist -- sh -c '{command}' > frequency\n");
        lab.run(&guest.plan(script, false), &name)?
    };
    if outcome.code != 0 {
        bail!(
            "exist record ended with {}: {}",
            outcome.code,
            outcome.text("stderr")?.trim()
        );
    }
    // What adjtimex prints when it has set the frequency.
    let changes = outcome.text("frequency")?.matches("13107200").count();
    if changes != command.matches("13107200").count() {
        bail!(
            "the clock's frequency was changed {changes} times: {}",
            outcome.text("stderr")?.trim()
        );
    }
    let decoded = decoded::of(&outcome.file("trace.exist")?, &outcome.folder.join("root"))?;
    let span = (decoded.trace.start.0, decoded.trace.end.0);
    let (mut errors_us, mut outside) = (Vec::new(), 0);
    for bytes in outcome.truths(args.guest.cpus)? {
        let mut cut = None;
        let reader = Reader::new(&bytes)?;
        let hz = reader.header().tsc_hz.max(1);
        for item in reader {
            let item = item?;
            match item.record {
                Record::Cut { .. } => cut = Some(item.tsc),
                Record::Mark { value } => {
                    let Some(tsc) = cut.take() else { continue };
                    // The mark holds the low 32 bits: the recording is shorter than they take to come again.
                    let high = span.0 & !u64::from(u32::MAX);
                    let near = [high, high + (1 << 32)].map(|high| high | value);
                    let Some(mono) = near.into_iter().find(|mono| (span.0..=span.1).contains(mono)) else {
                        continue;
                    };
                    let bracket = decoded.flow.clock.tsc(MonoNs(mono));
                    let middle = bracket.lo.0 + (bracket.hi.0 - bracket.lo.0) / 2;
                    errors_us.push(middle.abs_diff(tsc) as f64 * 1e6 / hz as f64);
                    outside += usize::from(!(bracket.lo.0..=bracket.hi.0).contains(&tsc));
                }
                _ => {}
            }
        }
    }
    if errors_us.len() < 1000 {
        bail!("only {} marks lie in the recording: too few for p99.9", errors_us.len());
    }
    errors_us.sort_by(f64::total_cmp);
    let at = |share: f64| errors_us[((errors_us.len() - 1) as f64 * share).round() as usize];
    report.row(
        Row::new(format!("{what}: switch records against packets, p99.9"), "us")
            .ours(at(0.999))
            .at_most(MOST_APART_US)
            .note(format!(
                "p50 {:.3}, p99 {:.3}, most {:.3}, {} readings, {outside} outside the bounds that the file states",
                at(0.5),
                at(0.99),
                at(1.0),
                errors_us.len()
            )),
    );
    Ok(())
}
