//! `exist plan`: which CPUs a recording would trace, with how large a buffer, and why.

use std::{io::Write, path::PathBuf, time::Duration};

use clap::Args;
use exist_trace::session::{PtMode, PtRequest};
use serde::Serialize;

use super::{
    Outcome, quantity,
    record::{BufferArgs, TargetArgs},
    roots::RootArgs,
    text::{self, Align, Table},
};
use crate::{
    agent::{self, PlanOptions, Planned},
    alloc::{Earlier, size},
    spool,
};

/// Show which CPUs a recording would trace, with how large a buffer, and why
#[derive(Debug, Args)]
#[command(after_help = "\
Looks at the target for a moment, as `exist record` does, and records nothing. Memory goes where it holds the greatest share of the
target's on-CPU time that can be expected. BYTES is what a CPU's trace is expected to take in the period: on-CPU time times
the rate that earlier windows of a spool have shown, else 300 MB/s.

Examples:
  exist plan --container 4f2a
  exist plan --pid 4711 --for 1s --budget 64M --spool /var/spool/exist
  exist plan --cgroup system.slice/nginx.service --json | jq '.cpus[] | {cpu, buffer_bytes}'")]
pub struct Plan {
    #[command(flatten)]
    target: TargetArgs,
    /// Length of the recording that is planned [default: 1s]
    #[arg(long = "for", value_name = "TIME", value_parser = quantity::duration_ns)]
    length: Option<u64>,
    /// How long to look at the target
    #[arg(long, value_name = "TIME", default_value = "400ms", value_parser = quantity::duration_ns)]
    look: u64,
    /// The spool with earlier windows of the target
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    #[command(flatten)]
    buffers: BufferArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    roots: RootArgs,
}

/// Longer looks help nobody.
const MOST_LOOK_NS: u64 = 60_000_000_000;

#[derive(Debug, Serialize)]
struct Row {
    cpu: u32,
    /// On-CPU time of the target in the look-back, as a share of its length.
    busy: f64,
    /// Share of the target's on-CPU time that is expected here; absent where nothing is known of it.
    share: Option<f64>,
    /// Bytes that its trace is expected to take in the period.
    need_bytes: Option<f64>,
    /// Bytes a second of on-CPU time.
    rate: f64,
    /// 0: no buffer.
    buffer_bytes: u64,
    /// Share of all on-CPU time that the buffer holds.
    held: Option<f64>,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct Shown {
    target: String,
    period_ns: u64,
    look_ns: u64,
    budget_bytes: u64,
    planned_bytes: u64,
    reserve_bytes: u64,
    /// Expected share of the target's on-CPU time that fits.
    held: Option<f64>,
    threads: usize,
    runnable: usize,
    quota_cpus: Option<f64>,
    allowed_cpus: Option<Vec<u32>>,
    earlier_windows: usize,
    cpus: Vec<Row>,
    notes: Vec<String>,
}

impl Plan {
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let target = self.target.target()?;
        if self.look > MOST_LOOK_NS {
            anyhow::bail!("--look {} is out of range: up to 60s", text::duration(self.look));
        }
        let earlier = self
            .spool
            .as_deref()
            .map_or_else(Earlier::default, |dir| spool::earlier(dir, &target));
        let earlier_windows = earlier.windows.len();
        let options = PlanOptions {
            target,
            request: self.buffers.request(PtMode::Auto),
            period_ns: self.length,
            earlier,
            look: Duration::from_nanos(self.look),
            roots: self.roots.roots(),
        };
        if let exist_trace::session::Target::Command(_) = options.target {
            anyhow::bail!(
                "there is nothing to see of a command that does not run yet; start it, and name it with --pid"
            );
        }
        let planned = agent::plan(&options)?;
        let shown = shown(&planned, &options.request, earlier_windows);
        if self.json {
            serde_json::to_writer(&mut *out, &shown)?;
            writeln!(out)?;
        } else {
            print(&shown, out)?;
        }
        Ok(Outcome::Done)
    }
}

fn shown(planned: &Planned, request: &PtRequest, earlier_windows: usize) -> Shown {
    let (look, plan) = (&planned.look, &planned.plan);
    let look_ns = look.slot_ns.saturating_mul(look.slots.len() as u64);
    let busy = |cpu| {
        let ns: u64 = look.slots.iter().filter_map(|slot| slot.get(&cpu)).sum();
        ns as f64 / look_ns.max(1) as f64
    };
    let cpus = plan.buffers.iter().zip(&planned.rates).map(|(buffer, rate)| {
        let busy = busy(buffer.cpu);
        Row {
            cpu: buffer.cpu.0,
            busy,
            share: buffer.expected.map(|e| e.share),
            need_bytes: buffer.expected.map(|e| e.need_bytes),
            rate: *rate,
            buffer_bytes: buffer.bytes,
            held: buffer.expected.map(|e| e.held),
            reason: match (buffer.expected, buffer.bytes, busy > 0.0) {
                (None, ..) if request.buffer_bytes.is_some() => "one size for all, as asked",
                (None, ..) => "one size for all: the target did not run",
                (_, 0, _) => "none: the memory holds more elsewhere; the reserve, should it come here",
                (_, _, true) => "it ran here",
                (_, _, false) => "it did not run here, and may come",
            },
        }
    });
    let header = &planned.target;
    let target = match (&header.container, header.cgroups.as_slice()) {
        (Some(id), _) => format!("container {id}"),
        (None, [(path, _), ..]) => format!("cgroup {path}"),
        (None, []) => String::new(),
    };
    let no_pt = planned
        .no_pt
        .iter()
        .map(|reason| format!("a recording here has no processor trace: {reason}"));
    Shown {
        target,
        period_ns: planned.period_ns,
        look_ns,
        budget_bytes: plan.budget_bytes,
        planned_bytes: plan.total_bytes(),
        reserve_bytes: if plan.reserve.total_bytes == u64::MAX {
            0
        } else {
            plan.reserve.total_bytes
        },
        held: plan.held(),
        threads: look.threads,
        runnable: look.runnable,
        quota_cpus: look.quota_cpus,
        allowed_cpus: look.allowed.as_ref().map(|cpus| cpus.iter().map(|cpu| cpu.0).collect()),
        earlier_windows,
        cpus: cpus.collect(),
        notes: planned.notes.iter().cloned().chain(plan.said()).chain(no_pt).collect(),
    }
}

fn print(s: &Shown, out: &mut dyn Write) -> anyhow::Result<()> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    write!(
        out,
        "{}: {} of a budget of {}",
        text::plain(&s.target),
        size(s.planned_bytes),
        size(s.budget_bytes)
    )?;
    if s.reserve_bytes > 0 {
        write!(out, ", {} in reserve", size(s.reserve_bytes))?;
    }
    match s.held {
        Some(held) => writeln!(
            out,
            "; expected to hold {} of its on-CPU time in {}",
            percent(held),
            text::duration(s.period_ns)
        )?,
        None => writeln!(out)?,
    }
    write!(out, "{} threads, {} runnable", s.threads, s.runnable)?;
    match s.quota_cpus {
        Some(quota) => write!(out, "; a quota of {quota:.2} CPUs")?,
        None => write!(out, "; no CPU quota")?,
    }
    if let Some(allowed) = &s.allowed_cpus {
        write!(out, "; may use CPU {}", text::ranges(allowed))?;
    }
    writeln!(
        out,
        "; looked for {}, {} earlier windows\n",
        text::duration(s.look_ns),
        s.earlier_windows
    )?;
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CPU", Right),
        ("BUSY", Right),
        ("EXPECTED", Right),
        ("BYTES", Right),
        ("BUFFER", Right),
        ("HOLDS", Right),
        ("WHY", Left),
    ]);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    for row in &s.cpus {
        table.row([
            row.cpu.to_string(),
            percent(row.busy),
            or_dash(row.share.map(percent)),
            or_dash(row.need_bytes.map(|bytes| text::bytes(bytes as u64))),
            if row.buffer_bytes == 0 {
                "-".to_owned()
            } else {
                size(row.buffer_bytes)
            },
            or_dash(row.held.map(percent)),
            row.reason.to_owned(),
        ]);
    }
    table.print("", out)?;
    for note in &s.notes {
        writeln!(out, "note: {}", text::plain(note))?;
    }
    Ok(())
}
