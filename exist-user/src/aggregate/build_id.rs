//! The GNU build ID of an ELF file, through a closure that reads at an offset.
//!
//! Refuses: everything that is not a little-endian ELF with a sane table. A hostile file costs a bounded number of
//! bounded reads.

use std::io;

/// More program headers than any real file has; the kernel refuses more than 64 KiB of them.
const MOST_SEGMENTS: u16 = 256;
/// Longest note segment that is looked through, bytes.
const MOST_NOTES: u64 = 64 << 10;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
/// As the kernel takes them (`lib/buildid.c`, `BUILD_ID_SIZE_MAX`).
const MOST_BYTES: usize = 20;

/// Where a class of ELF keeps its fields.
struct Class {
    header: usize,
    phoff: usize,
    phentsize: usize,
    entry: usize,
    p_offset: usize,
    p_filesz: usize,
    wide: bool,
}

const CLASS_32: Class = Class {
    header: 52,
    phoff: 28,
    phentsize: 42,
    entry: 32,
    p_offset: 4,
    p_filesz: 16,
    wide: false,
};
const CLASS_64: Class = Class {
    header: 64,
    phoff: 32,
    phentsize: 54,
    entry: 56,
    p_offset: 8,
    p_filesz: 32,
    wide: true,
};

/// Reads it; `None` for a file that has none or is no ELF. `read_at` fills the buffer from an offset, or fails.
///
/// # Errors
/// Those of `read_at` on the file's header; a table that leads nowhere is no error.
pub fn build_id(read_at: impl Fn(&mut [u8], u64) -> io::Result<()>) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; 64];
    read_at(&mut header[..52], 0)?;
    let class = match header {
        [0x7f, b'E', b'L', b'F', 1, 1, ..] => CLASS_32,
        [0x7f, b'E', b'L', b'F', 2, 1, ..] => CLASS_64,
        _ => return Ok(None),
    };
    read_at(&mut header[..class.header], 0)?;
    Ok(note_segments(&read_at, &header, &class)
        .into_iter()
        .find_map(|(offset, len)| {
            let mut notes = vec![0; usize::try_from(len).ok()?];
            read_at(&mut notes, offset).ok()?;
            in_notes(&notes)
        }))
}

/// Offset and length of the file's note segments.
fn note_segments(read_at: &impl Fn(&mut [u8], u64) -> io::Result<()>, header: &[u8], class: &Class) -> Vec<(u64, u64)> {
    let (Some(phoff), Some(entry), Some(count)) = (
        class.long(header, class.phoff),
        u16_at(header, class.phentsize),
        u16_at(header, class.phentsize + 2),
    ) else {
        return Vec::new();
    };
    if usize::from(entry) != class.entry || count > MOST_SEGMENTS {
        return Vec::new();
    }
    let mut table = vec![0; class.entry * usize::from(count)];
    if read_at(&mut table, phoff).is_err() {
        return Vec::new();
    }
    table
        .chunks_exact(class.entry)
        .filter(|entry| u32_at(entry, 0) == Some(PT_NOTE))
        .filter_map(|entry| Some((class.long(entry, class.p_offset)?, class.long(entry, class.p_filesz)?)))
        .filter(|&(_, len)| len <= MOST_NOTES)
        .collect()
}

/// The build ID among the notes of a segment: `namesz, descsz, type, name, desc`, each padded to 4 bytes.
fn in_notes(mut notes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let (name_len, desc_len, kind) = (u32_at(notes, 0)?, u32_at(notes, 4)?, u32_at(notes, 8)?);
        let rest = notes.get(12..)?;
        let (name, rest) = padded(rest, name_len)?;
        let (desc, rest) = padded(rest, desc_len)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" && (1..=MOST_BYTES).contains(&desc.len()) {
            return Some(desc.to_vec());
        }
        notes = rest;
    }
}

fn padded(bytes: &[u8], len: u32) -> Option<(&[u8], &[u8])> {
    let len = usize::try_from(len).ok()?;
    let field = bytes.get(..len)?;
    Some((field, bytes.get(len.checked_next_multiple_of(4)?..).unwrap_or_default()))
}

impl Class {
    fn long(&self, bytes: &[u8], at: usize) -> Option<u64> {
        if self.wide {
            Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        } else {
            u32_at(bytes, at).map(u64::from)
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Option<Vec<u8>> {
        build_id(|buffer, offset| {
            let from = usize::try_from(offset).map_err(io::Error::other)?;
            let end = from.checked_add(buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(bytes.get(from..end).ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
        .ok()
        .flatten()
    }

    /// An ELF with one note segment that holds a foreign note and the build ID.
    fn elf(class: &Class) -> Vec<u8> {
        let header = class.header;
        let note = |name: &[u8], kind: u32, desc: &[u8]| {
            let mut note = [name.len(), desc.len()]
                .map(|n| u32::try_from(n).unwrap().to_le_bytes())
                .concat();
            note.extend(kind.to_le_bytes());
            for field in [name, desc] {
                note.extend(field);
                note.resize(note.len().next_multiple_of(4), 0);
            }
            note
        };
        let notes = [
            note(b"stapsdt\0x", 3, &[1; 7]),
            note(b"GNU\0", 1, &[2; 16]),
            note(b"GNU\0", 3, &[0xab; 20]),
        ]
        .concat();
        let mut bytes = vec![0; header + 2 * class.entry];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', if class.wide { 2 } else { 1 }, 1]);
        let mut put =
            |at: usize, value: usize| bytes[at..at + 4].copy_from_slice(&u32::try_from(value).unwrap().to_le_bytes());
        put(class.phoff, header);
        put(class.phentsize, 2 << 16 | class.entry);
        let second = header + class.entry;
        put(header, 1);
        put(second, 4);
        put(second + class.p_offset, header + 2 * class.entry);
        put(second + class.p_filesz, notes.len());
        bytes.extend(notes);
        bytes
    }

    #[test]
    fn both_classes_are_read() {
        assert_eq!(of(&elf(&CLASS_64)), Some(vec![0xab; 20]));
        assert_eq!(of(&elf(&CLASS_32)), Some(vec![0xab; 20]));
    }

    #[test]
    fn cut_or_flipped_anywhere_it_ends() {
        for whole in [elf(&CLASS_64), elf(&CLASS_32)] {
            for len in 0..whole.len() {
                assert_eq!(of(&whole[..len]), None, "cut at {len}");
            }
            for at in 0..whole.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bytes = whole.clone();
                    bytes[at] = value;
                    assert!(of(&bytes).is_none_or(|id| (1..=20).contains(&id.len())));
                }
            }
        }
    }

    #[test]
    fn our_own_program_has_what_readelf_says() {
        let path = std::env::current_exe().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let Ok(output) = std::process::Command::new("readelf").arg("-n").arg(&path).output() else {
            return println!("skipped: no readelf");
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let expect = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Build ID: ").map(str::to_owned));
        let ours = of(&bytes).map(|id| id.iter().map(|b| format!("{b:02x}")).collect::<String>());
        assert_eq!(ours, expect);
    }
}
