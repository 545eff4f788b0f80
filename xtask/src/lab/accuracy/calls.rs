//! Calls of each function: takes the ground truth of the threads of which nothing was lost, gives how many functions have
//! another count in the decoded spans.
//!
//! Counted without a stack: a function with a symbol is called by a call instruction to it, by a jump to its first address
//! from another function (a tail call, a stub), and by the kernel (a signal's handler). Names come from the decoder.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use exist_lab_truth::{Traced, Visit, Visits};
use exist_trace::{
    image::{Place, Symbols},
    units::{MonoNs, Pid, Tsc},
};

use super::super::decoded::{CallCounts, Decoded};
use crate::bench::Row;

/// The length of SYSCALL.
const SYSCALL_BYTES: u64 = 2;
/// Functions that differ, for a person.
const TOLD: usize = 8;

/// The row of a case; `threads`: those of which nothing was lost.
pub fn row(what: &str, decoded: &Decoded, cpus: &[Visits], threads: &BTreeSet<u64>) -> Row {
    let truth = count(decoded, cpus, threads);
    let mut ours = CallCounts::new();
    for (tid, calls) in &decoded.calls {
        if threads.contains(&u64::from(*tid)) {
            for (function, count) in calls {
                *ours.entry(function.clone()).or_default() += count;
            }
        }
    }
    let functions: BTreeSet<_> = truth.keys().chain(ours.keys()).collect();
    let of = |calls: &CallCounts, function| calls.get(function).copied().unwrap_or(0);
    let differ = functions
        .iter()
        .filter(|function| of(&truth, function) != of(&ours, function));
    let differ: Vec<_> = differ.collect();
    for function in differ.iter().take(TOLD) {
        let (name, module) = function;
        eprintln!(
            "{what}: {name} of {module} was called {} times, {} are decoded",
            of(&truth, function),
            of(&ours, function)
        );
    }
    let calls: u64 = truth.values().sum();
    Row::new(format!("{what}: functions with another number of calls"), "functions")
        .ours(differ.len() as f64)
        .at_most(0.0)
        .must("calls were made", calls > 0)
        .note(format!(
            "{calls} calls of {} functions in {} threads of which nothing was lost",
            truth.len(),
            threads.len()
        ))
}

/// Counts the truth.
fn count(decoded: &Decoded, cpus: &[Visits], threads: &BTreeSet<u64>) -> CallCounts {
    let mut visits: BTreeMap<u64, Vec<&Visit>> = BTreeMap::new();
    let mut calls: HashMap<(u64, u64), u64> = HashMap::new();
    for cpu in cpus {
        calls.extend(&cpu.calls);
        for visit in cpu.visits.iter().filter(|visit| threads.contains(&visit.tid)) {
            visits.entry(visit.tid).or_default().push(visit);
        }
    }
    let mut names = Names {
        decoded,
        symbols: Symbols::default(),
        places: HashMap::new(),
    };
    let mut counts = CallCounts::new();
    for (tid, mut visits) in visits {
        visits.sort_by_key(|visit| visit.entered);
        let Some(pid) = decoded.pid_of(tid) else { continue };
        let mut kernel = Kernel::default();
        for visit in visits {
            let time = decoded.flow.clock.mono(Tsc(visit.entered));
            for &(from, to) in &visit.steps {
                if to == 0 {
                    kernel.left = Some((visit.cr3, from));
                    continue;
                }
                let resumed = from == 0 && kernel.resumes(visit.cr3, to);
                let Some(place) = names.place(pid, time, to).filter(|place| place.named) else {
                    continue;
                };
                let called = match calls.get(&(visit.cr3, from)) {
                    Some(behind) => to != *behind,
                    None if from == 0 => place.entry && !resumed,
                    None => {
                        let source = names.place(pid, time, from).map(|source| source.function);
                        place.entry && source != Some(place.function)
                    }
                };
                if called {
                    let function = names.symbols.function(place.function);
                    let key = (function.name.to_string(), function.module.to_string());
                    *counts.entry(key).or_default() += 1;
                }
            }
            if visit.traced == Traced::No {
                kernel = Kernel::default();
            }
        }
    }
    counts
}

/// What stands where, as the decoder names it.
struct Names<'a> {
    decoded: &'a Decoded,
    symbols: Symbols,
    places: HashMap<(usize, u64), Place>,
}

impl Names<'_> {
    fn place(&mut self, pid: Pid, time: MonoNs, ip: u64) -> Option<Place> {
        let image = &self.decoded.image;
        let space = image.space(pid, time)?;
        let place = self.places.entry((space.id(), ip));
        Some(*place.or_insert_with(|| self.symbols.place(&space, image, ip)))
    }
}

/// Where a thread left user mode.
#[derive(Default)]
struct Kernel {
    /// Address space and address; `None`: what came before is not known.
    left: Option<(u64, u64)>,
    /// Where signals interrupted it, innermost last.
    interrupted: Vec<u64>,
}

impl Kernel {
    /// Whether an entry at `ip` goes on with what was left, or with what a signal interrupted, or is not known.
    fn resumes(&mut self, space: u64, ip: u64) -> bool {
        let Some((_, from)) = self.left.take().filter(|left| left.0 == space) else {
            self.interrupted.clear();
            return true;
        };
        let next = from.wrapping_add(SYSCALL_BYTES);
        if ip == from || ip == next {
            return true;
        }
        if let Some(at) = self
            .interrupted
            .iter()
            .rposition(|was| [*was, was + SYSCALL_BYTES].contains(&ip))
        {
            self.interrupted.truncate(at);
            return true;
        }
        self.interrupted.push(from);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_entered_and_what_it_interrupted_goes_on() {
        let mut kernel = Kernel::default();
        let mut step = |left: Option<(u64, u64)>, space, ip| {
            kernel.left = left;
            kernel.resumes(space, ip)
        };
        assert!(step(None, 1, 0x900), "before that nothing is known");
        assert!(step(Some((1, 0x100)), 1, 0x102), "a system call returns");
        assert!(step(Some((1, 0x100)), 1, 0x100), "an interrupt, a restarted call");
        assert!(!step(Some((1, 0x100)), 1, 0x500), "a handler");
        assert!(!step(Some((1, 0x540)), 1, 0x600), "a handler within it");
        assert!(step(Some((1, 0x640)), 1, 0x540));
        assert!(step(Some((1, 0x560)), 1, 0x102));
        assert!(!step(Some((1, 0x200)), 1, 0x102), "that one was over");
        assert!(step(Some((1, 0x200)), 2, 0x500), "another program");
    }
}
