//! The ring of notices: what must be known at once.

use std::os::fd::{AsFd, BorrowedFd};

use exist_common::Notice;

use crate::sys::bpf_ring::BpfRing;

/// The notices of a hook. Whoever reads them can be another thread than the one that drains its records.
#[derive(Debug)]
pub struct Notices(BpfRing);

impl Notices {
    pub(super) const fn new(ring: BpfRing) -> Self {
        Self(ring)
    }

    /// The notices that wait. [`AsFd`]'s descriptor is readable when there are some.
    pub fn take(&mut self, mut sink: impl FnMut(Notice)) {
        // The programs write nothing else, so nothing is left out here.
        self.0
            .drain(|item| Notice::from_bytes(item).into_iter().for_each(&mut sink));
    }

    /// Bytes that the ring holds in the kernel's memory.
    #[must_use]
    pub const fn ring_bytes(&self) -> usize {
        self.0.data_bytes()
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
