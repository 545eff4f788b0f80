//! `exist report`: who ran where and for how long, and what the trace lacks.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use exist_trace::{
    analysis::{
        blockers::{Blockers, blockers},
        latency::Latency,
        path::{History, Path as CriticalPath},
        report::{Report as Answer, ThreadRow, report},
        states::{GroupRow, States, ThreadRow as ThreadWaits, Times},
        times::times,
    },
    export::ndjson::LossRow,
    flow::{FunctionRow, Windows},
    session::Waits,
};
use serde::Serialize;

use super::{
    Outcome, Strictness, blockers,
    code::Roots,
    flow::{self, CoverageRow, Decoded, NO_CLOCKS},
    pieces, read,
    text::{self, Align, Table},
    times::{self, Show},
    utilization,
};

/// Show who ran where and for how long, and what the trace lacks
#[derive(Debug, Args)]
#[command(after_help = "\
SWITCHES counts switches out: the kernel's voluntary and nonvoluntary context switches together.
Where switches are missing, ON CPU is what is certain, and AT MOST its upper bound.
LEAST CPUS is over all windows of a length in which no switch is missing.
Where waits were recorded: a GROUP is threads whose names differ only in numbers; AT is when the longest began.
RUNNABLE is time between being runnable and running; BECAUSE OF says who had the CPU meanwhile (target: own
threads; other; kernel), or: idle (it woke up), moved (to an idle CPU), throttled (quota used up).

Examples:
  exist report trace.exist
  exist report trace.exist --top 10
  exist report trace.exist --details
  exist report trace.exist --critical-path 4711 --from 1.25 --to 1.5
  exist report trace.exist --json | jq '.threads[] | {name, on_cpu_ns}'
  exist report trace.exist --json | jq '.utilization[] | {window_ns, worst: .worst[0]}'
  exist report trace.exist --json | jq '.groups[] | {group, kinds}, .latency.all'
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
    /// Waits: the critical path of a thread, or (`last`) of the one that ran last: what each moment was spent on, through
    /// the threads that it waited for; with --details each segment
    #[arg(long, value_name = "TID|last", value_parser = path_of)]
    critical_path: Option<PathOf>,
    /// Critical path: where it begins, in seconds since the recording began
    #[arg(long, value_name = "SECONDS", requires = "critical_path")]
    from: Option<f64>,
    /// Critical path: where it ends
    #[arg(long, value_name = "SECONDS", requires = "critical_path")]
    to: Option<f64>,
    /// Waits: also each thread, and the scheduler's latency on each CPU
    #[arg(long, conflicts_with = "json")]
    details: bool,
    /// Functions: the folder that holds the recorded machine's files [default: the process', or this machine's]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(flatten)]
    strictness: Strictness,
}

/// Whose critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathOf {
    Thread(u32),
    Last,
}

fn path_of(text: &str) -> Result<PathOf, String> {
    match text {
        "last" => Ok(PathOf::Last),
        _ => {
            (text.parse().map(PathOf::Thread)).map_err(|_| format!("`{text}` is no thread; write its number, or last"))
        }
    }
}

/// The report with what not every trace has.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    answer: &'a Answer,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<&'a [ThreadWaits]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<&'a [GroupRow]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<&'a Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<&'a Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blockers: Option<&'a Blockers>,
    #[serde(skip_serializing_if = "Option::is_none")]
    critical_path: Option<&'a CriticalPath>,
    #[serde(skip_serializing_if = "Option::is_none")]
    functions: Option<&'a [FunctionRow]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    coverage: Option<&'a CoverageRow>,
}

impl Report {
    pub fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let data = read(&self.file)?;
        let mut answer = report(pieces(&data, &self.file)?);
        let holds_pt = pieces(&data, &self.file)?.header().pt.is_ok();
        let traced = if holds_pt {
            let roots = Roots {
                root: self.root.clone(),
            };
            let decoded = Decoded::if_aligned(&data, &self.file, &roots)?;
            match &decoded {
                Some(decoded) => {
                    answer.losses.extend(decoded.flow.losses().iter().map(LossRow::from));
                    answer.losses.sort_by_key(|l| l.t_ns);
                }
                None => answer.lacks.push(format!("functions: {NO_CLOCKS}")),
            }
            decoded.as_ref().map(flow::functions)
        } else {
            None
        };
        let times = self.times(&data)?;
        let blocked = match &times {
            Some(_) => Some(blockers(pieces(&data, &self.file)?, pieces(&data, &self.file)?)),
            None => None,
        };
        let path = self.critical_path(&data, &answer)?;
        if self.json {
            let whole = Whole {
                answer: &answer,
                waits: times.as_ref().map(|(states, _)| &states.threads[..]),
                groups: times.as_ref().map(|(states, _)| &states.groups[..]),
                times: times.as_ref().map(|(states, _)| &states.all),
                latency: times.as_ref().map(|(_, latency)| latency),
                blockers: blocked.as_ref(),
                critical_path: path.as_ref().map(|(_, path)| path),
                functions: traced.as_ref().map(|(functions, _)| &functions[..]),
                coverage: traced.as_ref().map(|(_, coverage)| coverage),
            };
            serde_json::to_writer_pretty(&mut *out, &whole)?;
            writeln!(out)?;
        } else {
            let top = self.top.unwrap_or(usize::MAX);
            print(&answer, top, out)?;
            let show = Show {
                top,
                details: self.details,
                start_ns: answer.start_ns,
            };
            if let Some((states, latency)) = &times {
                times::print(states, latency, show, out)?;
            }
            if let Some(blocked) = &blocked {
                blockers::print(blocked, show, out)?;
            }
            if let Some((tid, path)) = &path {
                blockers::print_path(path, *tid, &answer, show, out)?;
            }
            if let Some((rows, coverage)) = &traced {
                functions(rows, coverage, answer.start_ns, top.min(40), out)?;
            }
        }
        Ok(self.strictness.outcome(answer.losses.len()))
    }

    /// `None`: waits were not recorded.
    fn times(&self, data: &[u8]) -> anyhow::Result<Option<(States, Latency)>> {
        let pieces = pieces(data, &self.file)?;
        Ok((pieces.header().session.waits == Waits::On).then(|| times(pieces)))
    }

    /// Whose path it is, and the path; `None`: it was not asked for.
    fn critical_path(&self, data: &[u8], answer: &Answer) -> anyhow::Result<Option<(u32, CriticalPath)>> {
        let Some(asked) = &self.critical_path else {
            return Ok(None);
        };
        let pieces = pieces(data, &self.file)?;
        if pieces.header().session.waits == Waits::Off {
            anyhow::bail!("there is no critical path without waits: record with `--waits on`");
        }
        let after = |seconds: Option<f64>| seconds.map(|s| answer.start_ns.saturating_add((s * 1e9) as u64));
        let from = after(self.from).unwrap_or(answer.start_ns).max(answer.start_ns);
        let to = after(self.to).unwrap_or(answer.end_ns).min(answer.end_ns);
        if from >= to {
            anyhow::bail!("--from and --to leave no time within the recording");
        }
        let history = History::read(pieces, from, to);
        let tid = match asked {
            PathOf::Thread(tid) if answer.threads.iter().any(|t| t.tid == *tid) => *tid,
            PathOf::Thread(tid) => {
                anyhow::bail!("thread {tid} is not in the trace; `exist report` lists those that are")
            }
            PathOf::Last => history
                .last_to_run()
                .ok_or_else(|| anyhow::anyhow!("no thread ran between --from and --to"))?,
        };
        Ok(Some((tid, history.path(tid))))
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
    utilization::print(r, out)?;
    losses(r, top, out)?;
    for lack in &r.lacks {
        writeln!(out, "not in the trace: {}", text::plain(lack))?;
    }
    if r.missed > 0 {
        writeln!(
            out,
            "note: {} of {} records are of switches that the kernel did not trace: their times come from its accounts",
            r.missed, r.records
        )?;
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

fn functions(
    rows: &[FunctionRow],
    coverage: &CoverageRow,
    start_ns: u64,
    top: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("SELF", Right),
        ("TOTAL", Right),
        ("CALLS", Right),
        ("MODULE", Left),
        ("FUNCTION", Left),
    ]);
    for f in rows.iter().take(top) {
        let (own, total) = (text::duration(f.self_ns), text::duration(f.total_ns));
        table.row([
            own,
            total,
            f.calls.to_string(),
            text::plain(&f.module),
            text::plain(&f.name),
        ]);
    }
    table.print("", out)?;
    more(rows.len(), top, "functions", out)?;
    writeln!(
        out,
        "processor trace: {:.2} % of the time on CPU; {} stretches attributed, {} ambiguous ({:.2} % of bytes), {} without switch records",
        coverage.pt_share * 100.0,
        coverage.attributed,
        coverage.ambiguous,
        coverage.ambiguous_share * 100.0,
        coverage.unattributed
    )?;
    windows(&coverage.windows, start_ns, out)
}

/// When each CPU's processor trace was recorded.
fn windows(w: &Windows, start_ns: u64, out: &mut dyn Write) -> io::Result<()> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("CPU", Right),
        ("TRACE", Right),
        ("FROM", Right),
        ("UNTIL", Right),
        ("ENABLED", Right),
        ("DISABLED", Right),
        ("", Left),
    ]);
    let time = |at: Option<u64>| at.map_or_else(|| "-".into(), |at| text::since(at, start_ns));
    for cpu in &w.cpus {
        table.row([
            cpu.cpu.to_string(),
            text::bytes(cpu.bytes),
            time(cpu.from_ns),
            time(cpu.until_ns),
            cpu.enabled.to_string(),
            cpu.disabled.to_string(),
            if cpu.full { "buffer full".into() } else { String::new() },
        ]);
    }
    table.print("", out)?;
    match w.all_ns {
        Some((from, until)) => {
            let (from, until) = (text::since(from, start_ns), text::since(until, start_ns));
            writeln!(
                out,
                "all CPUs that the target ran on were recorded from {from} s to {until} s"
            )
        }
        None => writeln!(out, "at no time were all CPUs that the target ran on recorded"),
    }
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
