//! The running kernel's types: offsets of fields, values of enumerations, prototypes of tracepoints.
//!
//! Takes: the bytes of `/sys/kernel/btf/vmlinux` (format: Documentation/bpf/btf.rst). Gives: answers by name.
//! Refuses: bytes that are not BTF, with the offset; a name that is not there, with the name.

use thiserror::Error;

const MAGIC: u16 = 0xeb9f;

const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BtfError {
    /// The bytes are not BTF.
    #[error("no BTF at offset {0}")]
    Malformed(usize),
    /// A kind of type that this version does not know; what follows it cannot be found.
    #[error("unknown kind {kind} of type {id}")]
    Kind { id: u32, kind: u32 },
    /// No such type.
    #[error("the kernel has no {0}")]
    NoType(String),
    /// No such field.
    #[error("the kernel has no field {0}")]
    NoField(String),
}

/// What a parameter of a tracepoint is, as far as it matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// A pointer to this struct.
    Struct(String),
    /// Anything else.
    Other,
}

/// A parsed BTF.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Offset of the names.
    names: usize,
    names_end: usize,
    /// Offset of each type; type 0 is void and has none.
    types: Vec<usize>,
}

impl Btf {
    /// Finds where each type is.
    ///
    /// # Errors
    /// [`BtfError::Malformed`], [`BtfError::Kind`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        let mut btf = Self {
            bytes,
            names: 0,
            names_end: 0,
            types: vec![0],
        };
        if btf.u16(0)? != MAGIC {
            return Err(BtfError::Malformed(0));
        }
        let header = btf.u32(4)? as usize;
        let section = |offset: u32, len: u32| {
            let start = header.checked_add(offset as usize);
            let end = start.and_then(|start| start.checked_add(len as usize));
            match (start, end) {
                (Some(start), Some(end)) if end <= btf.bytes.len() => Ok((start, end)),
                _ => Err(BtfError::Malformed(8)),
            }
        };
        let (mut at, end) = section(btf.u32(8)?, btf.u32(12)?)?;
        (btf.names, btf.names_end) = section(btf.u32(16)?, btf.u32(20)?)?;
        while at < end {
            let id = btf.types.len() as u32;
            btf.types.push(at);
            let (kind, len) = (btf.kind_at(at)?, btf.len_at(at)?);
            // What follows the 12 bytes that every type has.
            at += 12
                + match kind {
                    1 | 14 | 17 => 4,
                    PTR | 7 | TYPEDEF | 9 | 10 | 11 | FUNC | 16 | 18 => 0,
                    ARRAY => 12,
                    STRUCT | UNION | 15 | 19 => len * 12,
                    ENUM | FUNC_PROTO => len * 8,
                    kind => return Err(BtfError::Kind { id, kind }),
                };
        }
        if at != end {
            return Err(BtfError::Malformed(at));
        }
        Ok(btf)
    }

    /// Whether the kernel has a function of this name.
    #[must_use]
    pub fn has_function(&self, name: &str) -> bool {
        self.find(FUNC, name).is_some()
    }

    /// Offset in bytes of a field, through anonymous structs and unions.
    ///
    /// # Errors
    /// [`BtfError::NoType`], [`BtfError::NoField`] (also for a bit field).
    pub fn offset(&self, of: &str, field: &str) -> Result<u32, BtfError> {
        let at = self
            .find(STRUCT, of)
            .ok_or_else(|| BtfError::NoType(format!("struct {of}")))?;
        self.offset_in(at, field, 0)?
            .filter(|bits| bits % 8 == 0)
            .map(|bits| bits / 8)
            .ok_or_else(|| BtfError::NoField(format!("{of}.{field}")))
    }

    /// Value of a constant of an enumeration.
    ///
    /// # Errors
    /// [`BtfError::NoType`], [`BtfError::NoField`].
    pub fn constant(&self, of: &str, name: &str) -> Result<u32, BtfError> {
        let at = self
            .find(ENUM, of)
            .ok_or_else(|| BtfError::NoType(format!("enum {of}")))?;
        for i in 0..self.len_at(at)? {
            let constant = at + 12 + i * 8;
            if self.name_at(constant) == Some(name.as_bytes()) {
                return self.u32(constant + 4);
            }
        }
        Err(BtfError::NoField(format!("{of}.{name}")))
    }

    /// Parameters of a BTF tracepoint, without the first, which is the kernel's own.
    ///
    /// # Errors
    /// [`BtfError::NoType`].
    pub fn tracepoint(&self, name: &str) -> Result<Vec<Parameter>, BtfError> {
        let missing = || BtfError::NoType(format!("BTF tracepoint {name}"));
        let typedef = self.find(TYPEDEF, &format!("btf_trace_{name}")).ok_or_else(missing)?;
        let pointer = self.target(typedef, PTR).ok_or_else(missing)?;
        let proto = self.target(pointer, FUNC_PROTO).ok_or_else(missing)?;
        (1..self.len_at(proto)?)
            .map(|i| {
                let parameter = self.u32(proto + 12 + i * 8 + 4)?;
                let target = self
                    .type_at(parameter)
                    .filter(|&at| self.kind_at(at) == Ok(PTR))
                    .and_then(|at| self.target(at, STRUCT))
                    .and_then(|at| self.name_at(at));
                Ok(target.map_or(Parameter::Other, |name| {
                    Parameter::Struct(String::from_utf8_lossy(name).into_owned())
                }))
            })
            .collect()
    }

    /// Bits from the start of the struct at `at` to the field.
    fn offset_in(&self, at: usize, field: &str, depth: u32) -> Result<Option<u32>, BtfError> {
        // Deeper than any kernel nests; a loop in the types would not end.
        if depth > 16 {
            return Ok(None);
        }
        let bit_fields = self.u32(at + 4)? >> 31 != 0;
        for i in 0..self.len_at(at)? {
            let member = at + 12 + i * 12;
            let raw = self.u32(member + 8)?;
            let (offset, bits) = if bit_fields {
                (raw & 0x00ff_ffff, raw >> 24)
            } else {
                (raw, 0)
            };
            match self.name_at(member) {
                Some(name) if name == field.as_bytes() && bits == 0 => return Ok(Some(offset)),
                Some([]) => {
                    let inner = self
                        .type_at(self.u32(member + 4)?)
                        .filter(|&inner| matches!(self.kind_at(inner), Ok(STRUCT | UNION)));
                    if let Some(inner) = inner
                        && let Some(found) = self.offset_in(inner, field, depth + 1)?
                    {
                        return Ok(Some(offset + found));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    fn find(&self, kind: u32, name: &str) -> Option<usize> {
        self.types
            .iter()
            .skip(1)
            .copied()
            .find(|&at| self.kind_at(at) == Ok(kind) && self.name_at(at) == Some(name.as_bytes()))
    }

    /// The type that the one at `at` refers to, if it is of this kind.
    fn target(&self, at: usize, kind: u32) -> Option<usize> {
        self.type_at(self.u32(at + 8).ok()?)
            .filter(|&target| self.kind_at(target) == Ok(kind))
    }

    fn type_at(&self, id: u32) -> Option<usize> {
        self.types.get(id as usize).copied().filter(|&at| at != 0)
    }

    fn kind_at(&self, at: usize) -> Result<u32, BtfError> {
        Ok(self.u32(at + 4)? >> 24 & 0x1f)
    }

    fn len_at(&self, at: usize) -> Result<usize, BtfError> {
        Ok((self.u32(at + 4)? & 0xffff) as usize)
    }

    fn name_at(&self, at: usize) -> Option<&[u8]> {
        let start = self.names.checked_add(self.u32(at).ok()? as usize)?;
        let names = self.bytes.get(start..self.names_end)?;
        Some(&names[..names.iter().position(|&b| b == 0)?])
    }

    fn u16(&self, at: usize) -> Result<u16, BtfError> {
        let bytes = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map(|b| u16::from_le_bytes(*b)).ok_or(BtfError::Malformed(at))
    }

    fn u32(&self, at: usize) -> Result<u32, BtfError> {
        let bytes = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map(|b| u32::from_le_bytes(*b)).ok_or(BtfError::Malformed(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds BTF readably: each type is its name, kind, length and words.
    struct Builder {
        types: Vec<u8>,
        names: Vec<u8>,
    }

    impl Builder {
        fn new() -> Self {
            Self {
                types: Vec::new(),
                names: vec![0],
            }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = self.names.len() as u32;
            self.names.extend(name.as_bytes());
            self.names.push(0);
            at
        }

        fn add(&mut self, name: &str, kind: u32, len: u32, rest: &[u32]) {
            let name = self.name(name);
            for word in [name, kind << 24 | len].iter().chain(rest) {
                self.types.extend(word.to_le_bytes());
            }
        }

        fn build(&self) -> Vec<u8> {
            let mut out = vec![0x9f, 0xeb, 1, 0];
            for word in [
                24,
                0,
                self.types.len() as u32,
                self.types.len() as u32,
                self.names.len() as u32,
            ] {
                out.extend(word.to_le_bytes());
            }
            out.extend(&self.types);
            out.extend(&self.names);
            out
        }
    }

    fn kernel() -> Vec<u8> {
        let mut b = Builder::new();
        let [pid, css, memory, pids] = ["pid", "cgroups", "memory_cgrp_id", "pids_cgrp_id"].map(|n| b.name(n));
        b.add("int", 1, 0, &[4, 32]); // 1
        // 2: task_struct { int 1 @ 0; struct { int pid @ 64; } @ 128; cgroups @ 256 }
        b.add("task_struct", STRUCT, 2, &[64, 0, 3, 128, css, 1, 256]);
        b.add("", STRUCT, 1, &[8, pid, 1, 64]); // 3
        b.add("cgroup_subsys_id", ENUM, 2, &[4, memory, 4, pids, 11]); // 4
        b.add("", PTR, 0, &[2]); // 5: struct task_struct *
        b.add("", FUNC_PROTO, 3, &[0, 0, 0, 0, 1, 0, 5]); // 6: (void *, int, struct task_struct *)
        b.add("", PTR, 0, &[6]); // 7
        b.add("btf_trace_sched_switch", TYPEDEF, 0, &[7]); // 8
        b.add("bpf_task_pt_regs", FUNC, 1, &[6]); // 9
        b.build()
    }

    #[test]
    fn fields_constants_prototypes_functions() {
        let btf = Btf::parse(kernel()).unwrap();
        assert_eq!(btf.offset("task_struct", "pid"), Ok(24));
        assert_eq!(btf.offset("task_struct", "cgroups"), Ok(32));
        assert_eq!(
            btf.offset("task_struct", "mm"),
            Err(BtfError::NoField("task_struct.mm".into()))
        );
        assert_eq!(
            btf.offset("cgroup", "kn"),
            Err(BtfError::NoType("struct cgroup".into()))
        );
        assert_eq!(btf.constant("cgroup_subsys_id", "pids_cgrp_id"), Ok(11));
        assert_eq!(
            btf.tracepoint("sched_switch"),
            Ok(vec![Parameter::Other, Parameter::Struct("task_struct".into())])
        );
        assert!(btf.tracepoint("sched_waking").is_err());
        assert!(btf.has_function("bpf_task_pt_regs") && !btf.has_function("task_struct"));
    }

    #[test]
    fn cut_and_flipped_bytes_are_refused_or_answered() {
        let whole = kernel();
        for len in 0..whole.len() {
            assert!(Btf::parse(whole[..len].to_vec()).is_err(), "cut at {len}");
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                if let Ok(btf) = Btf::parse(bytes) {
                    let _ = btf.offset("task_struct", "pid");
                    let _ = btf.constant("cgroup_subsys_id", "pids_cgrp_id");
                    let _ = btf.tracepoint("sched_switch");
                }
            }
        }
    }

    #[test]
    fn a_struct_that_holds_itself_ends() {
        let mut b = Builder::new();
        b.add("loop", STRUCT, 1, &[8, 0, 1, 0]);
        let btf = Btf::parse(b.build()).unwrap();
        assert!(btf.offset("loop", "x").is_err());
    }
}
