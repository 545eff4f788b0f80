//! The rings of records, a ring for each CPU and one for records of life: items to events, gaps to losses.

use exist_common::{CpuState, RECORD_BYTES, Record};
use exist_trace::{
    file::model::{Loss, LossKind},
    units::{Cpu, MonoNs},
};

use crate::sys::bpf_ring::BpfRing;

/// What the hook gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A record. Those of one CPU come in order of time, but for synthetic ones (`MOVED`, `START`, `END`), which carry
    /// the time of what they tell; `Fork`, `Exec`, `Exit` and attaches come apart from the switches.
    Record(Record),
    /// Records that are missing, placed between two that are not.
    Loss(Loss),
}

/// What a drain moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drained {
    /// Bytes of the rings that were freed.
    pub bytes: u64,
    /// How full the fullest ring was, from 0 to 1: what an adaptive timer goes by.
    pub fill: f32,
    /// Every record stamped before this has been given by now, but for synthetic ones.
    pub complete_to: MonoNs,
}

/// One CPU's ring.
#[derive(Debug)]
pub struct Shard {
    pub cpu: u32,
    pub ring: BpfRing,
    /// Number of the next record, if none is lost.
    next: u16,
    /// Time of the last record.
    last: MonoNs,
    /// Losses that have been told.
    told: u64,
}

/// Gaps of a drain that wait for the counters, which say how often the 16 bits went round.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    pub shard: usize,
    pub records: u16,
    pub from: MonoNs,
    pub to: MonoNs,
}

impl Shard {
    pub fn new(cpu: u32, ring: BpfRing, start: MonoNs) -> Self {
        Self {
            cpu,
            ring,
            next: 0,
            last: start,
            told: 0,
        }
    }

    /// Time of the last record.
    pub const fn last(&self) -> MonoNs {
        self.last
    }

    /// Gives the records; notes gaps.
    pub fn drain(&mut self, index: usize, gaps: &mut Vec<Gap>, sink: &mut impl FnMut(Event)) -> (u64, bool) {
        let Self { ring, next, last, .. } = self;
        let drained = ring.drain(|item| {
            for record in records(item) {
                let missing = record.seq.wrapping_sub(*next);
                let time = MonoNs(record.time_ns);
                if missing != 0 {
                    gaps.push(Gap {
                        shard: index,
                        records: missing,
                        from: *last,
                        to: time,
                    });
                }
                *next = record.seq.wrapping_add(1);
                *last = time;
                sink(Event::Record(record));
            }
        });
        (drained.bytes, drained.unfinished)
    }

    /// The loss of a gap. `dropped` is what the CPU has counted by now, perhaps more than the gap's own.
    pub fn loss(&mut self, gap: Gap, dropped: u64) -> Loss {
        let untold = dropped.saturating_sub(self.told);
        let least = u64::from(gap.records);
        let rounds = untold.saturating_sub(least) >> 16;
        let records = least + (rounds << 16);
        self.told += records;
        self.loss_of(records, gap.from, gap.to)
    }

    /// What was counted as dropped and shows in no gap, because no record came after it.
    pub fn rest(&mut self, dropped: u64, now: MonoNs) -> Option<Loss> {
        let records = dropped.checked_sub(self.told).filter(|&records| records != 0)?;
        self.told = dropped;
        self.next = self.next.wrapping_add(records as u16);
        Some(self.loss_of(records, self.last, now))
    }

    fn loss_of(&self, records: u64, from: MonoNs, to: MonoNs) -> Loss {
        Loss {
            from,
            to,
            cpu: Some(Cpu(self.cpu)),
            kind: LossKind::RingFull,
            records,
            bytes: records * RECORD_BYTES as u64,
            reason: format!(
                "the ring of CPU {} ({} KiB) was full; larger rings or a less loaded node mend it",
                self.cpu,
                self.ring.data_bytes() >> 10
            ),
        }
    }
}

/// The records of an item: one, or two of one switch.
pub fn records(item: &[u8]) -> impl Iterator<Item = Record> {
    // The programs write nothing else, so nothing is left out here.
    item.chunks_exact(RECORD_BYTES)
        .filter_map(|bytes| Record::from_bytes(bytes).ok())
}

/// Losses that belong to no ring of switches: records of life, cgroups that did not fit. `told` is what was told before.
pub fn other_losses(cpu: u32, told: &mut CpuState, now: &CpuState, from: MonoNs, to: MonoNs) -> Vec<Loss> {
    let loss = |kind, records, reason: &str| Loss {
        from,
        to,
        cpu: Some(Cpu(cpu)),
        kind,
        records,
        bytes: 0,
        reason: reason.to_owned(),
    };
    let mut losses = Vec::new();
    let life = now.life_dropped - told.life_dropped;
    if life != 0 {
        let reason = "the ring of forks, execs and exits was full";
        losses.push(loss(LossKind::RingFull, life, reason));
    }
    let targets = now.targets_full - told.targets_full;
    if targets != 0 {
        let reason = "the map of the target's cgroups was full: cgroups made below it are not followed";
        losses.push(loss(LossKind::MapFull, targets, reason));
    }
    told.life_dropped = now.life_dropped;
    told.targets_full = now.targets_full;
    losses
}
