//! The questions of the checklist, one function each.

use std::cmp::Reverse;

use exist_common::WaitKind;

use super::{Answer, Facts, Neighbour, Outcome, Place};
use crate::analysis::{
    blockers::{Doing, Instant},
    latency::Cause,
    pressure::Window,
    states::{KindRow, ThreadRow},
    tally::Stretch,
};

/// The checklist, in the order in which a reader goes through it.
pub(super) const ALL: [fn(&Facts) -> Answer; 8] = [
    cpus_idle,
    saturated,
    throttled,
    long_calls,
    blocker,
    page_faults,
    neighbour,
    migrations,
];

const MS: u64 = 1_000_000;
/// Rows of evidence, and places.
const MOST: usize = 5;

/// Kinds of wait for a device.
const DEVICE: [WaitKind; 3] = [WaitKind::Disk, WaitKind::Fsync, WaitKind::PageFault];

fn cpus_idle(facts: &Facts) -> Answer {
    let period = facts.period_ns();
    let is_long = |ns: u64| ns >= period / 10;
    let mut found: Vec<(u64, String, Vec<Place>)> = Vec::new();
    for thread in &facts.states.threads {
        for row in DEVICE.iter().filter_map(|kind| thread.times.kind(*kind)) {
            let s = &row.part.stretches;
            if is_long(s.total_ns) {
                let (who, total, times) = (who(thread), ms(s.total_ns), s.count);
                let text = format!("{who} waited {total} for {}, {times} times", described(row));
                found.push((s.total_ns, text, places(&row.part.worst)));
            }
        }
    }
    let mut through: Vec<(u32, &Doing, u64, Place)> = Vec::new();
    for instant in &facts.blockers.worst {
        // Time for which a thread sleeps while others wait for it is time of no CPU either.
        let kinds = DEVICE.map(WaitKind::as_str);
        let doing = instant
            .doing
            .first()
            .filter(|d| kinds.contains(&d.what) || d.what == WaitKind::Sleep.as_str());
        let Some(doing) = doing else { continue };
        match through
            .iter_mut()
            .find(|t| t.0 == instant.tid && t.1.what == doing.what)
        {
            Some(sum) => sum.2 = sum.2.saturating_add(doing.ns),
            None => through.push((instant.tid, doing, doing.ns, place(instant))),
        }
    }
    for (tid, doing, ns, place) in through.into_iter().filter(|t| is_long(t.2)) {
        let text = format!(
            "threads waited for {}, which waited {} for {}",
            facts.name(tid),
            ms(ns),
            doing.what
        );
        found.push((ns, text, vec![place]));
    }
    found.sort_by_key(|row| Reverse(row.0));
    let busy = facts.running_ns() as f64 / (period as f64 * facts.cpus as f64);
    if found.is_empty() || busy >= 0.5 {
        return nothing("cpus_idle", "no thread waited long for a device while CPUs were idle");
    }
    let says = format!("CPUs were idle ({:.0} % busy) while {}", busy * 100.0, found[0].1);
    let places = found.iter().flat_map(|f| f.2.clone()).collect();
    answer("cpus_idle", says, found.into_iter().map(|f| f.1).collect(), places)
}

fn saturated(facts: &Facts) -> Answer {
    let p = &facts.pressure;
    let all = facts.cpus.saturating_mul(p.width_ns);
    let is_full =
        |w: &Window| w.running_ns as f64 >= 0.85 * all as f64 && w.queued_ns >= all && w.queued_ns >= w.others_ns;
    // The last window is cut off.
    let windows = p.windows.split_last().map(|(_, rest)| rest).unwrap_or_default();
    let full = windows.iter().filter(|w| is_full(w)).count();
    let mut runs: Vec<(u64, usize, usize)> = Vec::new();
    let mut at = 0;
    for run in windows.chunk_by(|a, b| is_full(a) == is_full(b)) {
        if is_full(&run[0]) {
            runs.push((
                run.iter().map(|w| w.queued_ns).fold(0, u64::saturating_add),
                at,
                run.len(),
            ));
        }
        at += run.len();
    }
    let longest = runs.iter().map(|run| run.2).max().unwrap_or(0);
    let often = windows.len() >= 10 && full * 50 >= windows.len();
    if full == 0 || !often && longest < 3 {
        return nothing(
            "saturated",
            "no stretch of time in which all CPUs were busy and threads queued",
        );
    }
    runs.sort_by_key(|row| Reverse(row.0));
    let busy = facts.running_ns() as f64 * 100.0 / (facts.period_ns() as f64 * facts.cpus as f64);
    let width = p.width_ns / MS;
    let says = format!(
        "all {} CPUs were busy and threads queued in {full} of {} windows of {width} ms; on average the CPUs were {busy:.0} % busy{}",
        facts.cpus,
        windows.len(),
        if busy < 70.0 { ", which hides it" } else { "" }
    );
    let places: Vec<_> = (runs.iter().take(MOST))
        .map(|&(_, at, len)| Place {
            from_ns: p.begin_ns(at),
            to_ns: p.begin_ns(at + len),
            tid: None,
        })
        .collect();
    let evidence = (runs.iter().take(MOST))
        .map(|&(queued, _, len)| {
            let threads = queued as f64 / (p.width_ns as f64 * len as f64);
            format!(
                "{} ms in which {threads:.1} threads queued on average",
                len as u64 * width
            )
        })
        .chain([latency_text(facts)]);
    answer("saturated", says, evidence.collect(), places)
}

fn throttled(facts: &Facts) -> Answer {
    let rows: Vec<_> = of_kind(facts, WaitKind::Throttled);
    let total = rows
        .iter()
        .map(|(_, row)| row.part.stretches.total_ns)
        .fold(0, u64::saturating_add);
    if total < MS {
        return if facts.tells_throttling {
            nothing("throttled", "the quota held no thread back")
        } else {
            Answer {
                outcome: Outcome::Unknown,
                ..nothing(
                    "throttled",
                    "kernels before Linux 6.18 do not mark throttled threads: see cpu.stat",
                )
            }
        };
    }
    let share = total as f64 * 100.0 / (facts.running_ns() as f64 + total as f64);
    let says = format!(
        "the quota held threads back for {} in sum, {share:.0} % of what they ran and were held",
        ms(total)
    );
    answer("throttled", says, kind_texts(&rows), worst_of(&rows))
}

fn long_calls(facts: &Facts) -> Answer {
    let kinds = [WaitKind::Disk, WaitKind::Fsync];
    let mut rows: Vec<_> = kinds.into_iter().flat_map(|kind| of_kind(facts, kind)).collect();
    rows.retain(|(_, row)| row.part.stretches.max_ns >= 20 * MS);
    rows.sort_by_key(|row| Reverse(row.1.part.stretches.max_ns));
    let Some((thread, row)) = rows.first() else {
        return nothing(
            "long_calls",
            "no thread waited 20 ms or more at once in a system call on a file or device",
        );
    };
    let says = format!(
        "{} waited up to {} for {}",
        who(thread),
        ms(row.part.stretches.max_ns),
        described(row)
    );
    answer("long_calls", says, kind_texts(&rows), worst_of(&rows))
}

fn blocker(facts: &Facts) -> Answer {
    let waits_itself = [
        WaitKind::Poll,
        WaitKind::Net,
        WaitKind::Child,
        WaitKind::Sync,
        WaitKind::Pipe,
        WaitKind::Stopped,
    ]
    .map(WaitKind::as_str);
    let counts = |i: &&Instant| i.doing.first().is_some_and(|d| !waits_itself.contains(&d.what));
    let worst: Vec<&Instant> = facts.blockers.worst.iter().filter(counts).collect();
    let is_long = |i: &Instant| {
        let sum = facts
            .blockers
            .threads
            .iter()
            .find(|b| b.tid == i.tid)
            .map_or(0, |b| b.blocks_ns);
        i.until_ns - i.from_ns >= 10 * MS || sum >= facts.period_ns() / 20
    };
    let found: Vec<&Instant> = worst.into_iter().filter(|i| is_long(i)).take(MOST).collect();
    let Some(first) = found.first() else {
        return nothing("blocker", "no thread kept three others or more from running for long");
    };
    let sum = facts.blockers.threads.iter().find(|b| b.tid == first.tid);
    let (times, blocked) = sum.map_or((1, first.blocked_ns), |b| (b.times, b.blocked_ns));
    let says = format!(
        "{} blocked {} threads: {times} times, for {} of their time in sum",
        facts.name(first.tid),
        first.waiters,
        ms(blocked)
    );
    let evidence = (found.iter())
        .map(|i| {
            let doing: Vec<_> = i
                .doing
                .iter()
                .take(3)
                .map(|d| format!("{} {}", d.what, ms(d.ns)))
                .collect();
            let (n, length) = (i.waiters, ms(i.until_ns - i.from_ns));
            format!(
                "{n} threads waited up to {length} for {}; it was: {}",
                facts.name(i.tid),
                doing.join(", ")
            )
        })
        .collect();
    answer("blocker", says, evidence, found.into_iter().map(place).collect())
}

fn page_faults(facts: &Facts) -> Answer {
    let mut rows = of_kind(facts, WaitKind::PageFault);
    let least = (facts.period_ns() / 50).max(5 * MS);
    rows.retain(|(_, row)| row.part.stretches.total_ns >= least);
    let Some((thread, row)) = rows.first() else {
        return nothing("page_faults", "no thread waited long for pages");
    };
    let s = &row.part.stretches;
    let says = format!("{} waited {} for pages, {} times", who(thread), ms(s.total_ns), s.count);
    answer("page_faults", says, kind_texts(&rows), worst_of(&rows))
}

fn neighbour(facts: &Facts) -> Answer {
    let others = facts.latency.all.of(Cause::Other);
    let wanted = facts
        .running_ns()
        .saturating_add(facts.latency.all.part.stretches.total_ns);
    if others < 10 * MS || others < wanted / 20 {
        return nothing("neighbour", "others hardly kept the target from a CPU");
    }
    let share = others as f64 * 100.0 / wanted as f64;
    let mut says = format!(
        "others had the CPU for {} while threads were runnable: {share:.0} % of the time that these wanted to run",
        ms(others)
    );
    if let Some(most) = facts.neighbours.first() {
        says = format!("{says}; most of it {}", named(most));
    }
    let neighbours = facts.neighbours.iter().take(MOST);
    let evidence = neighbours.map(|n| format!("{}: {}, most of it thread {}", named(n), ms(n.ns), n.tid));
    let evidence = evidence.chain([latency_text(facts)]).collect();
    answer(
        "neighbour",
        says,
        evidence,
        facts.worst_neighbour.iter().cloned().collect(),
    )
}

fn migrations(facts: &Facts) -> Answer {
    let mut found = Vec::new();
    for (who, moves) in &facts.moves {
        let ns = moves.last_ns.saturating_sub(moves.first_ns);
        let rate = moves.moved as f64 * 1e9 / ns.max(1) as f64;
        if moves.moved * 3 >= moves.ins && rate >= 200.0 && ns >= 100 * MS {
            found.push((who.tid, moves, rate));
        }
    }
    let Some((tid, moves, rate)) = found.first() else {
        return nothing(
            "migrations",
            "no thread moved between CPUs a third of the times that it came in, 200 times a second or more",
        );
    };
    let says = format!(
        "{} came in on another CPU than before {rate:.0} times a second: {} of {} times",
        facts.name(*tid),
        moves.moved,
        moves.ins
    );
    let evidence = (found.iter().take(MOST))
        .map(|(tid, moves, rate)| format!("{}: {} moves, {rate:.0} a second", facts.name(*tid), moves.moved))
        .collect();
    let places = (found.iter().take(MOST))
        .map(|(tid, moves, _)| Place {
            from_ns: moves.first_ns,
            to_ns: moves.last_ns,
            tid: Some(*tid),
        })
        .collect();
    answer("migrations", says, evidence, places)
}

fn named(neighbour: &Neighbour) -> String {
    match (&neighbour.name, neighbour.cgroup_id) {
        (Some(name), _) => name.clone(),
        (None, 0) => "of unknown cgroups".to_owned(),
        (None, id) => format!("cgroup {id}"),
    }
}

/// Each thread's waits of a kind, the longest total first.
fn of_kind(facts: &Facts, kind: WaitKind) -> Vec<(&ThreadRow, &KindRow)> {
    let threads = facts.states.threads.iter();
    let mut rows: Vec<_> = threads
        .filter_map(|thread| Some((thread, thread.times.kind(kind)?)))
        .collect();
    rows.sort_by_key(|row| Reverse(row.1.part.stretches.total_ns));
    rows
}

fn kind_texts(rows: &[(&ThreadRow, &KindRow)]) -> Vec<String> {
    let text = |(thread, row): &(&ThreadRow, &KindRow)| {
        let s = &row.part.stretches;
        let [total, p50, p99, max] = [s.total_ns, s.p50_ns, s.p99_ns, s.max_ns].map(ms);
        let (who, what, n) = (who(thread), described(row), s.count);
        format!("{who}: {what} {n} times, {total} in sum, p50 {p50}, p99 {p99}, at most {max}")
    };
    rows.iter().take(MOST).map(text).collect()
}

/// The longest waits of all rows.
fn worst_of(rows: &[(&ThreadRow, &KindRow)]) -> Vec<Place> {
    let mut worst: Vec<Stretch> = rows
        .iter()
        .flat_map(|(_, row)| row.part.worst.iter().copied())
        .collect();
    worst.sort_by_key(|row| Reverse(row.ns));
    worst.truncate(MOST);
    places(&worst)
}

fn places(worst: &[Stretch]) -> Vec<Place> {
    let place = |s: &Stretch| Place {
        from_ns: s.t_ns,
        to_ns: s.t_ns.saturating_add(s.ns),
        tid: Some(s.tid),
    };
    worst.iter().map(place).collect()
}

fn place(instant: &Instant) -> Place {
    Place {
        from_ns: instant.from_ns,
        to_ns: instant.until_ns,
        tid: Some(instant.tid),
    }
}

/// The kind, and the system call that took most of it.
fn described(row: &KindRow) -> String {
    match row.calls.first().and_then(|call| call.syscall) {
        Some(number) => format!("{} (system call {number})", row.kind),
        None => row.kind.to_owned(),
    }
}

fn who(thread: &ThreadRow) -> String {
    if thread.name.is_empty() {
        format!("thread {}", thread.tid)
    } else {
        format!("{} ({})", thread.name, thread.tid)
    }
}

fn latency_text(facts: &Facts) -> String {
    let s = &facts.latency.all.part.stretches;
    let [p50, p99, max] = [s.p50_ns, s.p99_ns, s.max_ns].map(ms);
    format!("time between runnable and running: p50 {p50}, p99 {p99}, at most {max}")
}

fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

fn nothing(question: &'static str, says: &str) -> Answer {
    Answer {
        question,
        outcome: Outcome::Nothing,
        says: says.to_owned(),
        evidence: Vec::new(),
        places: Vec::new(),
    }
}

fn answer(question: &'static str, says: String, mut evidence: Vec<String>, mut places: Vec<Place>) -> Answer {
    evidence.truncate(MOST + 1);
    places.truncate(MOST);
    Answer {
        question,
        outcome: Outcome::Found,
        says,
        evidence,
        places,
    }
}
