//! The culprit: what distinguishes the slow calls of a function from its typical ones.
//!
//! Takes [`Calls`] of one function from one window or many ([`Gather`]). Gives a [`Report`]: the things that slow calls have
//! more often, or more seldom, than typical ones. Refuses a function of which too few calls were seen to compare.
//!
//! - Of the calls before a call the last one, two, four and eight are looked at, each as a thing of its own.
//! - Slow: as long as the threshold or longer. Typical: shorter, and no longer than the median. What is between is left out.
//! - Of slow calls that begin while an earlier slow one of another thread still runs only the first counts: they may share a
//!   cause that has nothing to do with what is looked at. For the same reason the function itself, what it calls and what
//!   calls it are not looked for beside a call: slow calls beside slow ones would be found.
//! - Each thing (see [`Thing`](calls::Thing)) that not all calls have alike gets Fisher's exact p-value, two-sided, corrected
//!   for the number of things looked at by Holm's method. With nothing to find, and calls that do not depend on each other,
//!   there is a finding in no more than `level` of all reports.
//! - A thing is explained by another when it tells nothing more with the other held fixed (the exact conditional test of two
//!   2 × 2 tables), and the reverse is not so. What happened within a call explains nothing of what was before it.
//! - First stands what was before the call and nothing explains; then what happened within it; then what is explained.
//!
//! The published system (EXIST, ASPLOS 2025) has no such analysis; this one is ours.

pub mod calls;
mod exact;
mod gather;
mod rank;
#[cfg(test)]
mod stories;
mod tree;
mod window;

use serde::Serialize;
use thiserror::Error;

use self::{
    calls::LeftOut,
    rank::{Ranked, Sides, rank},
};
pub use self::{
    calls::{Calls, Name, Stands},
    gather::{FileGather, Gather},
    window::Window,
};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    pub slower_than: SlowerThan,
    /// The largest corrected p-value of a finding.
    pub level: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            slower_than: SlowerThan::Quantile(0.99),
            level: 0.05,
        }
    }
}

/// Which calls are slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SlowerThan {
    /// As long as this quantile of all calls, by nearest rank, or longer; from 0 to 1.
    Quantile(f64),
    /// So many nanoseconds or longer.
    Ns(u64),
}

/// Why there is no comparison.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CulpritError {
    #[error(
        "no whole call of {0} was seen ({1} without a begin or an end); `exist report` lists the functions that were"
    )]
    NoCalls(String, u64),
    #[error("several functions are called so: {}; give the whole name", .0.join(", "))]
    Ambiguous(Vec<String>),
    #[error(
        "no call is slower than that: of {calls} calls the longest took {longest_ns} ns; give a lower --slower-than"
    )]
    NoSlow { calls: usize, longest_ns: u64 },
    #[error("no call is shorter than the slow ones ({slow_ns} ns or longer): there is nothing to compare them with")]
    NoTypical { slow_ns: u64 },
}

/// What distinguishes the slow calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub function: String,
    pub module: String,
    pub files: usize,
    /// Whole calls, and of them: slow, of these compared (see the module), typical.
    pub calls: usize,
    pub slow: usize,
    pub compared_slow: usize,
    pub typical: usize,
    /// The shortest slow call, and the median of all, nanoseconds.
    pub slow_ns: u64,
    pub median_ns: u64,
    /// Things that not all calls have alike; the number that p-values are corrected for.
    pub looked_at: usize,
    pub level: f64,
    pub findings: Vec<Finding>,
    pub left_out: LeftOut,
}

/// A thing that distinguishes, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// In words; and those that exactly the same calls have.
    pub what: String,
    pub same: Vec<String>,
    pub kind: &'static str,
    pub stands: Stands,
    /// A call has it when it has it so many times.
    pub at_least: u32,
    pub slow_with: u64,
    pub typical_with: u64,
    /// How many times higher the odds of being slow are with it.
    pub odds_ratio: f64,
    /// Fisher's exact p-value, and corrected for all things looked at; 0 when no floating-point number is as small.
    pub p: f64,
    pub p_corrected: f64,
    /// Logarithm to base 10 of the corrected one.
    pub log10_p_corrected: f64,
    /// Place in the list, from 0, of the finding that explains it.
    pub explained_by: Option<usize>,
    /// The p-value that is left with that one held fixed.
    pub p_given: Option<f64>,
    /// The longest slow call that has it (or lacks it, where slow calls have it more seldom).
    pub example: Example,
}

/// A call to look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    pub file: String,
    pub tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub start_ns: u64,
    pub end_ns: u64,
    /// CLOCK_MONOTONIC when its recording began.
    pub recording_ns: u64,
}

/// Compares the slow calls with the typical ones.
///
/// # Errors
/// [`CulpritError`], when there is nothing to compare. `asked` is the function as the user wrote it.
pub fn culprit(calls: &Calls, asked: &str, options: &Options) -> Result<Report, CulpritError> {
    let name = match calls.meant.as_slice() {
        [one] if !calls.calls.is_empty() => calls.names.get(*one),
        [] | [_] => return Err(CulpritError::NoCalls(asked.to_owned(), calls.left_out.incomplete)),
        several => {
            let names = several.iter().map(|id| calls.names.get(*id).to_string());
            return Err(CulpritError::Ambiguous(names.collect()));
        }
    };
    let (sides, counts) = sides(calls, options.slower_than)?;
    let ranking = rank(calls, &sides, options.level);
    Ok(Report {
        function: name.function.to_string(),
        module: name.module.to_string(),
        files: calls.files.len(),
        calls: calls.calls.len(),
        slow: counts.slow,
        compared_slow: sides.slow.len(),
        typical: sides.typical.len(),
        slow_ns: counts.slow_ns,
        median_ns: counts.median_ns,
        looked_at: ranking.looked_at,
        level: options.level,
        findings: ranking.findings.iter().map(|f| finding(calls, &sides, f)).collect(),
        left_out: calls.left_out,
    })
}

struct Counts {
    slow: usize,
    slow_ns: u64,
    median_ns: u64,
}

fn sides(calls: &Calls, slower_than: SlowerThan) -> Result<(Sides, Counts), CulpritError> {
    let mut lengths: Vec<u64> = calls.calls.iter().map(calls::Call::ns).collect();
    lengths.sort_unstable();
    let rank = |share: f64| {
        let at = (lengths.len() as f64 * share).ceil() as usize;
        lengths[at.clamp(1, lengths.len()) - 1]
    };
    let median_ns = rank(0.5);
    let limit = match slower_than {
        SlowerThan::Quantile(share) => rank(share),
        SlowerThan::Ns(ns) => ns,
    };
    let at = |is_slow: bool| {
        let all = calls.calls.iter().enumerate();
        all.filter(move |(_, c)| match is_slow {
            true => c.ns() >= limit,
            false => c.ns() < limit && c.ns() <= median_ns,
        })
        .map(|(at, _)| at)
    };
    let slow: Vec<usize> = at(true).collect();
    let typical: Vec<usize> = at(false).collect();
    if slow.is_empty() {
        return Err(CulpritError::NoSlow {
            calls: lengths.len(),
            longest_ns: lengths.last().copied().unwrap_or(0),
        });
    }
    if typical.is_empty() {
        return Err(CulpritError::NoTypical { slow_ns: limit });
    }
    let counts = Counts {
        slow: slow.len(),
        slow_ns: limit,
        median_ns,
    };
    let slow = first_of_each_burst(calls, slow);
    Ok((Sides { slow, typical }, counts))
}

/// Without the slow calls that begin while an earlier one that counts, of another thread, still runs.
fn first_of_each_burst(calls: &Calls, mut slow: Vec<usize>) -> Vec<usize> {
    slow.sort_unstable_by_key(|at| (calls.calls[*at].file, calls.calls[*at].start));
    let mut last: Option<usize> = None;
    slow.retain(|at| {
        let (call, last_call) = (&calls.calls[*at], last.map(|last| &calls.calls[last]));
        let counts = last_call.is_none_or(|l| l.file != call.file || call.start >= l.end || l.thread == call.thread);
        if counts {
            last = Some(*at);
        }
        counts
    });
    slow
}

fn finding(calls: &Calls, sides: &Sides, ranked: &Ranked) -> Finding {
    let thing = calls.things.get(ranked.thing);
    let (of_slow, of_typical) = ranked.table.shares();
    let wanted = of_slow >= of_typical;
    let longest = (0..sides.slow.len())
        .filter(|at| ranked.has(*at) == wanted)
        .max_by_key(|at| calls.calls[sides.slow[*at]].ns())
        .unwrap_or(0);
    let call = &calls.calls[sides.slow[longest]];
    let (file, recording) = &calls.files[call.file as usize];
    let words = |thing| match wanted {
        true => calls.words(thing),
        false => format!("not: {}", calls.words(thing)),
    };
    Finding {
        what: words(thing),
        same: ranked.same.iter().map(|id| words(calls.things.get(*id))).collect(),
        kind: thing.kind(),
        stands: ranked.stands(calls),
        at_least: ranked.at_least,
        slow_with: ranked.table.slow_with,
        typical_with: ranked.table.typical_with,
        odds_ratio: ranked.table.odds_ratio(),
        p: ranked.ln_p.exp(),
        p_corrected: ranked.ln_corrected.exp(),
        log10_p_corrected: ranked.ln_corrected / std::f64::consts::LN_10,
        explained_by: ranked.explained.map(|(by, _)| by),
        p_given: ranked.explained.map(|(_, ln)| ln.exp()),
        example: Example {
            file: file.clone(),
            tid: call.tid.0,
            start_ns: call.start.0,
            end_ns: call.end.0,
            recording_ns: recording.0,
        },
    }
}
