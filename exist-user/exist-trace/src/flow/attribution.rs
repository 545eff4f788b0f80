//! Which thread ran in which segment: switch records put into the gaps between segments.
//!
//! ```text
//!  segments   ████ A ████   ██ A ██   ███ ? ███   ████ B ████
//!  gaps     0             1         2           3             4
//!  records                     Out A, In B ──┴── either fits: ambiguous, never guessed
//! ```
//!
//! A record is put into a gap when the time of the gap allows it and the addresses do: what the hook saw as the
//! thread's user-mode address must be where the segment before was left (Out) or the one after entered (In).
//! Records keep their order, and both records of one switch lie in one gap.

use super::segments::{Entry, Exit, Segment};
use crate::{
    file::model::{Record, SwitchOp, flags},
    units::{Pid, Tid, TscBracket},
};

/// Whose a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This thread's.
    Thread { pid: Pid, tid: Tid },
    /// No thread of the target's.
    Foreign,
    /// One of two or more threads', or of a thread and something foreign.
    Ambiguous,
    /// Switch records are missing here.
    Lost,
}

/// A switch record with its time on the CPU's clock.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    pub record: Record,
    pub time: TscBracket,
}

/// How records found their gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// One gap fitted by time and address.
    pub exact: u64,
    /// One gap fitted by time only: a signal or another change of the thread's address.
    pub by_time: u64,
    /// More than one gap fitted.
    pub ambiguous: u64,
}

/// Where user mode goes on after a segment when it is left by an instruction; needs the code of the process. `None`: unknown.
pub type ResumeOf<'a> = dyn FnMut(usize, Pid) -> Option<u64> + 'a;

/// Gaps `lo..=hi` that a record may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    lo: usize,
    hi: usize,
}

/// Owners of `segments`, from the records of the same CPU in its order. `loss`: whether records are missing just before that one.
pub fn attribute(
    segments: &[Segment],
    switches: &[Switch],
    loss: &[bool],
    resume_of: &mut ResumeOf<'_>,
) -> (Vec<Owner>, Counts) {
    let mut counts = Counts::default();
    let windows: Vec<Range> = switches.iter().map(|s| in_time(segments, s)).collect();
    // Without any choice worth the name there is nothing to compare: such a record stays with its whole window.
    let narrow = |w: &Range| {
        if w.hi - w.lo < MOST_CANDIDATES {
            (w.lo..=w.hi).collect()
        } else {
            Vec::new()
        }
    };
    let mut candidates: Vec<Vec<usize>> = windows.iter().map(narrow).collect();
    keep_order(&mut candidates);
    let mut kind = vec![Fit::None; switches.len()];
    for (i, switch) in switches.iter().enumerate() {
        kind[i] = by_address(segments, switch, &mut candidates[i], resume_of);
    }
    same_switch(switches, &mut candidates);
    keep_order(&mut candidates);
    // What a neighbour has settled can settle a record that only time could place.
    let ranges: Vec<Range> = candidates
        .iter()
        .zip(&windows)
        .map(|(c, window)| match (c.first(), c.last()) {
            (Some(&lo), Some(&hi)) => Range { lo, hi },
            _ => *window,
        })
        .collect();
    for ((c, kind), switch) in candidates.iter().zip(&kind).zip(switches) {
        if is_marker(&switch.record) {
            continue;
        }
        match (c.len(), kind) {
            (1, Fit::Address) => counts.exact += 1,
            (1, _) => counts.by_time += 1,
            _ => counts.ambiguous += 1,
        }
    }
    (owners(segments.len(), switches, loss, &ranges), counts)
}

/// Whether it is no switch: the thread ran already, or still, or was moved.
fn is_marker(record: &Record) -> bool {
    record.flags & (flags::START | flags::END | flags::MOVED) != 0
}

/// More gaps than this in a record's time are not told apart: there is next to no time in the trace.
const MOST_CANDIDATES: usize = 1024;

/// Gaps that the record's time allows.
fn in_time(segments: &[Segment], switch: &Switch) -> Range {
    let time = switch.time;
    // A thread that was running at a moment owns the segment of that moment.
    if switch.record.flags & (flags::START | flags::END) != 0 {
        let gap = if switch.record.op() == Some(SwitchOp::In) {
            segments.partition_point(|s| s.left.hi < time.lo)
        } else {
            segments.partition_point(|s| s.entered.lo <= time.hi)
        };
        return Range { lo: gap, hi: gap };
    }
    let first = segments.partition_point(|s| s.entered.hi < time.lo);
    let last = segments.partition_point(|s| s.left.lo <= time.hi);
    Range {
        lo: first,
        hi: last.max(first),
    }
}

/// Lets records lie in the order in which they came.
fn keep_order(candidates: &mut [Vec<usize>]) {
    let mut lowest = 0;
    for c in candidates.iter_mut() {
        if c.iter().any(|&g| g >= lowest) {
            c.retain(|&g| g >= lowest);
        }
        lowest = lowest.max(c.first().copied().unwrap_or(lowest));
    }
    let mut highest = usize::MAX;
    for c in candidates.iter_mut().rev() {
        if c.iter().any(|&g| g <= highest) {
            c.retain(|&g| g <= highest);
        }
        highest = highest.min(c.last().copied().unwrap_or(highest));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    None,
    Time,
    Address,
}

/// Keeps the gaps whose address is the record's; when none is, all that time allows.
fn by_address(segments: &[Segment], switch: &Switch, gaps: &mut Vec<usize>, resume_of: &mut ResumeOf<'_>) -> Fit {
    let record = &switch.record;
    if gaps.is_empty() {
        return Fit::None;
    }
    if is_marker(record) || record.ip == 0 || record.flags & flags::KERNEL != 0 {
        return Fit::Time;
    }
    let only = gaps.len() == 1;
    let matches: Vec<(usize, Match)> = gaps
        .iter()
        .map(|&gap| {
            let m = match record.op() {
                Some(SwitchOp::In) => entry_matches(segments.get(gap), record.ip),
                // Without a choice there is no need to walk the segment.
                _ if only => exit_matches(segments, gap, record, &mut |_, _| None),
                _ => exit_matches(segments, gap, record, resume_of),
            };
            (gap, m)
        })
        .collect();
    for wanted in [Match::Equal, Match::Unknown] {
        // An unknown address may be the right one: it stays beside those that are equal.
        let kept: Vec<usize> = matches
            .iter()
            .filter(|(_, m)| *m == Match::Equal || *m == wanted)
            .map(|(gap, _)| *gap)
            .collect();
        let unknown = matches.iter().any(|(_, m)| *m == Match::Unknown);
        if wanted == Match::Equal && unknown {
            continue;
        }
        if !kept.is_empty() {
            let equal = matches.iter().filter(|(_, m)| *m == Match::Equal).count();
            *gaps = kept;
            return if equal == gaps.len() { Fit::Address } else { Fit::Time };
        }
    }
    // A signal changed the address, or the system call is restarted with others beside it.
    Fit::Time
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    Equal,
    Unknown,
    Different,
}

/// A system call that is restarted is entered at the instruction itself: two bytes before where it was left
/// (`handle_signal` and `arch_do_signal_or_restart` in arch/x86/kernel/signal.c).
const SYSCALL_BYTES: u64 = 2;

fn entry_matches(segment: Option<&Segment>, ip: u64) -> Match {
    match segment.map(|s| s.entry) {
        Some(Entry::Enable(target)) if target == ip || target == ip.wrapping_sub(SYSCALL_BYTES) => Match::Equal,
        Some(Entry::Enable(_)) => Match::Different,
        Some(Entry::Sync | Entry::Overflow) | None => Match::Unknown,
    }
}

fn exit_matches(segments: &[Segment], gap: usize, record: &Record, resume_of: &mut ResumeOf<'_>) -> Match {
    let Some(index) = gap.checked_sub(1) else {
        return Match::Unknown;
    };
    let Some(segment) = segments.get(index) else {
        return Match::Unknown;
    };
    if segment.exit != Exit::Disable {
        return Match::Unknown;
    }
    match segment.source.or_else(|| resume_of(index, Pid(record.pid))) {
        Some(ip) if ip == record.ip => Match::Equal,
        Some(_) => Match::Different,
        None => Match::Unknown,
    }
}

/// Both records of one switch lie in the same gap.
fn same_switch(switches: &[Switch], candidates: &mut [Vec<usize>]) {
    for i in 1..switches.len() {
        let (a, b) = (&switches[i - 1].record, &switches[i].record);
        let one = a.op() == Some(SwitchOp::Out) && b.op() == Some(SwitchOp::In) && a.time_ns == b.time_ns;
        if !one || is_marker(a) || is_marker(b) {
            continue;
        }
        let both: Vec<usize> = candidates[i - 1]
            .iter()
            .filter(|g| candidates[i].contains(g))
            .copied()
            .collect();
        if !both.is_empty() {
            candidates[i - 1].clone_from(&both);
            candidates[i] = both;
        }
    }
}

fn owners(count: usize, switches: &[Switch], loss: &[bool], ranges: &[Range]) -> Vec<Owner> {
    let first = match switches.first().map(|s| s.record) {
        // It ran before its first record.
        Some(r) if r.op() == Some(SwitchOp::Out) => Owner::Thread {
            pid: Pid(r.pid),
            tid: Tid(r.tid),
        },
        _ => Owner::Foreign,
    };
    let mut owners = vec![Owner::Foreign; count];
    let mut owner = if loss.first() == Some(&true) {
        Owner::Lost
    } else {
        first
    };
    let mut from = 0;
    for (i, (switch, range)) in switches.iter().zip(ranges).enumerate() {
        if i > 0 && loss[i] {
            owner = Owner::Lost;
        }
        for slot in owners.iter_mut().take(range.lo).skip(from) {
            *slot = owner;
        }
        let unsure = range.lo.max(from)..range.hi.min(count);
        owners[unsure.start.min(count)..unsure.end.max(unsure.start.min(count))].fill(Owner::Ambiguous);
        from = range.hi.max(from);
        owner = match switch.record.op() {
            Some(SwitchOp::In) => Owner::Thread {
                pid: Pid(switch.record.pid),
                tid: Tid(switch.record.tid),
            },
            _ => Owner::Foreign,
        };
    }
    for slot in owners.iter_mut().skip(from) {
        *slot = owner;
    }
    owners
}
