//! Measurements. Takes the name of a bench; gives rows `{what, ours, peer, ratio, must, ok}`, as JSON lines or as a table.
//!
//! A bench refuses to run where it cannot measure (no root, no peer), with the reason: it never prints a figure that it
//! did not measure. A row that is not `ok` makes the command fail.

mod bpf;
mod budget;
mod burner;
mod child;
mod ftrace;
mod group;
mod hook;
mod load;
mod loss;
mod machine;
mod oncpu;
mod overhead;
mod perfetto;
mod row;
mod services;
mod sid;
pub mod stats;
pub mod target;
mod tools;
mod truth;

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

pub use row::{Report, Row};
pub use tools::PeerFailed;

use crate::process;

/// A bench: fills the report, or says why it could not measure.
type Bench = fn(&Options, &mut Report) -> Result<()>;

/// Every bench by name, with one line for `--help`. A new bench is a file here and a line in this table.
const BENCHES: &[(&str, &str, Bench)] = &[
    (
        "hook",
        "what a context switch costs with the hook, by the kernel's own statistics",
        hook::run,
    ),
    (
        "truth",
        "recordings of 1, 8 and 200 threads beside the kernel's own accounting",
        truth::run,
    ),
    (
        "overhead",
        "what recording costs memcached, nginx and redis, beside other recorders",
        overhead::run,
    ),
    (
        "perfetto",
        "time on CPU of each thread, beside Perfetto recording the same seconds",
        perfetto::run,
    ),
];

/// `cargo xtask bench NAME`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Which bench; without a name, lists them
    name: Option<String>,
    #[command(flatten)]
    options: Options,
}

/// How a bench is run.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Options {
    /// Print one JSON object a row instead of a table
    #[arg(long)]
    pub json: bool,
    /// Fewer and shorter windows: a minute or two, for CI; the bounds are wider
    #[arg(long)]
    pub short: bool,
    /// Only the parts whose name contains this; can be given more than once
    #[arg(long, value_name = "PART")]
    pub only: Vec<String>,
}

impl Options {
    /// Whether the part of this name is to be measured.
    pub fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| part.contains(only.as_str()))
    }
}

/// An empty folder `target/bench/NAME` for the files of a bench.
///
/// # Errors
/// It cannot be emptied or made.
pub fn work_dir(name: &str) -> Result<PathBuf> {
    let dir = process::workspace().join("target/bench").join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("failed to empty {}", dir.display()))?;
    }
    fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
    Ok(dir)
}

/// What a demand that is not met means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demands {
    /// The bench fails.
    Judged,
    /// The row says so, and that is all.
    Told,
}

/// The short form of one bench.
///
/// # Errors
/// As [`run`]; with [`Demands::Told`] not for a row that is not `ok`.
pub fn short(name: &str, demands: Demands) -> Result<()> {
    let options = Options {
        short: true,
        ..Options::default()
    };
    one(name, &options, demands)
}

/// Runs one bench.
///
/// # Errors
/// An unknown name; whatever kept the bench from measuring; a row that is not `ok`.
pub fn run(args: &Args) -> Result<()> {
    let Some(name) = &args.name else {
        for (name, about, _) in BENCHES {
            println!("{name:10} {about}");
        }
        return Ok(());
    };
    one(name, &args.options, Demands::Judged)
}

fn one(name: &str, options: &Options, demands: Demands) -> Result<()> {
    let Some((_, _, bench)) = BENCHES.iter().find(|(known, ..)| *known == name) else {
        let known: Vec<_> = BENCHES.iter().map(|(known, ..)| *known).collect();
        bail!("no bench is called {name}; there are: {}", known.join(", "));
    };
    let _precedence = machine::Precedence::take();
    let mut report = Report::new(options.json);
    bench(options, &mut report).with_context(|| format!("bench {name} could not measure"))?;
    if !report.finish() && demands == Demands::Judged {
        bail!("bench {name}: a demand is not met");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_s_failure_is_known_below_what_is_said_of_it() {
        let told = |error: anyhow::Error| error.context("bench perfetto could not measure");
        assert!(
            told(
                anyhow::anyhow!("not ready")
                    .context("traced_probes")
                    .context(PeerFailed)
            )
            .is::<PeerFailed>()
        );
        assert!(!told(anyhow::anyhow!("not ready").context("exist does not record")).is::<PeerFailed>());
    }
}
