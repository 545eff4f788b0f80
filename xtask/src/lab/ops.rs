//! `cargo xtask lab ops`: how often the tracer's control register is written, for the same work recorded in different
//! ways: stock perf per thread, per CPU and by cgroup, and ours. The counts are exact: the plugin sees every write.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use exist_trace::file::{
    Trace,
    model::{ControlKind, LossKind, SwitchOp},
};

use super::{GuestArgs, Lab, RunArgs, guest::Outcome, truth, workloads};
use crate::bench::{Report, Row};

/// Arguments of `cargo xtask lab ops`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    run: RunArgs,
}

/// A way to record, as a script for the guest; `{work}` stands for the command line of the work.
#[derive(Clone, Copy)]
struct Way {
    what: &'static str,
    script: &'static str,
}

const OURS: Way = Way {
    what: "exist",
    script: "exist record --pt on -o trace.exist -- {work}",
};

/// The recording is over when all buffers are full, and its command with it.
const OURS_FULL: Way = Way {
    what: "exist, full buffers",
    script: "exist record --pt on --buffer 64K -o trace.exist -- {work}",
};

/// A ring of 256 KiB that is read while it is written: an interrupt each time that half of it is full.
const PEER_INTERRUPTED: Way = Way {
    what: "perf per CPU, small AUX",
    script: "perf record -q -a -m ,64 -e intel_pt/mtc=0/u -o perf.data {work}",
};

/// AUX large enough that no interrupt comes in between; interrupts are counted and subtracted from nothing.
const PEERS: [Way; 3] = [
    Way {
        what: "perf per thread",
        script: "perf record -q -m ,32M -e intel_pt/mtc=0/u -o perf.data --per-thread {work}",
    },
    Way {
        what: "perf per CPU",
        script: "perf record -q -a -m ,32M -e intel_pt/mtc=0/u -o perf.data {work}",
    },
    Way {
        what: "perf by cgroup",
        script: "mkdir -p /sys/fs/cgroup/work; echo '#!/bin/sh\necho $$ > /sys/fs/cgroup/work/cgroup.procs\nexec \"$@\"' > /tmp/in; \
                 chmod +x /tmp/in; perf record -q -a -m ,32M -e intel_pt/mtc=0/u -G work -o perf.data /tmp/in {work}",
    },
];

/// Work of a known number of switches: each turn is one wait and one wake of two threads.
const SWITCHES: [u64; 2] = [100, 10_000];
const THREADS: u64 = 2;

/// What one way cost.
struct Cost {
    /// By CPU.
    writes: Vec<u64>,
    interrupts: Vec<u64>,
    /// Interrupts after which the driver started the tracer again.
    restarts: Vec<u64>,
    switches: u64,
}

impl Cost {
    fn writes(&self) -> u64 {
        self.writes.iter().sum()
    }

    /// Whether a tracer that was enabled once was written to twice, and twice for each interrupt that started it again. An
    /// interrupt that leaves it stopped takes the place of the disable: the driver does not stop what an interrupt has
    /// stopped (arch/x86/events/intel/pt.c, `pt_config_stop`: "may be already stopped by a PMI").
    fn is_two_a_window(&self) -> bool {
        let writes = self.writes.iter().zip(&self.restarts);
        writes
            .into_iter()
            .all(|(writes, restarts)| *writes == 0 || *writes == 2 + 2 * restarts)
    }

    fn text(&self) -> String {
        format!(
            "writes by CPU {:?}, performance interrupts {:?}, restarts by them {:?}, {} switches in the guest meanwhile",
            self.writes, self.interrupts, self.restarts, self.switches
        )
    }
}

/// Runs `cargo xtask lab ops`.
///
/// # Errors
/// A recording that fails; a row that is not ok.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let exist = args.run.exist()?;
    let mut guest = args.guest.clone();
    guest.copy.push(exist);
    for workload in ["wakers", "threads"] {
        guest.copy.push(workloads::build(workload)?.0);
    }
    guest.coarse_mtc = true;
    let mut report = args.run.report();
    let mut counted = Vec::new();
    for switches in SWITCHES {
        let work = format!("/lab/bin/wakers {THREADS} {}", switches / THREADS);
        let name = |way: Way| format!("ops-{}-{switches}", way.what.replace(' ', "-"));
        let (cost, outcome) = measure(&lab, &guest, OURS, &work, &name(OURS))?;
        let decoded = ops_of(&outcome.file("trace.exist")?)?;
        let (ops, touched) = (decoded.ops, decoded.touched);
        counted.push((ops, touched));
        // One wait of each turn is left out when the wake comes first: so the kernel's own count stands beside it.
        let what = |what: &str| format!("{what}, {switches} wakes");
        report.row(
            Row::new(what("control operations"), "ops")
                .ours(ops as f64)
                .must("2 for each CPU touched", ops == 2 * touched)
                .note(format!(
                    "{touched} CPUs touched, {} switches of the target",
                    decoded.switches
                )),
        );
        report.row(ours(what("RTIT_CTL writes, exist"), &cost));
        for way in PEERS {
            let row = Row::new(what(&format!("RTIT_CTL writes, {}", way.what)), "writes").ours(cost.writes() as f64);
            report.row(match measure(&lab, &guest, way, &work, &name(way)) {
                Ok((peer, _)) => row.peer(peer.writes() as f64).note(peer.text()),
                // What the peer cannot do is no fault of ours.
                Err(error) => row.note(format!("{error:#}").replace('\n', " ")),
            });
        }
    }
    let [(few, few_cpus), (many, many_cpus)] = counted[..] else {
        bail!("there are two amounts of work")
    };
    report.row(
        Row::new("control operations, 10,000 wakes beside 100", "ops")
            .ours(many as f64)
            .must("as many for each CPU", many * few_cpus == few * many_cpus)
            .note(format!("{many} on {many_cpus} CPUs, {few} on {few_cpus}")),
    );
    interrupts(&lab, &guest, &mut report)?;
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

fn ours(what: String, cost: &Cost) -> Row {
    let few = cost.interrupts.iter().all(|interrupts| *interrupts <= 1);
    Row::new(what, "writes")
        .ours(cost.writes() as f64)
        .must("2 a CPU and 2 a restart by an interrupt", cost.is_two_a_window())
        .must("at most one interrupt a CPU", few)
        .note(cost.text())
}

/// Windows with performance interrupts: a full buffer of ours, and perf reading while it records.
fn interrupts(lab: &Lab, guest: &GuestArgs, report: &mut Report) -> Result<()> {
    let work = "/lab/bin/threads 4 2000";
    let (cost, outcome) = measure(lab, guest, OURS_FULL, work, "ops-exist-full")?;
    let trace = Trace::read(&outcome.file("trace.exist")?).context("failed to read the trace")?;
    let full = trace.losses.iter().filter(|loss| loss.kind == LossKind::AuxTruncated);
    let full: BTreeSet<_> = full.filter_map(|loss| loss.cpu).collect();
    let interrupted = cost.interrupts.iter().filter(|interrupts| **interrupts > 0).count();
    report.row(ours("RTIT_CTL writes, exist, full buffers".to_owned(), &cost).must(
        "each CPU with an interrupt had a full buffer",
        interrupted > 0 && interrupted == full.len(),
    ));
    let (peer, _) = measure(lab, guest, PEER_INTERRUPTED, work, "ops-perf-interrupted")?;
    report.row(
        Row::new("RTIT_CTL writes, performance interrupts in the window", "writes")
            .ours(cost.writes() as f64)
            .peer(peer.writes() as f64)
            .must(
                "the peer's, too: 2 a CPU and 2 a restart by an interrupt",
                peer.is_two_a_window(),
            )
            .must("it was interrupted", peer.restarts.iter().sum::<u64>() > 0)
            .note(format!("perf: {}", peer.text())),
    );
    Ok(())
}

/// What the trace file says of its own operations.
struct Ops {
    ops: u64,
    touched: u64,
    switches: usize,
}

fn ops_of(file: &[u8]) -> Result<Ops> {
    let trace = Trace::read(file).context("failed to read the trace")?;
    let done = trace.ops.iter().filter(|op| op.error.is_none());
    let ops = done.filter(|op| matches!(op.kind, ControlKind::PtEnable | ControlKind::PtDisable));
    let switches = trace.records.iter().filter(|record| record.op() == Some(SwitchOp::Out));
    let cpus: BTreeSet<u16> = trace
        .records
        .iter()
        .filter(|record| record.op() == Some(SwitchOp::In))
        .map(|record| record.cpu)
        .collect();
    Ok(Ops {
        ops: ops.count() as u64,
        touched: cpus.len() as u64,
        switches: switches.count(),
    })
}

fn measure(lab: &Lab, guest: &GuestArgs, way: Way, work: &str, name: &str) -> Result<(Cost, Outcome)> {
    // The count of switches is the kernel's own.
    let script = format!(
        "grep ctxt /proc/stat > before\n{}; code=$?\ngrep ctxt /proc/stat > after\nexit $code\n",
        way.script.replace("{work}", work)
    );
    let outcome = lab.run(&guest.plan(script, true), name)?;
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
        writes: Vec::new(),
        interrupts: Vec::new(),
        restarts: Vec::new(),
        switches: count("after")?.saturating_sub(count("before")?),
    };
    for bytes in outcome.truths(guest.cpus)? {
        let summary = truth::summary(&bytes)?;
        cost.writes.push(summary.rtit_writes.len() as u64);
        cost.interrupts.push(summary.interrupts);
        cost.restarts.push(summary.restarts);
    }
    if cost.writes() == 0 {
        bail!(
            "{} never enabled the tracer: {}",
            way.what,
            outcome.text("stderr")?.trim()
        );
    }
    Ok((cost, outcome))
}
