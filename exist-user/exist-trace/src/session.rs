//! What was asked: the one type that the command line, the file header and a cluster's resource share.

use serde::{Deserialize, Serialize};

use crate::units::Cpu;

/// A recording as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// What to follow.
    pub target: Target,
    /// Length of the period in nanoseconds; `None`: until the target exits or the user stops it.
    pub period_ns: Option<u64>,
    /// Processor trace.
    #[serde(default, skip_serializing_if = "PtRequest::is_default")]
    pub pt: PtRequest,
    /// A record of each wait.
    #[serde(default, skip_serializing_if = "Waits::is_off")]
    pub waits: Waits,
}

/// Whether to record each wait of the target's threads: why it was off the CPU, and when it was woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waits {
    On,
    #[default]
    Off,
}

impl Waits {
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// What is asked of the processor trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtRequest {
    pub mode: PtMode,
    /// Buffer of each CPU, bytes; `None`: the default.
    pub buffer_bytes: Option<u64>,
    /// All buffers together, bytes; `None`: the default.
    pub budget_bytes: Option<u64>,
    /// Limits of a CPU's buffer where the target's use of the CPUs decides, bytes; `None`: the defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_buffer_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_buffer_bytes: Option<u64>,
    /// Only these CPUs; `None`: all but the isolated and nohz_full ones.
    pub cpus: Option<Vec<Cpu>>,
}

impl PtRequest {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Whether to record a processor trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PtMode {
    /// Where there is one; a recording without it says why.
    #[default]
    Auto,
    /// A recording without it is an error.
    On,
    Off,
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
