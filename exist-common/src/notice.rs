//! What must reach user space at once: its own ring, each with a wake-up.

use crate::WireError;

/// Size of a [`Notice`] on the wire, in bytes.
pub const NOTICE_BYTES: usize = 32;

/// What user space is told at once.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// The target was switched in on `cpu` for the first time in the period `id`.
    CpuSeen = 1,
    /// The target's cgroup `id` was removed (one that user space inserted as a root).
    TargetRemoved = 2,
    /// Process `pid` (thread `tid`, when it moved alone) was moved into the target's cgroup `id`.
    Attached = 3,
    /// The ring of `cpu` holds more than its high mark: `id` bytes.
    RingHigh = 4,
    /// The map of targets is full: cgroup `id`, below the target, is not followed.
    TargetsFull = 5,
}

impl NoticeKind {
    const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::CpuSeen,
            2 => Self::TargetRemoved,
            3 => Self::Attached,
            4 => Self::RingHigh,
            5 => Self::TargetsFull,
            _ => return None,
        })
    }
}

/// A notice.
///
/// ```text
///  0         8      12    16    20    24   32
///  | time_ns | kind | cpu | pid | tid | id |
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// [`NoticeKind`] as a number.
    pub kind: u32,
    /// Logical CPU on which it arose.
    pub cpu: u32,
    /// Process, or 0.
    pub pid: u32,
    /// Thread, or 0.
    pub tid: u32,
    /// See [`NoticeKind`].
    pub id: u64,
}

const _: () = assert!(size_of::<Notice>() == NOTICE_BYTES && align_of::<Notice>() == 8);

impl Notice {
    /// What it tells.
    #[must_use]
    pub const fn kind(&self) -> Option<NoticeKind> {
        NoticeKind::from_u32(self.kind)
    }

    /// Reads one notice.
    ///
    /// # Errors
    /// [`WireError::Length`] unless there are exactly [`NOTICE_BYTES`] bytes, [`WireError::Notice`] for an unknown kind.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let b: &[u8; NOTICE_BYTES] = bytes.try_into().map_err(|_| WireError::Length(bytes.len()))?;
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        let kind = u32_at(8);
        if NoticeKind::from_u32(kind).is_none() {
            return Err(WireError::Notice(kind));
        }
        Ok(Self {
            time_ns: u64_at(0),
            kind,
            cpu: u32_at(12),
            pid: u32_at(16),
            tid: u32_at(20),
            id: u64_at(24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_and_nothing_else() {
        let mut bytes = [0; NOTICE_BYTES];
        bytes[0] = 9;
        bytes[12] = 3;
        bytes[24..].copy_from_slice(&0x0102_0304_0506_0708_u64.to_le_bytes());
        for kind in 0..=255u8 {
            bytes[8] = kind;
            match Notice::from_bytes(&bytes) {
                Ok(notice) => {
                    assert_eq!(notice.kind().map(|k| k as u32), Some(u32::from(kind)));
                    assert_eq!((notice.time_ns, notice.cpu, notice.id), (9, 3, 0x0102_0304_0506_0708));
                }
                Err(error) => assert_eq!(error, WireError::Notice(u32::from(kind))),
            }
        }
        assert_eq!(
            Notice::from_bytes(&bytes[1..]),
            Err(WireError::Length(NOTICE_BYTES - 1))
        );
    }
}
