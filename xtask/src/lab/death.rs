//! `cargo xtask lab death`: what ends or limits a recording with a processor trace, each end to end by `exist record` in
//! the guest: SIGKILL in mid-window, a budget smaller than a buffer for each CPU, a limit of locked memory, a CPU taken
//! offline in mid-window, the target's binary replaced in mid-window. The files are read and decoded here, and held
//! against the ground truth.

use std::fs;

use anyhow::{Context, Result, bail};
use exist_lab_truth::{Begin, Owner, Visit, Visits};
use exist_trace::file::{
    Reader, Trace,
    model::{ControlKind, LossKind},
};

use super::{
    GuestArgs, Lab, RunArgs, accuracy,
    decoded::{self, Decoded},
    guest::Outcome,
    truth, workloads,
};
use crate::bench::{Report, Row};

/// Arguments of `cargo xtask lab death`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Kills
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Three kills
    #[arg(long)]
    short: bool,
    /// Read the last run's files once more, without a guest
    #[arg(long)]
    again: bool,
}

/// Runs in a guest, and what is looked at afterwards.
const RUNS: [(&str, &str); 2] = [("limits", LIMITS), ("changes", CHANGES)];

/// A target on every CPU, and how to wait until `exist` (its process is `$r`, its file `$1`) records.
const PRELUDE: &str = "mkdir /sys/fs/cgroup/work\n\
    recording() { until [ -s $1.$r.part ]; do kill -0 $r || exit 10; usleep 20000; done; }\n";

const LIMITS: &str = "(echo 0 > /sys/fs/cgroup/work/cgroup.procs; exec /lab/bin/wakers 4 100000000 > /dev/null) &\n\
    for n in $(seq KILLS); do\n\
    exist record --pt on --buffer 8M --cgroup work -o kill$n.exist > /dev/null & r=$!\n\
    recording kill$n.exist; usleep $((n * 10000)); kill -9 $r; wait $r\n\
    mv kill$n.exist.$r.part kill$n.exist\n\
    done\n\
    exist record --pt on --buffer 256K --for 200ms --cgroup work -o after.exist || exit 11\n\
    exist record --pt on --buffer 1M --budget 600K --for 200ms --cgroup work -o budget.exist 2> budget.txt || exit 12\n\
    exist record --pt on --budget 20K --for 200ms --cgroup work -o tiny.exist 2> tiny.txt && exit 13\n\
    echo 2 > /proc/sys/kernel/perf_event_paranoid; ulimit -l 4096\n\
    labctl locked exist record --pt on --for 200ms --cgroup work -o locked.exist 2> locked.txt || exit 14\n";

/// Truth only while PT is on: the guest stays fast.
const CHANGES: &str = "labctl traced\n\
    (echo 0 > /sys/fs/cgroup/work/cgroup.procs; exec /lab/bin/wakers 4 100000000 > /dev/null) & target=$!\n\
    exist record --pt on --buffer 4M --for 2s --cgroup work -o offline.exist & r=$!\n\
    recording offline.exist; usleep 300000; echo 0 > /sys/devices/system/cpu/cpu1/online\n\
    usleep 300000; echo 1 > /sys/devices/system/cpu/cpu1/online\n\
    wait $r || exit 15\n\
    kill -9 $target; wait $target\n\
    cp /lab/bin/single /lab/bin/service\n\
    (echo 0 > /sys/fs/cgroup/work/cgroup.procs; while true; do /lab/bin/service 200 > /dev/null; done) &\n\
    exist record --pt on --buffer 8M --for 2s --cgroup work -o replaced.exist & r=$!\n\
    recording replaced.exist; sleep 1\n\
    cp /lab/bin/family /lab/bin/new; mv /lab/bin/new /lab/bin/service\n\
    wait $r || exit 16\n\
    labctl off\n";

/// Runs `cargo xtask lab death`.
///
/// # Errors
/// A guest that gives no result; a row that is not ok.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let mut guest = args.guest.clone();
    guest.coarse_mtc = true;
    // Many recordings in one guest.
    guest.time_limit = guest.time_limit.max(900);
    guest.copy.push(args.run.exist()?);
    for workload in ["wakers", "single", "family"] {
        guest.copy.push(workloads::build(workload)?.0);
    }
    let kills = if args.short { 3 } else { args.kills };
    let mut report = args.run.report();
    for (what, script) in RUNS {
        let name = format!("{}-{what}", guest.name);
        let script = format!("{PRELUDE}{script}").replace("KILLS", &kills.to_string());
        let outcome = if args.again {
            lab.last(&name)?
        } else {
            lab.run(&guest.plan(script, false), &name)?
        };
        if outcome.code != 0 {
            bail!(
                "the guest's script ended with {}: {}",
                outcome.code,
                outcome.text("stderr")?.trim()
            );
        }
        if what == "limits" {
            limits(&outcome, &guest, kills, &mut report)?;
        } else {
            changes(&outcome, &guest, &mut report)?;
        }
    }
    if !report.finish() {
        bail!("a row is not ok");
    }
    Ok(())
}

fn read(outcome: &Outcome, name: &str) -> Result<Trace> {
    Trace::read(&outcome.file(name)?).with_context(|| format!("failed to read {name}"))
}

fn limits(outcome: &Outcome, guest: &GuestArgs, kills: u32, report: &mut Report) -> Result<()> {
    let mut readable = 0;
    for kill in 1..=kills {
        let trace = read(outcome, &format!("kill{kill}.exist"))?;
        readable += u32::from(trace.header.pt.is_ok() && !trace.records.is_empty());
    }
    // The kernel has stopped every tracer that the killed recordings had started.
    let (mut started, mut running) = (0, 0);
    for bytes in outcome.truths(guest.cpus)? {
        let summary = truth::summary(&bytes)?;
        let on = |write: &&(u64, u64)| write.1 & 1 != 0;
        started += summary.rtit_writes.iter().filter(on).count();
        running += usize::from(summary.rtit_writes.last().filter(on).is_some());
    }
    report.row(
        Row::new("SIGKILL in mid-window: readable files", "files")
            .ours(readable.into())
            .must("all", readable == kills)
            .must("tracers had been started", started >= kills as usize)
            .must("none runs on", running == 0)
            .must(
                "the next recording has a processor trace",
                traced(outcome, "after.exist")? > 0,
            )
            .note(format!("{kills} kills, tracers started {started} times")),
    );
    let budget = read(outcome, "budget.exist")?;
    let said = outcome.text("budget.txt")?;
    report.row(
        Row::new("budget smaller than a buffer a CPU: buffers together", "bytes")
            .ours(buffers(&budget) as f64)
            .at_most(600.0 * 1024.0)
            .must("said", said.contains("the budget of 600 KiB is shared"))
            .must("it records", traced(outcome, "budget.exist")? > 0)
            .note(note_of(&said)),
    );
    let said = outcome.text("tiny.txt")?;
    report.row(
        Row::new("budget smaller than the least buffers: refused", "")
            .must("with the remedy", said.contains("raise --budget"))
            .note(said.trim().to_owned()),
    );
    let locked = read(outcome, "locked.exist")?;
    let said = outcome.text("locked.txt")?;
    report.row(
        Row::new("limit of locked memory: buffers together", "bytes")
            .ours(buffers(&locked) as f64)
            .must("smaller than asked for", buffers(&locked) < u64::from(guest.cpus) << 24)
            .must("said with the remedy", said.contains("ulimit -l"))
            .must("it records", traced(outcome, "locked.exist")? > 0)
            .note(note_of(&said)),
    );
    Ok(())
}

/// Bytes of processor trace in a file.
fn traced(outcome: &Outcome, name: &str) -> Result<usize> {
    let mut bytes = 0;
    for generation in Reader::new(&outcome.file(name)?) {
        let generation = generation.with_context(|| format!("{name} is damaged"))?;
        bytes += generation.pt.iter().map(|piece| piece.bytes.len()).sum::<usize>();
    }
    Ok(bytes)
}

fn buffers(trace: &Trace) -> u64 {
    let settings = trace.header.pt.as_ref();
    settings.map_or(0, |pt| pt.buffers.iter().map(|buffer| buffer.bytes).sum())
}

fn note_of(said: &str) -> String {
    let note = said.lines().find_map(|line| line.trim().strip_prefix("note: "));
    note.unwrap_or_default().to_owned()
}

fn changes(outcome: &Outcome, guest: &GuestArgs, report: &mut Report) -> Result<()> {
    let cpus = accuracy::truths(outcome, guest.cpus)?;
    let root = outcome.folder.join("root");
    let offline = decoded::of(&outcome.file("offline.exist")?, &root)?;
    let told = offline.trace.losses.iter();
    let told = told.filter(|loss| loss.kind == LossKind::CpuHotplug && loss.cpu.is_some_and(|cpu| cpu.0 == 1));
    let told = told.count();
    let enabled = |cpu| {
        let ops = offline.trace.ops.iter();
        let enabled = ops.filter(|op| op.kind == ControlKind::PtEnable && op.cpu.is_some_and(|on| on.0 == cpu));
        enabled.count()
    };
    let found = Found::new(&offline, &cpus);
    report.row(found.row("CPU offline in mid-window").must("told", told > 0).must(
        "CPU 1 is traced again when it is back",
        enabled(1) == 2 && enabled(0) == 1,
    ));
    // Decoded where the new file stands, then where the old one still does.
    let service = root.join("lab/bin/service");
    for (now, file) in [("family", "new"), ("single", "old")] {
        fs::copy(root.join("lab/bin").join(now), &service)
            .with_context(|| format!("failed to write {}", service.display()))?;
        let replaced = decoded::of(&outcome.file("replaced.exist")?, &root)?;
        let changed = replaced
            .errors
            .iter()
            .filter(|(error, _)| error.contains("not the one that ran"));
        let changed: usize = changed.map(|(_, count)| count).sum();
        report.row(
            Found::new(&replaced, &cpus)
                .row(&format!("binary replaced in mid-window, the {file} one at hand"))
                .must("the other one's code is a gap with its reason", changed > 0)
                .note(format!("{changed} stretches of the other one")),
        );
    }
    Ok(())
}

/// Steps that were given to a thread.
#[derive(Default)]
struct Found {
    exact: usize,
    /// That did not run there, or in another thread.
    wrong: usize,
}

impl Found {
    fn new(decoded: &Decoded, cpus: &[Visits]) -> Self {
        let mut found = Self::default();
        for (cpu, truth) in (0..).zip(cpus) {
            let Some(pieces) = decoded.cpus.get(&cpu) else { continue };
            for piece in pieces {
                let (Owner::Thread(tid), Some(steps)) = (piece.owner, &piece.steps) else {
                    continue;
                };
                let (from, to) = (*piece.time.start(), *piece.time.end());
                // Which of several visits that look the same is asked by `lab accuracy`.
                let first = truth.visits.partition_point(|visit| visit.left < from);
                let near = truth.visits[first..].iter().take_while(|visit| visit.entered <= to);
                let same = |visit: &Visit| match piece.begin {
                    Begin::Entry(_) => visit.steps.iter().zip(steps).take_while(|(a, b)| a == b).count(),
                    Begin::Within => {
                        let back = visit.steps.iter().rev().zip(steps.iter().rev());
                        back.take_while(|(a, b)| a == b).count()
                    }
                };
                let same = near.filter(|visit| visit.tid == tid).map(same).max().unwrap_or(0);
                found.exact += same;
                found.wrong += steps.len() - same;
            }
        }
        found
    }

    fn row(&self, what: &str) -> Row {
        Row::new(format!("{what}: branches that did not run"), "branches")
            .ours(self.wrong as f64)
            .at_most(0.0)
            .must("enough are exact", self.exact > 1000)
            .note(format!("{} exact", self.exact))
    }
}
