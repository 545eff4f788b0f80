//! A BPF ring buffer (`BPF_MAP_TYPE_RINGBUF`): mapped and read.
//!
//! Takes: the descriptor of a ring that a loader made. Gives: the items, in order, in place.
//! Refuses: to go past an item that its producer has reserved and not yet committed.
//!
//! ```text
//!  | consumer page, ours | producer page | data: 2^n pages | the same pages again |
//!    consumer_pos          producer_pos    item: | len, busy, discard: u32 | page: u32 | bytes, to 8 |
//! ```
//! The second view of the data makes every item contiguous (kernel/bpf/ringbuf.c, `bpf_ringbuf_area_alloc`).
//! aya's own reader gives the room of each item back at once; this one does so for a whole batch, because the
//! producers on other CPUs read the consumer's position for each item.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use super::bpf_map::{Mapping, page_bytes};

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: usize = 8;
/// Room is given back after so many bytes, a part of the ring.
const BATCH_PARTS: u64 = 8;

/// A ring and its mappings; all released on drop.
#[derive(Debug)]
pub struct BpfRing {
    fd: OwnedFd,
    consumer: Mapping,
    producer: Mapping,
    data_bytes: usize,
}

impl BpfRing {
    /// Maps a ring that exists, with `data_bytes` of data.
    ///
    /// # Errors
    /// As mmap gives them: EINVAL when the size is not the ring's.
    pub fn map(fd: OwnedFd, data_bytes: u32) -> io::Result<Self> {
        let data_bytes = usize::try_from(data_bytes).map_err(io::Error::other)?;
        let page = page_bytes();
        let consumer = Mapping::new(fd.as_fd(), 0, page, libc::PROT_READ | libc::PROT_WRITE)?;
        let producer = Mapping::new(fd.as_fd(), page, page + 2 * data_bytes, libc::PROT_READ)?;
        Ok(Self {
            fd,
            consumer,
            producer,
            data_bytes,
        })
    }

    /// Size of its data.
    #[must_use]
    pub const fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Gives every item that was there at the call, in order, up to the first that is not committed yet.
    pub fn drain(&mut self, mut item: impl FnMut(&[u8])) {
        let start = self.consumer_pos().load(Ordering::Relaxed);
        let end = self.producer_pos().load(Ordering::Acquire);
        let batch = self.data_bytes as u64 / BATCH_PARTS;
        let (mut at, mut given_back) = (start, start);
        while at != end {
            let offset = (at & (self.data_bytes as u64 - 1)) as usize;
            let header = self.header(offset).load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let len = (header & !(BUSY | DISCARDED)) as usize;
            if header & DISCARDED == 0 {
                item(self.item(offset, len));
            }
            at = at.wrapping_add((HEADER_BYTES + len).next_multiple_of(8) as u64);
            if at.wrapping_sub(given_back) >= batch {
                self.consumer_pos().store(at, Ordering::Release);
                given_back = at;
            }
        }
        self.consumer_pos().store(at, Ordering::Release);
    }

    fn consumer_pos(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives; the kernel reads this aligned word and never writes it.
        unsafe { self.consumer.at().cast().as_ref() }
    }

    fn producer_pos(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives; the kernel writes this aligned word atomically.
        unsafe { self.producer.at().cast().as_ref() }
    }

    fn header(&self, offset: usize) -> &AtomicU32 {
        assert!(offset < self.data_bytes && offset.is_multiple_of(8));
        // SAFETY: within the data, by the assertion; the kernel commits an item with one atomic exchange of this word
        // (`bpf_ringbuf_commit`).
        unsafe { self.producer.at().byte_add(page_bytes() + offset).cast().as_ref() }
    }

    fn item(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset < self.data_bytes && len <= self.data_bytes - HEADER_BYTES);
        // SAFETY: within both views of the data, by the assertion. The item is committed, so the kernel does not write it
        // before its room is given back, which `drain` does after this borrow.
        unsafe {
            let at = self.producer.at().byte_add(page_bytes() + offset + HEADER_BYTES);
            std::slice::from_raw_parts(at.as_ptr().cast_const(), len)
        }
    }
}

impl AsFd for BpfRing {
    /// Readable when an item was committed with a wake-up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for BpfRing {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}
