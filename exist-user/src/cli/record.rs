//! `exist record`: follow a target for a while, into a trace file.

use std::{
    io::{self, IsTerminal, Write},
    num::NonZeroU32,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::ExitStatus,
    time::SystemTime,
};

use clap::{ArgGroup, Args, ValueEnum};
use exist_trace::session::{PtMode, PtRequest, Session, Target, Waits};

use super::{
    Outcome, Strictness,
    quantity::{self, Cpus},
    roots::RootArgs,
    spool::QuotaArgs,
    text,
};
use crate::{
    agent::{self, EndReason, Options, Privileges, Progress, Summary},
    alloc::Earlier,
    spool::{Name, Spool},
    sys::clock,
};

/// Record a target's context switches, and its processor trace where there is one
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("where").required(true).args(["out", "spool"]),
    after_help = "\
The recording ends after --for, when the target has exited, or on Ctrl-C; what was recorded is kept in each case. While it
runs the file is called FILE.<pid>.part. Needs root, or the privileges that `exist doctor` names.

Examples:
  exist record --container 4f2a --for 500ms -o trace.exist
  exist record --cgroup system.slice/nginx.service --for 10s -o trace.exist
  exist record --pid 4711 -o trace.exist
  exist record -o trace.exist -- ./server --port 80
  exist record --pid 4711 --for 1s --spool /var/spool/exist --spool-bytes 10G"
)]
pub struct Record {
    #[command(flatten)]
    target: TargetArgs,

    /// Length of the recording: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", value_parser = quantity::duration_ns)]
    length: Option<u64>,
    /// The trace file
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Instead of a file: a folder that keeps the newest windows (`exist spool` lists them)
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    #[command(flatten)]
    quota: QuotaArgs,
    #[command(flatten)]
    strictness: Strictness,

    /// Record a processor trace (Intel PT): `auto` where there is one
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pt: When,
    #[command(flatten)]
    buffers: BufferArgs,

    /// Record each wait of its threads: why, how long, and who woke it (`exist report`, `exist dump FILE waits`)
    #[arg(long, value_enum, value_name = "WHEN", default_value = "off")]
    waits: Switch,

    /// Ring of each CPU for switch records [default: 8M; less on nodes with more than 8 CPUs]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    ring_bytes: Option<u64>,
    #[command(flatten)]
    roots: RootArgs,
}

/// What to look at.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).multiple(true).args(["container", "cgroup", "pid", "only_pid", "command"]))]
pub struct TargetArgs {
    /// Container by its ID, or a unique prefix of at least 4 characters
    #[arg(long, value_name = "ID", conflicts_with_all = ["cgroup", "pid", "only_pid", "command"])]
    container: Option<String>,
    /// Cgroup by its path, with all below it
    #[arg(long, value_name = "PATH", conflicts_with_all = ["pid", "only_pid", "command"])]
    cgroup: Option<String>,
    /// The cgroup of this process
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Only the threads of this process (the one of --pid, if none is given here)
    #[arg(long, value_name = "PID", num_args = 0..=1, conflicts_with = "command")]
    only_pid: Option<Option<u32>>,
    /// Command to run in a cgroup of its own
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl TargetArgs {
    pub fn target(&self) -> anyhow::Result<Target> {
        Ok(match (&self.container, &self.cgroup, self.pid, self.only_pid) {
            (Some(id), ..) => Target::Container(id.clone()),
            (_, Some(path), ..) => Target::Cgroup(path.clone()),
            (_, _, Some(pid), None) | (_, _, None, Some(Some(pid))) if pid == 0 => anyhow::bail!("0 is no process"),
            (_, _, Some(pid), None) => Target::Pid(pid),
            (_, _, Some(pid), Some(None)) => Target::OnlyPid(pid),
            (_, _, None, Some(Some(pid))) => Target::OnlyPid(pid),
            (_, _, Some(a), Some(Some(b))) if a == b => Target::OnlyPid(a),
            (_, _, Some(a), Some(Some(b))) => anyhow::bail!("--pid {a} and --only-pid {b} name two processes"),
            (_, _, None, Some(None)) => anyhow::bail!("--only-pid needs a process: --only-pid PID"),
            (None, None, None, None) => Target::Command(self.command.clone()),
        })
    }
}

/// Memory for the processor trace.
#[derive(Debug, Args)]
pub struct BufferArgs {
    /// Buffer of each CPU, the same for all [default: by where the target runs; where that is not known: 16M]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    buffer: Option<u64>,
    /// Least and largest buffer of a CPU where the target's use of the CPUs decides [default: 4M-128M]
    #[arg(long, value_name = "SIZE-SIZE", value_parser = quantity::range, conflicts_with = "buffer")]
    buffers: Option<(u64, u64)>,
    /// All those buffers together [default: 512M, or 5 % of memory if less]
    #[arg(long, value_name = "SIZE", value_parser = quantity::bytes)]
    budget: Option<u64>,
    /// CPUs to trace [default: all but isolated and nohz_full ones]
    #[arg(long, value_name = "LIST", value_parser = quantity::cpus)]
    cpus: Option<Cpus>,
}

impl BufferArgs {
    pub fn request(&self, mode: PtMode) -> PtRequest {
        PtRequest {
            mode,
            buffer_bytes: self.buffer,
            budget_bytes: self.budget,
            least_buffer_bytes: self.buffers.map(|(least, _)| least),
            most_buffer_bytes: self.buffers.map(|(_, most)| most),
            cpus: self.cpus.as_ref().map(|cpus| cpus.0.clone()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Record {
    pub fn run(self) -> anyhow::Result<Outcome> {
        let strictness = self.strictness;
        let spool = match &self.spool {
            Some(dir) => Some(Spool::open(dir, self.quota.quota())?),
            None => None,
        };
        let name = Name::of_window(clock::realtime_ns(), std::process::id());
        let out = match (&spool, &self.out) {
            (Some(spool), _) => spool.window(&name),
            (None, Some(out)) => out.clone(),
            (None, None) => anyhow::bail!("-o FILE or --spool DIR is needed"),
        };
        let mut options = self.options(out.clone())?;
        if let Some(spool) = &spool {
            options.earlier = spool.earlier(&options.session.target);
            spool.admit(SystemTime::now())?;
        }
        let mut line = ProgressLine::new();
        let summary = agent::record(&options, |progress| line.show(progress));
        line.clear();
        let summary = summary?;
        // Standard output may be the command's own. That nobody reads the summary changes nothing about the recording.
        let _ = print(&summary, &out.to_string_lossy(), &mut io::stderr().lock());
        if let Some(spool) = &spool {
            // Only a hint for the next plan.
            if let Err(error) = spool.remember(&options.session.target, summary.fill.clone()) {
                eprintln!(
                    "exist: {}",
                    text::plain_lines(&format!("{:#}", anyhow::Error::new(error)))
                );
            }
            spool.sweep(SystemTime::now(), Some(&name))?;
        }
        match (&summary.failure, &summary.reason) {
            (Some(reason), _) => anyhow::bail!("{reason}"),
            (None, EndReason::Error(reason)) => anyhow::bail!("the recording ended early: {reason}"),
            (None, _) => Ok(strictness.outcome(usize::try_from(summary.totals.losses).unwrap_or(usize::MAX))),
        }
    }

    fn options(self, out: PathBuf) -> anyhow::Result<Options> {
        if self.spool.is_none() && self.quota.is_given() {
            anyhow::bail!("--spool-bytes and --spool-age go with --spool DIR");
        }
        let ring_bytes = self.ring_bytes.map(ring_bytes).transpose()?;
        Ok(Options {
            session: Session {
                pt: self.buffers.request(match self.pt {
                    When::Auto => PtMode::Auto,
                    When::On => PtMode::On,
                    When::Off => PtMode::Off,
                }),
                waits: match self.waits {
                    Switch::On => Waits::On,
                    Switch::Off => Waits::Off,
                },
                period_ns: self.length,
                target: self.target.target()?,
            },
            roots: self.roots.roots(),
            out,
            ring_bytes,
            // This process does nothing else.
            privileges: Privileges::Drop,
            earlier: Earlier::default(),
        })
    }
}

fn ring_bytes(bytes: u64) -> anyhow::Result<NonZeroU32> {
    // A page at least; the kernel's own limit is the largest power of two in 32 bits.
    match u32::try_from(bytes)
        .ok()
        .filter(|bytes| (4096..=1 << 30).contains(bytes))
        .and_then(NonZeroU32::new)
    {
        Some(bytes) => Ok(bytes),
        None => anyhow::bail!("--ring-bytes {bytes} is out of range: 4K to 1G"),
    }
}

/// One line that is written over, where there is a terminal to see it.
struct ProgressLine {
    on: bool,
    shown: bool,
}

impl ProgressLine {
    fn new() -> Self {
        Self {
            on: io::stderr().is_terminal(),
            shown: false,
        }
    }

    fn show(&mut self, progress: &Progress) {
        if !self.on {
            return;
        }
        self.shown = true;
        let totals = &progress.totals;
        let mut err = io::stderr().lock();
        // A terminal that is gone is no reason to stop.
        let _ = write!(
            err,
            "\r\x1b[K{:.1} s · {} on {} · {} · {}",
            progress.elapsed_ns as f64 / 1e9,
            count(totals.threads, "thread"),
            count(totals.cpus.len() as u64, "CPU"),
            count(totals.switches, "switch"),
            text::bytes(progress.bytes),
        );
        if totals.losses > 0 {
            let _ = write!(err, " · {}", count(totals.losses, "loss"));
        }
        let _ = err.flush();
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn print(summary: &Summary, file: &str, out: &mut dyn Write) -> io::Result<()> {
    let totals = &summary.totals;
    let ended = match &summary.reason {
        EndReason::Period => String::new(),
        EndReason::Interrupted => ", interrupted".to_owned(),
        EndReason::TargetExited => ", until the target exited".to_owned(),
        EndReason::BuffersFull => ", until all buffers were full".to_owned(),
        EndReason::Error(_) => ", ended early".to_owned(),
    };
    writeln!(
        out,
        "{}: {} of {}{ended}",
        text::plain(file),
        text::duration(summary.period_ns),
        target(summary)
    )?;
    let cpus: Vec<_> = totals.cpus.iter().map(|cpu| cpu.0).collect();
    writeln!(
        out,
        "  {} on {}{}, {}, {}",
        count(totals.threads, "thread"),
        count(cpus.len() as u64, "CPU"),
        if cpus.is_empty() {
            String::new()
        } else {
            format!(" ({})", text::ranges(&cpus))
        },
        count(totals.switches, "switch"),
        text::bytes(summary.bytes),
    )?;
    match totals.losses {
        0 => writeln!(out, "  nothing lost")?,
        losses => writeln!(
            out,
            "  {}, {} missing: see `exist dump {} losses`",
            count(losses, "loss"),
            count(totals.lost_records, "record"),
            text::plain(file),
        )?,
    }
    match &summary.pt {
        Ok(pt) => writeln!(
            out,
            "  processor trace of {}; the file holds packets of other processes on them",
            count(pt.buffers.len() as u64, "CPU"),
        )?,
        Err(reason) => writeln!(out, "  no processor trace: {}", text::plain(reason))?,
    }
    let share = summary.agent_cpu_ns as f64 / summary.period_ns.max(1) as f64 * 100.0;
    writeln!(
        out,
        "  cost: {} of CPU in this process ({share:.2} % of one CPU), after {} to set up",
        text::duration(summary.agent_cpu_ns),
        text::duration(summary.setup_cpu_ns),
    )?;
    for note in &summary.notes {
        writeln!(out, "  note: {}", text::plain(note))?;
    }
    if let Some(status) = summary.command_status.map(ExitStatus::from_raw)
        && !status.success()
    {
        writeln!(out, "  note: the command ended with {status}")?;
    }
    if totals.records == 0 {
        writeln!(out, "  note: the target did not run in this time")?;
    }
    Ok(())
}

fn target(summary: &Summary) -> String {
    let target = &summary.target;
    let whole = match (&target.container, target.cgroups.as_slice()) {
        (Some(id), _) => format!("container {}", text::plain(id.get(..12).unwrap_or(id))),
        (None, [(path, _)]) => format!("cgroup {}", text::plain(path)),
        (None, cgroups) => count(cgroups.len() as u64, "cgroup"),
    };
    match summary.only_pid {
        Some(pid) => format!("process {pid} in {whole}"),
        None => whole,
    }
}

/// `1 switch`, `2 switches`, `12,345 records`.
fn count(n: u64, noun: &str) -> String {
    let digits = n.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let ending = match (n, noun.ends_with(['s', 'h'])) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{grouped} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        record: Record,
    }

    /// The target that a command line means, or `usage` or an error.
    fn check(line: &str, expect: &str) {
        let got = match Alone::try_parse_from(["exist"].into_iter().chain(line.split(' '))) {
            Err(_) => "usage".to_owned(),
            Ok(alone) => match alone.record.options(PathBuf::new()) {
                Ok(options) => format!("{:?}", options.session.target),
                Err(error) => error.to_string(),
            },
        };
        assert_eq!(got, expect, "{line}");
    }

    #[test]
    fn every_kind_of_target() {
        check("-o x --container 4f2a", "Container(\"4f2a\")");
        check("-o x --cgroup a/b", "Cgroup(\"a/b\")");
        check("-o x --pid 7", "Pid(7)");
        check("-o x --pid 7 --only-pid", "OnlyPid(7)");
        check("-o x --only-pid 7", "OnlyPid(7)");
        check(
            "-o x --pid 7 --only-pid 8",
            "--pid 7 and --only-pid 8 name two processes",
        );
        check("-o x --only-pid", "--only-pid needs a process: --only-pid PID");
        check("-o x --pid 0", "0 is no process");
        check("--spool d --spool-bytes 1G --pid 7", "Pid(7)");
        check(
            "-o x --spool-bytes 1G --pid 7",
            "--spool-bytes and --spool-age go with --spool DIR",
        );
        check("-o x -- ls -l", "Command([\"ls\", \"-l\"])");
        for line in [
            "-o x",
            "--pid 7",
            "-o x --pid 7 --cgroup a",
            "-o x --pid 7 -- ls",
            "-o x ls",
            "-o x --spool d --pid 7",
            "-o x --for 10 --pid 7",
        ] {
            check(line, "usage");
        }
    }

    #[test]
    fn rings_have_limits() {
        check("-o x --pid 7 --ring-bytes 64K", "Pid(7)");
        check(
            "-o x --pid 7 --ring-bytes 100",
            "--ring-bytes 100 is out of range: 4K to 1G",
        );
    }

    #[test]
    fn counts_read_well() {
        assert_eq!(count(1, "switch"), "1 switch");
        assert_eq!(count(0, "loss"), "0 losses");
        assert_eq!(count(1_234_567, "record"), "1,234,567 records");
        assert_eq!(count(999, "CPU"), "999 CPUs");
    }
}
