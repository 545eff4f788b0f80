//! A whole file in memory, for callers that want all of it at once. `Pieces` streams.

use std::collections::{BTreeMap, HashSet};

use super::{
    model::{
        ClockPair, ControlOp, CpuCounters, End, Header, ImageBytes, Loss, Mapping, NameChange, Record, ThreadStatus,
        Wait,
    },
    pieces::{Piece, Pieces},
    reader::ReadError,
};
use crate::units::{Cpu, MonoNs, Tid};

/// Everything in a file but the processor trace, which [`super::Reader`] gives generation by generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub header: Header,
    /// From the first generation's start to the last one's end.
    pub start: MonoNs,
    pub end: MonoNs,
    pub clock_pairs: Vec<ClockPair>,
    /// Each thread as it was first seen; renamed by `names`. A number that is used again stands once.
    pub threads: Vec<ThreadStatus>,
    pub names: Vec<NameChange>,
    /// Each mapping once.
    pub mappings: Vec<Mapping>,
    pub records: Vec<Record>,
    /// Waits, where they were recorded.
    pub waits: Vec<Wait>,
    /// The last reading of each CPU.
    pub counters: Vec<CpuCounters>,
    /// The recorder's and the reader's.
    pub losses: Vec<Loss>,
    pub ops: Vec<ControlOp>,
    pub images: Vec<ImageBytes>,
    /// Absent in a file that was cut.
    pub end_of_recording: Option<End>,
}

impl Trace {
    /// Reads a whole file.
    ///
    /// # Errors
    /// The first [`ReadError`] of a file that has no readable chunk. Anything else that is wrong is a loss.
    pub fn read(data: &[u8]) -> Result<Self, ReadError> {
        let pieces = Pieces::new(data)?;
        let start = pieces.header().start;
        let mut out = Self {
            header: pieces.header().clone(),
            start,
            end: start,
            clock_pairs: Vec::new(),
            threads: Vec::new(),
            names: Vec::new(),
            mappings: Vec::new(),
            records: Vec::new(),
            waits: Vec::new(),
            counters: Vec::new(),
            losses: Vec::new(),
            ops: Vec::new(),
            images: Vec::new(),
            end_of_recording: None,
        };
        let mut seen = Seen::default();
        let mut counters = BTreeMap::new();
        let mut is_first = true;
        for piece in pieces {
            match piece {
                Piece::Loss(loss) => out.losses.push(loss),
                Piece::Unseen(_) => {}
                Piece::Generation(g, _) => {
                    if std::mem::take(&mut is_first) {
                        out.start = g.start;
                    }
                    out.end = out.end.max(g.end);
                    // The first pair of a generation is the last of the one before.
                    let new_pairs = g.clock_pairs.iter().filter(|p| out.clock_pairs.last() != Some(p));
                    let new_pairs: Vec<_> = new_pairs.copied().collect();
                    out.clock_pairs.extend(new_pairs);
                    out.threads
                        .extend(g.threads.into_iter().filter(|t| seen.threads.insert(t.tid)));
                    out.names.extend(g.names);
                    out.mappings
                        .extend(g.mappings.into_iter().filter(|m| seen.mappings.insert(m.clone())));
                    out.records.extend(g.records);
                    out.waits.extend(g.waits);
                    counters.extend(g.counters.into_iter().map(|c| (c.cpu, c)));
                    out.ops.extend(g.ops);
                    out.images.extend(g.images);
                    out.end_of_recording = g.end_of_recording.or(out.end_of_recording);
                }
            }
        }
        out.counters = counters.into_values().collect();
        Ok(out)
    }

    /// Records lost on a CPU; `None`: those that belong to no CPU.
    #[must_use]
    pub fn lost(&self, cpu: Option<Cpu>) -> u64 {
        self.losses
            .iter()
            .filter(|l| l.cpu == cpu)
            .map(|l| l.records)
            .fold(0, u64::saturating_add)
    }
}

#[derive(Default)]
struct Seen {
    threads: HashSet<Tid>,
    mappings: HashSet<Mapping>,
}
