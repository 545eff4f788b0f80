//! `cargo xtask test`: sets up what is missing and runs all tests.

use std::process::Command;

use anyhow::Result;

use crate::{
    build_ebpf, process,
    setup::{self, Need},
};

/// Runs `cargo xtask test`.
///
/// # Errors
/// If something cannot be set up, or a test fails.
pub fn run() -> Result<()> {
    setup::ensure(&[Need::Bpf, Need::Live])?;
    build_ebpf::run()?;
    process::run(
        Command::new("cargo")
            .args(["test", "--locked", "--workspace", "--exclude", "exist-ebpf"])
            // Takes a CPU offline for some seconds, and brings it back.
            .env("EXIST_HOTPLUG", "1")
            .current_dir(process::workspace()),
    )
}
