//! A CPU's ring of records ([`exist_common::ring`]): mapped and read.
//!
//! Takes: the map of all rings. Gives: the records, in order, in place. Refuses: to go past a record that is
//! being written.

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use exist_common::{
    RECORD_BYTES,
    ring::{self, Slot},
};

use super::bpf_map::Mapping;

/// Room is given back after so many parts of the ring: not for each record, as the CPU that writes would have to fetch
/// the word each time.
const BATCH_PARTS: u64 = 8;

/// A CPU's ring, mapped; unmapped on drop.
#[derive(Debug)]
pub struct CpuRing {
    memory: Mapping,
    records: u32,
    /// What word [`ring::READ`] says; only we write it.
    read: u64,
}

/// What a drain found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingDrained {
    /// Records given.
    pub records: u64,
    /// Records were being written during the drain; they were not given.
    pub unfinished: bool,
}

impl CpuRing {
    /// Maps the ring of `cpu` from the map of all rings, each with room for `records`.
    ///
    /// # Errors
    /// EINVAL unless `records` is a power of two of at least [`ring::LEAST_RECORDS`], and when the map has no such ring.
    pub fn map(rings: BorrowedFd<'_>, cpu: u32, records: u32) -> io::Result<Self> {
        if !records.is_power_of_two() || records < ring::LEAST_RECORDS {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let bytes = ring::stride(records) as usize * RECORD_BYTES;
        let memory = Mapping::new(rings, cpu as usize * bytes, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(Self {
            memory,
            records,
            read: 0,
        })
    }

    /// Bytes of the records that it can hold.
    #[must_use]
    pub const fn data_bytes(&self) -> usize {
        self.records as usize * RECORD_BYTES
    }

    /// How full it is, from 0 to 1.
    #[must_use]
    pub fn fill(&self) -> f32 {
        let written = self.word(ring::WRITER, ring::WRITTEN).load(Ordering::Relaxed);
        written.wrapping_sub(self.read) as f32 / self.records as f32
    }

    /// Gives every record that was written at the call, in order.
    pub fn drain(&mut self, mut record: impl FnMut(&[u8; RECORD_BYTES])) -> RingDrained {
        // In this order: what is reserved between the two shows as unfinished.
        let written = self.word(ring::WRITER, ring::WRITTEN).load(Ordering::Acquire);
        let reserved = self.word(ring::WRITER, ring::RESERVED).load(Ordering::Acquire);
        // Never more than there is room for, whatever the word says.
        let waiting = written.wrapping_sub(self.read).min(u64::from(self.records));
        let end = self.read + waiting;
        let batch = (u64::from(self.records) / BATCH_PARTS).max(1);
        for number in self.read..end {
            record(self.record(number));
            if (number + 1).is_multiple_of(batch) {
                self.give_back(number + 1);
            }
        }
        self.give_back(end);
        RingDrained {
            records: waiting,
            unfinished: reserved != written,
        }
    }

    fn give_back(&mut self, read: u64) {
        self.read = read;
        self.word(ring::READER, ring::READ).store(read, Ordering::Release);
    }

    fn word(&self, slot: u32, word: usize) -> &AtomicU64 {
        assert!(slot < ring::FIRST && word < size_of::<Slot>() / 8);
        // SAFETY: within the headers, by the assertion; the kernel writes these aligned words with single stores.
        unsafe { self.slot(slot).cast::<AtomicU64>().add(word).as_ref() }
    }

    fn record(&self, number: u64) -> &[u8; RECORD_BYTES] {
        let place = (number % u64::from(self.records)) as u32;
        // SAFETY: within the records. Written, so the kernel does not write it before its room is given back, which
        // `drain` does after this borrow.
        unsafe { self.slot(ring::FIRST + place).cast::<[u8; RECORD_BYTES]>().as_ref() }
    }

    fn slot(&self, slot: u32) -> NonNull<u8> {
        assert!(slot < ring::FIRST + self.records);
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.memory.at().byte_add(slot as usize * RECORD_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, FromRawFd, OwnedFd};

    use super::*;

    const RECORDS: u64 = ring::LEAST_RECORDS as u64;

    /// Memory for two CPUs' rings.
    fn memory() -> OwnedFd {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"rings".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel just gave us this descriptor, nobody else owns it.
        let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let bytes = 2 * ring::stride(ring::LEAST_RECORDS) as usize * RECORD_BYTES;
        file.set_len(bytes as u64).unwrap();
        file.into()
    }

    /// A ring, with this test in the place of the programs.
    fn ring() -> CpuRing {
        CpuRing::map(memory().as_fd(), 1, ring::LEAST_RECORDS).unwrap()
    }

    impl CpuRing {
        fn write(&self, number: u64) {
            self.word(ring::WRITER, ring::RESERVED)
                .store(number + 1, Ordering::Relaxed);
            let place = (number % u64::from(self.records)) as u32;
            // SAFETY: the place of a record that no borrow is on.
            unsafe { self.slot(ring::FIRST + place).cast::<Slot>().write([number; 4]) };
            self.word(ring::WRITER, ring::WRITTEN)
                .store(number + 1, Ordering::Release);
        }

        fn numbers(&mut self) -> (Vec<u64>, bool) {
            let mut numbers = Vec::new();
            let drained = self.drain(|record| {
                let (words, _) = record.as_chunks::<8>();
                assert!(words.iter().all(|word| word == &words[0]), "a torn record: {record:?}");
                numbers.push(u64::from_le_bytes(words[0]));
            });
            assert_eq!(drained.records, numbers.len() as u64);
            (numbers, drained.unfinished)
        }
    }

    #[test]
    fn records_come_in_order_across_the_end_of_the_ring() {
        let mut ring = ring();
        let mut next = 0;
        for count in [0, 3, RECORDS, 1, RECORDS - 1, RECORDS, RECORDS, 2] {
            (next..next + count).for_each(|number| ring.write(number));
            assert!((ring.fill() - count as f32 / RECORDS as f32).abs() < 1e-6);
            assert_eq!(ring.numbers(), ((next..next + count).collect(), false));
            next += count;
            assert_eq!(ring.word(ring::READER, ring::READ).load(Ordering::Relaxed), next);
        }
    }

    #[test]
    fn a_record_that_is_being_written_is_not_given() {
        let mut ring = ring();
        ring.write(0);
        ring.word(ring::WRITER, ring::RESERVED).store(3, Ordering::Relaxed);
        assert_eq!(ring.numbers(), (vec![0], true));
        assert_eq!(ring.numbers(), (vec![], true));
        ring.write(1);
        ring.write(2);
        assert_eq!(ring.numbers(), (vec![1, 2], false));
    }

    #[test]
    fn a_mad_counter_gives_no_more_than_the_ring_holds() {
        let mut ring = ring();
        for word in [ring::RESERVED, ring::WRITTEN] {
            ring.word(ring::WRITER, word).store(u64::MAX, Ordering::Relaxed);
        }
        assert_eq!(ring.drain(|_| ()).records, RECORDS);
    }

    #[test]
    fn rings_do_not_overlap() {
        let memory = memory();
        let mut rings = [0, 1].map(|cpu| CpuRing::map(memory.as_fd(), cpu, ring::LEAST_RECORDS).unwrap());
        (0..RECORDS).for_each(|number| rings[0].write(number));
        assert_eq!(rings[1].numbers(), (vec![], false));
        (0..RECORDS).for_each(|number| rings[1].write(number));
        assert_eq!(rings[0].numbers(), ((0..RECORDS).collect(), false));
    }

    #[test]
    fn a_reader_beside_the_writer_loses_and_tears_nothing() {
        const TOTAL: u64 = 200_000;
        let memory = memory();
        let map = || CpuRing::map(memory.as_fd(), 0, ring::LEAST_RECORDS).unwrap();
        let (writer, mut reader) = (map(), map());
        let mut next = 0;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..TOTAL {
                    while number - writer.word(ring::READER, ring::READ).load(Ordering::Acquire) >= RECORDS {
                        std::thread::yield_now();
                    }
                    writer.write(number);
                }
            });
            while next < TOTAL {
                for number in reader.numbers().0 {
                    assert_eq!(number, next);
                    next += 1;
                }
            }
        });
    }

    #[test]
    fn sizes_that_the_programs_cannot_use_are_refused() {
        for records in [0, 1, ring::LEAST_RECORDS - 1, ring::LEAST_RECORDS + 1, u32::MAX] {
            let error = CpuRing::map(memory().as_fd(), 0, records).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{records}");
        }
    }
}
