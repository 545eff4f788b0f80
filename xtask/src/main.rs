//! Build, test, demonstration and measurement commands of exist; a file each.

mod ci;
mod process;
mod setup;
mod test;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Commands for those who build, test and measure exist.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format check, lints and all tests: what has to pass before a change lands.
    Ci,
    /// Install what is missing.
    Setup(setup::Args),
    /// Set up what is missing and run all tests.
    Test,
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Ci => ci::run(),
        Command::Setup(args) => setup::run(&args),
        Command::Test => test::run(),
    }
}
