//! Code bytes → blocks: straight-line runs of instructions up to the next change of flow, decoded once.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use iced_x86::{
    Code as Op, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use crate::image::NoCode;

/// The longest instruction, in bytes (SDM volume 2, "Instruction Format").
const INSTRUCTION_BYTES: usize = 15;
/// A block ends after this many instructions, whatever they are.
const BLOCK_INSTRUCTIONS: u32 = 4096;

/// How wide the code is (`MODE.Exec`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExecMode {
    Bits16,
    Bits32,
    #[default]
    Bits64,
}

impl ExecMode {
    /// From the bits of a MODE.Exec packet.
    #[must_use]
    pub const fn new(cs_l: bool, cs_d: bool) -> Self {
        match (cs_l, cs_d) {
            (true, _) => Self::Bits64,
            (false, true) => Self::Bits32,
            (false, false) => Self::Bits16,
        }
    }

    const fn bits(self) -> u32 {
        match self {
            Self::Bits16 => 16,
            Self::Bits32 => 32,
            Self::Bits64 => 64,
        }
    }
}

/// Why there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBlock {
    /// There are no bytes.
    NoCode(NoCode),
    /// The bytes are no instruction.
    Invalid,
}

/// A run of instructions that are executed one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Address of the last instruction.
    pub last: u64,
    /// Address behind it.
    pub end: u64,
    pub instructions: u32,
    pub exit: Exit,
}

/// What follows a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The next instruction; the last one here is of this kind.
    Next(Special),
    /// A direct jump.
    Jump { to: u64 },
    /// A direct call.
    Call { to: u64 },
    /// A conditional branch: needs a TNT bit.
    Conditional { to: u64 },
    /// A near indirect jump: needs a TIP.
    IndirectJump,
    /// A near indirect call: needs a TIP.
    IndirectCall,
    /// A near return: needs a TNT bit when compressed, else a TIP.
    Return,
    /// A far transfer: system call, interrupt, return from either: needs a TIP or TIP.PGD.
    Far(Far),
    /// Nothing more can be read, for this reason.
    Unknown(NoBlock),
}

/// Far transfers, by what packets bind to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Far {
    /// SYSCALL, SYSENTER.
    Syscall,
    /// INT and its kin.
    Interrupt,
    /// IRET, SYSRET, SYSEXIT, ERETU, ERETS.
    Return,
    /// UIRET.
    UserInterruptReturn,
    /// VMLAUNCH, VMRESUME.
    VmEntry,
    /// Far calls.
    Call,
    /// Far jumps and returns.
    Other,
}

/// Instructions without a change of flow that packets bind to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    None,
    Ptwrite,
    MovCr3,
    Vmptrld,
}

/// The code of one address space, decoded as it is needed.
///
/// `F` gives the bytes from an address on, as many as lie together; one at least.
pub struct Code<F> {
    fetch: F,
    mode: ExecMode,
    blocks: HashMap<(u64, ExecMode), Block, BuildHasherDefault<AddressHasher>>,
}

impl<'a, F: FnMut(u64) -> Result<&'a [u8], NoCode>> Code<F> {
    /// Code that is read through `fetch`.
    pub fn new(fetch: F) -> Self {
        Self {
            fetch,
            mode: ExecMode::default(),
            blocks: HashMap::default(),
        }
    }

    /// How wide the code is; 64 bits unless said otherwise.
    pub fn set_mode(&mut self, mode: ExecMode) {
        self.mode = mode;
    }

    /// The block that starts at `ip`.
    ///
    /// # Errors
    /// When not even its first instruction can be read.
    #[inline]
    pub fn block(&mut self, ip: u64) -> Result<Block, NoBlock> {
        if let Some(block) = self.blocks.get(&(ip, self.mode)) {
            return Ok(*block);
        }
        let block = self.decode(ip)?;
        self.blocks.insert((ip, self.mode), block);
        Ok(block)
    }

    #[cold]
    fn decode(&mut self, start: u64) -> Result<Block, NoBlock> {
        let mut block = Block {
            last: start,
            end: start,
            instructions: 0,
            exit: Exit::Next(Special::None),
        };
        while block.instructions < BLOCK_INSTRUCTIONS {
            let (instruction, exit) = match self.instruction(block.end) {
                Ok(instruction) => (instruction, exit(&instruction)),
                Err(error) if block.instructions == 0 => return Err(error),
                Err(error) => {
                    block.exit = Exit::Unknown(error);
                    break;
                }
            };
            block.last = block.end;
            block.end = instruction.next_ip();
            block.instructions += 1;
            block.exit = exit;
            if exit != Exit::Next(Special::None) {
                break;
            }
        }
        Ok(block)
    }

    /// The instruction at `ip`.
    ///
    /// # Errors
    /// When there are no bytes or they are no instruction.
    pub fn instruction(&mut self, ip: u64) -> Result<Instruction, NoBlock> {
        let bytes = (self.fetch)(ip).map_err(NoBlock::NoCode)?;
        let mut decoder = Decoder::with_ip(self.mode.bits(), bytes, ip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        match decoder.last_error() {
            DecoderError::None => Ok(instruction),
            DecoderError::NoMoreBytes if bytes.len() < INSTRUCTION_BYTES => self.across(ip, bytes),
            _ => self.unknown(ip, bytes),
        }
    }

    /// An instruction that goes on in the next stretch of bytes.
    fn across(&mut self, ip: u64, bytes: &[u8]) -> Result<Instruction, NoBlock> {
        let mut joined = bytes.to_vec();
        while joined.len() < INSTRUCTION_BYTES {
            match (self.fetch)(ip.wrapping_add(joined.len() as u64)) {
                Ok(more) if !more.is_empty() => joined.extend(more.iter().take(INSTRUCTION_BYTES - joined.len())),
                _ => break,
            }
        }
        let mut decoder = Decoder::with_ip(self.mode.bits(), &joined, ip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        match decoder.last_error() {
            DecoderError::None => Ok(instruction),
            _ => self.unknown(ip, &joined),
        }
    }

    /// Instructions newer than the disassembler, where they change the flow.
    fn unknown(&self, ip: u64, bytes: &[u8]) -> Result<Instruction, NoBlock> {
        let like = |op: Op, len: usize| {
            let mut instruction = Instruction::default();
            instruction.set_code(op);
            instruction.set_len(len);
            instruction.set_next_ip(ip.wrapping_add(len as u64));
            instruction
        };
        match bytes {
            // JMPABS (APX): a direct jump that gets a TIP all the same.
            [0xd5, 0, 0xa1, ..] if self.mode == ExecMode::Bits64 && bytes.len() >= 11 => Ok(like(Op::Jmp_rm64, 11)),
            // ERETU, ERETS (FRED).
            [0xf2 | 0xf3, 0x0f, 0x01, 0xca, ..] => Ok(like(Op::Iretq, 4)),
            _ => Err(NoBlock::Invalid),
        }
    }

    /// Whether an instruction starts at `ip` when execution goes straight on from `start`.
    pub(super) fn is_boundary(&mut self, start: u64, ip: u64) -> bool {
        let mut at = start;
        while at < ip {
            match self.instruction(at) {
                Ok(instruction) => at = instruction.next_ip(),
                Err(_) => return false,
            }
        }
        at == ip
    }
}

fn exit(instruction: &Instruction) -> Exit {
    let near_target = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::XbeginXabortXend | FlowControl::Exception => Exit::Next(special(instruction)),
        FlowControl::UnconditionalBranch if near_target => Exit::Jump {
            to: instruction.near_branch_target(),
        },
        FlowControl::UnconditionalBranch => Exit::Far(Far::Other),
        FlowControl::ConditionalBranch => Exit::Conditional {
            to: instruction.near_branch_target(),
        },
        FlowControl::IndirectBranch if instruction.is_jmp_far_indirect() => Exit::Far(Far::Other),
        FlowControl::IndirectBranch => Exit::IndirectJump,
        FlowControl::IndirectCall if instruction.is_call_far_indirect() => Exit::Far(Far::Call),
        FlowControl::IndirectCall => Exit::IndirectCall,
        FlowControl::Interrupt => Exit::Far(Far::Interrupt),
        FlowControl::Call => match instruction.mnemonic() {
            Mnemonic::Call if near_target => Exit::Call {
                to: instruction.near_branch_target(),
            },
            Mnemonic::Call => Exit::Far(Far::Call),
            Mnemonic::Syscall | Mnemonic::Sysenter => Exit::Far(Far::Syscall),
            Mnemonic::Vmlaunch | Mnemonic::Vmresume => Exit::Far(Far::VmEntry),
            // VMCALL and its kin go on behind the instruction once the monitor has answered.
            _ => Exit::Next(Special::None),
        },
        FlowControl::Return => match instruction.mnemonic() {
            Mnemonic::Ret => Exit::Return,
            Mnemonic::Retf => Exit::Far(Far::Other),
            Mnemonic::Uiret => Exit::Far(Far::UserInterruptReturn),
            _ => Exit::Far(Far::Return),
        },
    }
}

fn special(instruction: &Instruction) -> Special {
    match instruction.mnemonic() {
        Mnemonic::Ptwrite => Special::Ptwrite,
        Mnemonic::Vmptrld => Special::Vmptrld,
        Mnemonic::Mov if instruction.op0_register() == Register::CR3 => Special::MovCr3,
        _ => Special::None,
    }
}

/// Addresses are spread enough for one multiplication.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(u64::from(b)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(26) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, value: isize) {
        self.write_u64(value.cast_unsigned() as u64);
    }
}
