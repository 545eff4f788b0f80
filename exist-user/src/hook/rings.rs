//! The rings of records, a ring for each CPU and one for records of life: items to events, gaps to losses.

use exist_common::{CpuState, RECORD_BYTES, Record, Wait};
use exist_trace::{
    file::model::{Loss, LossKind},
    units::{Cpu, MonoNs},
};

use super::tally::{Gap, Tally};
use crate::sys::cpu_ring::{CpuRing, RingDrained};

/// What the hook gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A record. Those of one CPU come in order of time, but for synthetic ones (`MOVED`, `START`, `END`), which carry
    /// the time of what they tell; `Fork`, `Exec`, `Exit` and attaches come apart from the switches.
    Record(Record),
    /// A wait of a thread; those of one drain come in the order of their ends, nearly.
    Wait(Wait),
    /// Records that are missing, placed between two that are not.
    Loss(Loss),
}

/// What a drain moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drained {
    /// Records of switches and of life.
    pub records: u64,
    /// How full the fullest ring was, from 0 to 1: what an adaptive timer goes by.
    pub fill: f32,
    /// Every record stamped before this has been given by now, but for synthetic ones.
    pub complete_to: MonoNs,
}

/// One CPU's ring.
#[derive(Debug)]
pub struct Shard {
    pub cpu: u32,
    pub ring: CpuRing,
    /// What it has lost.
    pub tally: Tally,
}

impl Shard {
    pub const fn new(cpu: u32, ring: CpuRing, start: MonoNs) -> Self {
        Self {
            cpu,
            ring,
            tally: Tally::new(start),
        }
    }

    /// Gives the records, then the losses between them.
    pub fn drain(&mut self, sink: &mut impl FnMut(Event)) -> RingDrained {
        let Self { ring, tally, .. } = self;
        let mut gaps = Vec::new();
        let drained = ring.drain(|bytes| {
            // The programs write nothing else, so nothing is left out here.
            if let Ok(record) = Record::from_bytes(bytes) {
                gaps.extend(tally.record(record.seq, MonoNs(record.time_ns)));
                sink(Event::Record(record));
            }
        });
        if let Some(last) = gaps.last_mut() {
            tally.settle(last);
        }
        for gap in gaps {
            sink(Event::Loss(self.loss(gap)));
        }
        drained
    }

    /// What was counted as dropped and shows in no gap, because no record came after it.
    pub fn rest(&mut self, dropped: u64, now: MonoNs) -> Option<Loss> {
        self.tally.rest(dropped, now).map(|gap| self.loss(gap))
    }

    fn loss(&self, gap: Gap) -> Loss {
        let Gap { records, from, to } = gap;
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

/// A counter of the hook that belongs to no ring of switches, and what its rising means.
struct Counter {
    count: fn(&CpuState) -> u64,
    kind: LossKind,
    /// Whether each one counted is a record that is missing.
    is_records: bool,
    reason: &'static str,
}

const COUNTERS: [Counter; 6] = [
    Counter {
        count: |cpu| cpu.life_dropped,
        kind: LossKind::RingFull,
        is_records: true,
        reason: "the ring of forks, execs and exits was full",
    },
    Counter {
        count: |cpu| cpu.waits_dropped,
        kind: LossKind::WaitsLost,
        is_records: true,
        reason: "the ring of waits was full: larger rings (--ring-bytes) or --waits off mend it",
    },
    Counter {
        count: |cpu| cpu.waiting_full,
        kind: LossKind::WaitsLost,
        is_records: true,
        reason: "the map of waiting threads was full: waits of some are not in the trace",
    },
    Counter {
        count: |cpu| cpu.waits_missed,
        kind: LossKind::WaitsLost,
        is_records: true,
        reason: "the kernel did not run the hook when a wait began or ended: it may keep tracing away from some of its tasks",
    },
    Counter {
        count: |cpu| cpu.targets_full,
        kind: LossKind::MapFull,
        is_records: true,
        reason: "the map of the target's cgroups was full: cgroups made below it are not followed",
    },
    Counter {
        count: |cpu| cpu.notices_dropped,
        kind: LossKind::Other,
        is_records: false,
        reason: "the ring of notices was full: the target may have come to CPUs that are not traced",
    },
];

/// Losses that belong to no ring of switches: records of life, waits, cgroups that did not fit, notices. `told` is what was
/// told before.
pub fn other_losses(cpu: u32, told: &mut CpuState, now: &CpuState, from: MonoNs, to: MonoNs) -> Vec<Loss> {
    let losses = COUNTERS
        .iter()
        .filter_map(|counter| {
            let rise = (counter.count)(now) - (counter.count)(told);
            (rise != 0).then(|| Loss {
                from,
                to,
                cpu: Some(Cpu(cpu)),
                kind: counter.kind,
                records: if counter.is_records { rise } else { 0 },
                bytes: 0,
                reason: match counter.is_records {
                    true => counter.reason.to_owned(),
                    false => format!("{} ({rise} dropped)", counter.reason),
                },
            })
        })
        .collect();
    *told = *now;
    losses
}
