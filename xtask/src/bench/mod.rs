//! Measurements. Takes the name of a bench; gives rows `{what, ours, peer, ratio, must, ok}`, as JSON lines or as a table.
//!
//! A bench refuses to run where it cannot measure (no root, no peer), with the reason: it never prints a figure that it
//! did not measure. A row that is not `ok` makes the command fail.

// Until the first bench is in the table.
#[allow(dead_code)]
mod row;
#[allow(dead_code)]
pub mod stats;

use anyhow::{Context, Result, bail};

#[allow(unused_imports)]
pub use row::{Report, Row};

/// A bench: fills the report, or says why it could not measure.
type Bench = fn(&Options, &mut Report) -> Result<()>;

/// Every bench by name, with one line for `--help`. A new bench is a file here and a line in this table.
const BENCHES: &[(&str, &str, Bench)] = &[];

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
    let Some((_, _, bench)) = BENCHES.iter().find(|(known, ..)| known == name) else {
        let known: Vec<_> = BENCHES.iter().map(|(known, ..)| *known).collect();
        bail!("no bench is called {name}; there are: {}", known.join(", "));
    };
    let mut report = Report::new(args.options.json);
    bench(&args.options, &mut report).with_context(|| format!("bench {name} could not measure"))?;
    if !report.finish() {
        bail!("bench {name}: a demand is not met");
    }
    Ok(())
}
