//! `/proc/PID/maps`: the mappings of a process.

use super::{decimal, hexadecimal, unescape};

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsLine {
    pub start: u64,
    /// One past the last address; greater than `start`.
    pub end: u64,
    /// `r`, `w`, `x` or `-` each, then `p` or `s`.
    pub permissions: [u8; 4],
    /// Offset in the file, bytes.
    pub offset: u64,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub inode: u64,
    /// Path as the process sees it, `[vdso]` and such, or empty; a removed file's ends with ` (deleted)`. Any bytes.
    pub path: Vec<u8>,
}

impl MapsLine {
    /// Whether code can run from it.
    #[must_use]
    pub const fn executable(&self) -> bool {
        self.permissions[2] == b'x'
    }
}

/// All lines that can be understood, in the kernel's order.
#[must_use]
pub fn parse_maps(bytes: &[u8]) -> Vec<MapsLine> {
    bytes.split(|&b| b == b'\n').filter_map(line).collect()
}

// start-end perms offset major:minor inode   path (show_map_vma in fs/proc/task_mmu.c)
fn line(line: &[u8]) -> Option<MapsLine> {
    let mut rest = line;
    let mut field = || {
        let end = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        let (head, tail) = rest.split_at(end);
        rest = tail.strip_prefix(b" ").unwrap_or(tail);
        head
    };
    let (range, permissions, offset, dev, inode) = (field(), field(), field(), field(), field());
    let (start, end) = split_pair(range, b'-')?;
    let (major, minor) = split_pair(dev, b':')?;
    // The kernel pads with blanks up to the path; a path starts with `/` or `[`, never with a blank.
    let path = &rest[rest.iter().position(|&b| b != b' ').unwrap_or(rest.len())..];
    let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
    if start >= end {
        return None;
    }
    Some(MapsLine {
        start,
        end,
        permissions: permissions.try_into().ok()?,
        offset: hexadecimal(offset)?,
        dev_major: u32::try_from(hexadecimal(major)?).ok()?,
        dev_minor: u32::try_from(hexadecimal(minor)?).ok()?,
        inode: decimal(inode)?,
        path: unescape(path, b"\n"),
    })
}

fn split_pair(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let i = bytes.iter().position(|&b| b == at)?;
    Some((&bytes[..i], &bytes[i + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whole() {
        let got = parse_maps(
            b"7f00aa000000-7f00aa025000 r-xp 00026000 fe:01 1234567                    /usr/lib/libc.so.6\n",
        );
        assert_eq!(
            got,
            [MapsLine {
                start: 0x7f00_aa00_0000,
                end: 0x7f00_aa02_5000,
                permissions: *b"r-xp",
                offset: 0x26000,
                dev_major: 0xfe,
                dev_minor: 1,
                inode: 1_234_567,
                path: b"/usr/lib/libc.so.6".to_vec(),
            }]
        );
        assert!(got[0].executable());
    }

    #[test]
    fn paths_are_any_bytes() {
        let path = |line: &[u8]| parse_maps(line).first().map(|m| m.path.clone());
        let with = |path: &[u8]| [b"1000-2000 r--p 0 00:00 0 ", path].concat();
        assert_eq!(path(&with(b"")).unwrap(), b"");
        assert_eq!(path(b"1000-2000 r--p 0 00:00 0").unwrap(), b"");
        assert_eq!(path(&with(b"     [vdso]")).unwrap(), b"[vdso]");
        assert_eq!(path(&with(b"/a b (deleted)")).unwrap(), b"/a b (deleted)");
        assert_eq!(path(&with(b"/a\\012b\xff")).unwrap(), b"/a\nb\xff");
        assert_eq!(
            path(b"ffffffffff600000-ffffffffff601000 --xp 0 00:00 0 [vsyscall]").unwrap(),
            b"[vsyscall]"
        );
    }

    #[test]
    fn what_is_no_line_is_left_out() {
        for bad in [
            &b"\n\n"[..],
            b"1000-2000",
            b"2000-1000 r-xp 0 00:00 0",
            b"1000-1000 r-xp 0 00:00 0",
            b"1000-2000 r-x 0 00:00 0",
            b"1000-2000 r-xp 0 00 0",
            b"1000-2000 r-xp 0 00:00 x",
            b"-1-2000 r-xp 0 00:00 0",
            b"1000-10000000000000000 r-xp 0 00:00 0",
        ] {
            assert_eq!(parse_maps(bad), [], "{}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn cut_anywhere_it_gives_at_most_what_the_whole_gives() {
        let whole = b"1000-2000 r-xp 0 00:00 7 /bin/a\n2000-3000 r-xp 1000 00:00 7 /bin/a\n";
        for cut in 0..=whole.len() {
            assert!(parse_maps(&whole[..cut]).len() <= 2);
        }
    }
}
