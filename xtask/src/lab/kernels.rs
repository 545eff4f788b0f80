//! `cargo xtask lab kernels`: on each kernel of the lab, whether the BPF programs load and record, and the live tests of
//! the processor trace (`tests/live/pt.rs`).

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum as _;
use exist_trace::file::{Trace, model::SwitchOp};

use super::{GuestArgs, Lab, RunArgs, guest::Outcome, packages::Kernel, workloads};
use crate::{bench::Row, process};

/// Arguments of `cargo xtask lab kernels`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Only the hook, without the live tests
    #[arg(long)]
    short: bool,
}

const THREADS: u64 = 2;
const TURNS: u64 = 2000;
const TESTS: &str = "live_pt";

/// Runs `cargo xtask lab kernels`.
///
/// # Errors
/// A guest that gives no result; a row that is not ok.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let tests = if args.short { None } else { Some(tests()?) };
    let mut guest = args.guest.clone();
    guest.coarse_mtc = true;
    guest.time_limit = guest.time_limit.max(600);
    guest.copy.extend([args.run.exist()?, workloads::build("wakers")?.0]);
    guest.copy.extend(tests.clone());
    let mut report = args.run.report();
    for kernel in Kernel::value_variants() {
        guest.kernel = *kernel;
        let name = format!("{}-kernel-{}", guest.name, kernel.name());
        let live = tests.as_deref().map_or(String::new(), live);
        let script = format!(
            "uname -r > kernel\n{live}\
             exist record --pt on -o trace.exist -- /lab/bin/wakers {THREADS} {TURNS} > plain 2> record.txt\n\
             echo $? > record.code\n"
        );
        let outcome = lab.run(&guest.plan(script, false), &name)?;
        report.row(hook(*kernel, &outcome)?);
        if tests.is_some() {
            report.row(tested(*kernel, &outcome)?);
        }
    }
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

/// The test program, built.
fn tests() -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    build.args([
        "test",
        "--quiet",
        "--no-run",
        "--message-format=json",
        "-p",
        "exist-user",
        "--test",
        TESTS,
    ]);
    let built = process::output(build.current_dir(process::workspace()))?;
    let messages = built
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    // The program under test is built, too.
    let mut programs = messages
        .filter(|message| message["target"]["name"] == TESTS)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next().context("cargo built no test program")
}

fn live(tests: &Path) -> String {
    let program = tests.file_name().unwrap_or_default().to_string_lossy();
    format!("EXIST_LAB=1 /lab/bin/{program} --test-threads 1 --nocapture > live.txt 2>&1\n")
}

fn hook(kernel: Kernel, outcome: &Outcome) -> Result<Row> {
    let said = outcome.text("record.txt")?;
    let row = Row::new(format!("{}: switches of the hook", kernel.name()), "switches");
    if outcome.text("record.code")?.trim() != "0" {
        return Ok(row
            .must("loaded and recorded", false)
            .note(said.trim().replace('\n', " ")));
    }
    let trace = Trace::read(&outcome.file("trace.exist")?).context("failed to read the trace")?;
    let count = |op| trace.records.iter().filter(|record| record.op() == Some(op)).count();
    let (ins, outs) = (count(SwitchOp::In), count(SwitchOp::Out));
    let lost: u64 = trace.losses.iter().map(|loss| loss.records).sum();
    // Each turn is a wait and a wake, unless the wake comes first.
    Ok(row
        .ours(outs as f64)
        .must("the threads are followed", outs as u64 >= TURNS / 2)
        .must("no record missing", lost == 0 && ins.abs_diff(outs) <= 1)
        .must("with processor trace", trace.header.pt.is_ok())
        .note(format!("{}; {ins} in, {outs} out", outcome.text("kernel")?.trim())))
}

fn tested(kernel: Kernel, outcome: &Outcome) -> Result<Row> {
    let said = outcome.text("live.txt")?;
    let result = said.lines().rev().find(|line| line.starts_with("test result:"));
    let passed = result
        .and_then(|line| line.split_whitespace().nth(3))
        .and_then(|word| word.parse::<u32>().ok());
    let failed: Vec<_> = said.lines().filter(|line| line.ends_with("FAILED")).collect();
    Ok(
        Row::new(format!("{}: live tests of the processor trace", kernel.name()), "tests")
            .ours(passed.unwrap_or(0).into())
            .must(
                "all pass",
                result.is_some_and(|line| line.starts_with("test result: ok")),
            )
            .must("none is skipped", !said.contains("skipped:"))
            .note(failed.join("; ")),
    )
}
