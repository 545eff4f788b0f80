//! `cargo xtask ci`: what has to pass before a change lands: formatting, lints, structure, all tests.

use std::process::Command;

use anyhow::Result;

use crate::{process, test, tidy};

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
    test::run()
}
