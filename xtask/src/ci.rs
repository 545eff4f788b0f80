//! `cargo xtask ci`: what has to pass before a change lands: formatting, lints, structure, all tests; then the short forms
//! of the measurements and of fuzzing.

use std::{path::Path, process::Command};

use anyhow::{Result, bail};

use crate::{
    bench::{self, Demands, PeerFailed},
    fuzz, process, test, tidy,
};

/// What a measurement says of time is told, not judged: the machine is shared and its speed unknown. `bench truth` is among
/// the tests (`live_truth`).
const MEASUREMENTS: [&str; 3] = ["hook", "perfetto", "overhead"];

/// Arguments of `cargo xtask ci`.
#[derive(clap::Args)]
pub struct Args {
    /// On a runner with Intel PT: what needs one fails where it is otherwise skipped
    #[arg(long)]
    hardware: bool,
}

/// Runs `cargo xtask ci`.
///
/// # Errors
/// On the first step that fails.
pub fn run(args: &Args) -> Result<()> {
    let root = process::workspace();
    if args.hardware && !Path::new(process::INTEL_PT).exists() {
        bail!(
            "--hardware, but there is no {}: the processor has no Intel PT, the firmware or the hypervisor hides it, or \
             the kernel is built without it; run it on another runner, or without --hardware",
            process::INTEL_PT
        );
    }
    process::run(
        Command::new("cargo")
            .args(["fmt", "--all", "--check"])
            .current_dir(&root),
    )?;
    process::run(
        Command::new("cargo")
            .args([
                "clippy",
                "--locked",
                "--workspace",
                "--exclude",
                "exist-ebpf",
                "--all-targets",
            ])
            .args(["--", "-D", "warnings"])
            .current_dir(&root),
    )?;
    tidy::run()?;
    test::run(args.hardware)?;
    for name in MEASUREMENTS {
        eprintln!("+ cargo xtask bench {name} --short");
        match bench::short(name, Demands::Told) {
            // No fault of ours. That exist does not record is one.
            Err(error) if error.is::<PeerFailed>() => eprintln!("not measured: {error:#}"),
            done => done?,
        }
    }
    fuzz::short()
}
