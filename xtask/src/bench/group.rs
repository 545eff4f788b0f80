//! A cgroup of our own for each program under measurement: it is the target, it tells the CPU time to the microsecond
//! for all processes in it, and it takes them down at the end.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// A cgroup v2 folder, removed on drop with everything that still runs in it.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes `exist-bench-PID-NAME` at the root of the v2 hierarchy.
    ///
    /// # Errors
    /// No v2 hierarchy, or no right to write there.
    pub fn new(name: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("failed to read /proc/self/mounts")?;
        let root =
            v2_root(&mounts).context("no cgroup v2 hierarchy is mounted; mount one: mount -t cgroup2 none DIR")?;
        let path = root.join(format!("exist-bench-{}-{name}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("failed to make cgroup {}; run as root", path.display()))?;
        Ok(Self { path })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// CPU time of everything that ever ran in it.
    ///
    /// # Errors
    /// The group is gone.
    pub fn cpu(&self) -> Result<Duration> {
        let text = self.read("cpu.stat")?;
        let usage = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec ")?.parse().ok());
        Ok(Duration::from_micros(usage.context("cpu.stat has no usage_usec")?))
    }

    /// Every thread in it, as seen in our PID namespace.
    ///
    /// # Errors
    /// The group is gone.
    pub fn threads(&self) -> Result<Vec<u32>> {
        Ok(self
            .read("cgroup.threads")?
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect())
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = self.path.join(file);
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Both may fail when somebody else removed the folder: then there is nothing left to do.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let start = Instant::now();
        while fs::remove_dir(&self.path).is_err() && self.path.exists() && start.elapsed() < Duration::from_secs(2) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Where the v2 hierarchy is mounted, from the text of `/proc/self/mounts`.
fn v2_root(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let dir = fields.next()?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(dir))
    })
}

/// Sum of voluntary and involuntary context switches of these threads; those that are gone count 0.
pub fn switches(threads: &[u32]) -> u64 {
    let of = |tid: &u32| {
        let text = fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
        let counts = text
            .lines()
            .filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok());
        counts.sum::<u64>()
    };
    threads.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_root_on_pure_and_hybrid_hosts() {
        let pure = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(v2_root(pure), Some("/sys/fs/cgroup".into()));
        assert_eq!(v2_root(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(v2_root("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"), None);
    }

    #[test]
    fn our_own_switches_are_counted() {
        let before = switches(&[std::process::id()]);
        assert!(before > 0);
        assert_eq!(switches(&[u32::MAX]), 0);
    }
}
