//! What was decoded, held against what ran: takes one CPU's pieces and visits, gives the count of each thread's steps.
//!
//! A piece belongs to the visit that was entered at its address within its bracket of time, both in order. Nothing that
//! the decoder says of threads is used to find it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::visits::{Step, Traced, Visit};

/// Whose the decoder says a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Thread(u64),
    /// No thread of the target's.
    Foreign,
    /// It cannot tell, and says so.
    Untold,
}

/// How a piece begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// User mode was entered at this address.
    Entry(u64),
    /// Within a visit, behind a loss.
    Within,
}

/// A stretch that was decoded, in the order of the CPU's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub begin: Begin,
    /// TSC between which it began.
    pub time: RangeInclusive<u64>,
    pub owner: Owner,
    /// Its steps; `None`: not decoded, since it is no thread's.
    pub steps: Option<Vec<Step>>,
}

/// What became of the steps of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Steps that ran while the tracer was on.
    pub ran: usize,
    /// Of them, those that were decoded where they belong.
    pub exact: usize,
    /// Of them, lost with an overflow or a stop.
    pub lost: usize,
    /// Of them, in pieces that the decoder gave to no thread since it could not tell.
    pub untold: usize,
    /// Those that are missing without a reason, and those that did not run and were decoded.
    pub different: usize,
    /// Steps that ran before the tracer was enabled or after it was disabled.
    pub gap: usize,
}

/// One CPU's verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub threads: BTreeMap<u64, Tally>,
    /// For each piece the visit that it belongs to.
    pub visit_of: Vec<Option<usize>>,
    /// What the first differences are, for a person.
    pub differences: Vec<String>,
}

const TOLD: usize = 8;

impl Verdict {
    /// Holds `pieces` against `visits`. Steps of threads that are not `target` count only where the decoder gives them to
    /// a thread.
    pub fn new(visits: &[Visit], pieces: &[Piece], target: impl Fn(u64) -> bool) -> Self {
        let mut verdict = Self {
            visit_of: assign(visits, pieces),
            ..Self::default()
        };
        let mut of_visit: Vec<Vec<&Piece>> = vec![Vec::new(); visits.len()];
        for (at, (piece, visit)) in pieces.iter().zip(verdict.visit_of.clone()).enumerate() {
            match visit {
                Some(visit) => of_visit[visit].push(piece),
                None => {
                    let steps = piece.steps.as_ref().map_or(0, Vec::len);
                    if let Owner::Thread(tid) = piece.owner {
                        verdict.differ(tid, steps.max(1), || {
                            format!("piece {at} of thread {tid} never ran: {piece:x?}")
                        });
                    }
                }
            }
        }
        for (at, (visit, pieces)) in visits.iter().zip(of_visit).enumerate() {
            verdict.visit(at, visit, &pieces, target(visit.tid));
        }
        verdict
    }

    fn differ(&mut self, tid: u64, steps: usize, text: impl FnOnce() -> String) {
        self.threads.entry(tid).or_default().different += steps;
        if self.differences.len() < TOLD {
            let mut text = text();
            text.truncate(600);
            self.differences.push(text);
        }
    }

    fn visit(&mut self, at: usize, visit: &Visit, pieces: &[&Piece], target: bool) {
        let (tid, count) = (visit.tid, visit.count);
        if !target {
            for piece in pieces {
                if let Owner::Thread(other) = piece.owner {
                    let steps = piece.steps.as_ref().map_or(0, Vec::len);
                    self.differ(other, steps.max(1), || {
                        format!("visit {at} is of thread {tid}, which is no target: {piece:x?}")
                    });
                }
            }
            return;
        }
        let tally = self.threads.entry(tid).or_default();
        if visit.traced == Traced::No {
            tally.gap += count;
            return;
        }
        tally.ran += count;
        let holes = visit.traced != Traced::Whole;
        if pieces.is_empty() {
            if holes {
                tally.lost += count;
            } else {
                self.differ(tid, count, || {
                    format!("visit {at} of thread {tid} is missing: {visit:x?}")
                });
            }
            return;
        }
        let mut found = 0;
        for piece in pieces {
            match (piece.owner, &piece.steps) {
                (Owner::Untold, _) => {
                    self.threads.entry(tid).or_default().untold += count - found;
                    return;
                }
                (Owner::Thread(owner), Some(steps)) if owner == tid => {
                    let same = match piece.begin {
                        Begin::Entry(_) => visit.steps.iter().zip(steps).take_while(|(a, b)| a == b).count(),
                        Begin::Within => {
                            let back = visit.steps.iter().rev().zip(steps.iter().rev());
                            back.take_while(|(a, b)| a == b).count().min(count - found)
                        }
                    };
                    if same < steps.len() {
                        self.differ(tid, steps.len() - same, || {
                            let from = same.saturating_sub(2);
                            format!(
                                "visit {at} of thread {tid}, step {same} of {count}: ran {:x?}, decoded {:x?}",
                                &visit.steps[from..visit.steps.len().min(same + 3)],
                                &steps[from..steps.len().min(same + 3)]
                            )
                        });
                    }
                    found += same;
                }
                (owner, _) => {
                    self.differ(tid, count - found, || {
                        format!("visit {at} of thread {tid} is given to {owner:?}: {visit:x?}")
                    });
                    return;
                }
            }
        }
        let tally = self.threads.entry(tid).or_default();
        tally.exact += found;
        let missing = count - found.min(count);
        if holes {
            tally.lost += missing;
        } else if missing > 0 {
            self.differ(tid, missing, || {
                format!("visit {at} of thread {tid} is decoded up to step {found} of {count}")
            });
        }
    }
}

/// The visit of each piece.
fn assign(visits: &[Visit], pieces: &[Piece]) -> Vec<Option<usize>> {
    // Where the search goes on; a visit with a hole can be the place of one piece more.
    let mut next = 0usize;
    let mut found = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let from = match piece.begin {
            Begin::Entry(_) => next,
            Begin::Within => next.saturating_sub(1),
        };
        let in_time = (from..visits.len()).take_while(|&at| visits[at].entered <= *piece.time.end());
        let candidates: Vec<usize> = in_time.filter(|&at| fits(&visits[at], piece)).collect();
        // A loop has many visits that look the same from outside: the one with the same steps is the one.
        let whole = |at: &usize| piece.steps.as_ref() == Some(&visits[*at].steps);
        let choice = candidates.iter().copied().find(whole).or(candidates.first().copied());
        if let Some(at) = choice {
            next = at + 1;
        }
        found.push(choice);
    }
    found
}

fn fits(visit: &Visit, piece: &Piece) -> bool {
    if visit.traced == Traced::No {
        return false;
    }
    match piece.begin {
        Begin::Entry(ip) => visit.entered >= *piece.time.start() && visit.steps.first() == Some(&(0, ip)),
        Begin::Within => {
            let overlaps = visit.left >= *piece.time.start() && visit.traced != Traced::Whole;
            overlaps && piece.steps.as_ref().is_none_or(|steps| visit.steps.ends_with(steps))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(tid: u64, entered: u64, traced: Traced) -> Visit {
        let steps = vec![(0, 0x10), (0x12, 0x20), (0x22, 0x10), (0x14, 0)];
        Visit {
            tid,
            cr3: 1,
            entered,
            left: entered + 5,
            traced,
            count: steps.len(),
            steps,
        }
    }

    fn piece(owner: Owner, time: u64, steps: &[Step]) -> Piece {
        let begin = match steps.first() {
            Some((0, ip)) => Begin::Entry(*ip),
            _ => Begin::Within,
        };
        Piece {
            begin,
            time: time..=time + 5,
            owner,
            steps: Some(steps.to_vec()),
        }
    }

    /// Tally of thread 7 as (ran, exact, lost, untold, different).
    fn check(visits: &[Visit], pieces: &[Piece], expect: (usize, usize, usize, usize, usize)) {
        let verdict = Verdict::new(visits, pieces, |tid| tid == 7);
        let Tally {
            ran,
            exact,
            lost,
            untold,
            different,
            ..
        } = verdict.threads.get(&7).copied().unwrap_or_default();
        assert_eq!((ran, exact, lost, untold, different), expect, "{verdict:?}");
        assert_eq!(verdict.differences.is_empty(), different == 0);
    }

    const OURS: Owner = Owner::Thread(7);

    #[test]
    fn equal_missing_and_wrong_steps() {
        let visits = [visit(7, 100, Traced::Whole), visit(7, 200, Traced::Whole)];
        let steps = visits[0].steps.clone();
        let all = [piece(OURS, 98, &steps), piece(OURS, 198, &steps)];
        check(&visits, &all, (8, 8, 0, 0, 0));
        check(&visits, &all[1..], (8, 4, 0, 0, 4));
        check(
            &visits,
            &[all[0].clone(), piece(OURS, 198, &steps[..3])],
            (8, 7, 0, 0, 1),
        );
        let wrong = [&steps[..2], &[(9, 9), (9, 0)]].concat();
        check(&visits, &[all[0].clone(), piece(OURS, 198, &wrong)], (8, 6, 0, 0, 4));
        // At a time when nothing ran.
        check(&visits, &[all[0].clone(), piece(OURS, 298, &steps)], (8, 4, 0, 0, 8));
    }

    #[test]
    fn the_wrong_thread_is_a_difference_and_untold_is_a_loss() {
        let visits = [visit(7, 100, Traced::Whole)];
        let steps = visits[0].steps.clone();
        check(&visits, &[piece(Owner::Thread(8), 98, &steps)], (4, 0, 0, 0, 4));
        check(&visits, &[piece(Owner::Foreign, 98, &steps)], (4, 0, 0, 0, 4));
        check(&visits, &[piece(Owner::Untold, 98, &steps)], (4, 0, 0, 4, 0));
        check(
            &[visit(9, 100, Traced::Whole)],
            &[piece(OURS, 98, &steps)],
            (0, 0, 0, 0, 4),
        );
        check(
            &[visit(9, 100, Traced::Whole)],
            &[piece(Owner::Foreign, 98, &steps)],
            (0, 0, 0, 0, 0),
        );
    }

    #[test]
    fn only_a_visit_with_a_hole_may_lack_its_middle() {
        let holed = [visit(7, 100, Traced::Holed)];
        let steps = holed[0].steps.clone();
        let parts = [piece(OURS, 98, &steps[..1]), piece(OURS, 98, &steps[3..])];
        check(&holed, &parts, (4, 2, 2, 0, 0));
        check(&holed, &[], (4, 0, 4, 0, 0));
        check(&holed, &[piece(OURS, 98, &[(0, 0x10), (1, 2)])], (4, 1, 3, 0, 1));
        check(&[visit(7, 100, Traced::Whole)], &parts[..1], (4, 1, 0, 0, 3));
        check(&[visit(7, 100, Traced::No)], &[], (0, 0, 0, 0, 0));
    }
}
