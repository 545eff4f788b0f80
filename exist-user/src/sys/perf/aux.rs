//! An event that writes into an AUX area (Intel PT), with that area in full mode: what is written stays until the event
//! is closed, and a full area stops the writing.
//!
//! ```text
//!  ring:  | control page | data: AUX, ITRACE_START, LOST records |
//!  area:  | 2^n pages: bytes 0..aux_head are written              |   aux_tail stays 0
//! ```
//!
//! The area's bytes are given out only while the event is disabled: nothing writes then, so a slice of them is sound.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use perf_event_open_sys::bindings::perf_event_attr;

use super::{Event, Ring};

/// Room for the records of a window: some tens of AUX records of 64 bytes.
const RECORDS_BYTES: usize = 1 << 12;

/// An AUX event on one logical CPU; disabled, unmapped and closed on drop.
#[derive(Debug)]
pub struct AuxEvent {
    // The area before the ring and the event: the kernel ends the AUX transaction when the area is unmapped.
    area: Area,
    ring: Ring,
    event: Event,
    enabled: bool,
}

impl AuxEvent {
    /// Opens the event and maps an area of `area_bytes`, a power of two of pages. The kernel allocates and zeroes it now.
    ///
    /// # Errors
    /// [`Step::Open`]: EBUSY (another one holds the CPU's tracer), EACCES, EINVAL (the attribute), ENODEV (CPU offline).
    /// [`Step::Map`]: EPERM (locked memory used up), ENOMEM. A smaller area may go.
    pub fn open(attr: &perf_event_attr, cpu: u32, area_bytes: usize) -> Result<Self, (Step, io::Error)> {
        let event = Event::open_on_cpu(attr, cpu).map_err(|error| (Step::Open, error))?;
        let ring = Ring::map(&event, RECORDS_BYTES).map_err(|error| (Step::Map, error))?;
        let area = Area::map(&event, &ring, area_bytes).map_err(|error| (Step::Map, error))?;
        Ok(Self {
            area,
            ring,
            event,
            enabled: false,
        })
    }

    /// Starts the tracer: one operation.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enable(&mut self) -> io::Result<()> {
        self.enabled = true;
        self.event.enable()
    }

    /// Stops the tracer: one operation. Everything it wrote is then in the area.
    ///
    /// # Errors
    /// What the kernel says; the bytes are not given out then.
    pub fn disable(&mut self) -> io::Result<()> {
        self.event.disable()?;
        self.enabled = false;
        Ok(())
    }

    /// Bytes written so far, free-running; while enabled, as of the last interrupt.
    #[must_use]
    pub fn head(&self) -> u64 {
        self.aux_head().load(Ordering::Acquire)
    }

    /// Appends the records since the last call, for [`super::record::records`].
    pub fn drain_records_into(&mut self, out: &mut Vec<u8>) {
        self.ring.drain_into(out);
    }

    /// What the tracer wrote; `None` while it is enabled.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.enabled {
            return None;
        }
        let len = usize::try_from(self.head()).unwrap_or(usize::MAX).min(self.area.len);
        // SAFETY: the area is mapped as long as `self` lives, and `len` is within it. The event is disabled and only
        // `&mut self` enables it, so nothing writes while the slice lives; the acquire load of the head made the bytes
        // before it visible (`pt_config_stop` orders them before the head).
        Some(unsafe { std::slice::from_raw_parts(self.area.at.as_ptr(), len) })
    }

    /// Size of the area, bytes.
    #[must_use]
    pub fn area_bytes(&self) -> usize {
        self.area.len
    }

    fn aux_head(&self) -> &AtomicU64 {
        // SAFETY: the control page is mapped as long as `self.ring` lives, the field is an aligned u64, and both sides
        // access it atomically.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.ring.control().as_ptr()).aux_head) }
    }
}

/// It becomes readable when the area is full: records alone do not wake.
impl AsFd for AuxEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// What was being done when the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Open,
    Map,
}

/// The mapping of the AUX area; unmapped on drop.
#[derive(Debug)]
struct Area {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Area` is its only owner.
unsafe impl Send for Area {}

impl Area {
    fn map(event: &Event, ring: &Ring, len: usize) -> io::Result<Self> {
        let control = ring.control().as_ptr();
        // The area follows the ring in the event's address space (`kernel/events/core.c`, `perf_mmap`).
        let offset = ring.mapped_bytes();
        let at_offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the control page is mapped as long as `ring` lives and these two fields are ours to write. The mapping
        // is fresh, at an address of the kernel's choice.
        let at = unsafe {
            (&raw mut (*control).aux_offset).write_volatile(offset as u64);
            (&raw mut (*control).aux_size).write_volatile(len as u64);
            // PROT_WRITE means full mode: without it the kernel would overwrite what it wrote first.
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_fd().as_raw_fd(),
                at_offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { at, len })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: `map` made exactly this mapping, and no reference into it outlives its owner.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event_open_sys::bindings;

    #[test]
    fn an_event_without_aux_is_refused_at_the_mapping() {
        let mut attr = perf_event_attr {
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: u64::from(bindings::PERF_COUNT_SW_DUMMY),
            ..Default::default()
        };
        attr.set_disabled(1);
        match AuxEvent::open(&attr, 0, 1 << 16) {
            Err((Step::Open, error)) => println!("skipped: perf_event_open: {error}"),
            // EOPNOTSUPP, ENOTSUPP before 5.0: `rb_alloc_aux`, `has_aux`.
            Err((Step::Map, error)) => assert!(matches!(error.raw_os_error(), Some(95 | 524)), "{error}"),
            Ok(_) => panic!("a dummy event has no AUX area"),
        }
    }
}
