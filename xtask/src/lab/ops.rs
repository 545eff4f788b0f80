//! `cargo xtask lab ops`: how often the tracer's control register is written, for the same work recorded in different
//! ways: stock perf per thread, per CPU and by cgroup, and ours. The counts are exact: the plugin sees every write.

use anyhow::{Result, bail};

use super::{
    GuestArgs, Lab, truth,
    workloads::{self, Workload},
};
use crate::bench::{Report, Row};

/// Arguments of `cargo xtask lab ops`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// The workload of tests/lab/workloads
    #[arg(long, default_value = "wakers")]
    workload: String,
    /// Print one JSON object a row instead of a table
    #[arg(long)]
    json: bool,
}

/// A way to record, as a script for the guest; `{work}` stands for the command line of the work.
struct Way {
    what: &'static str,
    script: &'static str,
}

/// AUX large enough that no interrupt comes in between; interrupts are counted and subtracted from nothing.
const WAYS: [Way; 3] = [
    Way {
        what: "perf per thread",
        script: "perf record -q -m ,64M -e intel_pt/mtc=0/u -o perf.data --per-thread {work}",
    },
    Way {
        what: "perf per CPU",
        script: "perf record -q -a -m ,64M -e intel_pt/mtc=0/u -o perf.data {work}",
    },
    Way {
        what: "perf by cgroup",
        script: "mkdir -p /sys/fs/cgroup/work; echo '#!/bin/sh\necho $$ > /sys/fs/cgroup/work/cgroup.procs\nexec \"$@\"' > /tmp/in; \
                 chmod +x /tmp/in; perf record -q -a -m ,64M -e intel_pt/mtc=0/u -G work -o perf.data /tmp/in {work}",
    },
];

/// What one way cost.
struct Cost {
    writes: u64,
    interrupts: u64,
    switches: u64,
}

/// Runs `cargo xtask lab ops`.
///
/// # Errors
/// A recording that fails.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let (program, workload) = workloads::build(&args.workload)?;
    let mut guest = args.guest.clone();
    guest.copy.push(program);
    let mut report = Report::new(args.json);
    for way in WAYS {
        let cost = measure(&lab, &guest, &way, &workload)?;
        let note = format!(
            "{} interrupts, {} switches in the guest meanwhile",
            cost.interrupts, cost.switches
        );
        report.row(
            Row::new(format!("RTIT_CTL writes, {}", way.what), "writes")
                .peer(cost.writes as f64)
                .note(note),
        );
    }
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

fn measure(lab: &Lab, guest: &GuestArgs, way: &Way, workload: &Workload) -> Result<Cost> {
    let work = format!("/lab/bin/{} {}", workload.name, workload.arguments.join(" "));
    // The count of switches is the kernel's own.
    let script = format!(
        "grep ctxt /proc/stat > before\n{}; code=$?\ngrep ctxt /proc/stat > after\nexit $code\n",
        way.script.replace("{work}", &work)
    );
    let name = format!("ops-{}", way.what.replace(' ', "-"));
    let outcome = lab.run(&guest.plan(script, true), &name)?;
    if outcome.code != 0 {
        bail!(
            "{} ended with {} in the guest: {}",
            way.what,
            outcome.code,
            outcome.text("stderr")?.trim()
        );
    }
    let count = |file: &str| -> Result<u64> {
        let text = outcome.text(file)?;
        Ok(text
            .split_whitespace()
            .nth(1)
            .and_then(|word| word.parse().ok())
            .unwrap_or(0))
    };
    let mut cost = Cost {
        writes: 0,
        interrupts: 0,
        switches: count("after")?.saturating_sub(count("before")?),
    };
    for bytes in outcome.truths(guest.cpus)? {
        let summary = truth::summary(&bytes)?;
        cost.writes += summary.rtit_writes.len() as u64;
        cost.interrupts += summary.interrupts;
    }
    if cost.writes == 0 {
        bail!(
            "{} never enabled the tracer: {}",
            way.what,
            outcome.text("stderr")?.trim()
        );
    }
    Ok(cost)
}
