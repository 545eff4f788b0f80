//! One record of the shard rings: a switch of a target thread, or a step in its life.

/// Size of a [`Record`] on the wire and in the trace file, in bytes.
pub const RECORD_BYTES: usize = 32;

/// What happened to the thread.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The thread was switched in on `cpu`; it resumes user mode at `ip`.
    In = 1,
    /// The thread was switched out of `cpu` in `state`; it left user mode at `ip`.
    Out = 2,
    /// The thread was created. `ip` holds the parent, see [`Record::parent`].
    Fork = 3,
    /// The process executed a new program; its old mappings are gone.
    Exec = 4,
    /// The thread is exiting. It is switched out once more at least; the last `Out` has `TASK_DEAD` (0x80) as its state.
    Exit = 5,
    /// The thread (with [`flags::THREADGROUP`]: its whole process) was moved into the target.
    AttachIn = 6,
    /// The thread (with [`flags::THREADGROUP`]: its whole process) was moved to a cgroup that is not the target.
    AttachOut = 7,
}

impl Op {
    /// The operation with this number, if there is one.
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            1 => Self::In,
            2 => Self::Out,
            3 => Self::Fork,
            4 => Self::Exec,
            5 => Self::Exit,
            6 => Self::AttachIn,
            7 => Self::AttachOut,
            _ => return None,
        })
    }
}

/// Bits of [`Record::flags`].
pub mod flags {
    /// Switch-out: the scheduler preempted the thread (the tracepoint's `preempt`).
    pub const PREEMPT: u8 = 1;
    /// Not a switch: the thread was moved into or out of the target while it ran.
    pub const MOVED: u8 = 1 << 1;
    /// Not a switch: the thread was already running when tracing started.
    pub const START: u8 = 1 << 2;
    /// Not a switch: the thread was still running when tracing ended.
    pub const END: u8 = 1 << 3;
    /// The thread has no user mode (a kernel thread, or a process's worker in the kernel); `ip` is 0.
    pub const KERNEL: u8 = 1 << 4;
    /// `AttachIn` and `AttachOut`: the whole process moved.
    pub const THREADGROUP: u8 = 1 << 5;
    /// The kernel did not run the hook at this switch, the next one showed that it had been: `time_ns` is
    /// reconstructed from the kernel's own accounting of the thread, and an `Out` has no `ip`.
    pub const MISSED: u8 = 1 << 6;
}

/// A switch of a target thread, or a step in its life.
///
/// ```text
///  0        8        16    20    24   26  27     28     30     32
///  | time_ns | ip     | pid | tid |cpu |op |flags |state | seq  |
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// `bpf_ktime_get_ns()`: CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    /// User-mode instruction pointer from `bpf_task_pt_regs`; 0 when there is none. For `Fork`: the parent.
    /// For `Exec`: the thread's number before, which differs when it was not its process's first thread.
    pub ip: u64,
    /// Process (the kernel's `tgid`), as seen in the initial PID namespace.
    pub pid: u32,
    /// Thread (the kernel's `pid`), as seen in the initial PID namespace.
    pub tid: u32,
    /// Logical CPU.
    pub cpu: u16,
    /// [`Op`] as a number.
    pub op: u8,
    /// Bits of [`flags`].
    pub flags: u8,
    /// `Out`: the kernel's task state at switch-out, raw (0: still runnable). Otherwise 0.
    pub state: u16,
    /// `In` and `Out`: low 16 bits of the count of them that this CPU produced, dropped ones included:
    /// a gap places a loss between two records. Other operations travel apart and have 0.
    pub seq: u16,
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES && align_of::<Record>() == 8);

/// Why bytes are not a [`Record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The slice has this many bytes, not those of what was asked for.
    Length(usize),
    /// No [`Op`] has this number.
    Op(u8),
    /// No [`NoticeKind`](crate::NoticeKind) has this number.
    Notice(u32),
}

impl core::fmt::Display for WireError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(n) => write!(f, "unexpected length of {n} bytes (a record has {RECORD_BYTES})"),
            Self::Op(op) => write!(f, "record with unknown operation {op}"),
            Self::Notice(kind) => write!(f, "notice of unknown kind {kind}"),
        }
    }
}

impl core::error::Error for WireError {}

impl Record {
    /// What happened; `None` for a number that this version does not know.
    #[must_use]
    pub const fn op(&self) -> Option<Op> {
        Op::from_u8(self.op)
    }

    /// The parent's `(pid, tid)` of a [`Op::Fork`] record.
    #[must_use]
    pub const fn parent(&self) -> (u32, u32) {
        ((self.ip >> 32) as u32, self.ip as u32)
    }

    /// The 32 bytes of the wire and of the file, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        out[0..8].copy_from_slice(&self.time_ns.to_le_bytes());
        out[8..16].copy_from_slice(&self.ip.to_le_bytes());
        out[16..20].copy_from_slice(&self.pid.to_le_bytes());
        out[20..24].copy_from_slice(&self.tid.to_le_bytes());
        out[24..26].copy_from_slice(&self.cpu.to_le_bytes());
        out[26] = self.op;
        out[27] = self.flags;
        out[28..30].copy_from_slice(&self.state.to_le_bytes());
        out[30..32].copy_from_slice(&self.seq.to_le_bytes());
        out
    }

    /// Reads one record.
    ///
    /// # Errors
    /// [`WireError::Length`] unless there are exactly [`RECORD_BYTES`] bytes, [`WireError::Op`] for an unknown operation.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let b: &[u8; RECORD_BYTES] = bytes.try_into().map_err(|_| WireError::Length(bytes.len()))?;
        let u64_at = |i: usize| {
            u64::from_le_bytes([
                b[i],
                b[i + 1],
                b[i + 2],
                b[i + 3],
                b[i + 4],
                b[i + 5],
                b[i + 6],
                b[i + 7],
            ])
        };
        let u32_at = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u16_at = |i: usize| u16::from_le_bytes([b[i], b[i + 1]]);
        let op = b[26];
        if Op::from_u8(op).is_none() {
            return Err(WireError::Op(op));
        }
        Ok(Self {
            time_ns: u64_at(0),
            ip: u64_at(8),
            pid: u32_at(16),
            tid: u32_at(20),
            cpu: u16_at(24),
            op,
            flags: b[27],
            state: u16_at(28),
            seq: u16_at(30),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Record = Record {
        time_ns: 0x0102_0304_0506_0708,
        ip: 0x7f00_1234_5678_9abc,
        pid: 17,
        tid: 18,
        cpu: 191,
        op: Op::Out as u8,
        flags: flags::PREEMPT,
        state: 0x2001,
        seq: 65535,
    };

    #[test]
    fn bytes_round_trip() {
        assert_eq!(Record::from_bytes(&RECORD.to_bytes()), Ok(RECORD));
    }

    #[test]
    fn every_other_length_is_refused() {
        for len in (0..80).filter(|&n| n != RECORD_BYTES) {
            assert_eq!(Record::from_bytes(&[0; 80][..len]), Err(WireError::Length(len)));
        }
    }

    #[test]
    fn every_operation_round_trips_and_every_other_number_is_refused() {
        for op in 0..=255u8 {
            let bytes = Record { op, ..RECORD }.to_bytes();
            match Op::from_u8(op) {
                Some(known) => assert_eq!(Record::from_bytes(&bytes).map(|r| r.op()), Ok(Some(known))),
                None => assert_eq!(Record::from_bytes(&bytes), Err(WireError::Op(op))),
            }
        }
        assert_eq!((0..=255).filter_map(Op::from_u8).count(), 7);
    }
}
