//! Sequence numbers → gaps, and whether the recorder's losses account for them.
//!
//! The switch records of a CPU (in and out, synthetic ones too) are numbered, dropped ones included. Records of a
//! thread's life come through a ring of their own and have no number.

use std::collections::HashMap;

use super::model::{CpuCounters, Loss, LossKind, Record, SwitchOp};
use crate::units::{Cpu, MonoNs};

/// Records of one CPU that are missing between two that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub cpu: Cpu,
    /// Index of the record after it, in its generation.
    pub before: usize,
    /// Time of the CPU's record before it and after it.
    pub from: MonoNs,
    pub to: MonoNs,
    /// How many, modulo 65536.
    pub records: u64,
}

/// Watches the records of a recording.
#[derive(Debug, Default)]
pub struct Gaps {
    cpus: HashMap<u16, (u16, u64)>,
    /// With the records that no loss accounts for yet.
    found: Vec<Gap>,
    /// With the records that no gap shows yet.
    said: Vec<Loss>,
    counters: HashMap<Cpu, CpuCounters>,
}

impl Gaps {
    /// Whether a record has a sequence number.
    fn is_numbered(record: &Record) -> bool {
        matches!(record.op(), Some(SwitchOp::In | SwitchOp::Out))
    }

    /// The gaps in one generation.
    pub fn generation(&mut self, records: &[Record], losses: &[Loss], counters: &[CpuCounters]) -> Vec<Gap> {
        let mut out = Vec::new();
        for (before, r) in records.iter().enumerate().filter(|(_, r)| Self::is_numbered(r)) {
            if let Some((last, from)) = self.cpus.insert(r.cpu, (r.seq, r.time_ns)) {
                let records = u64::from(r.seq.wrapping_sub(last).wrapping_sub(1));
                if records > 0 {
                    let (from, to) = (MonoNs(from), MonoNs(r.time_ns));
                    out.push(Gap {
                        cpu: Cpu(r.cpu.into()),
                        before,
                        from,
                        to,
                        records,
                    });
                }
            }
        }
        self.found.extend_from_slice(&out);
        self.said.extend(
            losses
                .iter()
                .filter(|l| l.records > 0 && is_of_switches(l.kind))
                .cloned(),
        );
        self.counters.extend(counters.iter().map(|c| (c.cpu, *c)));
        out
    }

    /// Generations are missing here: what follows is not compared with what was before.
    pub fn interrupted(&mut self) {
        self.cpus.clear();
    }

    /// At the end: losses that nothing accounts for, and losses that no gap shows (their times must do).
    pub fn finish(mut self) -> (Vec<Loss>, Vec<Loss>) {
        let dropped = total(self.said.iter().map(|l| l.records));
        self.settle();
        let mut unaccounted: Vec<Loss> = (self.found.iter().filter(|g| g.records > 0))
            .map(|g| Loss {
                from: g.from,
                to: g.to,
                cpu: Some(g.cpu),
                kind: LossKind::Unaccounted,
                records: g.records,
                bytes: 0,
                reason: "sequence numbers skip records that the recorder did not count as lost".into(),
            })
            .collect();
        let counted = total(self.counters.values().map(|c| c.dropped));
        let known = dropped.saturating_add(total(unaccounted.iter().map(|l| l.records)));
        if counted > known {
            unaccounted.push(Loss {
                from: MonoNs(0),
                to: MonoNs(u64::MAX),
                cpu: None,
                kind: LossKind::Unaccounted,
                records: counted - known,
                bytes: 0,
                reason: "the kernel counted more dropped records than the recorder placed in time".into(),
            });
        }
        self.said.retain(|l| l.records > 0);
        (unaccounted, self.said)
    }

    /// Takes from gaps and losses what explains each other: first CPU by CPU, then losses that belong to no CPU.
    fn settle(&mut self) {
        let mut by_cpu: HashMap<Option<Cpu>, (Vec<&mut Gap>, Vec<&mut Loss>)> = HashMap::new();
        for gap in &mut self.found {
            by_cpu.entry(Some(gap.cpu)).or_default().0.push(gap);
        }
        for loss in &mut self.said {
            by_cpu.entry(loss.cpu).or_default().1.push(loss);
        }
        for (gaps, losses) in by_cpu.values_mut() {
            settle(gaps, losses);
        }
        let (_, mut of_no_cpu) = by_cpu.remove(&None).unwrap_or_default();
        let mut left: Vec<_> = by_cpu
            .into_values()
            .flat_map(|(gaps, _)| gaps)
            .filter(|g| g.records > 0)
            .collect();
        left.sort_by_key(|g| (g.to, g.cpu));
        settle(&mut left, &mut of_no_cpu);
    }
}

/// A file may say anything: a sum of its numbers does not wrap.
fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Both in the order of time.
fn settle(gaps: &mut [&mut Gap], losses: &mut [&mut Loss]) {
    let mut at = 0;
    for loss in losses {
        while let Some(gap) = gaps.get_mut(at).filter(|g| g.from <= loss.to && loss.records > 0) {
            if gap.to >= loss.from {
                let both = gap.records.min(loss.records);
                gap.records -= both;
                loss.records -= both;
                if gap.records > 0 {
                    break;
                }
            }
            at += 1;
        }
    }
}

const fn is_of_switches(kind: LossKind) -> bool {
    matches!(kind, LossKind::RingFull | LossKind::Write | LossKind::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cpu: u16, seq: u16, time_ns: u64) -> Record {
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

    fn loss(from: u64, to: u64, cpu: u32, records: u64) -> Loss {
        Loss {
            from: MonoNs(from),
            to: MonoNs(to),
            cpu: Some(Cpu(cpu)),
            kind: LossKind::RingFull,
            records,
            bytes: 0,
            reason: String::new(),
        }
    }

    type Expect<'a> = (&'a [(u32, u64, u64, u64)], &'a [u64], &'a [u64]);

    /// `records` are (cpu, seq, time), `losses` (from, to, cpu, records); gives gaps as (cpu, from, to, records), what
    /// nothing accounts for and what no gap shows.
    fn check(records: &[(u16, u16, u64)], losses: &[(u64, u64, u32, u64)], expect: Expect) {
        let mut gaps = Gaps::default();
        let records: Vec<_> = records.iter().map(|&(cpu, seq, t)| record(cpu, seq, t)).collect();
        let losses: Vec<_> = losses
            .iter()
            .map(|&(from, to, cpu, n)| loss(from, to, cpu, n))
            .collect();
        let found = gaps.generation(&records, &losses, &[]);
        let found: Vec<_> = found.iter().map(|g| (g.cpu.0, g.from.0, g.to.0, g.records)).collect();
        let (unaccounted, unseen) = gaps.finish();
        let counts = |l: Vec<Loss>| l.iter().map(|l| l.records).collect::<Vec<_>>();
        assert_eq!(
            (&*found, &*counts(unaccounted), &*counts(unseen)),
            expect,
            "{records:?} {losses:?}"
        );
    }

    #[test]
    fn gaps_are_found_for_each_cpu_and_settled_with_losses() {
        check(
            &[(0, 65534, 10), (1, 7, 11), (0, 65535, 12), (0, 0, 13), (1, 8, 14)],
            &[],
            (&[], &[], &[]),
        );
        check(
            &[(0, 1, 10), (1, 7, 11), (0, 4, 20)],
            &[],
            (&[(0, 10, 20, 2)], &[2], &[]),
        );
        check(
            &[(0, 1, 10), (0, 4, 20)],
            &[(5, 15, 0, 2)],
            (&[(0, 10, 20, 2)], &[], &[]),
        );
        check(
            &[(0, 1, 10), (0, 4, 20)],
            &[(5, 15, 1, 2)],
            (&[(0, 10, 20, 2)], &[2], &[2]),
        );
        check(
            &[(0, 1, 10), (0, 4, 20)],
            &[(0, 9, 0, 2)],
            (&[(0, 10, 20, 2)], &[2], &[2]),
        );
        check(
            &[(0, 1, 10), (0, 4, 20), (0, 9, 30)],
            &[(5, 40, 0, 5)],
            (&[(0, 10, 20, 2), (0, 20, 30, 4)], &[1], &[]),
        );
        // More than the 16 bits of the number can show.
        check(
            &[(0, 1, 10), (0, 4, 20)],
            &[(5, 15, 0, 65538)],
            (&[(0, 10, 20, 2)], &[], &[65536]),
        );
        // Dropped after the CPU's last record: no gap shows it.
        check(&[(0, 1, 10)], &[(15, 20, 0, 3)], (&[], &[], &[3]));
    }

    #[test]
    fn what_the_kernel_counted_beyond_all_losses_is_said() {
        let mut gaps = Gaps::default();
        let counters = [CpuCounters {
            cpu: Cpu(0),
            on_cpu_ns: 0,
            produced: 9,
            dropped: 5,
        }];
        gaps.generation(&[], &[loss(1, 2, 0, 3)], &counters);
        let (unaccounted, unseen) = gaps.finish();
        assert_eq!((unaccounted.len(), unaccounted[0].records, unseen.len()), (1, 2, 1));
    }
}
