//! What a CPU's ring lost: the gaps in its records' numbers, and how large each is.
//!
//! A record carries 16 bits of its number, the CPU's counter of dropped records all 64, but the counter is read at another
//! moment than the records. A gap's size is therefore known modulo 65,536, and the counter, read while the ring is still full
//! (so before a drain gives back room), is the least that was dropped before the next record: it says how often the 16 bits
//! went round. What is told never exceeds what was dropped, and after the end it equals it.

use exist_trace::units::MonoNs;

/// Records that are missing between two that are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    pub records: u64,
    pub from: MonoNs,
    pub to: MonoNs,
}

/// The count of one CPU's ring.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// Number of the next record, if none is lost.
    next: u16,
    /// Time of the last record.
    last: MonoNs,
    /// Losses that have been told.
    told: u64,
    /// Dropped before any record that is written after the last drain began.
    known: u64,
}

impl Tally {
    pub const fn new(start: MonoNs) -> Self {
        Self {
            next: 0,
            last: start,
            told: 0,
            known: 0,
        }
    }

    /// Time of the last record.
    pub const fn last(&self) -> MonoNs {
        self.last
    }

    /// Takes a record; gives the gap before it.
    pub fn record(&mut self, seq: u16, time: MonoNs) -> Option<Gap> {
        let missing = u64::from(seq.wrapping_sub(self.next));
        let from = self.last;
        self.next = seq.wrapping_add(1);
        self.last = time;
        self.told += missing;
        (missing != 0).then_some(Gap {
            records: missing,
            from,
            to: time,
        })
    }

    /// After a drain that found gaps: the rounds that the 16 bits of the last one have missed.
    pub fn settle(&mut self, last: &mut Gap) {
        let rounds = self.known.saturating_sub(self.told).div_ceil(1 << 16);
        self.told += rounds << 16;
        last.records += rounds << 16;
    }

    /// Takes the CPU's counter as read before a drain gave back room.
    pub fn know(&mut self, dropped: u64) {
        self.known = dropped;
    }

    /// What was dropped and shows in no gap. Only when no record can come any more.
    pub fn rest(&mut self, dropped: u64, now: MonoNs) -> Option<Gap> {
        let records = dropped.checked_sub(self.told).filter(|&records| records != 0)?;
        self.told = dropped;
        self.next = self.next.wrapping_add(records as u16);
        Some(Gap {
            records,
            from: self.last,
            to: now,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CPU and its ring: `capacity` records fit.
    struct Cpu {
        number: u64,
        dropped: u64,
        ring: Vec<u16>,
        capacity: usize,
    }

    impl Cpu {
        fn produce(&mut self, records: u64) {
            for _ in 0..records {
                if self.ring.len() < self.capacity {
                    self.ring.push(self.number as u16);
                } else {
                    self.dropped += 1;
                }
                self.number += 1;
            }
        }
    }

    /// Each step: records before the counter is read, records between that and the drain, both while the ring may be full.
    fn check(capacity: usize, steps: &[(u64, u64)]) {
        let mut cpu = Cpu {
            number: 0,
            dropped: 0,
            ring: Vec::new(),
            capacity,
        };
        let mut tally = Tally::new(MonoNs(0));
        let (mut told, mut read) = (0, 0);
        for (step, &(before, between)) in steps.iter().enumerate() {
            cpu.produce(before);
            let counted = cpu.dropped;
            cpu.produce(between);
            let mut last: Option<Gap> = None;
            for seq in cpu.ring.drain(..) {
                read += 1;
                if let Some(gap) = tally.record(seq, MonoNs(step as u64)) {
                    told += last.replace(gap).map_or(0, |gap| gap.records);
                }
            }
            if let Some(gap) = &mut last {
                tally.settle(gap);
                told += gap.records;
            }
            tally.know(counted);
            assert!(told <= cpu.dropped, "step {step}: told {told}, dropped {}", cpu.dropped);
        }
        told += tally.rest(cpu.dropped, MonoNs(99)).map_or(0, |gap| gap.records);
        assert_eq!(told, cpu.dropped);
        assert_eq!(read + told, cpu.number);
        assert_eq!(tally.rest(cpu.dropped, MonoNs(99)), None);
    }

    #[test]
    fn nothing_lost_tells_nothing() {
        check(100, &[(50, 0), (100, 0), (0, 0), (99, 1)]);
    }

    #[test]
    fn a_loss_shows_in_the_next_gap_or_at_the_end() {
        check(100, &[(150, 0), (10, 0)]);
        check(100, &[(150, 0)]);
        check(100, &[(150, 7), (250, 0), (3, 0)]);
    }

    #[test]
    fn losses_of_more_than_16_bits_are_counted_once() {
        check(1000, &[(400_000, 0), (10, 0)]);
        check(1000, &[(400_000, 100_000), (10, 0), (400_000, 200_000), (5, 0)]);
        check(1000, &[(65_536 + 1000, 0), (65_536 + 1000, 0), (1, 0)]);
    }

    #[test]
    fn a_counter_read_late_is_never_told_twice() {
        // The drain finds a gap; by the next one the CPU has dropped much more.
        check(1000, &[(1_500, 0), (900_000, 70_000), (900_000, 0), (20, 0)]);
    }
}
