//! How much memory the machine has.

use std::{fs, io, path::Path};

/// `MemTotal` of `meminfo` below `proc`, where a procfs is mounted; bytes.
///
/// # Errors
/// When the file cannot be read or has no such line.
pub fn total_bytes(proc: &Path) -> io::Result<u64> {
    let path = proc.join("meminfo");
    let text = fs::read_to_string(&path)?;
    text.lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?
                .trim()
                .strip_suffix("kB")?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .and_then(|kib| kib.checked_mul(1024))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: no MemTotal in kB", path.display()),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_says_it_or_is_refused() {
        let proc = std::env::temp_dir().join(format!("exist-meminfo-{}", std::process::id()));
        fs::create_dir_all(&proc).unwrap();
        let check = |text: &str, expect: Option<u64>| {
            fs::write(proc.join("meminfo"), text).unwrap();
            assert_eq!(total_bytes(&proc).ok(), expect, "{text}");
        };
        check("MemTotal:       24576000 kB\nMemFree:  1 kB\n", Some(24_576_000 << 10));
        check("MemFree:  1 kB\n", None);
        check("MemTotal: 18446744073709551615 kB\n", None);
        check("MemTotal: 5 MB\n", None);
        fs::remove_dir_all(&proc).unwrap();
        assert!(total_bytes(Path::new("/proc")).unwrap() > 1 << 20);
    }
}
