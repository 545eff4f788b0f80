//! Stock perf's branches against ours on the same bytes: takes both as stretches of user mode, gives how many differ and
//! why.
//!
//! perf follows threads by its own records of switches, and gives a stretch to the thread that runs by them. Near a switch
//! that can be the wrong one: it then walks other code than was run, or finds none and reports an error. So it does where a
//! program has just begun, whose code it does not know yet at the time that it takes the packets to be of.

use std::collections::HashMap;

use anyhow::{Context, Result};
use exist_lab_truth::Step;

use super::diff::{Hunk, diff};
use crate::bench::Row;

/// From an entry of user mode to the exit that follows it; without steps, an error that perf reports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stretch {
    pub tid: u64,
    pub steps: Vec<Step>,
}

impl Stretch {
    /// The place of an error.
    pub fn error(tid: u64) -> Self {
        Self { tid, steps: Vec::new() }
    }

    pub fn is_error(&self) -> bool {
        self.steps.is_empty()
    }
}

/// More differences than this are no comparison.
const MOST: usize = 6000;
/// So many of perf's stretches can stand for one of ours: each error begins another. So many, too, are near.
const NEAR: usize = 8;
/// Differences shown.
const SHOWN: usize = 8;

/// How perf's stretches stand against ours, all CPUs together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Stretches that both have in the same thread, and their branches.
    pub same: usize,
    pub same_steps: usize,
    /// Ours that perf has in another thread, most often walked otherwise.
    pub wrong_thread: usize,
    /// Ours beside such a one, or where perf reports an error: lost until it found its place again.
    pub beside: usize,
    /// Ours that perf does not have, without either reason.
    pub unexplained: usize,
}

impl Compared {
    /// Adds a CPU.
    ///
    /// # Errors
    /// Sequences that have too little in common.
    pub fn add(&mut self, cpu: u32, ours: &[Stretch], perf: &[Stretch]) -> Result<()> {
        if ours.is_empty() {
            return Ok(());
        }
        let mut numbers = HashMap::new();
        let ours_by_number = numbered(ours, &mut numbers);
        let perf_by_number = numbered(perf, &mut numbers);
        let hunks = diff(&ours_by_number, &perf_by_number, MOST)
            .with_context(|| format!("CPU {cpu}: perf's branches and ours differ in more than {MOST} stretches"))?;
        let mut alone = vec![false; ours.len()];
        let mut group = Group::default();
        for (at, hunk) in hunks.iter().enumerate() {
            alone[hunk.first.clone()].fill(true);
            group.ours.extend(&ours[hunk.first.clone()]);
            group.perf.extend(near(hunk, ours.len(), perf));
            // What stands the same between two differences can be so by chance.
            let next = hunks.get(at + 1).map(|next| next.first.start - hunk.first.end);
            if next.is_none_or(|same| same > NEAR) {
                self.explain(cpu, &std::mem::take(&mut group));
            }
        }
        let same = ours.iter().zip(&alone).filter(|(_, alone)| !**alone);
        for (stretch, _) in same {
            self.same += 1;
            self.same_steps += stretch.steps.len();
        }
        Ok(())
    }

    fn explain(&mut self, cpu: u32, group: &Group) {
        let Group { ours, perf } = group;
        let in_another = |stretch: &&&Stretch| {
            let mut same_place = perf.iter().filter(|other| other.steps.first() == stretch.steps.first());
            same_place.any(|other| other.tid != stretch.tid)
        };
        let wrong = ours.iter().filter(in_another).count();
        // It gave what others ran to a thread that did not.
        let strange = |other: &Stretch| ours.iter().all(|stretch| stretch.tid != other.tid);
        let rest = ours.len() - wrong;
        self.wrong_thread += wrong;
        if wrong > 0 || perf.iter().any(|other| other.is_error() || strange(other)) {
            self.beside += rest;
            return;
        }
        if rest > 0 && self.unexplained < SHOWN {
            eprintln!("cpu {cpu}: ours {}; perf's {}", text(ours), text(perf));
        }
        self.unexplained += rest;
    }

    /// The row of a workload in which the lab lost packets this often.
    pub fn row(&self, name: &str, losses: usize) -> Row {
        let differ = self.wrong_thread + self.beside + self.unexplained;
        Row::new(
            format!("{name}: stock perf differs from ours on the same bytes"),
            "stretches",
        )
        .peer(differ as f64)
        .must("some are the same", self.same > 0)
        .must("each difference is explained", self.unexplained <= losses)
        .note(format!(
            "{} stretches of {} branches are the same; perf gives {} to another thread and loses {} beside them or \
             with an error; {} have no explanation",
            self.same, self.same_steps, self.wrong_thread, self.beside, self.unexplained
        ))
    }
}

/// Stretches that are in one and not in the other, close to each other.
#[derive(Default)]
struct Group<'a> {
    ours: Vec<&'a Stretch>,
    perf: Vec<&'a Stretch>,
}

/// Thread, entry and number of steps of each.
fn text(stretches: &[&Stretch]) -> String {
    let one = |stretch: &&Stretch| match stretch.steps.first() {
        Some((_, entry)) => format!("{} {entry:x} {}", stretch.tid, stretch.steps.len()),
        None => format!("{} error", stretch.tid),
    };
    stretches.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A number for each different stretch.
fn numbered<'a>(stretches: &'a [Stretch], numbers: &mut HashMap<&'a Stretch, u32>) -> Vec<u32> {
    let number = |stretch: &'a Stretch| {
        let next = numbers.len() as u32;
        *numbers.entry(stretch).or_insert(next)
    };
    stretches.iter().map(number).collect()
}

/// perf's side of a hunk. perf begins earlier and ends later: of what it has there, the part next to ours.
fn near<'a>(hunk: &Hunk, ours: usize, perf: &'a [Stretch]) -> &'a [Stretch] {
    let side = &perf[hunk.second.clone()];
    let most = side.len().min(NEAR + NEAR * hunk.first.len());
    if hunk.first.start == 0 {
        &side[side.len() - most..]
    } else if hunk.first.end == ours {
        &side[..most]
    } else {
        side
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stretches as `tid:entry`, each with an exit of the same number; `tid:!` is an error.
    fn stretches(text: &str) -> Vec<Stretch> {
        let stretch = |word: &str| {
            let (tid, entry) = word.split_once(':').unwrap();
            if entry == "!" {
                return Stretch::error(tid.parse().unwrap());
            }
            let (entry, end) = entry.split_once('-').unwrap_or((entry, entry));
            let number = |text: &str| text.parse::<u64>().unwrap();
            Stretch {
                tid: number(tid),
                steps: vec![(0, number(entry)), (number(end), 0)],
            }
        };
        text.split_whitespace().map(stretch).collect()
    }

    /// Same, in another thread, beside one, unexplained.
    fn check(ours: &str, perf: &str, expect: (usize, usize, usize, usize)) {
        let mut found = Compared::default();
        found.add(0, &stretches(ours), &stretches(perf)).unwrap();
        let (same, wrong, beside) = (found.same, found.wrong_thread, found.beside);
        assert_eq!((same, wrong, beside, found.unexplained), expect, "{ours} / {perf}");
        assert_eq!(found.same_steps, 2 * same);
    }

    #[test]
    fn differences_have_their_reasons() {
        let ours = "1:10 1:11 1:12 1:13 2:14 1:15 1:16 1:17 1:18";
        check(
            ours,
            "9:1 9:2 1:10 1:11 1:12 1:13 2:14 1:15 1:16 1:17 1:18 9:3",
            (9, 0, 0, 0),
        );
        check(ours, "1:10 1:11 1:12 1:13 1:14-3 1:15 1:16 1:17 1:18", (8, 1, 0, 0));
        check(ours, "1:10 1:11 1:12 1:13 1:14-3 1:16 1:17 1:18", (7, 1, 1, 0));
        check(ours, "1:10 1:11 1:12 1:13 2:14-3 1:15 1:16 1:17 1:18", (8, 0, 0, 1));
        check(ours, "1:10 1:11 1:12 1:13 1:15 1:16 1:17 1:18", (8, 0, 0, 1));
        check(ours, "1:10 1:11 1:12 1:13 2:14-3 2:! 1:15 1:16 1:17 1:18", (8, 0, 1, 0));
    }
}
