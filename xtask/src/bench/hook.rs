//! What a context switch costs with the hook: by the kernel's statistics net of an empty program, and by a pipe.
//!
//! The measuring program is `exist-user/examples/hook-cost.rs`, which loads the hook through the library; this room
//! builds and runs it, and judges its figures.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{Options, Report, Row, stats};
use crate::{build_ebpf, process};

/// A switch that does not concern the target, nanoseconds.
const OTHERS_NS: f64 = 70.0;
/// A switch of the target: one record. Two, when it goes from one of its threads to another.
const TARGET_NS: f64 = 220.0;

/// One window of `hook-cost switch`.
#[derive(Debug, Deserialize)]
struct Window {
    what: String,
    run_ns: f64,
    runs: f64,
    empty_ns: f64,
    empty_runs: f64,
    records: f64,
    lost: f64,
}

/// One pair of `hook-cost pipe`.
#[derive(Debug, Deserialize)]
struct Pair {
    what: String,
    without_us: f64,
    with_us: f64,
}

/// Runs `cargo xtask bench hook`.
///
/// # Errors
/// If the BPF programs cannot be built, or the measuring program fails.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    build_ebpf::run().context("the BPF programs are needed")?;
    let (windows, pairs) = if options.short { ("5", "4") } else { ("21", "20") };
    let lines: Vec<Window> = measure(&["switch", windows, "15000"])?;
    for row in switches(&lines) {
        report.row(row);
    }
    let lines: Vec<Pair> = measure(&["pipe", pairs, "30000"])?;
    for row in pipes(&lines) {
        report.row(row);
    }
    Ok(())
}

fn measure<T: for<'a> Deserialize<'a>>(args: &[&str]) -> Result<Vec<T>> {
    let mut command = Command::new("cargo");
    command
        .args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "exist-user",
            "--example",
            "hook-cost",
            "--",
        ])
        .args(args)
        .current_dir(process::workspace());
    let lines = process::output(&mut command)?
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("hook-cost printed {line}")))
        .collect::<Result<Vec<T>>>()?;
    if lines.is_empty() {
        bail!("hook-cost printed nothing");
    }
    Ok(lines)
}

fn switches(windows: &[Window]) -> Vec<Row> {
    let mut by_what: BTreeMap<&str, Vec<&Window>> = BTreeMap::new();
    for window in windows {
        by_what.entry(&window.what).or_default().push(window);
    }
    by_what
        .into_iter()
        .map(|(what, windows)| {
            let net: Vec<f64> = windows
                .iter()
                .map(|w| w.run_ns / w.runs - w.empty_ns / w.empty_runs)
                .collect();
            let empty: Vec<f64> = windows.iter().map(|w| w.empty_ns / w.empty_runs).collect();
            let records: Vec<f64> = windows.iter().map(|w| w.records / w.runs).collect();
            let lost: f64 = windows.iter().map(|w| w.lost).sum();
            let limit = if what.starts_with("others") {
                OTHERS_NS
            } else {
                TARGET_NS
            };
            Row::new(format!("switch: {what}"), "ns")
                .ours(stats::median(&net))
                .at_most(limit)
                .must("nothing lost", lost == 0.0)
                .note(format!(
                    "median of {} windows, {:.0} to {:.0}; net of an empty program's {:.0}; {:.2} records a switch",
                    net.len(),
                    stats::quantile(&net, 0.0),
                    stats::quantile(&net, 1.0),
                    stats::median(&empty),
                    stats::median(&records),
                ))
        })
        .collect()
}

fn pipes(pairs: &[Pair]) -> Vec<Row> {
    let mut by_what: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for pair in pairs {
        by_what
            .entry(&pair.what)
            .or_default()
            .push((pair.without_us, pair.with_us));
    }
    by_what
        .into_iter()
        .map(|(what, pairs)| {
            let more: Vec<f64> = pairs.iter().map(|(without, with)| with - without).collect();
            let without: Vec<f64> = pairs.iter().map(|(without, _)| *without).collect();
            let with: Vec<f64> = pairs.iter().map(|(_, with)| *with).collect();
            let estimate = stats::estimate(&more);
            Row::new(format!("perf bench sched pipe: {what}"), "us/op")
                .ours(stats::median(&with))
                .peer(stats::median(&without))
                .note(format!(
                    "peer: without the hook; {} interleaved pairs; {:+.3} us, 95 % bound {:+.3}; an operation is two switches",
                    pairs.len(),
                    estimate.median,
                    estimate.upper
                ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(what: &str, run_ns: f64, lost: f64) -> Window {
        Window {
            what: what.into(),
            run_ns,
            runs: 10.0,
            empty_ns: 600.0,
            empty_runs: 10.0,
            records: 10.0,
            lost,
        }
    }

    #[test]
    fn a_row_is_net_of_the_empty_program_and_has_its_own_limit() {
        let rows = switches(&[
            window("others, cgroup 2", 1200.0, 0.0),
            window("others, cgroup 2", 1300.0, 0.0),
            window("others, cgroup 2", 9000.0, 0.0),
            window("target, cgroup 2", 2700.0, 0.0),
            window("target, cgroup 1", 2900.0, 0.0),
            window("target to target, cgroup 2", 2700.0, 1.0),
        ]);
        let check = |what: &str, ours, ok| {
            let row = rows.iter().find(|row| row.what == format!("switch: {what}")).unwrap();
            assert_eq!((row.ours, row.ok), (Some(ours), ok), "{what}");
        };
        check("others, cgroup 2", 70.0, true);
        check("target, cgroup 2", 210.0, true);
        check("target, cgroup 1", 230.0, false);
        check("target to target, cgroup 2", 210.0, false);
    }
}
