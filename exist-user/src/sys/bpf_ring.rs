//! A BPF ring buffer (`BPF_MAP_TYPE_RINGBUF`): made, mapped and read.
//!
//! Takes: a size, or the descriptor of a ring that a loader made. Gives: the items, in order, in place.
//! Refuses: to go past an item that its producer has reserved and not yet committed.
//!
//! ```text
//!  | consumer page, ours | producer page | data: 2^n pages | the same pages again |
//!    consumer_pos          producer_pos    item: | len, busy, discard: u32 | page: u32 | bytes, to 8 |
//! ```
//! The second view of the data makes every item contiguous (kernel/bpf/ringbuf.c, `bpf_ringbuf_area_alloc`).
//! aya's own reader gives the room of each item back at once; this one does so for a whole batch, because the
//! producer on another CPU reads the consumer's position for each record, and it knows how full the ring is.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

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

/// What a drain found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingDrained {
    /// Bytes of the ring that were freed, headers included.
    pub bytes: u64,
    /// An item was reserved and not committed yet; it and what came after it stay.
    pub unfinished: bool,
}

impl BpfRing {
    /// Makes a ring with `data_bytes` of data, rounded up to a power of two of pages.
    ///
    /// # Errors
    /// EPERM without CAP_BPF (or CAP_SYS_ADMIN), ENOMEM when the memory cgroup is full.
    pub fn create(data_bytes: u32) -> io::Result<Self> {
        let page = u32::try_from(page_bytes()).unwrap_or(4096);
        let attr = CreateAttr {
            map_type: BPF_MAP_TYPE_RINGBUF,
            max_entries: data_bytes.max(page).next_power_of_two(),
            map_name: *b"exist_ring\0\0\0\0\0\0",
            ..CreateAttr::default()
        };
        // SAFETY: `attr` is a prefix of `union bpf_attr` for BPF_MAP_CREATE with its size; the kernel takes what is left out as 0.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, &raw const attr, size_of::<CreateAttr>()) };
        let fd = i32::try_from(fd).unwrap_or(-1);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor (close-on-exec), nobody else owns it.
        Self::map(unsafe { OwnedFd::from_raw_fd(fd) }, attr.max_entries)
    }

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

    /// Bytes reserved or written and not yet read.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.producer_pos()
            .load(Ordering::Acquire)
            .wrapping_sub(self.consumer_pos().load(Ordering::Relaxed))
    }

    /// Gives every committed item that was there at the call, in order.
    pub fn drain(&mut self, mut item: impl FnMut(&[u8])) -> RingDrained {
        let start = self.consumer_pos().load(Ordering::Relaxed);
        let end = self.producer_pos().load(Ordering::Acquire);
        let batch = self.data_bytes as u64 / BATCH_PARTS;
        let (mut at, mut given_back) = (start, start);
        let mut unfinished = false;
        while at != end {
            let offset = (at & (self.data_bytes as u64 - 1)) as usize;
            let header = self.header(offset).load(Ordering::Acquire);
            if header & BUSY != 0 {
                unfinished = true;
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
        RingDrained {
            bytes: at.wrapping_sub(start),
            unfinished,
        }
    }

    fn consumer_pos(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives; the kernel reads this aligned word and never writes it.
        unsafe { self.consumer.at.cast().as_ref() }
    }

    fn producer_pos(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives; the kernel writes this aligned word atomically.
        unsafe { self.producer.at.cast().as_ref() }
    }

    fn header(&self, offset: usize) -> &AtomicU32 {
        assert!(offset < self.data_bytes && offset.is_multiple_of(8));
        // SAFETY: within the data, by the assertion; the kernel commits an item with one atomic exchange of this word
        // (`bpf_ringbuf_commit`).
        unsafe { self.producer.at.byte_add(page_bytes() + offset).cast().as_ref() }
    }

    fn item(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset < self.data_bytes && len <= self.data_bytes - HEADER_BYTES);
        // SAFETY: within both views of the data, by the assertion. The item is committed, so the kernel does not write it
        // before its room is given back, which `drain` does after this borrow.
        unsafe {
            let at = self.producer.at.byte_add(page_bytes() + offset + HEADER_BYTES);
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

#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this is its only owner.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, protection: i32) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else in the process is touched.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { at, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: we mapped exactly this, and no reference into it outlives `self`.
        unsafe {
            libc::munmap(self.at.as_ptr().cast(), self.len);
        }
    }
}

fn page_bytes() -> usize {
    // SAFETY: sysconf has no conditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;

/// The beginning of `union bpf_attr` for BPF_MAP_CREATE, include/uapi/linux/bpf.h.
#[repr(C)]
#[derive(Default)]
struct CreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}
