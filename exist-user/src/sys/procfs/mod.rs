//! Readers of `/proc/PID/*` below [`Roots::proc`].
//!
//! Takes: a PID and the bytes of the kernel's files. Gives: plain data. Refuses nothing that can be skipped: names and
//! paths are whatever bytes a process chose, a line that is not understood is left out, and a process may end at any moment
//! (an error of [`io::ErrorKind::NotFound`] or `ESRCH`, see [`is_gone`]).

mod cgroup;
mod maps;
mod mountinfo;
mod pid_namespace;
mod stat;
mod status;

use std::{
    fs,
    io::{self, Read},
    path::PathBuf,
};

pub use cgroup::{CgroupLine, parse_cgroup};
pub use maps::{MapsLine, parse_maps};
pub use mountinfo::{MountLine, parse_mountinfo};
pub use pid_namespace::{PidNamespace, pid_namespace};
pub use stat::{SchedStat, Stat, parse_schedstat, parse_stat};
pub use status::{Status, parse_status};

use super::roots::Roots;

/// Whether an error means that the process, thread or cgroup no longer exists.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENODEV))
}

/// The files of one process, or of one of its threads.
#[derive(Clone, Debug)]
pub struct Process {
    dir: PathBuf,
}

impl Process {
    /// The process, or the thread, with this ID.
    #[must_use]
    pub fn new(roots: &Roots, pid: u32) -> Self {
        Self {
            dir: roots.proc.join(pid.to_string()),
        }
    }

    /// The thread `tid` of this process.
    #[must_use]
    pub fn thread(&self, tid: u32) -> Self {
        Self {
            dir: self.dir.join("task").join(tid.to_string()),
        }
    }

    /// The bytes of one of its files.
    ///
    /// # Errors
    /// As the kernel gives them; the process may be gone ([`is_gone`]).
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(4096);
        fs::File::open(self.dir.join(name))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// IDs of its threads, in ascending order.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn threads(&self) -> io::Result<Vec<u32>> {
        numbers(&self.dir.join("task"))
    }

    /// Its name as the kernel holds it: at most 15 bytes of any value.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn comm(&self) -> io::Result<Vec<u8>> {
        let mut bytes = self.read("comm")?;
        // proc_pid_comm adds one newline; those before it belong to the name.
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Ok(bytes)
    }

    /// Its cgroup in each hierarchy.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn cgroups(&self) -> io::Result<Vec<CgroupLine>> {
        Ok(parse_cgroup(&self.read("cgroup")?))
    }

    /// Its `stat`.
    ///
    /// # Errors
    /// As [`Self::read`], and [`io::ErrorKind::InvalidData`] when it is none.
    pub fn stat(&self) -> io::Result<Stat> {
        parse_stat(&self.read("stat")?).ok_or_else(|| invalid("stat"))
    }

    /// Whether it is over: gone, or only waits for its parent to hear of it. A process whose first thread has ended lives on
    /// with the others.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match self.stat() {
            Ok(stat) => matches!(stat.state, b'Z' | b'X') && self.threads().is_ok_and(|threads| threads.len() <= 1),
            Err(error) => is_gone(&error),
        }
    }

    /// Its `schedstat`.
    ///
    /// # Errors
    /// As [`Self::read`], and [`io::ErrorKind::InvalidData`] when it is none.
    pub fn schedstat(&self) -> io::Result<SchedStat> {
        parse_schedstat(&self.read("schedstat")?).ok_or_else(|| invalid("schedstat"))
    }

    /// Its `status`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn status(&self) -> io::Result<Status> {
        Ok(parse_status(&self.read("status")?))
    }

    /// Its mappings, in order of their addresses.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn maps(&self) -> io::Result<Vec<MapsLine>> {
        Ok(parse_maps(&self.read("maps")?))
    }
}

/// IDs of all processes that the procfs shows, in ascending order.
///
/// # Errors
/// When the procfs root cannot be listed.
pub fn processes(roots: &Roots) -> io::Result<Vec<u32>> {
    numbers(&roots.proc)
}

fn numbers(dir: &std::path::Path) -> io::Result<Vec<u32>> {
    let mut ids: Vec<u32> = fs::read_dir(dir)?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    Ok(ids)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not the contents of a {what} file"))
}

/// A decimal number made of digits only: `str::parse` would also take a sign.
fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn hexadecimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok()
}

/// Undoes the kernel's octal escapes (`mangle_path` in fs/seq_file.c) of the bytes in `escaped`; other backslashes stand for themselves.
fn unescape(bytes: &[u8], escaped: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if first == b'\\' => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        match octal {
            Some(byte) if escaped.contains(&byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            _ => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_only() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for bad in [&b""[..], b"+1", b"-1", b" 1", b"1 ", b"18446744073709551616", b"\xff"] {
            assert_eq!(decimal(bad), None, "{bad:?}");
        }
        assert_eq!(hexadecimal(b"7fFf"), Some(0x7fff));
        assert_eq!(hexadecimal(b"0x1"), None);
    }

    #[test]
    fn only_the_escaped_bytes_are_restored() {
        assert_eq!(unescape(br"a\012b\040c\777\01", b"\n"), b"a\nb\\040c\\777\\01");
        assert_eq!(unescape(br"a\040b\134", b" \t\n\\"), b"a b\\");
        assert_eq!(unescape(br"\", b"\n"), b"\\");
    }

    #[test]
    fn own_process_is_read() {
        let roots = Roots::default();
        let own = Process::new(&roots, std::process::id());
        let (stat, status) = (own.stat().unwrap(), own.status().unwrap());
        assert_eq!(stat.pid, std::process::id());
        assert_eq!(status.tgid, Some(std::process::id()));
        assert_eq!(own.comm().unwrap(), stat.comm);
        assert!(own.threads().unwrap().contains(&std::process::id()));
        assert!(processes(&roots).unwrap().contains(&std::process::id()));
        let here = own_ips_are_mapped as *const () as u64;
        assert!(
            own.maps()
                .unwrap()
                .iter()
                .any(|m| m.executable() && (m.start..m.end).contains(&here))
        );
        let gone = Process::new(&roots, u32::MAX).stat().unwrap_err();
        assert!(is_gone(&gone), "{gone}");
    }

    fn own_ips_are_mapped() {}
}
