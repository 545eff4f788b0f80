//! `cargo xtask lab culprit`: a service whose calls of Get are slow for a planted reason, recorded in the guest; whether
//! `exist culprit` names the reason first, and what a sampling profile shows of it. One boot for each story, a recording for each seed (tests/lab/workloads/stories.c).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{GuestArgs, Lab, RunArgs, guest::Outcome, workloads};
use crate::{bench::Row, process};

/// Arguments of `cargo xtask lab culprit`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    run: RunArgs,
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
}

/// A story, what the first finding begins with, and the function that is the reason; `None`: nothing was planted.
const STORIES: [(&str, Option<(&str, &str)>); 4] = [
    ("flush", Some(("after Flush", "Flush"))),
    ("compact", Some(("while another thread is in Compact", "Compact"))),
    ("move", Some(("after a move to another CPU", "Move"))),
    ("null", None),
];
/// A profile that gives the reason no more than so many percent of its samples says nothing of it.
const NO_SHARE: f64 = 5.0;

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
    let exist = args.run.exist()?;
    let mut guest = args.guest.clone();
    guest.coarse_mtc = true;
    guest.time_limit = guest.time_limit.max(900);
    guest.copy.extend([exist.clone(), workloads::build("stories")?.0]);
    let many = if args.short { 3 } else { args.seeds };
    let seeds: Vec<u32> = (args.first_seed..).take(many as usize).collect();
    let mut report = args.run.report();
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
        let begins = planted.map(|(begins, _)| begins);
        let first = files
            .iter()
            .map(|file| first(&exist, &outcome, file, &args.slower_than, begins));
        report.row(judge(story, begins, &first.collect::<Result<Vec<_>>>()?));
        if let Some((_, reason)) = planted {
            report.row(profile(story, reason, &outcome.text("profile.txt")?)?);
        }
    }
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

fn record(lab: &Lab, guest: &GuestArgs, name: &str, (story, calls): (&str, u32), seeds: &[u32]) -> Result<Outcome> {
    let seeds: Vec<String> = seeds.iter().map(u32::to_string).collect();
    let script = format!(
        "for seed in {}; do exist record --pt on -o $seed.exist -- /lab/bin/stories {story} $seed {calls} || exit; done\n\
         perf record -q -F 997 -e cpu-clock:u -o perf.data -- /lab/bin/stories {story} {} {calls} || exit\n\
         perf report -i perf.data --stdio --sort symbol > profile.txt 2>/dev/null",
        seeds.join(" "),
        seeds.first().map_or("1", String::as_str)
    );
    let outcome = lab.run(&guest.plan(script, true), name)?;
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

/// What a sampling profile of the first seed, by stock perf, shows of the reason.
fn profile(story: &str, reason: &str, text: &str) -> Result<Row> {
    let rows = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let share: f64 = words.next()?.strip_suffix('%')?.parse().ok()?;
        Some((share, words.nth(1)?))
    });
    let rows: Vec<(f64, &str)> = rows.collect();
    let Some((most, hottest)) = rows.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)) else {
        bail!("the sampling profile of {story} has no samples: {text}");
    };
    let of_reason = rows.iter().filter(|(_, symbol)| *symbol == reason);
    let share = of_reason.fold(0.0, |sum, (share, _)| sum + share);
    Ok(
        Row::new(format!("{story}: share of {reason} in a sampling profile"), "%")
            .ours(share)
            .at_most(NO_SHARE)
            .note(format!("the highest is {hottest} with {most} %")),
    )
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
