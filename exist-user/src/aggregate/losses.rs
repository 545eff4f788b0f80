//! Places lost switch records in time: from gaps in the sequence numbers, and from the hook's counters for what no gap shows.
//!
//! A switch record carries the low 16 bits of its CPU's count of produced records, dropped ones included. So a gap between
//! two neighbours says how many are missing there, but for multiples of 65,536; those come from the counters, and so do
//! the drops after a CPU's last record.

use std::collections::BTreeMap;

use exist_trace::{
    file::model::{CpuCounters, Loss, LossKind, Record, SwitchOp},
    units::{Cpu, MonoNs},
};

const REASON: &str = "a ring of the hook was full; `--ring-bytes` makes the rings larger";

#[derive(Debug, Default)]
struct OfCpu {
    /// Sequence number and time of the last record.
    last: Option<(u16, MonoNs)>,
    /// Records received.
    received: u64,
    /// Records that a [`Loss`] accounts for.
    placed: u64,
    counters: CpuCounters,
}

/// What was received, lost and counted on each CPU.
#[derive(Debug)]
pub struct LossTracker {
    start: MonoNs,
    cpus: BTreeMap<Cpu, OfCpu>,
}

impl LossTracker {
    /// Nothing is known before `start`.
    pub fn new(start: MonoNs) -> Self {
        Self {
            start,
            cpus: BTreeMap::new(),
        }
    }

    /// Takes the running totals of the hook.
    pub fn counters(&mut self, counters: &[CpuCounters]) {
        for &counters in counters {
            self.cpus.entry(counters.cpu).or_default().counters = counters;
        }
    }

    /// Takes the next record of a CPU; gives the loss that lies before it.
    pub fn record(&mut self, record: &Record) -> Option<Loss> {
        if !matches!(record.op(), Some(SwitchOp::In | SwitchOp::Out)) {
            return None; // these have no sequence number
        }
        let cpu = Cpu(record.cpu.into());
        let of_cpu = self.cpus.entry(cpu).or_default();
        of_cpu.received += 1;
        let time = MonoNs(record.time_ns);
        // A record that tells of an earlier moment does not set the clock back.
        let (expected, from) = of_cpu
            .last
            .map_or((1, self.start), |(seq, at)| (seq.wrapping_add(1), at));
        of_cpu.last = Some((record.seq, time.max(from)));
        let gap = u64::from(record.seq.wrapping_sub(expected));
        if gap == 0 {
            return None;
        }
        let unplaced = of_cpu.counters.dropped.saturating_sub(of_cpu.placed + gap);
        let records = gap + (unplaced & !0xffff);
        of_cpu.placed += records;
        Some(loss(cpu, from, time.max(from), records))
    }

    /// At the end of the recording, with its last counters taken: what no gap has shown.
    pub fn finish(&self, end: MonoNs) -> Vec<Loss> {
        let after_last = |(&cpu, of_cpu): (&Cpu, &OfCpu)| {
            let missing = of_cpu
                .counters
                .produced
                .saturating_sub(of_cpu.received)
                .max(of_cpu.counters.dropped);
            let records = missing.saturating_sub(of_cpu.placed);
            let from = of_cpu.last.map_or(self.start, |(_, at)| at);
            (records > 0).then(|| loss(cpu, from, end.max(from), records))
        };
        self.cpus.iter().filter_map(after_last).collect()
    }

    /// The running totals of every CPU that has any.
    pub fn totals(&self) -> Vec<CpuCounters> {
        self.cpus
            .values()
            .map(|of_cpu| of_cpu.counters)
            .filter(|counters| counters.produced > 0)
            .collect()
    }
}

fn loss(cpu: Cpu, from: MonoNs, to: MonoNs, records: u64) -> Loss {
    Loss {
        from,
        to,
        cpu: Some(cpu),
        kind: LossKind::RingFull,
        records,
        bytes: records * 32,
        reason: REASON.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cpu: u16, time_ns: u64, seq: u16) -> Record {
        Record {
            time_ns,
            ip: 0,
            pid: 1,
            tid: 1,
            cpu,
            op: SwitchOp::In as u8,
            flags: 0,
            state: 0,
            seq,
        }
    }

    fn counters(cpu: u32, produced: u64, dropped: u64) -> CpuCounters {
        CpuCounters {
            cpu: Cpu(cpu),
            on_cpu_ns: 0,
            produced,
            dropped,
        }
    }

    /// Losses as `cpu:from-to records`.
    fn check(records: &[(u16, u64, u16)], totals: &[CpuCounters], expect: &[&str]) {
        let mut tracker = LossTracker::new(MonoNs(100));
        tracker.counters(totals);
        let mut losses: Vec<_> = records
            .iter()
            .filter_map(|&(c, t, s)| tracker.record(&record(c, t, s)))
            .collect();
        losses.extend(tracker.finish(MonoNs(900)));
        let text: Vec<_> = losses
            .iter()
            .map(|l| format!("{}:{}-{} {}", l.cpu.map_or(u32::MAX, |c| c.0), l.from, l.to, l.records))
            .collect();
        assert_eq!(text, expect);
    }

    #[test]
    fn nothing_lost_is_nothing_said() {
        check(
            &[(0, 200, 1), (1, 210, 1), (0, 220, 2)],
            &[counters(0, 2, 0), counters(1, 1, 0)],
            &[],
        );
        check(&[], &[], &[]);
    }

    #[test]
    fn gaps_are_placed_on_their_cpu() {
        check(
            &[(0, 200, 1), (1, 210, 4), (0, 220, 7), (0, 230, 8)],
            &[counters(0, 8, 5), counters(1, 4, 3)],
            &["1:100-210 3", "0:200-220 5"],
        );
    }

    #[test]
    fn the_sequence_wraps() {
        let mut records: Vec<_> = (1..=65_535).map(|seq| (0, 200, seq)).collect();
        records.push((0, 300, 0));
        records.push((0, 400, 3));
        check(&records, &[counters(0, 65_539, 2)], &["0:300-400 2"]);
    }

    #[test]
    fn long_gaps_and_those_at_the_end_come_from_the_counters() {
        check(
            &[(0, 200, 1), (0, 300, 5)],
            &[counters(0, 65_541, 65_539)],
            &["0:200-300 65539"],
        );
        check(&[(0, 200, 1)], &[counters(0, 8, 7)], &["0:200-900 7"]);
        check(&[], &[counters(0, 65_540, 65_540)], &["0:100-900 65540"]);
        // Produced but neither received nor counted as dropped: still said.
        check(&[(0, 200, 1)], &[counters(0, 3, 0)], &["0:200-900 2"]);
    }
}
