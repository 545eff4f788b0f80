//! `cargo xtask lab plan`: buffers by where the target runs against equal ones, in reality and tiny: windows of 40 ms with 192 KiB
//! in all, of a target with threads on three of four CPUs that are 90, 40 and 5 % busy. Covered is the on-CPU time of a window whose
//! trace is in the file.
//!
//! The guest's rates are not hardware's; what is shown is the order, and that a plan learns them from the windows before.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{GuestArgs, Lab, RunArgs, guest::Outcome, workloads};
use crate::{bench::Row, process};

/// Arguments of `cargo xtask lab plan`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Windows of each way
    #[arg(long, default_value_t = 8)]
    windows: u32,
}

const CPUS: u32 = 4;
/// A window of the plan is one of a spool, whose earlier windows it learns from: the first two have larger buffers and are not
/// counted. `WINDOWS`: how many.
const SCRIPT: &str = "mkdir /sys/fs/cgroup/work\n\
    (echo 0 > /sys/fs/cgroup/work/cgroup.procs; exec /lab/bin/skew 600 90 40 5 > /dev/null) &\n\
    sleep 1\n\
    r() { exist record --pt on --for 40ms --cgroup work \"$@\" || exit; }\n\
    for n in 1 2; do r --spool learn --budget 16M; done\n\
    for n in $(seq WINDOWS); do\n\
    mkdir plan$n; cp -r learn/fills plan$n; r --spool plan$n --budget 192K --buffers 32K-4M; cp plan$n/windows/* plan$n.exist\n\
    rm -r learn/fills; mv plan$n/fills learn/fills; rm -r plan$n\n\
    r --budget 192K --buffer 128K -o all$n.exist\n\
    r --budget 192K --buffer 128K --cpus 0-2 -o used$n.exist\n\
    done\n\
    exist plan --cgroup work --for 40ms --budget 192K --buffers 32K-4M --spool learn\n";

/// What of `exist report --json` is looked at.
#[derive(Deserialize)]
struct Recorded {
    threads: Vec<Thread>,
    coverage: Coverage,
}

#[derive(Deserialize)]
struct Thread {
    on_cpu_ns: u64,
}

#[derive(Deserialize)]
struct Coverage {
    pt_share: f64,
}

/// Runs `cargo xtask lab plan`.
///
/// # Errors
/// A recording that fails; a row that is not ok.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let exist = args.run.exist()?;
    let mut guest = args.guest.clone();
    (guest.cpus, guest.coarse_mtc) = (CPUS, true);
    guest.time_limit = guest.time_limit.max(900);
    guest.copy.extend([exist.clone(), workloads::build("skew")?.0]);
    let script = SCRIPT.replace("WINDOWS", &args.windows.to_string());
    let outcome = lab.run(&guest.plan(script, false), &format!("{}-plan", guest.name))?;
    if outcome.code != 0 {
        bail!("a recording failed in the guest: {}", outcome.text("stderr")?.trim());
    }
    eprint!("{}", outcome.text("stdout")?);
    let mean = |way: &str| -> Result<f64> {
        let covered = (1..=args.windows).map(|n| covered_ms(&exist, &outcome, &format!("out/{way}{n}.exist")));
        Ok(covered.sum::<Result<f64>>()? / f64::from(args.windows))
    };
    let (plan, all, used) = (mean("plan")?, mean("all")?, mean("used")?);
    let mut report = args.run.report();
    for (what, peer) in [("equal over all CPUs", all), ("equal over the used CPUs", used)] {
        let row = Row::new(format!("covered on-CPU time of a window: plan, {what}"), "ms");
        report.row(row.ours(plan).peer(peer).must("the plan covers more", plan > peer));
    }
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

fn covered_ms(exist: &Path, outcome: &Outcome, file: &str) -> Result<f64> {
    let mut command = Command::new(exist);
    command
        .arg("report")
        .arg(outcome.folder.join(file))
        .arg("--json")
        .arg("--root")
        .arg(outcome.folder.join("root"));
    let said = process::output(&mut command)?;
    let recorded: Recorded = serde_json::from_str(&said).context("failed to read what exist report says")?;
    let on_cpu_ns: u64 = recorded.threads.iter().map(|thread| thread.on_cpu_ns).sum();
    Ok(on_cpu_ns as f64 * recorded.coverage.pt_share / 1e6)
}
