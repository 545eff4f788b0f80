//! `exist export`: a trace in another format.

use std::{
    io::{self, BufWriter, Write},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use exist_trace::{
    export::perfetto::{self, Calls},
    file::Pieces,
    image::Symbols,
};

use super::{
    Outcome,
    code::Roots,
    flow::{Decoded, NO_CLOCKS},
    pieces, read,
};
use crate::spool::PartFile;

/// Write a trace in another format
#[derive(Debug, Args)]
#[command(after_help = "\
perfetto: threads and CPUs as ftrace's sched_switch, losses and control operations as instants; with processor trace the calls
of each thread as nested slices.
Open it with ui.perfetto.dev, or query it with trace_processor. What is not the target's shows as idle.

Examples:
  exist export trace.exist --to perfetto -o trace.perfetto-trace")]
pub struct Export {
    /// The trace
    file: PathBuf,
    /// The format
    #[arg(long)]
    to: Format,
    /// Where to write it; it appears there when it is whole
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Calls: the folder that holds the recorded machine's files [default: the process', or this machine's]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Perfetto,
}

impl Export {
    pub fn run(&self) -> anyhow::Result<Outcome> {
        let data = read(&self.file)?;
        let pieces = pieces(&data, &self.file)?;
        let decoded = match pieces.header().pt {
            Ok(_) => {
                let roots = Roots {
                    root: self.root.clone(),
                };
                let decoded = Decoded::if_aligned(&data, &self.file, &roots)?;
                if decoded.is_none() {
                    eprintln!("exist: calls are left out: {NO_CLOCKS}");
                }
                decoded
            }
            Err(_) => None,
        };
        self.write(pieces, decoded.as_ref()).with_context(|| {
            format!(
                "failed to write {} (its folder must be there and writable)",
                self.output.display()
            )
        })?;
        Ok(Outcome::Done)
    }

    fn write(&self, pieces: Pieces<'_>, decoded: Option<&Decoded>) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, PartFile::create(&self.output)?);
        let written = match self.to {
            Format::Perfetto => perfetto::write(pieces, &mut out)
                .and_then(|()| decoded.map_or(Ok(()), |decoded| calls(decoded, &mut out))),
        };
        let written = written.and_then(|()| out.flush());
        let (file, _) = out.into_parts();
        match written {
            Ok(()) => file.finish(),
            Err(error) => {
                file.discard();
                Err(error)
            }
        }
    }
}

/// Appends every thread's calls.
fn calls(decoded: &Decoded, out: &mut dyn Write) -> io::Result<()> {
    let mut symbols = Symbols::default();
    let mut to = Calls::new(out)?;
    for tid in decoded.flow.threads() {
        let Some(pid) = decoded.flow.process(tid) else { continue };
        let mut spans = Vec::new();
        decoded
            .flow
            .spans(tid, &decoded.image, &mut symbols, |span| spans.push(span));
        to.thread((pid, tid), spans, |id| symbols.function(id).clone())?;
    }
    if to.too_deep() > 0 {
        eprintln!(
            "exist: {} calls are left out: more than 512 others are around each, which Perfetto does not draw",
            to.too_deep()
        );
    }
    Ok(())
}
