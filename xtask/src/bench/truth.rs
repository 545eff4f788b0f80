//! `bench truth`: recordings beside the kernel's own accounting, thread by thread. The comparison is a live test, so that
//! it runs with all tests too; here it runs longer and its figures become rows.

use std::{fs, process::Command};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{Options, Report, Row};
use crate::process;

/// A row as the test writes it.
#[derive(Deserialize)]
struct Figure {
    what: String,
    ours: f64,
    must: String,
    ok: bool,
    note: String,
}

/// Runs the bench.
///
/// # Errors
/// The test cannot be built, or measures nothing (no root, no BPF programs).
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let rows = super::work_dir("truth")?.join("rows.json");
    let seconds = if options.short { "2" } else { "10" };
    let mut test = Command::new("cargo");
    // What users run: an unoptimised recorder does not keep up with the highest rates.
    test.args([
        "test",
        "--release",
        "--quiet",
        "--locked",
        "--package",
        "exist-user",
        "--test",
        "live_truth",
        "--",
    ])
    .args(["--test-threads", "1", "--nocapture"])
    .args(&options.only)
    .env("EXIST_TRUTH_SECONDS", seconds)
    .env("EXIST_TRUTH_ROWS", &rows)
    .current_dir(process::workspace());
    // A figure that is not as it must be fails the test, and its row says so.
    let output = test.output().context("failed to run cargo test")?;
    let text = fs::read_to_string(&rows).unwrap_or_default();
    if text.is_empty() {
        bail!(
            "the test has measured nothing: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    for line in text.lines() {
        let figure: Figure = serde_json::from_str(line).context("failed to read the test's figures")?;
        let row = Row::new(figure.what, "").ours(figure.ours);
        report.row(row.must(figure.must, figure.ok).note(figure.note));
    }
    for note in String::from_utf8_lossy(&output.stdout).lines() {
        if note.contains("skipped:") || note.contains(": once more") {
            eprintln!("{note}");
        }
    }
    if !output.status.success() && text.lines().all(|line| line.contains("\"ok\":true")) {
        bail!("the test failed: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
