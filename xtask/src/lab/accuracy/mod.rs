//! `cargo xtask lab accuracy`: runs each workload in the guest under `exist record --pt on`, decodes the trace file as
//! `exist dump branches` does, and holds every thread's branches against the ground truth.
//!
//! A difference is a branch that ran outside recorded losses and is not decoded in its place, or is decoded and did not
//! run there. What the decoder gives to no thread, since it cannot tell, is a loss. The time before a CPU's tracer was
//! enabled is told apart.
//!
//! ```text
//! cases ─▶ record ─ trace file, truth ─▶ held (differences, losses, stops) · calls (of each function)
//!                                    └─▶ clock (switch records against packets)
//! ```

mod calls;
mod cases;
mod clock;
mod held;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use self::cases::{CASES, Case, MtcPeriods};
pub use self::held::truths;
use super::{GuestArgs, Lab, RunArgs, guest::Outcome, workloads};
use crate::{
    bench::{Report, Row},
    process,
};

/// Arguments of `cargo xtask lab accuracy`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Only the rows whose name contains this; can be given more than once
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
    /// Fewer programs: a minute or two, for CI
    #[arg(long)]
    short: bool,
    /// Hold the last run's files against each other once more, without a guest
    #[arg(long)]
    again: bool,
}

/// Runs `cargo xtask lab accuracy`.
///
/// # Errors
/// A recording that fails, and a row that is not ok.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let exist = if args.again { PathBuf::new() } else { args.run.exist()? };
    let mut report = args.run.report();
    let wanted = |what: &str| args.only.is_empty() || args.only.iter().any(|only| what.contains(only.as_str()));
    for case in CASES
        .iter()
        .filter(|case| wanted(case.what) && (case.short || !args.short))
    {
        let done =
            record(&lab, args, &exist, case).and_then(|outcome| held::compare(case, &outcome, args, &mut report));
        unless(done, case.what, &mut report);
    }
    for (what, command) in clock::CLOCKS.into_iter().filter(|(what, _)| wanted(what)) {
        let done = clock::run(&lab, args, &exist, (what, command), &mut report);
        unless(done, what, &mut report);
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
    let script = case.loses.script().replace("{work}", &command);
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
