//! The ring that the kernel shares with one perf event.
//!
//! ```text
//!  | control page | data: 2^n pages                      |
//!    data_head ──▶ written by the kernel, free-running: load with acquire
//!    data_tail ──▶ written by us, free-running: store with release, then the kernel may overwrite
//! ```

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use perf_event_open_sys::bindings::perf_event_mmap_page;

/// A mapping of a perf event's ring; unmapped on drop.
#[derive(Debug)]
pub struct Ring {
    page: NonNull<perf_event_mmap_page>,
    page_bytes: usize,
    data_bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Ring` is its only owner.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of an event with `data_bytes` of data, rounded up to a power of two of pages.
    ///
    /// # Errors
    /// EPERM when `perf_event_mlock_kb` and `RLIMIT_MEMLOCK` are used up, EINVAL when the event has a mapping already, ENOMEM.
    pub fn map(event: &impl AsFd, data_bytes: usize) -> io::Result<Self> {
        let page_bytes = page_bytes();
        let data_bytes = data_bytes.max(page_bytes).next_power_of_two();
        let len = page_bytes + data_bytes;
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else in the process is touched.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_fd().as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self {
            page,
            page_bytes,
            data_bytes,
        })
    }

    /// Appends everything that the kernel has written since the last call, whole records, and gives the room back.
    pub fn drain_into(&mut self, out: &mut Vec<u8>) {
        let head = self.head().load(Ordering::Acquire);
        let tail = self.tail().load(Ordering::Relaxed);
        for span in spans(tail, head, self.data_bytes) {
            // SAFETY: `spans` stays within the data area, which is mapped as long as `self` lives. The kernel does not
            // write between tail and head (`kernel/events/ring_buffer.c`, `__perf_output_begin`), and the acquire load
            // above made what it wrote there visible.
            out.extend_from_slice(unsafe {
                std::slice::from_raw_parts(
                    self.page.as_ptr().cast::<u8>().add(self.page_bytes + span.start),
                    span.len(),
                )
            });
        }
        self.tail().store(head, Ordering::Release);
    }

    /// The control page, mapped as long as `self` lives.
    pub(super) fn control(&self) -> NonNull<perf_event_mmap_page> {
        self.page
    }

    /// Bytes of the mapping: the control page and the data.
    pub(super) fn mapped_bytes(&self) -> usize {
        self.page_bytes + self.data_bytes
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: the control page is mapped as long as `self` lives, the field is an aligned u64, and both sides
        // access it atomically.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page.as_ptr()).data_head) }
    }

    fn tail(&self) -> &AtomicU64 {
        // SAFETY: as in `head`.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page.as_ptr()).data_tail) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `map` made exactly this mapping, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.page.as_ptr().cast(), self.mapped_bytes()) };
    }
}

/// Where the bytes from `tail` to `head`, both free-running, lie in a ring of `size` bytes (a power of two): one or two
/// spans. A distance above `size` (a broken control page) is cut to what the ring can hold.
fn spans(tail: u64, head: u64, size: usize) -> [Range<usize>; 2] {
    let mask = size as u64 - 1;
    let len = usize::try_from(head.wrapping_sub(tail)).unwrap_or(usize::MAX).min(size);
    let start = (tail & mask) as usize;
    let first = len.min(size - start);
    [start..start + first, 0..len - first]
}

fn page_bytes() -> usize {
    // SAFETY: takes and touches no memory.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("Linux always knows its page size")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tail: u64, head: u64, expect: [Range<usize>; 2]) {
        assert_eq!(spans(tail, head, 4096), expect, "tail {tail}, head {head}");
    }

    #[test]
    fn spans_wrap_and_never_leave_the_ring() {
        check(0, 0, [0..0, 0..0]);
        check(0, 24, [0..24, 0..0]);
        check(4000, 4096, [4000..4096, 0..0]);
        check(4000, 4136, [4000..4096, 0..40]);
        check(4096 * 7 + 8, 4096 * 8 + 8, [8..4096, 0..8]);
        check(u64::MAX - 95, 40, [4000..4096, 0..40]);
        // A head that lies behind the tail, or too far ahead.
        check(8, 0, [8..4096, 0..8]);
        check(0, 1 << 40, [0..4096, 0..0]);
    }
}
