//! `exist report`: who ran where and for how long, and what the trace lacks.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use exist_trace::{
    analysis::report::{Report as Answer, ThreadRow, report},
    export::ndjson::LossRow,
};

use super::{
    Outcome, Strictness, pieces, read,
    text::{self, Align, Table},
};

/// Show who ran where and for how long, and what the trace lacks
#[derive(Debug, Args)]
#[command(after_help = "\
SWITCHES counts switches out: the kernel's voluntary and nonvoluntary context switches together.
Where switches are missing, ON CPU is what is certain, and AT MOST its upper bound.

Examples:
  exist report trace.exist
  exist report trace.exist --top 10
  exist report trace.exist --json | jq '.threads[] | {name, on_cpu_ns}'
  exist report trace.exist --strict > /dev/null || echo something is missing")]
pub struct Report {
    /// The trace
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show only the threads, and the losses, that matter most
    #[arg(long, value_name = "N", conflicts_with = "json")]
    top: Option<usize>,
    #[command(flatten)]
    strictness: Strictness,
}

impl Report {
    pub fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let data = read(&self.file)?;
        let answer = report(pieces(&data, &self.file)?);
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &answer)?;
            writeln!(out)?;
        } else {
            print(&answer, self.top.unwrap_or(usize::MAX), out)?;
        }
        Ok(self.strictness.outcome(answer.losses.len()))
    }
}

fn print(r: &Answer, top: usize, out: &mut dyn Write) -> io::Result<()> {
    let switches: u64 = r.threads.iter().map(|t| t.switches).sum();
    writeln!(out, "target   {}", text::plain(&r.target))?;
    for cgroup in &r.cgroups {
        writeln!(out, "         {} {}", r.hierarchy, text::plain(cgroup))?;
    }
    let (period, from) = (text::duration(r.period_ns), text::utc(r.start_realtime_ns));
    let ended = r.ended.as_deref().unwrap_or("not in the file");
    writeln!(
        out,
        "period   {period} from {from} · end: {} · Linux {}",
        text::plain(ended),
        text::plain(&r.kernel)
    )?;
    writeln!(
        out,
        "seen     {} threads · {} CPUs · {switches} switches",
        r.threads.len(),
        r.cpus.len()
    )?;
    writeln!(out)?;
    threads(r, top, out)?;
    cpus(r, out)?;
    losses(r, top, out)?;
    for lack in &r.lacks {
        writeln!(out, "not in the trace: {}", text::plain(lack))?;
    }
    if r.skewed > 0 {
        let most = text::duration(r.skew_max_ns);
        writeln!(
            out,
            "note: {} migrations are stamped in before out, by at most {most}",
            r.skewed
        )?;
    }
    Ok(())
}

fn threads(r: &Answer, top: usize, out: &mut dyn Write) -> io::Result<()> {
    use Align::{Left, Right};
    let is_uncertain = r.threads.iter().any(|t| t.on_cpu_max_ns > t.on_cpu_ns);
    let mut columns = vec![("THREAD", Left), ("PID", Right), ("TID", Right), ("ON CPU", Right)];
    columns.extend(is_uncertain.then_some(("AT MOST", Right)));
    columns.extend([
        ("SHARE", Right),
        ("SWITCHES", Right),
        ("VOLUNT.", Right),
        ("PREEMPT.", Right),
    ]);
    columns.extend([("MIGR.", Right), ("CPUS", Left)]);
    let mut table = Table::new(&columns);
    for t in r.threads.iter().take(top) {
        let mut cells = vec![
            name(t),
            t.pid.to_string(),
            t.tid.to_string(),
            text::duration(t.on_cpu_ns),
        ];
        cells.extend(is_uncertain.then(|| text::duration(t.on_cpu_max_ns)));
        cells.push(share(t.on_cpu_ns, r.period_ns));
        cells.extend([t.switches, t.voluntary, t.preempted, t.migrations].map(|n| n.to_string()));
        cells.push(text::ranges(&t.cpus));
        table.row(cells);
    }
    table.print("", out)?;
    more(r.threads.len(), top, "threads", out)
}

fn name(t: &ThreadRow) -> String {
    if t.name.is_empty() {
        "?".into()
    } else {
        text::plain(&t.name)
    }
}

fn cpus(r: &Answer, out: &mut dyn Write) -> io::Result<()> {
    use Align::Right;
    if r.cpus.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("CPU", Right),
        ("ON CPU", Right),
        ("SHARE", Right),
        ("SWITCHES", Right),
        ("RECORDS LOST", Right),
    ]);
    for c in &r.cpus {
        let (on_cpu, share) = (text::duration(c.on_cpu_ns), share(c.on_cpu_ns, r.period_ns));
        table.row([
            c.cpu.to_string(),
            on_cpu,
            share,
            c.switches.to_string(),
            c.lost.to_string(),
        ]);
    }
    table.print("", out)?;
    writeln!(out)
}

fn losses(r: &Answer, top: usize, out: &mut dyn Write) -> io::Result<()> {
    use Align::{Left, Right};
    if r.losses.is_empty() {
        return writeln!(out, "nothing was lost");
    }
    let mut table = Table::new(&[
        ("LOST AT", Right),
        ("CPU", Right),
        ("WHAT", Left),
        ("RECORDS", Right),
        ("BYTES", Right),
    ]);
    // Reasons repeat: each stands once, below.
    let mut reasons: Vec<(&str, &str)> = Vec::new();
    for l in r.losses.iter().take(top) {
        let cpu = l.cpu.map_or_else(|| "-".into(), |cpu| cpu.to_string());
        let at = format!("{} s", text::since(l.t_ns, r.start_ns));
        table.row([at, cpu, l.kind.to_owned(), l.records.to_string(), text::bytes(l.bytes)]);
    }
    for LossRow { kind, reason, .. } in &r.losses {
        if reasons.len() < 20 && !reasons.contains(&(kind, reason)) {
            reasons.push((kind, reason));
        }
    }
    table.print("", out)?;
    more(r.losses.len(), top, "losses", out)?;
    for (kind, reason) in reasons {
        writeln!(out, "{kind}: {}", text::plain(reason))?;
    }
    Ok(())
}

fn more(all: usize, top: usize, what: &str, out: &mut dyn Write) -> io::Result<()> {
    match all.checked_sub(top) {
        Some(n) if n > 0 => writeln!(out, "… and {n} more {what}\n"),
        _ => writeln!(out),
    }
}

fn share(part_ns: u64, whole_ns: u64) -> String {
    if whole_ns == 0 {
        "-".into()
    } else {
        format!("{:.2} %", part_ns as f64 * 100.0 / whole_ns as f64)
    }
}
