//! `cargo xtask sim`: what is decided without hardware, tried without hardware.

use std::{path::PathBuf, process::Command};

use anyhow::Result;

use crate::process;

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
    },
}

/// Runs `cargo xtask sim`.
///
/// # Errors
/// When a demand is not met, or a trace cannot be read.
pub fn run(args: &Args) -> Result<()> {
    let What::Plan { files } = &args.what;
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
    process::run(Command::new("cargo").args(example).args(files))
}
