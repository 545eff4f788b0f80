//! The part of the node that recording takes at 20,000 switches a second: time in our BPF programs, by the kernel's
//! statistics, and CPU time of the agent.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    Options, Report, Row, bpf,
    group::Group,
    stats::median,
    target,
    tools::{Tool, Tools},
};

/// The rate at which the budget holds.
const SWITCHES_PER_S: f64 = 20_000.0;
/// Percent of all CPUs' time.
const BUDGET: f64 = 1.0;

#[derive(Clone, Copy, Debug)]
struct Cost {
    switches_per_s: f64,
    bpf_s: f64,
    bpf_runs: u64,
    recorder_s: f64,
    seconds: f64,
}

impl Cost {
    /// Percent of the node.
    fn share(&self, cpus: usize) -> f64 {
        100.0 * (self.bpf_s + self.recorder_s) / self.seconds / cpus as f64
    }
}

/// Measures it and demands the budget of ours; the peers' own CPU time is told beside it.
///
/// # Errors
/// The target or a recorder does not start.
pub fn run(options: &Options, tools: &Tools, dir: &Path, report: &mut Report) -> Result<()> {
    let (windows, time) = if options.short { (2, 1) } else { (7, 3) };
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let group = Group::new("target")?;
    // A sleep and a wake-up are two switches. A tenth more than needed, so that the rate is reached.
    let args = target::Args {
        threads: 8,
        hz: SWITCHES_PER_S * 1.1 / 2.0 / 8.0,
        run_us: 0,
        seconds: 300,
    };
    let _target = target::start(args, &[], &group, dir)?;
    let measure = |tool: Tool| -> Result<Vec<Cost>> {
        let _stats = bpf::Stats::on()?;
        let recording = tools.start(tool, &group)?;
        let costs = (0..windows)
            .map(|_| {
                let before = (
                    Instant::now(),
                    machine_switches()?,
                    recording.bpf()?,
                    tools.cpu(&recording)?,
                );
                thread::sleep(Duration::from_secs(time));
                let after = (machine_switches()?, recording.bpf()?, tools.cpu(&recording)?);
                let seconds = before.0.elapsed().as_secs_f64();
                Ok(Cost {
                    switches_per_s: (after.0 - before.1) as f64 / seconds,
                    bpf_s: after.1.time.saturating_sub(before.2.time).as_secs_f64(),
                    bpf_runs: after.1.count - before.2.count,
                    recorder_s: after.2.saturating_sub(before.3).as_secs_f64(),
                    seconds,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        tools.stop(recording)?;
        Ok(costs)
    };
    let ours = measure(Tool::Exist)?;
    let of = |costs: &[Cost], value: &dyn Fn(&Cost) -> f64| median(&costs.iter().map(value).collect::<Vec<_>>());
    let rate = of(&ours, &|cost| cost.switches_per_s);
    let runs: u64 = ours.iter().map(|cost| cost.bpf_runs).sum();
    let note = format!(
        "{rate:.0} switches a second; BPF {:.2} ms/s, {:.0} ns a run; agent {:.2} ms/s; {windows} windows of {time} s",
        of(&ours, &|cost| 1000.0 * cost.bpf_s / cost.seconds),
        1e9 * ours.iter().map(|cost| cost.bpf_s).sum::<f64>() / runs as f64,
        of(&ours, &|cost| 1000.0 * cost.recorder_s / cost.seconds),
    );
    report.row(
        Row::new("budget: BPF run time and agent CPU", "% of node")
            .ours(of(&ours, &|cost| cost.share(cpus)))
            .at_most(BUDGET)
            .must("at 20,000 switches a second or more", rate >= SWITCHES_PER_S)
            .must("the BPF programs ran", runs > 0)
            .note(note),
    );
    for peer in Tool::PEERS {
        let costs = measure(peer)?;
        report.row(
            Row::new(format!("budget: the same of {peer}"), "% of node")
                .ours(of(&ours, &|cost| cost.share(cpus)))
                .peer(of(&costs, &|cost| cost.share(cpus)))
                .note("of the peer's kernel side only what is BPF is counted"),
        );
    }
    Ok(())
}

/// Context switches of the machine since boot.
fn machine_switches() -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("failed to read /proc/stat")?;
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok());
    count.context("/proc/stat has no ctxt line")
}
