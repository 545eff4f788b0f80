//! The command line: arguments → what was meant, a file for each subcommand. The only room that prints.
//!
//! Results go to standard output, everything else to standard error.

mod code;
mod doctor;
mod dump;
mod export;
mod flow;
mod page;
mod quantity;
mod record;
mod report;
mod roots;
pub mod text;

use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use exist_trace::file::Pieces;

/// Follows a container's threads over its cores, and reads the traces.
#[derive(Debug, Parser)]
#[command(name = "exist", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 done · 1 failed · 2 wrong usage · 3 something was lost and --strict was given";

#[derive(Debug, Subcommand)]
enum Command {
    Doctor(doctor::Doctor),
    Record(Box<record::Record>),
    Report(report::Report),
    Dump(dump::Dump),
    Export(export::Export),
    Completions(page::Completions),
    Man(page::Man),
}

/// How a command ended, when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Something is missing from the trace, and the user wants to be told by the exit code.
    Lost,
}

/// Options of every command that makes or reads a trace.
#[derive(Clone, Copy, Debug, Args)]
pub struct Strictness {
    /// Exit with 3 when anything is missing from the trace
    #[arg(long)]
    strict: bool,
}

impl Strictness {
    /// `losses`: how many there are.
    pub const fn outcome(self, losses: usize) -> Outcome {
        if self.strict && losses > 0 {
            Outcome::Lost
        } else {
            Outcome::Done
        }
    }
}

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output and is no failure: clap knows. A closed pipe does not matter here.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let mut out = io::BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let result = run(cli.command, &mut out).and_then(|outcome| Ok(out.flush().map(|()| outcome)?));
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Lost) => ExitCode::from(3),
        // `exist dump … | head`: the reader has what it wants.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("exist: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match command {
        Command::Doctor(doctor) => doctor.run(out),
        Command::Record(record) => record.run(),
        Command::Report(report) => report.run(out),
        Command::Dump(dump) => dump.run(out),
        Command::Export(export) => export.run(),
        Command::Completions(completions) => completions.run(&mut Cli::command(), out),
        Command::Man(man) => man.run(Cli::command(), out),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// The bytes of a trace file.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| unreadable(path))
}

/// Its pieces.
fn pieces<'a>(data: &'a [u8], path: &Path) -> anyhow::Result<Pieces<'a>> {
    Pieces::new(data).with_context(|| unreadable(path))
}

fn unreadable(path: &Path) -> String {
    format!(
        "failed to read the trace {} (`exist record` writes traces)",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                help.contains("Examples:") && help.contains("exist "),
                "{}",
                command.get_name()
            );
        }
    }
}
