//! `cargo xtask lab latency`: how long a CPU's first switch-in of the target comes before its tracer, in a guest that is
//! 95 % busy, and whether the CPUs of the look-back lose anything at the start.
//!
//! The times are the lab's: a guest two orders of magnitude slower than its clock. They show that the way is there and
//! what it says of itself; they say nothing about hardware (`tests/live/latency.rs` measures the real kernel).

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use exist_lab_truth::Traced;
use exist_trace::{
    file::{
        Trace,
        model::{ControlKind, LossKind, SwitchOp},
    },
    units::{ClockMap, Cpu, MonoNs},
};

use super::{GuestArgs, Lab, RunArgs, accuracy, guest::Outcome, workloads};
use crate::bench::{Report, Row};

/// Arguments of `cargo xtask lab latency`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Recordings; each enables every CPU once
    #[arg(long, default_value_t = 20)]
    windows: u32,
    /// Four recordings: a minute or two, for CI
    #[arg(long)]
    short: bool,
}

/// A command that runs on each of the guest's CPUs in turn; no look-back precedes a command.
const LATE: &str = "for n in $(seq $((2 * CPUS))); do labctl load & done\n\
                    for n in $(seq WINDOWS); do\n\
                    exist record --pt on --buffer 8M -o late$n.exist -- sh /lab/bin/each-cpu || exit\n\
                    done\n";
/// Threads on every CPU that run before the recording begins. The truth begins when the recorder is about to.
const LOOK_BACK: &str = "mkdir /sys/fs/cgroup/work\n\
                         (echo 0 > /sys/fs/cgroup/work/cgroup.procs; exec /lab/bin/wakers 8 100000000 > /dev/null) &\n\
                         labctl on\n\
                         exist record --pt on --buffer 8M --for 300ms --cgroup work -o back.exist || exit\n\
                         labctl off\n";

/// Runs `cargo xtask lab latency`.
///
/// # Errors
/// A recording that fails; a row that is not ok.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let mut guest = args.guest.clone();
    guest.coarse_mtc = true;
    // Many recordings in one guest.
    guest.time_limit = guest.time_limit.max(900);
    guest.copy.extend([args.run.exist()?, workloads::build("wakers")?.0]);
    let mut report = args.run.report();
    let windows = if args.short { 4 } else { args.windows };
    late(&lab, &guest, windows, &mut report)?;
    let outcome = recorded(&lab, &guest, LOOK_BACK.to_owned(), &format!("{}-look-back", guest.name))?;
    report.row(look_back(&outcome, &guest)?);
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

fn recorded(lab: &Lab, guest: &GuestArgs, script: String, name: &str) -> Result<Outcome> {
    let outcome = lab.run(&guest.plan(script, false), name)?;
    if outcome.code != 0 {
        bail!(
            "exist record ended with {} in the guest: {}",
            outcome.code,
            outcome.text("stderr")?.trim()
        );
    }
    Ok(outcome)
}

/// `PtLate` of the file: from the first switch-in on a CPU to its tracer.
fn late(lab: &Lab, guest: &GuestArgs, windows: u32, report: &mut Report) -> Result<()> {
    let each_cpu: String = (0..guest.cpus)
        .map(|cpu| format!("taskset {:x} usleep 20000\n", 1u64 << cpu))
        .collect();
    let script = LATE
        .replace("CPUS", &guest.cpus.to_string())
        .replace("WINDOWS", &windows.to_string());
    let script = format!("echo '{each_cpu}' > /lab/bin/each-cpu\n{script}");
    let outcome = recorded(lab, guest, script, &format!("{}-late", guest.name))?;
    let mut late_us = Vec::new();
    for window in 1..=windows {
        let file = outcome.file(&format!("late{window}.exist"))?;
        let trace = Trace::read(&file).context("failed to read a trace")?;
        let late = trace.losses.iter().filter(|loss| loss.kind == LossKind::PtLate);
        late_us.extend(late.map(|loss| (loss.to.0 - loss.from.0) as f64 / 1e3));
    }
    let asked = windows as usize * guest.cpus as usize;
    late_us.sort_by(f64::total_cmp);
    let Some(last) = late_us.len().checked_sub(1) else {
        bail!("no recording tells that a CPU's tracer came later than the target");
    };
    for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
        let row = Row::new(format!("lab, 95 % busy: first switch-in to tracer, {name}"), "us");
        report.row(
            row.ours(late_us[(last as f64 * share).round() as usize])
                .must("each CPU is enabled once and tells", late_us.len() == asked)
                .note(format!("{} enables; says nothing about hardware", late_us.len())),
        );
    }
    Ok(())
}

/// Branches of the target that ran untraced on a CPU of the look-back between the start of the recording and its disable.
fn look_back(outcome: &Outcome, guest: &GuestArgs) -> Result<Row> {
    let trace = Trace::read(&outcome.file("back.exist")?).context("failed to read the trace")?;
    let clock = ClockMap::new(&trace.clock_pairs, trace.header.node.tsc_khz).context("the trace has no clock")?;
    let switches = trace
        .records
        .iter()
        .filter(|record| matches!(record.op(), Some(SwitchOp::In | SwitchOp::Out)));
    let target: BTreeSet<u64> = switches.map(|record| record.tid.into()).collect();
    let done = |kind, cpu: Cpu| {
        let mut ops = trace.ops.iter();
        ops.find(|op| op.kind == kind && op.cpu == Some(cpu) && op.error.is_none())
    };
    let (mut cpus, mut ran, mut untraced) = (0, 0, 0);
    for (cpu, truth) in (0..).map(Cpu).zip(accuracy::truths(outcome, guest.cpus)?) {
        // The period starts when the tracers of the look-back run.
        if done(ControlKind::PtEnable, cpu).is_none_or(|op| op.to > trace.start) {
            continue;
        }
        cpus += 1;
        let end = done(ControlKind::PtDisable, cpu).map_or(trace.end, |op| op.from);
        let tsc = |time: MonoNs| clock.tsc(time);
        let (from, to) = (tsc(trace.start).hi.0, tsc(end).lo.0);
        for visit in truth.visits.iter().filter(|visit| target.contains(&visit.tid)) {
            if (from..to).contains(&visit.entered) {
                ran += visit.count;
                untraced += if visit.traced == Traced::No { visit.count } else { 0 };
            }
        }
    }
    let told = trace.losses.iter().filter(|loss| loss.kind == LossKind::PtLate).count();
    Ok(
        Row::new("look-back: branches that ran untraced from the start on", "branches")
            .ours(untraced as f64)
            .at_most(0.0)
            .must("there was a look-back", cpus > 0)
            .must("enough ran", ran > 1000)
            .note(format!(
                "{ran} branches on {cpus} CPUs of the look-back; {told} CPUs came later"
            )),
    )
}
