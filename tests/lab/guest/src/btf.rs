//! The offset of a structure's member from the kernel's own type information: takes the bytes of /sys/kernel/btf/vmlinux.
//!
//! Refuses, with `None`, bytes that are not BTF, and a member that is not there or lies in an anonymous member.

const MAGIC: u16 = 0xeb9f;
const STRUCT: u32 = 4;
const UNION: u32 = 5;

/// The byte offset of `member` in `structure`.
pub fn offset_of(btf: &[u8], structure: &str, member: &str) -> Option<u32> {
    let word = |at: usize| btf.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    if u16::try_from(word(0)? & 0xffff).ok()? != MAGIC {
        return None;
    }
    let header = word(4)? as usize;
    let (types, types_end) = (
        header + word(8)? as usize,
        header + word(8)? as usize + word(12)? as usize,
    );
    let strings = header + word(16)? as usize;
    let named = |offset: u32, name: &str| {
        let at = strings + offset as usize;
        btf.get(at..at + name.len() + 1)
            .is_some_and(|found| found.ends_with(&[0]) && found.starts_with(name.as_bytes()))
    };
    let mut at = types;
    while at < types_end {
        let (name, info) = (word(at)?, word(at + 4)?);
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        let members = at + 12;
        if kind == STRUCT && named(name, structure) {
            let found = (0..count)
                .map(|n| members + n * 12)
                .find(|at| word(*at).is_some_and(|name| named(name, member)))?;
            // With the kind flag, the high byte is a bit field's size.
            let bits = word(found + 8)? & if info >> 31 == 0 { u32::MAX } else { 0x00ff_ffff };
            return Some(bits / 8);
        }
        at = members
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                STRUCT | UNION | 15 | 19 => count * 12,
                6 | 13 => count * 8,
                _ => 0,
            };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BTF with an int, a structure `other` and a structure `task` with the members `state` and `pid`.
    fn btf() -> Vec<u8> {
        let strings = b"\0int\0other\0task\0state\0pid\0";
        let at = |name: &str| {
            let name = [b"\0", name.as_bytes(), b"\0"].concat();
            strings.windows(name.len()).position(|window| window == name).unwrap() as u32 + 1
        };
        let types = [
            [at("int"), 1 << 24, 4, 32].as_slice(),
            &[at("other"), STRUCT << 24 | 1, 8, at("pid"), 1, 32],
            &[
                at("task"),
                STRUCT << 24 | 2 | 1 << 31,
                8,
                at("state"),
                1,
                4 << 24,
                at("pid"),
                1,
                2464 * 8,
            ],
        ]
        .concat();
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_le_bytes()).collect();
        let header = [
            u32::from(MAGIC) | 1 << 16,
            24,
            0,
            types.len() as u32,
            types.len() as u32,
            strings.len() as u32,
        ];
        let header = header.iter().flat_map(|word| word.to_le_bytes());
        header
            .chain(types.iter().copied())
            .chain(strings.iter().copied())
            .collect()
    }

    #[test]
    fn finds_members() {
        assert_eq!(offset_of(&btf(), "task", "pid"), Some(2464));
        assert_eq!(offset_of(&btf(), "other", "pid"), Some(4));
        assert_eq!(offset_of(&btf(), "task", "pi"), None);
        assert_eq!(offset_of(&btf(), "tas", "pid"), None);
    }

    #[test]
    fn bytes_cut_anywhere_are_refused() {
        let btf = btf();
        for end in 0..btf.len() - 30 {
            assert_eq!(offset_of(&btf[..end], "task", "pid"), None, "cut at {end}");
        }
        assert_eq!(offset_of(b"something else, long enough", "task", "pid"), None);
    }
}
