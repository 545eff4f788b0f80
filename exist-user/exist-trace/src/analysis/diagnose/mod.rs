//! The checklist of an experienced reader: each question with its answer, the evidence and the place to look.
//!
//! Takes a file (twice, for [`blockers`]), gives a [`Diagnosis`]. Every question is answered: found, nothing found, or not
//! known and why. Refuses a file without waits. The limits are constants here; a finding says what it was held against.
//!
//! | question | found when |
//! | --- | --- |
//! | `cpus_idle` | a thread waited for a disk, a page, or for another thread that did, for 10 % of the recording or more, and the CPUs were less than half busy |
//! | `saturated` | in 2 % of all windows, or in 3 in a row, the target kept its CPUs 85 % busy and on average a thread queued for each; others had less of the blame |
//! | `throttled` | threads were held back by the quota, 1 ms or more in sum |
//! | `long_calls` | a thread waited 20 ms or more at once in a system call that works on files or devices |
//! | `blocker` | three threads or more waited for one, 10 ms or more at once or 5 % of the recording in sum, and it was not itself waiting for input |
//! | `page_faults` | a thread waited for pages for 2 % of the recording and 5 ms |
//! | `neighbour` | threads were runnable while others had their CPU for 5 % of the time that the target wanted to run, 10 ms or more in sum |
//! | `migrations` | a thread came in on another CPU than before a third of the times, 200 times a second or more |

mod checks;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod stories;
#[cfg(test)]
pub(super) use machine::header as header_of_tests;

use std::{cmp::Reverse, collections::HashMap};

use exist_common::{Wait, holder};
use serde::Serialize;
use thiserror::Error;

use super::{
    blockers::{Blockers, blockers},
    latency::{self, Cause, Latency, Queued},
    observe::{Observed, Who, observe},
    pressure::Pressure,
    states::{self, States},
};
use crate::{
    file::{Piece, Pieces, ReadError, model::LossKind},
    flow::{Seen, Threads},
    session::Waits,
};

/// Why there is no diagnosis.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DiagnoseError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the trace holds no waits; record with `--waits on`")]
    NoWaits,
}

/// All answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// In the order of the checklist.
    pub answers: Vec<Answer>,
    /// CLOCK_MONOTONIC when the recording began, and its length.
    pub start_ns: u64,
    pub period_ns: u64,
    /// Cgroups whose threads had a CPU for which the target queued, the longest first.
    pub neighbours: Vec<Neighbour>,
    /// What the answers cannot rest on.
    pub limits: Vec<String>,
}

impl Diagnosis {
    /// What was found.
    pub fn found(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter(|answer| answer.outcome == Outcome::Found)
    }
}

/// A cgroup that is not the target's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// The kernel's ID of it ([`Wait::holder_cgroup`]); 0: not known.
    pub cgroup_id: u64,
    /// Its name, where somebody knows it: a container's ID, or the cgroup's path.
    pub name: Option<String>,
    /// The time that the target queued, and the thread that most of it is of.
    pub ns: u64,
    pub tid: u32,
}

/// How a question was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Found,
    Nothing,
    Unknown,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// `cpus_idle`, `saturated`, `throttled`, `long_calls`, `blocker`, `page_faults`, `neighbour`, `migrations`.
    pub question: &'static str,
    pub outcome: Outcome,
    /// In one sentence.
    pub says: String,
    /// The numbers behind it.
    pub evidence: Vec<String>,
    /// Where to look, the worst first.
    pub places: Vec<Place>,
}

/// A place in the recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// CLOCK_MONOTONIC.
    pub from_ns: u64,
    pub to_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
}

/// A thread's comings in, and how many of them were on another CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Moves {
    ins: u64,
    moved: u64,
    first_ns: u64,
    last_ns: u64,
}

/// Neighbours that are told.
const NEIGHBOURS: usize = 16;
/// Threads whose moves are counted.
const MOST_THREADS: usize = 1 << 14;

/// What the questions are put to.
struct Facts {
    states: States,
    latency: Latency,
    pressure: Pressure,
    blockers: Blockers,
    moves: Vec<(Who, Moves)>,
    neighbours: Vec<Neighbour>,
    worst_neighbour: Option<Place>,
    seen: Seen,
    /// CPUs that the target ran on.
    cpus: u64,
    /// Whether the kernel says that a thread is throttled (Linux 6.18).
    tells_throttling: bool,
}

impl Facts {
    fn period_ns(&self) -> u64 {
        self.seen.end.0.saturating_sub(self.seen.start.0).max(1)
    }

    fn running_ns(&self) -> u64 {
        let all = self.states.threads.iter().map(|t| t.times.running.stretches.total_ns);
        all.fold(0, u64::saturating_add)
    }

    fn name(&self, tid: u32) -> String {
        let thread = self.states.threads.iter().find(|t| t.tid == tid);
        match thread {
            Some(thread) if !thread.name.is_empty() => format!("{} ({tid})", thread.name),
            _ => format!("thread {tid}"),
        }
    }
}

/// Goes through the checklist. `name_of` knows names of foreign cgroups, by their IDs; a file never holds them.
///
/// # Errors
/// [`DiagnoseError`].
pub fn diagnose(data: &[u8], name_of: impl Fn(u64) -> Option<String>) -> Result<Diagnosis, DiagnoseError> {
    let pieces = Pieces::new(data)?;
    let header = pieces.header().clone();
    if header.session.waits == Waits::Off {
        return Err(DiagnoseError::NoWaits);
    }
    let mut gather = Gather::new(header.start.0);
    let mut lost = 0u64;
    let pieces = pieces.inspect(|piece| {
        if let Piece::Loss(loss) = piece
            && loss.kind == LossKind::WaitsLost
        {
            lost = lost.saturating_add(loss.records);
        }
    });
    let (threads, seen) = observe(pieces, |observed| gather.take(observed));
    let blockers = blockers(Pieces::new(data)?, Pieces::new(data)?);
    let mut facts = gather.facts(&threads, seen, blockers, since_6_18(&header.node.kernel));
    for neighbour in &mut facts.neighbours {
        neighbour.name = name_of(neighbour.cgroup_id);
    }
    let answers = checks::ALL.iter().map(|check| check(&facts)).collect();
    Ok(Diagnosis {
        answers,
        start_ns: facts.seen.start.0,
        period_ns: facts.period_ns(),
        neighbours: facts.neighbours.clone(),
        limits: limits(&facts, lost),
    })
}

/// Linux 6.18 marks throttled tasks.
fn since_6_18(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

fn limits(facts: &Facts, lost: u64) -> Vec<String> {
    let mut limits = Vec::new();
    if lost > 0 {
        limits.push(format!("{lost} waits are missing from the trace"));
    }
    if facts.seen.blind_ns() > 0 {
        let ms = facts.seen.blind_ns() / 1_000_000;
        limits.push(format!("switches are missing during {ms} ms"));
    }
    if facts.latency.unseen > 0 {
        let unseen = facts.latency.unseen;
        limits.push(format!(
            "{unseen} wake-ups were not seen: their time runnable counts as waiting"
        ));
    }
    limits
}

struct Gather {
    states: states::Collect,
    latency: latency::Collect,
    split: latency::Split,
    pressure: Pressure,
    moves: HashMap<Who, Moves>,
    /// By cgroup and thread.
    neighbours: HashMap<(u64, u32), u64>,
    worst_neighbour: Option<Place>,
    cpus: HashMap<u32, u64>,
}

impl Gather {
    fn new(start_ns: u64) -> Self {
        Self {
            states: states::Collect::default(),
            latency: latency::Collect::default(),
            split: latency::Split::default(),
            pressure: Pressure::new(start_ns),
            moves: HashMap::new(),
            neighbours: HashMap::new(),
            worst_neighbour: None,
            cpus: HashMap::new(),
        }
    }

    fn take(&mut self, observed: Observed<'_>) {
        self.states.take(observed);
        let queued = self.split.take(observed);
        match observed {
            Observed::Ran(ran) => {
                self.pressure.ran(ran);
                let on_cpu = self.cpus.entry(ran.cpu).or_default();
                *on_cpu = on_cpu.saturating_add(ran.to - ran.from);
            }
            Observed::Wait(wait) => match queued {
                Some(queued) => self.queued(wait, &queued),
                None => self.latency.unseen(),
            },
        }
    }

    fn queued(&mut self, wait: &Wait, queued: &Queued) {
        self.latency.queued(queued);
        self.pressure.queued(queued);
        if self.moves.len() < MOST_THREADS || self.moves.contains_key(&queued.who) {
            let first_ns = wait.run_ns;
            let moves = self.moves.entry(queued.who).or_insert(Moves {
                first_ns,
                ..Moves::default()
            });
            moves.ins += 1;
            moves.moved += u64::from(queued.moved);
            moves.last_ns = wait.run_ns;
        }
        let is_other = queued.cause == Cause::Other && wait.holder == holder::OTHER;
        let ns = queued.to - queued.from - queued.target_ns;
        if is_other {
            let mut key = (wait.holder_cgroup, wait.holder_tid);
            if self.neighbours.len() >= MOST_THREADS && !self.neighbours.contains_key(&key) {
                key = (0, 0);
            }
            let sum = self.neighbours.entry(key).or_default();
            *sum = sum.saturating_add(ns);
            let worst = self
                .worst_neighbour
                .as_ref()
                .map_or(0, |place| place.to_ns - place.from_ns);
            if ns > worst {
                self.worst_neighbour = Some(Place {
                    from_ns: queued.to - ns,
                    to_ns: queued.to,
                    tid: Some(queued.who.tid),
                });
            }
        }
    }

    fn facts(self, threads: &Threads, seen: Seen, blockers: Blockers, tells_throttling: bool) -> Facts {
        let running = self.cpus.values().copied().fold(0, u64::saturating_add);
        let mut by_cgroup: HashMap<u64, (u64, (u64, u32))> = HashMap::new();
        for ((cgroup_id, tid), ns) in self.neighbours {
            let (sum, most) = by_cgroup.entry(cgroup_id).or_default();
            *sum = sum.saturating_add(ns);
            *most = (*most).max((ns, tid));
        }
        let mut neighbours: Vec<_> = (by_cgroup.into_iter())
            .map(|(cgroup_id, (ns, (_, tid)))| Neighbour {
                cgroup_id,
                name: None,
                ns,
                tid,
            })
            .collect();
        neighbours.sort_unstable_by_key(|n| (Reverse(n.ns), n.cgroup_id));
        neighbours.truncate(NEIGHBOURS);
        let mut moves: Vec<_> = self.moves.into_iter().collect();
        moves.sort_unstable_by_key(|(who, moves)| (Reverse(moves.moved), *who));
        Facts {
            states: self.states.finish(threads),
            latency: self.latency.finish(),
            pressure: self.pressure,
            blockers,
            moves,
            neighbours,
            worst_neighbour: self.worst_neighbour,
            seen,
            // One that it was on for a moment is none that it works on.
            cpus: self.cpus.values().filter(|&&ns| ns > running / 100).count().max(1) as u64,
            tells_throttling,
        }
    }
}
