//! Where procfs and cgroupfs stand.
//!
//! Takes: two paths, given by the user or the environment. Gives: [`Roots`], which everything that reads
//! either file system goes through. A privileged container sees the host's under other paths.

use std::{
    env,
    path::{Path, PathBuf},
};

/// Environment variable that gives the procfs to use.
pub const PROC_ROOT_ENV: &str = "EXIST_PROC_ROOT";
/// Environment variable that gives the folder with the cgroup mounts to use.
pub const CGROUP_ROOT_ENV: &str = "EXIST_CGROUP_ROOT";

const PROC_ROOT: &str = "/proc";
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// The procfs and cgroupfs in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// A procfs; it decides in which PID namespace process IDs are read. The hook counts in the initial one.
    pub proc: PathBuf,
    /// The folder that is the cgroup v2 mount, or holds the mounts of all hierarchies.
    pub cgroup: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            proc: PROC_ROOT.into(),
            cgroup: CGROUP_ROOT.into(),
        }
    }
}

impl Roots {
    /// What was given; for what was not, the environment ([`PROC_ROOT_ENV`], [`CGROUP_ROOT_ENV`]), then `/proc` and `/sys/fs/cgroup`.
    #[must_use]
    pub fn new(proc: Option<PathBuf>, cgroup: Option<PathBuf>) -> Self {
        let pick = |given: Option<PathBuf>, name: &str, default: PathBuf| {
            given
                .or_else(|| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from))
                .unwrap_or(default)
        };
        let default = Self::default();
        Self {
            proc: pick(proc, PROC_ROOT_ENV, default.proc),
            cgroup: pick(cgroup, CGROUP_ROOT_ENV, default.cgroup),
        }
    }

    /// A file below the procfs root.
    #[must_use]
    pub fn proc_file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.proc.join(name)
    }
}
