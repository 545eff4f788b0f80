//! `cargo xtask lab culprit`: a service whose calls of Get are slow for a planted reason, recorded in the guest; whether
//! `exist culprit` names the reason first. One boot for each story, a recording for each seed (tests/lab/workloads/stories.c).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{GuestArgs, Lab, accuracy, guest::Outcome, workloads};
use crate::{
    bench::{Report, Row},
    process,
};

/// Arguments of `cargo xtask lab culprit`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// Recordings of each story
    #[arg(long, default_value_t = 20)]
    seeds: u32,
    /// The first of their seeds
    #[arg(long, default_value_t = 1)]
    first_seed: u32,
    /// As of `exist culprit`; the planted reasons make some five of a hundred calls slow
    #[arg(long, default_value = "p95")]
    slower_than: String,
    /// Calls of each of the eight threads
    #[arg(long, default_value_t = 1500)]
    calls: u32,
    /// Only this story: flush, compact, move or null
    #[arg(long)]
    only: Option<String>,
    /// Three seeds of each: a few minutes, for CI
    #[arg(long)]
    short: bool,
    /// Look at the last run's files once more, without a guest
    #[arg(long)]
    again: bool,
    /// This exist, instead of building one
    #[arg(long, value_name = "PATH")]
    exist: Option<PathBuf>,
    /// Print one JSON object a row instead of a table
    #[arg(long)]
    json: bool,
}

/// A story, and what the first finding begins with; `None`: nothing was planted.
const STORIES: [(&str, Option<&str>); 4] = [
    ("flush", Some("after Flush")),
    ("compact", Some("while another thread is in Compact")),
    ("move", Some("after a move to another CPU")),
    ("null", None),
];

/// What of `exist culprit --json` is looked at.
#[derive(Deserialize)]
struct Culprit {
    findings: Vec<Finding>,
}

#[derive(Deserialize)]
struct Finding {
    what: String,
    /// `before`: it was so when the call began. What happened within it is how it was slow, planted or not.
    stands: String,
}

/// Runs `cargo xtask lab culprit`.
///
/// # Errors
/// A recording that fails; a row that is not ok.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let exist = accuracy::exist(args.exist.as_deref())?;
    let mut guest = args.guest.clone();
    guest.coarse_mtc = true;
    guest.time_limit = guest.time_limit.max(900);
    guest.copy.extend([exist.clone(), workloads::build("stories")?.0]);
    let many = if args.short { 3 } else { args.seeds };
    let seeds: Vec<u32> = (args.first_seed..).take(many as usize).collect();
    let mut report = Report::new(args.json);
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| only == name);
    for (story, planted) in STORIES.into_iter().filter(|(name, _)| wanted(name)) {
        let name = format!("{}-culprit-{story}", guest.name);
        let outcome = match args.again {
            true => lab.last(&name)?,
            false => record(&lab, &guest, &name, (story, args.calls), &seeds)?,
        };
        let files: Vec<PathBuf> = seeds
            .iter()
            .map(|seed| outcome.folder.join(format!("out/{seed}.exist")))
            .collect();
        let first = files
            .iter()
            .map(|file| first(&exist, &outcome, file, &args.slower_than, planted));
        report.row(judge(story, planted, &first.collect::<Result<Vec<_>>>()?));
    }
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

fn record(lab: &Lab, guest: &GuestArgs, name: &str, (story, calls): (&str, u32), seeds: &[u32]) -> Result<Outcome> {
    let seeds: Vec<String> = seeds.iter().map(u32::to_string).collect();
    let script = format!(
        "for seed in {}; do exist record --pt on -o $seed.exist -- /lab/bin/stories {story} $seed {calls} || exit; done",
        seeds.join(" ")
    );
    let outcome = lab.run(&guest.plan(script, false), name)?;
    if outcome.code != 0 {
        bail!(
            "exist record ended with {} in the guest: {}",
            outcome.code,
            outcome.text("stderr")?.trim()
        );
    }
    Ok(outcome)
}

/// The first finding in words; where nothing was planted, the first that stood before the call.
fn first(exist: &Path, outcome: &Outcome, file: &Path, slower_than: &str, planted: Option<&str>) -> Result<String> {
    let mut command = Command::new(exist);
    command
        .arg("culprit")
        .arg(file)
        .arg("--root")
        .arg(outcome.folder.join("root"))
        .args(["--function", "Get", "--json", "--slower-than", slower_than]);
    let said = process::output(&mut command)?;
    let culprit: Culprit = serde_json::from_str(&said).context("failed to read what exist culprit says")?;
    let counts = |finding: &Finding| planted.is_some() || finding.stands == "before";
    let first = culprit.findings.into_iter().find(counts);
    Ok(first.map_or_else(|| NOTHING.to_owned(), |finding| finding.what))
}

const NOTHING: &str = "nothing";

fn judge(story: &str, planted: Option<&str>, first: &[String]) -> Row {
    let right = first
        .iter()
        .filter(|what| what.starts_with(planted.unwrap_or(NOTHING)))
        .count();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    first.iter().for_each(|what| *counts.entry(what).or_default() += 1);
    let seen: Vec<String> = counts.iter().map(|(what, n)| format!("{n} × {what}")).collect();
    let what = match planted {
        Some(planted) => format!("{story}: \"{planted}\" is first"),
        None => format!("{story}: nothing before the call is found"),
    };
    Row::new(what, "of runs")
        .ours(right as f64)
        .must("19 of 20", right * 20 >= first.len() * 19)
        .note(format!("{right} of {}: {}", first.len(), seen.join("; ")))
}
