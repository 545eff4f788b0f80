//! When threads ran, by their switch records, and when that was while the CPU's trace was not recorded.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use crate::{
    file::model::{Record, SwitchOp},
    units::{Cpu, MonoNs, Tid},
};

/// A stay of a thread on a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub tid: Tid,
    pub cpu: Cpu,
    pub time: Range<MonoNs>,
}

/// When a CPU's stream begins and ends.
pub type Spans = HashMap<Cpu, (MonoNs, MonoNs)>;

/// The stays that have both ends, in the order of their ends.
pub fn runs(records: &[Record]) -> impl Iterator<Item = Run> {
    let mut running: HashMap<u32, Record> = HashMap::new();
    records.iter().filter_map(move |record| match record.op()? {
        SwitchOp::In => {
            running.insert(record.tid, *record);
            None
        }
        SwitchOp::Out => {
            let start = running.remove(&record.tid)?;
            let from = MonoNs(start.time_ns);
            Some(Run {
                tid: Tid(record.tid),
                cpu: Cpu(start.cpu.into()),
                time: from..MonoNs(record.time_ns).max(from),
            })
        }
        _ => None,
    })
}

impl Run {
    /// How long its CPU's trace was recorded, nanoseconds.
    pub fn traced_ns(&self, spans: &Spans) -> u64 {
        spans.get(&self.cpu).map_or(0, |(first, last)| {
            self.time.end.min(*last).0.saturating_sub(self.time.start.max(*first).0)
        })
    }
}

/// When each thread ran unseen, in order.
#[derive(Debug, Default)]
pub struct Unseen(BTreeMap<Tid, Vec<Range<MonoNs>>>);

impl Unseen {
    pub fn new(records: &[Record], spans: &Spans) -> Self {
        let mut unseen: BTreeMap<Tid, Vec<Range<MonoNs>>> = BTreeMap::new();
        for run in runs(records) {
            let time = &run.time;
            let parts = match spans.get(&run.cpu) {
                Some((first, last)) => [time.start..time.end.min(*first), time.start.max(*last)..time.end],
                None => [time.clone(), time.end..time.end],
            };
            let parts = parts.into_iter().filter(|part| !part.is_empty());
            unseen.entry(run.tid).or_default().extend(parts);
        }
        Self(unseen)
    }

    /// Whether the thread ran unseen between two moments.
    pub fn between(&self, tid: Tid, from: MonoNs, to: MonoNs) -> bool {
        let parts = self.0.get(&tid).map(Vec::as_slice).unwrap_or_default();
        let first = parts.partition_point(|part| part.end <= from);
        parts.get(first).is_some_and(|part| part.start < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records as `in|out TIME TID CPU`; streams as (CPU, first, last).
    fn unseen(program: &str, streams: &[(u32, u64, u64)]) -> Unseen {
        let record = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let n = |i: usize| words[i].parse::<u64>().unwrap();
            let op = if words[0] == "in" { SwitchOp::In } else { SwitchOp::Out };
            Record {
                time_ns: n(1),
                ip: 0,
                pid: 1,
                tid: n(2) as u32,
                cpu: n(3) as u16,
                op: op as u8,
                flags: 0,
                state: 0,
                seq: 0,
            }
        };
        let records: Vec<Record> = program.split(',').map(record).collect();
        let spans = streams.iter().map(|(cpu, a, b)| (Cpu(*cpu), (MonoNs(*a), MonoNs(*b))));
        Unseen::new(&records, &spans.collect())
    }

    #[test]
    fn what_ran_before_after_and_without_a_stream_is_unseen() {
        let program =
            "in 100 1 0, out 200 1 0, in 300 1 1, out 400 1 1, in 500 1 2, out 600 1 2, in 700 1 0, out 900 1 0";
        let unseen = unseen(program, &[(0, 90, 800), (1, 350, 2000)]);
        let check = |from, to, expect| {
            let found = unseen.between(Tid(1), MonoNs(from), MonoNs(to));
            assert_eq!(found, expect, "{from}..{to}");
        };
        check(100, 300, false);
        check(200, 301, true);
        check(200, 700, true);
        check(350, 500, false);
        check(400, 501, true);
        check(600, 800, false);
        check(799, 900, true);
        check(900, 1000, false);
        assert!(!unseen.between(Tid(2), MonoNs(0), MonoNs(1000)));
    }
}
