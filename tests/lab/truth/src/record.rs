//! The records of a ground-truth file.

/// The first eight bytes of a file.
pub const MAGIC: &[u8; 8] = b"EXLABTR1";
/// The length of the header.
pub const HEADER_BYTES: usize = 24;

/// The head of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The guest's logical CPU.
    pub cpu: u32,
    /// The rate of the guest's TSC.
    pub tsc_hz: u64,
}

/// What the last instruction of a block does to control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// Falls through: the block ended for the emulator's own reasons.
    Other = 0,
    /// A string instruction with a repeat prefix, which may come back to itself without a branch.
    Repeat = 1,
    /// Jcc, JrCXZ, LOOP.
    Conditional = 2,
    Jump = 3,
    Call = 4,
    JumpIndirect = 5,
    CallIndirect = 6,
    Return = 7,
    /// SYSCALL, SYSRET, INT n, IRET, far jumps.
    Far = 8,
}

impl Class {
    /// The class of a stored byte, if it is one.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Other,
            1 => Self::Repeat,
            2 => Self::Conditional,
            3 => Self::Jump,
            4 => Self::Call,
            5 => Self::JumpIndirect,
            6 => Self::CallIndirect,
            7 => Self::Return,
            8 => Self::Far,
            _ => return None,
        })
    }
}

/// A straight run of user-mode instructions at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address of the first instruction.
    pub start: u64,
    /// Offset of the last instruction from `start`, in bytes.
    pub last: u32,
    pub class: Class,
    /// The code bytes; `start + code.len()` is the next address.
    pub code: Vec<u8>,
}

impl Block {
    /// The address after the last instruction.
    pub fn end(&self) -> u64 {
        self.start.wrapping_add(self.code.len() as u64)
    }

    /// The address of the last instruction.
    pub fn last_ip(&self) -> u64 {
        self.start.wrapping_add(u64::from(self.last))
    }
}

/// Why user mode was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    Syscall = 0,
    Interrupt = 1,
    Exception = 2,
}

impl Exit {
    /// The exit of a stored byte, if it is one.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Syscall,
            1 => Self::Interrupt,
            2 => Self::Exception,
            _ => return None,
        })
    }
}

/// One thing that happened on a vCPU. The number is the kind in the file; fields are varints in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A user-mode block began. It ran to its end unless a `Cut` or a `Leave` by exception follows.
    Ran { id: u64 },
    /// 0: `id` means this block from here on. Fields: id, start, last, class, length, then the code bytes.
    Define { id: u64, block: Block },
    /// 1: the block before this record ended early, before the instruction at `end`, and no branch was executed.
    Cut { end: u64 },
    /// 2: the guest thread that user-mode code belongs to from here on (`current->pid`); 0 when not known.
    Thread { tid: u64, cr3: u64, fs_base: u64 },
    /// 3: user mode was left. `from` is the next address for an interrupt, the instruction itself otherwise.
    Leave { exit: Exit, from: u64 },
    /// 4: the guest wrote IA32_RTIT_CTL.
    RtitCtl { value: u64 },
    /// 5: the ToPA performance interrupt was raised.
    Pmi,
    /// 6: an injected overflow began to lose packets.
    OvfBegin,
    /// 7: the overflow was resolved; `bytes` of packets were lost.
    OvfEnd { bytes: u64 },
    /// 8: the guest said so.
    Mark { value: u64 },
    /// 9: blocks are recorded from here on.
    On,
    /// 10: blocks are not recorded from here on.
    Off,
    /// 11: the lab could not explain how control came from `from` to `to`: its packets are wrong here.
    Unexplained { from: u64, to: u64 },
    /// 12: a ToPA region with STOP was filled; packets are lost until the next enable.
    Stopped,
}
