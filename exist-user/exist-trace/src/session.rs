//! What was asked: the one type that the command line, the file header and a cluster's resource share.

use serde::{Deserialize, Serialize};

/// A recording as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// What to follow.
    pub target: Target,
    /// Length of the period in nanoseconds; `None`: until the target exits or the user stops it.
    pub period_ns: Option<u64>,
}

/// What to follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A container, by its ID or a unique prefix of at least four characters.
    Container(String),
    /// A cgroup, by its path below the cgroup file system's mount, or absolute.
    Cgroup(String),
    /// The cgroup of a process.
    Pid(u32),
    /// Only the threads of one process.
    OnlyPid(u32),
    /// A command that is started in a cgroup of its own.
    Command(Vec<String>),
}
