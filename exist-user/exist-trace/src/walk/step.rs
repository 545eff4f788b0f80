//! What a walk gives: branches, and everything else that has a place among them.

use thiserror::Error;

use super::code::{ExecMode, Far};
use crate::{image::NoCode, pt::PacketError};

/// One thing that happened, in program order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Offset of the packet that told it.
    pub offset: u64,
    pub what: What,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// Tracing goes on at `ip`: where the CPU entered user mode, or where a walk could start or start again.
    Enabled { ip: u64, why: Start },
    /// The instruction at `from` went on at `to`. Everything from the last `to` up to here was executed in a straight line.
    Branch { from: u64, to: u64, kind: BranchKind },
    /// An interrupt, exception or abort before the instruction at `at` was executed; execution went on at `to`.
    Interrupted { at: u64, to: u64 },
    /// Tracing ended.
    Disabled(Disabled),
    /// Packets are missing from here up to the next `Enabled`.
    Overflow,
    /// Something that is no change of flow.
    Event { event: Event, at: Place },
    /// The walk could not go on; it starts again at the next packet that says where execution is.
    Error { ip: u64, error: WalkError },
    /// The bytes end; the instruction at `ip` would have been next.
    End { ip: u64 },
}

/// Why a walk starts somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// TIP.PGE: the CPU began to trace here.
    Enable,
    /// The first PSB of the bytes: it traced already.
    Sync,
    /// An overflow had its end here.
    Overflow,
    /// After an error.
    Resync,
}

/// How tracing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disabled {
    /// Asynchronous: the instruction that was to be next. Otherwise the one that ended it, a system call most often.
    pub at: u64,
    /// An interrupt or exception ended it, not an instruction.
    pub asynchronous: bool,
    /// Where user mode goes on if nothing intervenes, if that is known.
    pub resume: Option<u64>,
    /// Where control went, if the processor said so.
    pub to: Option<u64>,
}

/// Kinds of branch, by instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BranchKind {
    Jump,
    /// A conditional branch that was taken.
    Conditional,
    Call,
    IndirectJump,
    IndirectCall,
    Return,
    Far(Far),
}

/// Where an event belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before the instruction at this address.
    Before(u64),
    /// At this instruction.
    At(u64),
    /// Only the order of packets is known.
    Unknown,
}

/// Events that are no change of flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    ExecMode(ExecMode),
    /// Interrupts on or off (event trace).
    Interrupts(bool),
    Transaction {
        running: bool,
        aborted: bool,
    },
    Paging {
        cr3: u64,
        non_root: bool,
    },
    Vmcs {
        base: u64,
    },
    Ptwrite {
        payload: u64,
    },
    ExStop,
    Mwait {
        hints: u32,
        extensions: u32,
    },
    Pwre {
        hardware: bool,
        state: u8,
        sub_state: u8,
    },
    Pwrx {
        last: u8,
        deepest: u8,
        wake: u8,
    },
    /// Core to bus ratio.
    Cbr(u8),
    Mnt(u64),
    TraceStop,
    /// A control flow event (event trace) of this kind with what its data packets said.
    ControlFlow {
        kind: u8,
        vector: u8,
        cr2: Option<u64>,
        qualification: Option<u64>,
        reason: Option<u64>,
    },
    Trigger {
        kind: u8,
        instructions: Option<u16>,
    },
}

impl Event {
    /// Whether it comes with the instruction at its address, which was executed: PTWRITE, and returns from events.
    #[must_use]
    pub const fn is_of_instruction(&self) -> bool {
        matches!(self, Self::Ptwrite { .. } | Self::ControlFlow { kind: 2 | 7 | 13, .. })
    }
}

/// Why a walk could not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WalkError {
    /// The stream itself.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The code is not at hand.
    #[error("{0}")]
    NoCode(NoCode),
    /// The bytes at the address are no instruction.
    #[error("no valid instruction")]
    BadInstruction,
    /// The packet says something that the code cannot have done.
    #[error("packet does not match the code: {0}")]
    Mismatch(&'static str),
    /// A packet that cannot come here.
    #[error("unexpected packet: {0}")]
    Unexpected(&'static str),
    /// The status that a PSB+ gives is not that of the walk.
    #[error("status after a PSB contradicts the walk: {0}")]
    Status(&'static str),
    /// The code goes round without any packet.
    #[error("endless loop")]
    EndlessLoop,
}

impl WalkError {
    /// A short name for counting.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Packet(_) => "packet",
            Self::NoCode(reason) => reason.name(),
            Self::BadInstruction => "bad_instruction",
            Self::Mismatch(_) => "mismatch",
            Self::Unexpected(_) => "unexpected_packet",
            Self::Status(_) => "status",
            Self::EndlessLoop => "endless_loop",
        }
    }
}
