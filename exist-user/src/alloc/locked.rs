//! How much memory the kernel lets perf lock, as `kernel/events/core.c`, `perf_mmap`, counts it.

use std::{fs, path::Path};

use super::size;

/// The limits of locked memory for perf buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// `perf_event_mlock_kb` for each online CPU, in bytes: what a user may lock beside the limit below.
    pub perf_bytes: u64,
    /// `RLIMIT_MEMLOCK` of this process, bytes; `None`: no limit.
    pub limit_bytes: Option<u64>,
    /// CAP_IPC_LOCK, or `perf_event_paranoid` −1: no limit counts.
    pub unlimited: bool,
}

impl LockedMemory {
    /// Reads what stands in `proc`, where a procfs is mounted.
    #[must_use]
    pub fn read(proc: &Path, online_cpus: usize) -> Self {
        const CAP_IPC_LOCK: u32 = 14;
        let text = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
        let number = |name: &str| text(name).trim().parse::<i64>().ok();
        let status = text("self/status");
        let effective = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|caps| u64::from_str_radix(caps.trim(), 16).ok())
            .unwrap_or(0);
        let limits = text("self/limits");
        let limit_bytes = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"))
            .and_then(|line| line.split_whitespace().next()?.parse().ok());
        // 516 KiB is the kernel's default (one page of 4 KiB and 512 KiB of data).
        let mlock_kb = number("sys/kernel/perf_event_mlock_kb").map_or(516, i64::unsigned_abs);
        Self {
            perf_bytes: (mlock_kb << 10) * online_cpus as u64,
            limit_bytes,
            unlimited: effective >> CAP_IPC_LOCK & 1 == 1 || number("sys/kernel/perf_event_paranoid") == Some(-1),
        }
    }

    /// What to say when `total_bytes` will not go; `None` when they will.
    #[must_use]
    pub fn refuses(&self, total_bytes: u64) -> Option<String> {
        let limit = self.limit_bytes.filter(|_| !self.unlimited)?;
        let room = limit.saturating_add(self.perf_bytes);
        (total_bytes > room).then(|| {
            format!(
                "{} of locked memory are more than the {} that this user may lock: raise `ulimit -l`, \
                 kernel.perf_event_mlock_kb, or grant CAP_IPC_LOCK",
                size(total_bytes),
                size(room)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(name: &str, files: &[(&str, &str)]) -> LockedMemory {
        let dir = std::env::temp_dir().join(format!("exist-locked-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let read = LockedMemory::read(&dir, 4);
        let _ = fs::remove_dir_all(&dir);
        read
    }

    const LIMITS: (&str, &str) = (
        "self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max locked memory         65536                65536                bytes     \n",
    );

    #[test]
    fn an_ordinary_user_has_both_limits() {
        let locked = root(
            "user",
            &[
                LIMITS,
                ("self/status", "Name:\texist\nCapEff:\t0000000000000000\n"),
                ("sys/kernel/perf_event_mlock_kb", "516\n"),
                ("sys/kernel/perf_event_paranoid", "2\n"),
            ],
        );
        let expect = LockedMemory {
            perf_bytes: 4 * 516 * 1024,
            limit_bytes: Some(65536),
            unlimited: false,
        };
        assert_eq!(locked, expect);
        assert_eq!(locked.refuses(4 * 516 * 1024 + 65536), None);
        let said = locked.refuses(64 << 20).unwrap();
        assert!(
            said.contains("64 MiB") && said.contains("2.1 MiB") && said.contains("ulimit -l"),
            "{said}"
        );
    }

    #[test]
    fn privilege_lifts_them() {
        let caps = ("self/status", "CapEff:\t0000000000004000\n");
        assert_eq!(root("cap", &[LIMITS, caps]).refuses(1 << 40), None);
        let paranoid = ("sys/kernel/perf_event_paranoid", "-1\n");
        assert_eq!(root("paranoid", &[LIMITS, paranoid]).refuses(1 << 40), None);
        let unlimited = (
            "self/limits",
            "Max locked memory         unlimited            unlimited            bytes\n",
        );
        assert_eq!(root("unlimited", &[unlimited]).refuses(1 << 40), None);
    }
}
