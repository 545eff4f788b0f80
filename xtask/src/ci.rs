//! `cargo xtask ci`: what has to pass before a change lands: formatting, lints, structure, all tests; then the short forms
//! of the measurements and of fuzzing.

use std::process::Command;

use anyhow::Result;

use crate::{
    bench::{self, Demands},
    fuzz, process, test, tidy,
};

/// Each has to measure. What it then says of time is told, not judged: the machine is shared and its speed unknown.
/// `bench truth` is among the tests (`live_truth`).
const MEASUREMENTS: [&str; 3] = ["hook", "perfetto", "overhead"];

/// Runs `cargo xtask ci`.
///
/// # Errors
/// On the first step that fails.
pub fn run() -> Result<()> {
    let root = process::workspace();
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
    test::run()?;
    for name in MEASUREMENTS {
        eprintln!("+ cargo xtask bench {name} --short");
        bench::short(name, Demands::Told)?;
    }
    fuzz::short()
}
