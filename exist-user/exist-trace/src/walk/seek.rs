//! Going on along the code as far as no packet is needed.

use super::{
    code::{Block, Exit, Far, NoBlock, Special},
    step::{BranchKind, WalkError},
    walker::{Position, Walker},
};
use crate::image::NoCode;

/// Where to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// Only where a packet is needed.
    Trace,
    /// Before the instruction at this address.
    Ip(u64),
    /// At an instruction that may end tracing without a target.
    Disable,
    Ptwrite,
    BindsToPip,
    BindsToVmcs,
    InterruptReturn,
    VmEntry,
    UserInterruptReturn,
}

impl Goal {
    fn is(self, exit: Exit) -> bool {
        match self {
            Self::Trace | Self::Ip(_) => false,
            Self::Disable => exit == Exit::Next(Special::MovCr3),
            Self::Ptwrite => exit == Exit::Next(Special::Ptwrite),
            Self::BindsToPip => matches!(exit, Exit::Next(Special::MovCr3) | Exit::Far(_)),
            Self::BindsToVmcs => matches!(exit, Exit::Next(Special::Vmptrld) | Exit::Far(_)),
            Self::InterruptReturn => exit == Exit::Far(Far::Return),
            Self::VmEntry => exit == Exit::Far(Far::VmEntry),
            Self::UserInterruptReturn => exit == Exit::Far(Far::UserInterruptReturn),
        }
    }
}

impl From<NoBlock> for WalkError {
    fn from(error: NoBlock) -> Self {
        match error {
            NoBlock::NoCode(reason) => Self::NoCode(reason),
            NoBlock::Invalid => Self::BadInstruction,
        }
    }
}

impl<'b, F: FnMut(u64) -> Result<&'b [u8], NoCode>> Walker<'_, '_, F> {
    /// To the next instruction that needs a packet.
    #[inline]
    pub(super) fn seek_trace(&mut self) -> Result<Block, WalkError> {
        self.seek(Goal::Trace).map(|(block, _)| block)
    }

    /// To before the instruction at `ip`, without any packet on the way.
    pub(super) fn seek_ip(&mut self, ip: u64) -> Result<(), WalkError> {
        match self.seek(Goal::Ip(ip))? {
            (_, true) => Ok(()),
            (_, false) => Err(WalkError::Mismatch(
                "an address that cannot be reached without a packet",
            )),
        }
    }

    /// Goes on from where the walk stands until `goal`, or until a packet is needed. Gives the block whose last
    /// instruction that is (for [`Goal::Ip`]: some block), and whether the goal was met.
    ///
    /// Direct jumps and calls on the way become steps. The position is before the block's last instruction's outcome.
    pub(super) fn seek(&mut self, goal: Goal) -> Result<(Block, bool), WalkError> {
        let mut rounds = Rounds::default();
        loop {
            let Position::At(at) = self.position else {
                return Err(WalkError::Unexpected("no place to go on from"));
            };
            if goal == Goal::Ip(at) {
                let here = Block {
                    last: at,
                    end: at,
                    instructions: 0,
                    exit: Exit::Next(Special::None),
                };
                return Ok((here, true));
            }
            let block = self.code.block(at)?;
            if let Goal::Ip(ip) = goal
                && at < ip
                && ip < block.end
                && self.code.is_boundary(at, ip)
            {
                self.position = Position::At(ip);
                return Ok((block, true));
            }
            if goal.is(block.exit) {
                return Ok((block, true));
            }
            match block.exit {
                Exit::Next(_) => self.position = Position::At(block.end),
                Exit::Jump { to } => self.branch(block.last, to, BranchKind::Jump),
                Exit::Call { to } => {
                    // A call to the next instruction only reads the address: it has no return.
                    if to != block.end {
                        self.calls.push(block.end);
                    }
                    self.branch(block.last, to, BranchKind::Call);
                }
                Exit::Unknown(reason) => {
                    self.position = Position::At(block.end);
                    return Err(reason.into());
                }
                Exit::Conditional { .. } | Exit::IndirectJump | Exit::IndirectCall | Exit::Return | Exit::Far(_) => {
                    return Ok((block, false));
                }
            }
            if rounds.is_endless(at) {
                return Err(WalkError::EndlessLoop);
            }
        }
    }
}

/// Without a packet the next address depends on this one only: one that comes again comes for ever.
#[derive(Default)]
struct Rounds {
    seen: u64,
    count: u32,
    limit: u32,
}

impl Rounds {
    #[inline]
    fn is_endless(&mut self, at: u64) -> bool {
        if self.count > 0 && self.seen == at {
            return true;
        }
        if self.count == self.limit {
            self.seen = at;
            self.limit = self.limit * 2 + 1;
            self.count = 0;
        }
        self.count += 1;
        false
    }
}
