//! Build, test, demonstration and measurement commands of exist; a file each.

mod bench;
mod build_ebpf;
mod ci;
mod demo;
mod fuzz;
mod image;
mod lab;
mod perfetto_ui;
mod process;
mod setup;
mod sim;
mod test;
mod tidy;

use std::process::ExitCode;

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
    /// Measure: costs and truth, beside peers; without a name, lists the benches.
    Bench(bench::Args),
    /// Compile and link the BPF programs; says which tool chain it took.
    BuildEbpf,
    /// The program that benches record.
    #[command(hide = true)]
    BenchTarget(bench::target::Args),
    /// Format check, lints and all tests: what has to pass before a change lands.
    Ci(ci::Args),
    /// Set up what is missing, record a small service, print the report, leave a file to open.
    Demo,
    /// Fuzz every parser for some seconds each (needs a nightly compiler and cargo-fuzz).
    Fuzz(fuzz::Args),
    /// Run a command in a guest with an emulated Intel PT; see tests/lab/README.md.
    Lab(Box<lab::Args>),
    /// Build the container image's root file system, for `docker import`.
    Image,
    /// Install what is missing.
    Setup(setup::Args),
    /// Simulate: the memory allocator against equal splits and hindsight.
    Sim(sim::Args),
    /// Set up what is missing and run all tests.
    Test,
    /// Check the rules of the structure that the compiler does not check.
    Tidy,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Bench(args) => bench::run(&args),
        Command::BuildEbpf => build_ebpf::run(),
        Command::BenchTarget(args) => bench::target::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Demo => demo::run(),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Image => image::run(),
        Command::Setup(args) => setup::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Test => test::run(false),
        Command::Tidy => tidy::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
