//! One record a wait of a target's thread: from its switch-out to the switch-in that follows.

use crate::WireError;

/// Size of a [`Wait`] on the wire and in the trace file, in bytes.
pub const WAIT_BYTES: usize = 72;

/// Bits of [`Wait::flags`].
pub mod wait_flags {
    /// The scheduler took the CPU away in the kernel (the tracepoint's `preempt`).
    pub const PREEMPT: u8 = 1;
    /// It was off the CPU because its cgroup's quota was used up (`task_struct.throttled`, Linux 6.18).
    pub const THROTTLED: u8 = 1 << 1;
    /// Its first run: `off_ns` is when it was made.
    pub const NEW: u8 = 1 << 2;
}

/// Values of [`Wait::holder`]: whose the thread was that had the CPU just before.
pub mod holder {
    /// Nobody: the CPU was idle.
    pub const IDLE: u8 = 0;
    /// Another thread of the target.
    pub const TARGET: u8 = 1;
    /// A thread that is not the target's.
    pub const OTHER: u8 = 2;
    /// A thread of the kernel.
    pub const KERNEL: u8 = 3;
}

/// A wait. It keeps what the kernel showed; [`Wait::kind`](crate::Wait::kind) says what that means.
///
/// ```text
///  0        8          16            24       32    36    40      44           48     56        58    60       61      62     63      64              72
///  | off_ns | waking_ns | runnable_ns | run_ns | pid | tid | waker | holder_tid | arg0 | syscall | cpu | holder | flags | file | state | holder_cgroup |
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// When it was switched out: CLOCK_MONOTONIC, nanoseconds, as all times here.
    pub off_ns: u64,
    /// When somebody began to wake it (`sched_waking`); 0: it did not sleep, or nobody saw it.
    pub waking_ns: u64,
    /// When it stood on a run queue (`sched_wakeup`); `off_ns` if it did not sleep; 0: nobody saw it.
    pub runnable_ns: u64,
    /// When it was switched in.
    pub run_ns: u64,
    /// Process, in the initial PID namespace.
    pub pid: u32,
    /// Thread, in the initial PID namespace.
    pub tid: u32,
    /// The thread that ran where it was woken, or that an interrupt there stopped; 0: the idle task.
    pub waker: u32,
    /// The thread that had the CPU just before it; 0: the idle task.
    pub holder_tid: u32,
    /// The system call's first argument (a descriptor, an address), if there is one.
    pub arg0: u64,
    /// Number of the x86-64 system call that it was in; [`Wait::NO_SYSCALL`]: none (a fault, an interrupt).
    pub syscall: u16,
    /// CPU on which it runs again.
    pub cpu: u16,
    /// [`holder`].
    pub holder: u8,
    /// Bits of [`wait_flags`].
    pub flags: u8,
    /// Type of the file behind the descriptor (`i_mode >> 12`), where the call takes one and it was looked at; 0: unknown.
    pub file: u8,
    /// The low 8 bits of the task state at switch-out; 0: it was runnable.
    pub state: u8,
    /// [`holder::OTHER`]: the kernel's ID of the cgroup that the thread was in, in the hierarchy that decides who is of the
    /// target (with a process as the target: in version 2); otherwise 0. A number, not a name: that stays on the node.
    pub holder_cgroup: u64,
}

const _: () = assert!(size_of::<Wait>() == WAIT_BYTES && align_of::<Wait>() == 8);

impl Wait {
    /// [`Self::syscall`] of a wait outside of system calls.
    pub const NO_SYSCALL: u16 = u16::MAX;

    /// The 72 bytes of the wire and of the file, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; WAIT_BYTES] {
        let mut out = [0; WAIT_BYTES];
        for (i, word) in [self.off_ns, self.waking_ns, self.runnable_ns, self.run_ns]
            .iter()
            .enumerate()
        {
            out[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        for (i, word) in [self.pid, self.tid, self.waker, self.holder_tid].iter().enumerate() {
            out[32 + i * 4..36 + i * 4].copy_from_slice(&word.to_le_bytes());
        }
        out[48..56].copy_from_slice(&self.arg0.to_le_bytes());
        out[56..58].copy_from_slice(&self.syscall.to_le_bytes());
        out[58..60].copy_from_slice(&self.cpu.to_le_bytes());
        out[60..64].copy_from_slice(&[self.holder, self.flags, self.file, self.state]);
        out[64..].copy_from_slice(&self.holder_cgroup.to_le_bytes());
        out
    }

    /// Reads one: every 72 bytes are one.
    ///
    /// # Errors
    /// [`WireError::Length`] unless there are exactly [`WAIT_BYTES`] bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let b: &[u8; WAIT_BYTES] = bytes.try_into().map_err(|_| WireError::Length(bytes.len()))?;
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let u32_at = |i: usize| u32::from(u16_at(i)) | u32::from(u16_at(i + 2)) << 16;
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        Ok(Self {
            off_ns: u64_at(0),
            waking_ns: u64_at(8),
            runnable_ns: u64_at(16),
            run_ns: u64_at(24),
            pid: u32_at(32),
            tid: u32_at(36),
            waker: u32_at(40),
            holder_tid: u32_at(44),
            arg0: u64_at(48),
            syscall: u16_at(56),
            cpu: u16_at(58),
            holder: b[60],
            flags: b[61],
            file: b[62],
            state: b[63],
            holder_cgroup: u64_at(64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_every_other_length_is_refused() {
        let bytes: [u8; WAIT_BYTES] = core::array::from_fn(|i| i as u8 + 1);
        let wait = Wait::from_bytes(&bytes).unwrap();
        assert_eq!((wait.off_ns, wait.arg0), (0x0807_0605_0403_0201, 0x3837_3635_3433_3231));
        assert_eq!((wait.pid, wait.holder_tid), (0x2423_2221, 0x302f_2e2d));
        assert_eq!(
            (wait.syscall, wait.cpu, wait.holder, wait.state),
            (0x3a39, 0x3c3b, 61, 64)
        );
        assert_eq!(wait.holder_cgroup, 0x4847_4645_4443_4241);
        assert_eq!(wait.to_bytes(), bytes);
        for len in (0..80).filter(|&n| n != WAIT_BYTES) {
            assert_eq!(Wait::from_bytes(&[0; 80][..len]), Err(WireError::Length(len)));
        }
    }
}
