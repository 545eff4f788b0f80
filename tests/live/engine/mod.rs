//! Real container engines for live tests, each started for one test in a folder of its own.
//!
//! Takes: a program to run in a container. Gives: the container's ID and the process ID of its first process, as the engine
//! says them. Everything is bounded in time, and only what was started here is stopped, by its process ID.

#![allow(dead_code, unused_imports, reason = "each test target uses a part")]

pub mod containerd;
pub mod docker;
pub mod podman;
mod process;
pub mod rootfs;

/// A container that runs.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its whole ID.
    pub id: String,
    /// Its first process.
    pub pid: u32,
}

/// Why an engine cannot be started here; a test prints it after `skipped: ` and returns.
pub fn missing(programs: &[&str]) -> Option<String> {
    if !exist_user::sys::procfs::Process::new(&Default::default(), std::process::id())
        .status()
        .is_ok_and(|s| s.cap_effective.is_some_and(|caps| caps & 1 << 21 != 0))
    {
        return Some("container engines need root (CAP_SYS_ADMIN)".into());
    }
    let absent: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|p| process::find(p).is_none())
        .collect();
    (!absent.is_empty()).then(|| format!("not installed: {}; `cargo xtask setup` installs it", absent.join(", ")))
}
