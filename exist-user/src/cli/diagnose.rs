//! `exist diagnose`: the checklist of an experienced reader, answered from a trace.

use std::{io::Write, path::PathBuf};

use clap::Args;
use exist_trace::analysis::diagnose::{Answer, Diagnosis, Outcome as Found, diagnose};

use super::{Outcome, neighbours::Names, pieces, read, roots::RootArgs, text, unreadable};
use anyhow::Context as _;

/// Go through the checklist of an experienced reader: why was it slow, and where to look
#[derive(Debug, Args)]
#[command(after_help = "\
Needs waits in the trace (`record --waits on`). The questions, and when something counts as found:
  cpus_idle    a thread waited for a disk or a page 10 % of the time, or for one that did, and CPUs were less than half busy
  saturated    in 2 % of all windows of 10 ms, or 3 in a row: CPUs 85 % busy and a thread queued for each (averages hide it)
  throttled    the cgroup's quota held threads back (needs Linux 6.18 to be seen)
  long_calls   a thread waited 20 ms or more at once in a system call on a file or device
  blocker      three threads or more waited for one, 10 ms at once or 5 % of the time; with what that one did
  page_faults  a thread waited for pages 2 % of the time, 5 ms or more
  neighbour    others had the CPU for 5 % of the time that threads wanted to run, 10 ms or more
  migrations   a thread came in on another CPU a third of the times, 200 times a second or more
A neighbour is named by its container or cgroup where the trace was recorded on this machine since it booted and the cgroup
is still there; elsewhere by the cgroup's number: a trace does not hold names of others.
A futex wait that times out names as its waker whichever thread the timer stopped: look at a `blocker` with that in mind.
Times of places are seconds since the recording began, as `dump` and `report` show them.

Examples:
  exist diagnose slow.exist
  exist diagnose slow.exist --all
  exist diagnose slow.exist --json | jq '.answers[] | select(.outcome == \"found\") | .says'")]
pub struct Diagnose {
    /// The trace
    file: PathBuf,
    /// Also show the questions to which nothing was found
    #[arg(long, conflicts_with = "json")]
    all: bool,
    /// Print one JSON object, with all answers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    roots: RootArgs,
}

impl Diagnose {
    pub fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let data = read(&self.file)?;
        let names = Names::of(pieces(&data, &self.file)?.header(), &self.roots.roots());
        let diagnosis = diagnose(&data, |id| names.get(id)).with_context(|| unreadable(&self.file))?;
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &diagnosis)?;
            writeln!(out)?;
        } else {
            self.print(&diagnosis, out)?;
        }
        Ok(Outcome::Done)
    }

    fn print(&self, diagnosis: &Diagnosis, out: &mut dyn Write) -> anyhow::Result<()> {
        if diagnosis.found().next().is_none() {
            writeln!(out, "nothing found")?;
        }
        for answer in diagnosis.found() {
            found(answer, diagnosis.start_ns, out)?;
        }
        for answer in diagnosis.answers.iter().filter(|a| a.outcome == Found::Unknown) {
            writeln!(out, "{}: not known: {}", answer.question, text::plain(&answer.says))?;
        }
        if self.all {
            for answer in diagnosis.answers.iter().filter(|a| a.outcome == Found::Nothing) {
                writeln!(out, "{}: nothing: {}", answer.question, answer.says)?;
            }
        }
        for limit in &diagnosis.limits {
            writeln!(out, "note: {limit}")?;
        }
        Ok(())
    }
}

fn found(answer: &Answer, start_ns: u64, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}: {}", answer.question, text::plain(&answer.says))?;
    for evidence in &answer.evidence {
        writeln!(out, "    {}", text::plain(evidence))?;
    }
    for place in &answer.places {
        let (from, length) = (
            text::since(place.from_ns, start_ns),
            text::duration(place.to_ns - place.from_ns),
        );
        let whose = place.tid.map_or_else(String::new, |tid| format!(", thread {tid}"));
        writeln!(out, "    look at {from} s, {length}{whose}")?;
    }
    writeln!(out)?;
    Ok(())
}
