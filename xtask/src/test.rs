//! `cargo xtask test`: sets up what is missing and runs all tests.

use std::process::Command;

use anyhow::Result;

use crate::{
    build_ebpf, process,
    setup::{self, Need},
};

/// Runs `cargo xtask test`. `hardware`: what needs a processor trace has to run.
///
/// # Errors
/// If something cannot be set up, or a test fails.
pub fn run(hardware: bool) -> Result<()> {
    setup::ensure(&[Need::Bpf, Need::Live])?;
    build_ebpf::run()?;
    let mut test = Command::new("cargo");
    test.args(["test", "--locked", "--workspace", "--exclude", "exist-ebpf"])
        // Takes a CPU offline for some seconds, and brings it back.
        .env("EXIST_HOTPLUG", "1")
        .current_dir(process::workspace());
    if hardware {
        test.env("EXIST_HARDWARE", "1");
    }
    process::run(&mut test)
}
