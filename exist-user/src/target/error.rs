//! Why a target cannot be followed.

use std::{io, path::PathBuf};

use super::container_id::MIN_PREFIX;

/// Why a target cannot be followed; each names the thing, the reason and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("no cgroup hierarchy is mounted below {}: give the folder that holds the cgroup mounts with --cgroup-root", .0.display())]
    NoHierarchy(PathBuf),
    #[error("container ID \"{0}\" is too short: at least {MIN_PREFIX} characters are needed")]
    TooShort(String),
    #[error(
        "no container \"{id}\" is found: searched {cgroups} cgroups with {containers} containers in {searched}; the engine's `ps` shows the IDs of running containers"
    )]
    NotFound {
        id: String,
        /// Cgroups looked at.
        cgroups: usize,
        /// Different container IDs among them.
        containers: usize,
        /// The hierarchies and where they are mounted.
        searched: String,
    },
    #[error("container \"{id}\" runs (process {pid}, cgroup {}), but its cgroup is not below {searched}: this is probably a container itself; mount the host's /sys/fs/cgroup and name it with --cgroup-root", .path.display())]
    NotMounted {
        id: String,
        pid: u32,
        path: PathBuf,
        searched: String,
    },
    #[error("container ID \"{id}\" is ambiguous, give more of it:{}", list(.candidates))]
    Ambiguous {
        id: String,
        /// ID and path of each.
        candidates: Vec<(String, PathBuf)>,
    },
    #[error("no cgroup \"{}\" is found in {searched}; /proc/PID/cgroup shows those of a process", .path.display())]
    NoCgroup { path: PathBuf, searched: String },
    #[error("{what} ended while it was looked up; name one that runs")]
    Gone { what: String },
    #[error(
        "there is no process {0}; its number is the host's, and in a container the host's procfs is to be given with --proc-root"
    )]
    NoProcess(u32),
    #[error("{tid} is a thread of process {pid}: name the process, --only-pid {pid}")]
    IsThread { tid: u32, pid: u32 },
    #[error("process {0} has ended, only its parent has not heard of it yet; name one that runs")]
    Ended(u32),
    #[error(
        "{} numbers the processes of a container, and the kernel's records number those of the host: start the container with the host's PID namespace (--pid=host, hostPID: true), or mount the host's /proc and name it with --proc-root",
        .0.display()
    )]
    PidNamespace(PathBuf),
    #[error(
        "the cgroup of process {pid} is not visible below {searched}: mount the host's /sys/fs/cgroup and name it with --cgroup-root"
    )]
    ProcessNotVisible { pid: u32, searched: String },
    #[error(
        "process {0} has no cgroup of its own, it is in the root of every hierarchy: follow only its threads with --only-pid, or the whole machine with --cgroup /"
    )]
    RootCgroup(u32),
    #[error("failed to start \"{program}\": {error}; name a program that is on the PATH, or its file")]
    Command { program: String, error: io::Error },
    #[error("failed to make a cgroup for the command below {}: {error}; this needs root and a writable cgroup file system", .dir.display())]
    MakeCgroup { dir: PathBuf, error: io::Error },
    #[error("failed to read {what}: {error}")]
    Read { what: String, error: io::Error },
}

fn list(candidates: &[(String, PathBuf)]) -> String {
    candidates
        .iter()
        .map(|(id, path)| format!("\n  {id}  {}", path.display()))
        .collect()
}
