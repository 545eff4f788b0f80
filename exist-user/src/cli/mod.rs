//! The command line: arguments → what was meant, a file for each subcommand. The only room that prints.
//!
//! Results go to standard output, everything else to standard error.

mod blockers;
mod code;
mod culprit;
mod diagnose;
mod doctor;
mod dump;
mod export;
mod flow;
mod neighbours;
mod page;
mod plan;
mod quantity;
mod record;
mod report;
mod roots;
mod spool;
pub mod text;
mod times;
mod utilization;

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::FileTypeExt as _,
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
    Plan(Box<plan::Plan>),
    Report(report::Report),
    Dump(dump::Dump),
    Culprit(culprit::Culprit),
    Diagnose(diagnose::Diagnose),
    Export(export::Export),
    Spool(spool::Spool),
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
    let mut out = Output {
        to: io::BufWriter::with_capacity(1 << 16, io::stdout().lock()),
        failure: None,
    };
    let result = run(cli.command, &mut out).and_then(|outcome| Ok(out.flush().map(|()| outcome)?));
    match (result, out.failure) {
        (Ok(Outcome::Done), _) => ExitCode::SUCCESS,
        (Ok(Outcome::Lost), _) => ExitCode::from(3),
        // `exist dump … | head`: the reader has what it wants.
        (Err(_), Some(failure)) if failure.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        (Err(_), Some(failure)) => failed(&anyhow::Error::new(failure).context("failed to write to standard output")),
        (Err(error), None) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    // Names of cgroups and processes are in it. That nobody reads it changes nothing.
    let _ = writeln!(io::stderr(), "exist: {}", text::plain_lines(&format!("{error:#}")));
    ExitCode::FAILURE
}

/// Standard output, and why it failed: what writes to it does not always say.
struct Output<W> {
    to: W,
    failure: Option<io::Error>,
}

impl<W> Output<W> {
    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            // Whoever writes tries again then.
            if kind != io::ErrorKind::Interrupted {
                self.failure = Some(error);
            }
            kind.into()
        })
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.to.write(bytes);
        self.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.to.flush();
        self.note(result)
    }
}

fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    match command {
        Command::Doctor(doctor) => doctor.run(out),
        Command::Record(record) => record.run(),
        Command::Plan(plan) => plan.run(out),
        Command::Report(report) => report.run(out),
        Command::Dump(dump) => dump.run(out),
        Command::Culprit(culprit) => culprit.run(out),
        Command::Diagnose(diagnose) => diagnose.run(out),
        Command::Export(export) => export.run(),
        Command::Spool(spool) => spool.run(out),
        Command::Completions(completions) => completions.run(&mut Cli::command(), out),
        Command::Man(man) => man.run(Cli::command(), out),
    }
}

/// The bytes of a trace file, or of a pipe. A device might never end.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let read = || {
        let kind = fs::metadata(path)?.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a device"));
        }
        fs::read(path)
    };
    read().with_context(|| unreadable(path))
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
