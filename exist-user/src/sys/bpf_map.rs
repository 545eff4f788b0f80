//! BPF maps in our memory.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
};

/// A part of a map in our memory; unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this is its only owner.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes from `offset` (a multiple of the page) with `protection`.
    ///
    /// # Errors
    /// As mmap gives them: EINVAL for more than the map has, EPERM for a protection that it does not allow.
    pub fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, protection: i32) -> io::Result<Self> {
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

    /// Its first byte.
    pub const fn at(&self) -> NonNull<u8> {
        self.at
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

/// Bytes of a page.
pub fn page_bytes() -> usize {
    // SAFETY: sysconf has no conditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
