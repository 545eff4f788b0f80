//! `exist report`: threads that many waited for, and critical paths, as text.

use std::io::{self, Write};

use exist_trace::analysis::{blockers::Blockers, path::Path, report::Report};

use super::{
    text::{self, Align, Table},
    times::Show,
};

/// Instants, and rows of a path, that are shown without `--details`.
const FEW: usize = 3;
const SUMS: usize = 12;

pub fn print(blockers: &Blockers, show: Show, out: &mut dyn Write) -> io::Result<()> {
    use Align::{Left, Right};
    if blockers.worst.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("BLOCKER", Left),
        ("TID", Right),
        ("AT", Right),
        ("FOR", Right),
        ("THREADS", Right),
        ("THEIR TIME", Right),
        ("IT WAS", Left),
    ]);
    let most = if show.details { show.top } else { FEW };
    for i in blockers.worst.iter().take(most) {
        let doing: Vec<_> = (i.doing.iter().take(2))
            .map(|d| format!("{} {}", d.what, text::duration(d.ns)))
            .collect();
        table.row([
            text::plain(&i.name),
            i.tid.to_string(),
            text::since(i.from_ns, show.start_ns),
            text::duration(i.until_ns - i.from_ns),
            i.waiters.to_string(),
            text::duration(i.blocked_ns),
            doing.join(", "),
        ]);
    }
    table.print("", out)?;
    writeln!(
        out,
        "waits of three threads or more that one thread ended at one instant, and what it did meanwhile\n"
    )
}

pub fn print_path(path: &Path, tid: u32, report: &Report, show: Show, out: &mut dyn Write) -> io::Result<()> {
    use Align::{Left, Right};
    let name = |tid: u32| {
        let thread = report.threads.iter().find(|thread| thread.tid == tid);
        thread.map_or_else(|| "?".into(), |thread| text::plain(&thread.name))
    };
    let whole: u64 = path.sums.iter().fold(0, |sum, s| sum.saturating_add(s.ns));
    let mut table = Table::new(&[
        ("CRITICAL PATH", Left),
        ("TID", Right),
        ("WHAT", Left),
        ("TIME", Right),
        ("SHARE", Right),
    ]);
    let most = if show.details { usize::MAX } else { SUMS };
    for sum in path.sums.iter().take(most) {
        let what = match sum.syscall {
            Some(number) => format!("{} (call {number})", sum.what),
            None => sum.what.to_owned(),
        };
        let share = sum.ns as f64 * 100.0 / whole.max(1) as f64;
        let time = text::duration(sum.ns);
        table.row([name(sum.tid), sum.tid.to_string(), what, time, format!("{share:.1} %")]);
    }
    table.print("", out)?;
    writeln!(
        out,
        "what each moment of thread {tid} was spent on, through those that it waited for; {} segments\n",
        path.segments.len()
    )?;
    if !show.details {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("AT", Right),
        ("FOR", Right),
        ("THREAD", Left),
        ("TID", Right),
        ("WHAT", Left),
    ]);
    for s in path.segments.iter().take(show.top) {
        let indent = " ".repeat(s.depth.min(20) as usize);
        let mark = if s.inferred {
            " (perhaps an interrupt's wake-up)"
        } else {
            ""
        };
        table.row([
            text::since(s.from_ns, show.start_ns),
            text::duration(s.to_ns - s.from_ns),
            format!("{indent}{}", name(s.tid)),
            s.tid.to_string(),
            format!("{}{mark}", s.what),
        ]);
    }
    table.print("", out)?;
    writeln!(out)
}
