//! Translated blocks: takes instruction bytes, gives what the last one does to control flow.
//!
//! A small decoder of its own, so that the ground truth does not lean on the library that the decoder under test uses.

use exist_lab_truth::Class;

/// A block as translated. Addresses are relative to its start, since one translation serves every mapping of a page.
#[derive(Debug)]
pub struct Block {
    /// Its place in the order of translation.
    pub index: usize,
    pub code: Vec<u8>,
    /// Offset of the last instruction.
    pub last: u32,
    pub class: Class,
    /// Offset of a direct branch's target.
    pub target: Option<i64>,
}

impl Block {
    /// A block of the instructions in `code`, the last of which begins at `last`.
    pub fn new(index: usize, code: Vec<u8>, last: u32) -> Self {
        let (class, displacement) = classify(&code[last as usize..]);
        let target = displacement.map(|displacement| code.len() as i64 + displacement);
        Self {
            index,
            code,
            last,
            class,
            target,
        }
    }

    /// Whether it is a direct call of displacement zero, which pushes nothing on the CALL/RET stack.
    pub fn calls_next(&self) -> bool {
        self.class == Class::Call && self.target == Some(self.code.len() as i64)
    }
}

/// What an instruction does in 64-bit mode, and the displacement of a direct branch from the next address.
pub fn classify(instruction: &[u8]) -> (Class, Option<i64>) {
    let mut repeat = false;
    let mut bytes = instruction;
    let opcode = loop {
        let Some((&byte, rest)) = bytes.split_first() else {
            return (Class::Other, None);
        };
        bytes = rest;
        match byte {
            0xf2 | 0xf3 => repeat = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 => {}
            byte => break byte,
        }
    };
    let second = bytes.first().copied().unwrap_or(0);
    let short = || Some(i64::from(second as i8));
    let near = |bytes: &[u8]| bytes.first_chunk().map(|bytes| i64::from(i32::from_le_bytes(*bytes)));
    match (opcode, second) {
        (0x70..=0x7f | 0xe0..=0xe3, _) => (Class::Conditional, short()),
        (0x0f, 0x80..=0x8f) => (Class::Conditional, near(&bytes[1..])),
        (0xe8, _) => (Class::Call, near(bytes)),
        (0xe9, _) => (Class::Jump, near(bytes)),
        (0xeb, _) => (Class::Jump, short()),
        (0xc2 | 0xc3, _) => (Class::Return, None),
        (0xff, modrm) => match modrm >> 3 & 7 {
            2 => (Class::CallIndirect, None),
            4 => (Class::JumpIndirect, None),
            3 | 5 => (Class::Far, None),
            _ => (Class::Other, None),
        },
        (0xca | 0xcb | 0xcf | 0xcc | 0xcd | 0xf1, _) => (Class::Far, None),
        (0x0f, 0x05 | 0x07 | 0x34 | 0x35) => (Class::Far, None),
        (0xa4..=0xa7 | 0xaa..=0xaf | 0x6c..=0x6f, _) if repeat => (Class::Repeat, None),
        _ => (Class::Other, None),
    }
}

/// The instructions that the emulation answers itself, or must see before they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Cpuid,
    Rdmsr,
    Wrmsr,
    Rdtsc,
    Syscall,
}

/// Which of those an instruction is, if any.
pub fn special(instruction: &[u8]) -> Option<Special> {
    let at = instruction
        .iter()
        .position(|byte| !matches!(byte, 0x40..=0x4f | 0x66 | 0xf2 | 0xf3 | 0x2e | 0x3e))?;
    Some(match instruction.get(at..at + 2)? {
        [0x0f, 0xa2] => Special::Cpuid,
        [0x0f, 0x32] => Special::Rdmsr,
        [0x0f, 0x30] => Special::Wrmsr,
        [0x0f, 0x31] => Special::Rdtsc,
        [0x0f, 0x05] => Special::Syscall,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_and_displacements() {
        for (bytes, class, displacement) in [
            (&[0x75, 0xfb][..], Class::Conditional, Some(-5)),
            (&[0x0f, 0x84, 0x10, 0, 0, 0], Class::Conditional, Some(16)),
            (
                &[0x2e, 0x0f, 0x85, 0xff, 0xff, 0xff, 0xff],
                Class::Conditional,
                Some(-1),
            ),
            (&[0xe3, 0x02], Class::Conditional, Some(2)),
            (&[0xe8, 0, 0, 0, 0], Class::Call, Some(0)),
            (&[0xeb, 0xfe], Class::Jump, Some(-2)),
            (&[0xe9, 0, 1, 0, 0], Class::Jump, Some(256)),
            (&[0xc3], Class::Return, None),
            (&[0xf3, 0xc3], Class::Return, None),
            (&[0xc2, 8, 0], Class::Return, None),
            (&[0xff, 0xd0], Class::CallIndirect, None),
            (&[0x41, 0xff, 0x14, 0xc7], Class::CallIndirect, None),
            (&[0x3e, 0xff, 0xe0], Class::JumpIndirect, None),
            (&[0xf2, 0xff, 0x25, 0, 0, 0, 0], Class::JumpIndirect, None),
            (&[0xff, 0xc0], Class::Other, None),
            (&[0x0f, 0x05], Class::Far, None),
            (&[0x48, 0xcf], Class::Far, None),
            (&[0xf3, 0x48, 0xa5], Class::Repeat, None),
            (&[0x48, 0xa5], Class::Other, None),
            (&[0xf3, 0x0f, 0x1e, 0xfa], Class::Other, None),
            (&[0x0f], Class::Other, None),
            (&[], Class::Other, None),
        ] {
            assert_eq!(classify(bytes), (class, displacement), "{bytes:02x?}");
        }
    }

    #[test]
    fn specials() {
        assert_eq!(special(&[0x0f, 0xa2]), Some(Special::Cpuid));
        assert_eq!(special(&[0x0f, 0x01, 0xf9]), None);
        assert_eq!(special(&[0x90]), None);
        assert_eq!(special(&[]), None);
    }
}
