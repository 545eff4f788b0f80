//! `exist report`: where time went, as text.

use std::io::{self, Write};

use exist_trace::analysis::{
    latency::{Latency, Row},
    states::{Part, States, Times},
};

use super::text::{self, Align, Table};

/// Groups that are shown without `--details`.
const GROUPS: usize = 10;

/// How much is shown.
#[derive(Clone, Copy, Debug)]
pub struct Show {
    /// Threads of `--details`.
    pub top: usize,
    pub details: bool,
    pub start_ns: u64,
}

pub fn print(states: &States, latency: &Latency, show: Show, out: &mut dyn Write) -> io::Result<()> {
    let mut groups = table("GROUP", "THREADS");
    if states.groups.len() > 1 {
        rows(
            &mut groups,
            ["(all)".into(), states.threads.len().to_string()],
            &states.all,
            show,
        );
    }
    for row in states.groups.iter().take(GROUPS.min(show.top)) {
        rows(
            &mut groups,
            [known(&row.group), row.threads.to_string()],
            &row.times,
            show,
        );
    }
    groups.print("", out)?;
    let hidden = states.groups.len().saturating_sub(GROUPS.min(show.top));
    if hidden > 0 {
        writeln!(out, "… and {hidden} more groups (--json has all)")?;
    }
    writeln!(out)?;
    if show.details {
        let mut threads = table("THREAD", "TID");
        for row in states.threads.iter().take(show.top) {
            rows(&mut threads, [known(&row.name), row.tid.to_string()], &row.times, show);
        }
        threads.print("", out)?;
        writeln!(out)?;
    }
    print_latency(latency, show, out)
}

fn table(name: &'static str, number: &'static str) -> Table {
    use Align::{Left, Right};
    Table::new(&[
        (name, Left),
        (number, Right),
        ("TIME", Left),
        ("COUNT", Right),
        ("TOTAL", Right),
        ("P50", Right),
        ("P99", Right),
        ("MAX", Right),
        ("AT", Right),
    ])
}

fn rows(table: &mut Table, who: [String; 2], times: &Times, show: Show) {
    let mut who = who;
    let kinds = times.kinds.iter().map(|row| (row.kind, &row.part));
    let all = [("(running)", &times.running), ("(runnable)", &times.runnable)]
        .into_iter()
        .chain(kinds);
    for (what, part) in all.filter(|(_, part)| part.stretches.count > 0) {
        table.row(
            who.iter_mut()
                .map(std::mem::take)
                .chain([what.to_owned()])
                .chain(numbers(part, show)),
        );
    }
}

/// Count, total, quantiles, the longest and when it began.
fn numbers(part: &Part, show: Show) -> [String; 6] {
    let s = &part.stretches;
    let [total, p50, p99, max] = [s.total_ns, s.p50_ns, s.p99_ns, s.max_ns].map(text::duration);
    let at = part
        .worst
        .first()
        .map_or_else(String::new, |worst| text::since(worst.t_ns, show.start_ns));
    [s.count.to_string(), total, p50, p99, max, at]
}

fn print_latency(latency: &Latency, show: Show, out: &mut dyn Write) -> io::Result<()> {
    use Align::{Left, Right};
    if latency.all.part.stretches.count > 0 {
        let mut table = Table::new(&[
            ("RUNNABLE", Left),
            ("COUNT", Right),
            ("TOTAL", Right),
            ("P50", Right),
            ("P99", Right),
            ("MAX", Right),
            ("AT", Right),
            ("BECAUSE OF", Left),
        ]);
        let cpus = latency.cpus.iter().map(|cpu| (format!("CPU {}", cpu.cpu), &cpu.row));
        let cpus = cpus.take(if show.details { usize::MAX } else { 0 });
        for (what, row) in std::iter::once(("all CPUs".to_owned(), &latency.all)).chain(cpus) {
            table.row(
                std::iter::once(what)
                    .chain(numbers(&row.part, show))
                    .chain([causes(row)]),
            );
        }
        table.print("", out)?;
        writeln!(out)?;
    }
    if latency.unseen > 0 {
        let unseen = latency.unseen;
        writeln!(
            out,
            "note: {unseen} wake-ups were not seen: their time runnable counts as waiting"
        )?;
    }
    Ok(())
}

/// Each cause's share from 1 % on, the largest first: `other 80 %, target 20 %`.
fn causes(row: &Row) -> String {
    let total = row.part.stretches.total_ns.max(1) as f64;
    let mut causes: Vec<_> = row.causes.iter().map(|c| (c.stretches.total_ns, c.cause)).collect();
    causes.sort_unstable_by(|a, b| b.cmp(a));
    let causes: Vec<_> = (causes.iter())
        .map(|(ns, cause)| (*ns as f64 * 100.0 / total, cause))
        .filter(|(percent, _)| *percent >= 0.5)
        .map(|(percent, cause)| format!("{cause} {percent:.0} %"))
        .collect();
    causes.join(", ")
}

fn known(name: &str) -> String {
    if name.is_empty() { "?".into() } else { text::plain(name) }
}
