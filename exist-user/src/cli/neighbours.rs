//! Names of foreign cgroups, for a trace that was recorded on this machine since it booted.
//!
//! A trace holds their IDs only. Takes its header, gives a container's ID or the path for the ID of a cgroup that is still
//! there. Gives none for a trace of another machine or another boot: there the same ID is another cgroup.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _, path::Path};

use exist_trace::{file::model::Header, session::Target};

use crate::{
    sys::{
        cgroupfs::{Hierarchy, Mount, Mounts},
        clock,
        roots::Roots,
    },
    target::container_id,
};

/// By how much the time of the boot may seem to move: the real-time clock is set and slewed.
const SAME_BOOT_NS: u64 = 5_000_000_000;

/// Names by ID.
#[derive(Debug, Default)]
pub struct Names(HashMap<u64, String>);

impl Names {
    /// Those of the hierarchy that the trace's IDs are of.
    pub fn of(header: &Header, roots: &Roots) -> Self {
        let boot = header.start_realtime_ns.saturating_sub(header.start.0);
        let is_here = boot.abs_diff(clock::realtime_ns().saturating_sub(clock::mono_ns())) <= SAME_BOOT_NS;
        if !is_here {
            return Self::default();
        }
        let hierarchy = match header.session.target {
            // Whatever decides there, IDs are of version 2.
            Target::OnlyPid(_) => Hierarchy::V2.to_string(),
            _ => header.target.hierarchy.clone(),
        };
        let mounts = Mounts::find(roots).unwrap_or_default();
        let mount = mounts.iter().find(|mount| mount.hierarchy.to_string() == hierarchy);
        mount.map(Self::below).unwrap_or_default()
    }

    fn below(mount: &Mount) -> Self {
        let paths = mount.walk().unwrap_or_default().into_iter();
        let name = |path: &Path| match container_id::in_path(path) {
            Some(id) => format!("container {id}"),
            None => format!("cgroup {}", path.display()),
        };
        let named = paths.filter_map(|path| Some((fs::metadata(mount.directory(&path)).ok()?.ino(), name(&path))));
        Self(named.collect())
    }

    pub fn get(&self, id: u64) -> Option<String> {
        self.0.get(&id).cloned()
    }
}
