//! `cargo xtask lab check`: takes a workload, records it in the guest with stock perf and the kernel's own driver, and
//! decodes the same AUX bytes here with stock perf and with exist's decoder. Ours is held against the ground truth, perf
//! against ours, stretch by stretch of user mode on each CPU; where perf differs, `explain` says why.
//!
//! It fails on a branch of ours that did not run or is missing outside recorded losses, on a difference of perf's that
//! has no explanation, on a transition that the lab cannot explain, and when the workload prints something else without
//! the plugin.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use exist_lab_truth::{Step, Tally, Verdict, Visits};

use super::{
    GuestArgs, Lab, accuracy, aux, by_truth,
    explain::{self, Stretch},
    guest::Outcome,
    workloads,
};
use crate::{
    bench::{Report, Row},
    process,
};

/// Arguments of `cargo xtask lab check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// The event that perf records; the coarser the period of MTC, the more perf gives to the wrong thread
    #[arg(long, default_value = "intel_pt/mtc_period=3/u")]
    event: String,
    /// AUX bytes a CPU, as perf's -m takes them; small ones bring interrupts and stops
    #[arg(long, default_value = "32M")]
    aux: String,
    /// Lose this many bytes of packets in the middle
    #[arg(long)]
    overflow: Option<u32>,
    /// Print one JSON object a row instead of a table
    #[arg(long)]
    json: bool,
    /// Decode the last run's files once more, without a guest
    #[arg(long)]
    again: bool,
    /// A workload of tests/lab/workloads or the path of a program, and its arguments; without one, every workload
    #[arg(last = true)]
    command: Vec<String>,
}

/// The period of MTC packets that perf's default asks for.
const DEFAULT_MTC_PERIOD: u8 = 3;

/// Runs `cargo xtask lab check`.
///
/// # Errors
/// See the module.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let mut report = Report::new(args.json);
    match args.command.as_slice() {
        [] => {
            for workload in workloads::ALL {
                check(&lab, args, workload.name, &[], &mut report)?;
            }
        }
        [program, arguments @ ..] => check(&lab, args, program, arguments, &mut report)?,
    }
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

/// Checks one workload, by its name, or a program by its path.
fn check(lab: &Lab, args: &Args, program: &str, arguments: &[String], report: &mut Report) -> Result<()> {
    let (program, arguments) = if program.contains('/') {
        (PathBuf::from(program), arguments.to_vec())
    } else {
        let (path, workload) = workloads::build(program)?;
        let own = workload
            .arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        (path, if arguments.is_empty() { own } else { arguments.to_vec() })
    };
    let name = program
        .file_name()
        .context("the workload is not a file")?
        .to_string_lossy()
        .into_owned();
    let traced = if args.again {
        lab.last(&format!("{}-{name}", args.guest.name))?
    } else {
        record(
            lab,
            args,
            &program,
            &format!("/lab/bin/{name} {}", arguments.join(" ")),
            &name,
        )?
    };
    let truths = accuracy::truths(&traced, args.guest.cpus)?;
    let pt = aux::of(&traced.file("perf.data")?)?;
    let perf = of_perf(lab, &traced)?;
    let overflows: usize = truths.iter().map(|truth| truth.overflows).sum();
    let losses: usize = truths.iter().map(|truth| truth.overflows + truth.stops.len()).sum();
    let (mut sum, mut told) = (Tally::default(), 0);
    let mut compared = explain::Compared::default();
    for (cpu, truth) in (0u32..).zip(truths) {
        let stream = pt.get(&cpu).cloned().unwrap_or_default();
        let (tally, ours, overflows) = ours(cpu, stream, truth, args);
        told += overflows;
        sum.ran += tally.ran;
        sum.exact += tally.exact;
        sum.lost += tally.lost;
        sum.different += tally.different;
        let perf = perf.get(cpu as usize).map(Vec::as_slice).unwrap_or_default();
        compared.add(cpu, &ours, perf)?;
    }
    report.row(
        Row::new(format!("{name}: ours against the truth on perf's bytes"), "branches")
            .ours(sum.different as f64)
            .at_most(0.0)
            .must("enough ran", sum.ran > 1000)
            .must("each overflow is told", told >= overflows)
            .must("losses only where the lab lost something", sum.lost == 0 || losses > 0)
            .note(format!(
                "{} ran, {} exact, {} in {losses} losses",
                sum.ran, sum.exact, sum.lost
            )),
    );
    report.row(compared.row(&name, losses));
    Ok(())
}

/// Records in the guest, once without the plugin for the output.
fn record(lab: &Lab, args: &Args, program: &std::path::Path, workload: &str, name: &str) -> Result<Outcome> {
    let mut guest = args.guest.clone();
    guest.copy.push(program.to_path_buf());
    let plain = format!("{workload} > plain");
    let mut without = guest.clone();
    without.without_plugin = true;
    let plain = lab.run(&without.plan(plain, false), &format!("{}-plain", guest.name))?;

    // Asked until it is told that it happened while the workload ran.
    let overflow = args.overflow.map_or(String::new(), |bytes| {
        format!("(for n in 1 2 3 4 5 6 7 8 9; do sleep 0.3; labctl ovf {bytes}; done) &\n")
    });
    let script = format!(
        "{overflow}perf record -q -a -m ,{} -e {} -o perf.data labctl run {workload} > plain || exit\n\
         cp -r /root/.debug debug 2> /dev/null || true\n",
        args.aux, args.event
    );
    let traced = lab.run(&guest.plan(script, true), &format!("{}-{name}", guest.name))?;
    if traced.code != 0 {
        bail!(
            "recording ended with {} in the guest: {}",
            traced.code,
            traced.text("stderr")?.trim()
        );
    }
    if plain.file("plain")? != traced.file("plain")? {
        bail!(
            "the workload prints something else with the plugin: the emulation changes what it does; see {} and {}",
            plain.folder.display(),
            traced.folder.display()
        );
    }
    Ok(traced)
}

/// Our decoder's stretches of a CPU, each with the thread that really ran it, how they stand against the truth, and how
/// many overflows were found.
fn ours(cpu: u32, stream: Vec<u8>, mut truth: Visits, args: &Args) -> (Tally, Vec<Stretch>, usize) {
    // Where the truth begins, user mode may have been entered before.
    let begun = truth.visits.len().min(1);
    truth.visits.drain(..begun);
    let Some((first, last)) = truth.visits.first().zip(truth.visits.last()) else {
        return (Tally::default(), Vec::new(), 0);
    };
    let (first, last) = (first.entered, last.entered);
    let asked = args.event.split_once("mtc_period=").map(|(_, rest)| rest);
    let period = asked.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    let decoded = by_truth::decode(cpu, stream, &truth, first, period.unwrap_or(DEFAULT_MTC_PERIOD));
    for error in decoded.errors.iter().take(8) {
        eprintln!("{error}");
    }
    // The truth is recorded for a part of the time only.
    let within = |at: &usize| {
        let time = &decoded.pieces[*at].time;
        decoded.visit_of[*at].is_some() || (first..=last).contains(time.start()) && (first..=last).contains(time.end())
    };
    let within: Vec<usize> = (0..decoded.pieces.len()).filter(within).collect();
    let pieces: Vec<_> = within.iter().map(|at| decoded.pieces[*at].clone()).collect();
    let mut visits = truth.visits.clone();
    visits.iter_mut().for_each(|visit| visit.tid = by_truth::ALL);
    let verdict = Verdict::new(&visits, &pieces, |_| true);
    for difference in &verdict.differences {
        eprintln!("cpu {cpu}: {difference}");
    }
    let stretches = within.iter().filter_map(|at| {
        Some(Stretch {
            tid: truth.visits[decoded.visit_of[*at]?].tid,
            steps: decoded.pieces[*at].steps.clone()?,
        })
    });
    let tally = verdict.threads.get(&by_truth::ALL).copied().unwrap_or_default();
    (tally, stretches.collect(), decoded.overflows)
}

/// Stock perf's stretches of each CPU.
fn of_perf(lab: &Lab, outcome: &Outcome) -> Result<Vec<Vec<Stretch>>> {
    let root: PathBuf = outcome.folder.join("root");
    let mut command = lab.tools.command("perf");
    command.arg("--buildid-dir").arg(outcome.folder.join("out/debug"));
    command
        .arg("script")
        .arg("-i")
        .arg(outcome.folder.join("out/perf.data"));
    command
        .arg("--symfs")
        .arg(&root)
        .args(["--itrace=be", "-F", "tid,cpu,ip,addr"]);
    let mut cpus: Vec<Vec<Stretch>> = Vec::new();
    for line in process::output(&mut command)?.lines() {
        let said = parse_error(line).map(|(cpu, tid)| (cpu, tid, None));
        let (cpu, tid, step) = said
            .or_else(|| parse(line))
            .with_context(|| format!("perf script printed {line:?}"))?;
        cpus.resize_with(cpus.len().max(cpu + 1), Vec::new);
        let stretches = &mut cpus[cpu];
        // Each begins where user mode is entered, or where perf finds its place again after an error.
        let goes_on = |last: &&mut Stretch| last.tid == tid && !last.is_error();
        match (step, stretches.last_mut().filter(goes_on)) {
            (Some(step), Some(last)) if step.0 != 0 => last.steps.push(step),
            (Some(step), _) => stretches.push(Stretch { tid, steps: vec![step] }),
            (None, _) => stretches.push(Stretch::error(tid)),
        }
    }
    Ok(cpus)
}

/// `TID [CPU] FROM => TO`, the addresses in hex.
fn parse(line: &str) -> Option<(usize, u64, Option<Step>)> {
    let mut words = line.split_whitespace();
    let tid = words.next()?.parse().ok()?;
    let cpu = words.next()?.trim_matches(['[', ']']).parse().ok()?;
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let from = hex(words.next()?)?;
    (words.next()? == "=>").then_some(())?;
    Some((cpu, tid, Some((from, hex(words.next()?)?))))
}

/// `instruction trace error … cpu CPU pid PID tid TID ip …`.
fn parse_error(line: &str) -> Option<(usize, u64)> {
    let words: Vec<&str> = line
        .trim_start()
        .strip_prefix("instruction trace error")?
        .split_whitespace()
        .collect();
    let after = |name: &str| {
        words
            .iter()
            .position(|word| *word == name)
            .and_then(|at| words.get(at + 1))
    };
    Some((after("cpu")?.parse().ok()?, after("tid")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_perf_lines() {
        assert_eq!(
            parse("    158 [001]     7f3bfda15b73 =>     7f3bfda16770"),
            Some((1, 158, Some((0x7f3b_fda1_5b73, 0x7f3b_fda1_6770))))
        );
        assert_eq!(
            parse("  7 [000]                0 =>               1a"),
            Some((0, 7, Some((0, 0x1a))))
        );
        assert_eq!(parse("7 [000] 0"), None);
        let error = " instruction trace error type 1 time 5.778826964 cpu 1 pid 0 tid 7 ip 0x7fde code 5: Failed to get instruction";
        assert_eq!(parse_error(error), Some((1, 7)));
        assert_eq!(parse_error("  7 [000]                0 =>               1a"), None);
    }
}
