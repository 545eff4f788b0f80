//! Options that say where procfs and cgroupfs stand.

use std::path::PathBuf;

use clap::Args;

use crate::sys::roots::Roots;

/// Options of every command that looks at the node.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Where the node is seen (from within a container)")]
pub struct RootArgs {
    /// The host's procfs [environment: EXIST_PROC_ROOT] [default: /proc]
    #[arg(long, value_name = "DIR")]
    proc_root: Option<PathBuf>,
    /// The folder of the host's cgroup mounts [environment: EXIST_CGROUP_ROOT] [default: /sys/fs/cgroup]
    #[arg(long, value_name = "DIR")]
    cgroup_root: Option<PathBuf>,
}

impl RootArgs {
    /// What was given, else the environment, else the usual places.
    pub fn roots(&self) -> Roots {
        Roots::new(self.proc_root.clone(), self.cgroup_root.clone())
    }
}
