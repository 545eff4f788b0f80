//! A recording held against the ground truth: takes the trace file and each vCPU's truth, gives a case's rows.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use exist_lab_truth::{Tally, Traced, Verdict, Visit, Visits};
use exist_trace::{
    file::model::{Loss, LossKind, SwitchOp},
    units::{Cpu, Tsc},
};

use super::{
    super::{decoded, decoded::Decoded, guest::Outcome},
    Args, calls,
    cases::{Case, Loses},
};
use crate::bench::{Report, Row};

/// The most that may be lost of the branches that ran while the tracer was on, percent.
const MOST_LOST: f64 = 0.1;
/// Fewer branches than this prove nothing: the program was over before the tracer was enabled.
const ENOUGH: usize = 5_000;

/// The truth of each vCPU.
///
/// # Errors
/// A file that is not whole, or that holds what the lab cannot explain.
pub fn truths(outcome: &Outcome, cpus: u32) -> Result<Vec<Visits>> {
    let mut truths = Vec::new();
    for bytes in outcome.truths(cpus)? {
        let visits = Visits::read(&bytes)?;
        if let Some((from, to)) = visits.unexplained.first() {
            bail!("the lab cannot explain how control came from {from:#x} to {to:#x}: the run proves nothing");
        }
        truths.push(visits);
    }
    Ok(truths)
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

/// Adds a case's rows.
///
/// # Errors
/// A file that cannot be read; a run that proves nothing.
pub fn compare(case: &Case, outcome: &Outcome, args: &Args, report: &mut Report) -> Result<()> {
    let decoded = decoded::of(&outcome.file("trace.exist")?, &outcome.folder.join("root"))?;
    let cpus = truths(outcome, args.guest.cpus)?;
    let target = target(&decoded, &cpus);
    let none = Vec::new();
    let verdicts: Vec<Verdict> = (0..)
        .zip(&cpus)
        .map(|(cpu, truth)| {
            let pieces = decoded.cpus.get(&cpu).unwrap_or(&none);
            Verdict::new(&truth.visits, pieces, |tid| target.contains(&tid))
        })
        .collect();
    let mut threads: BTreeMap<u64, Tally> = BTreeMap::new();
    for (tid, tally) in verdicts.iter().flat_map(|verdict| &verdict.threads) {
        add(threads.entry(*tid).or_default(), tally);
    }
    let mut sum = Tally::default();
    threads.values().for_each(|tally| add(&mut sum, tally));
    sum.different += out_of_order(&decoded, &verdicts, &cpus);
    for difference in verdicts.iter().flat_map(|verdict| &verdict.differences) {
        eprintln!("{}: {difference}", case.what);
    }
    for (error, count) in &decoded.errors {
        eprintln!("{}: {count} times: {error}", case.what);
    }
    if sum.ran == 0 {
        bail!("no thread of the target ran while the tracer was on");
    }
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
    report.row(losses(case, &decoded, &cpus, &sum));
    report.row(
        Row::new(format!("{}: ran while its CPU's tracer was off", case.what), "branches")
            .ours(sum.gap as f64)
            .note("before it was enabled, after its buffer was full"),
    );
    let whole = threads
        .iter()
        .filter(|(_, tally)| tally.exact > 0 && tally.lost + tally.untold + tally.different == 0);
    let whole: BTreeSet<u64> = whole.map(|(tid, _)| *tid).collect();
    // Where something is lost on purpose, every thread can miss something.
    if case.loses == Loses::Nothing || !whole.is_empty() {
        report.row(calls::row(case.what, &decoded, &cpus, &whole));
    }
    Ok(())
}

fn add(sum: &mut Tally, tally: &Tally) {
    sum.ran += tally.ran;
    sum.exact += tally.exact;
    sum.lost += tally.lost;
    sum.untold += tally.untold;
    sum.different += tally.different;
    sum.gap += tally.gap;
}

/// What the lab loses on purpose is no loss of ours, but it has to be in the file.
fn losses(case: &Case, decoded: &Decoded, cpus: &[Visits], sum: &Tally) -> Row {
    let told = decoded.coverage.overflows as usize;
    let overflows: usize = cpus.iter().map(|cpu| cpu.overflows).sum();
    let stops: usize = cpus.iter().map(|cpu| cpu.stops.len()).sum();
    let injected = if case.loses == Loses::Nothing { 0 } else { sum.lost };
    let lost = sum.lost - injected + sum.untold;
    let full = full_buffers(decoded, cpus);
    let happened = match case.loses {
        Loses::Nothing => overflows + stops == 0,
        Loses::Overflows => overflows > 0,
        Loses::Stops => stops > 0,
    };
    Row::new(format!("{}: lost", case.what), "%")
        .ours(lost as f64 * 100.0 / sum.ran as f64)
        .at_most(MOST_LOST)
        .must("only what was lost on purpose", happened)
        .must("each overflow is told", told >= overflows)
        .must("each full buffer is told", full == stops)
        .note(format!(
            "{} given to no thread; {injected} in {overflows} injected overflows and {stops} full buffers",
            sum.untold
        ))
}

/// How many stops the file tells of as full buffers.
fn full_buffers(decoded: &Decoded, cpus: &[Visits]) -> usize {
    let stops = (0..)
        .map(Cpu)
        .zip(cpus)
        .flat_map(|(cpu, truth)| truth.stops.iter().map(move |stop| (cpu, *stop)));
    let told = |(cpu, stop): &(Cpu, u64)| {
        let stopped = decoded.flow.clock.mono(Tsc(*stop));
        let told = |loss: &Loss| loss.kind == LossKind::AuxTruncated && loss.cpu == Some(*cpu) && loss.to >= stopped;
        decoded.trace.losses.iter().any(told)
    };
    stops.filter(told).count()
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
