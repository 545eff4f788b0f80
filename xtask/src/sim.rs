//! `cargo xtask sim`: what is decided without hardware, tried without hardware.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{build_ebpf, process};

/// `cargo xtask sim plan`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// The memory allocator on generated loads, and on the switches of traces; fails when a demand is not met
    Plan {
        /// Traces of `exist record`, half a second long at least
        files: Vec<PathBuf>,
        /// Record three loads on this machine first (needs root): a service, a compressor, processes that come and go
        #[arg(long)]
        record: bool,
    },
}

/// Loads of this machine, as shell commands; `{service}` is the demo's service.
const LOADS: [(&str, &str); 3] = [
    ("service", "exec {service} 4"),
    ("compressor", "head -c 1G /dev/urandom | xz -1 -T4 > /dev/null"),
    (
        "processes",
        "for i in 1 2 3 4; do while :; do sha256sum /proc/kallsyms > /dev/null; sleep 0.00$i; done & done; sleep 4",
    ),
];

/// Runs `cargo xtask sim`.
///
/// # Errors
/// When a demand is not met, or a trace cannot be read.
pub fn run(args: &Args) -> Result<()> {
    let What::Plan { files, record } = &args.what;
    let recorded = if *record { record_loads()? } else { Vec::new() };
    let example = [
        "run",
        "--quiet",
        "--release",
        "-p",
        "exist-user",
        "--example",
        "plan-sim",
        "--",
    ];
    process::run(Command::new("cargo").args(example).args(recorded).args(files))
}

/// Records the loads of this machine, three seconds each.
fn record_loads() -> Result<Vec<PathBuf>> {
    build_ebpf::run()?;
    let root = process::workspace();
    let programs = process::build_release(&[("exist-user", "exist"), ("xtask", "demo-service")])?;
    let out = root.join("target/sim");
    fs::create_dir_all(&out).with_context(|| format!("failed to create {}", out.display()))?;
    LOADS.iter().map(|load| record_load(&programs, &out, load)).collect()
}

fn record_load(programs: &Path, out: &Path, (name, shell): &(&str, &str)) -> Result<PathBuf> {
    let trace = out.join(format!("{name}.exist"));
    let service = programs.join("demo-service").display().to_string();
    process::run(
        Command::new(programs.join("exist"))
            .args(["record", "--pt", "off", "--for", "3s", "-o"])
            .arg(&trace)
            .args(["--", "sh", "-c", &shell.replace("{service}", &service)]),
    )?;
    Ok(trace)
}
