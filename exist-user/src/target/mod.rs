//! From what the user named to the cgroups to follow.
//!
//! Takes: a [`Target`] and the [`Roots`]. Gives: [`Resolved`]: the hierarchy that decides membership, and the root cgroups
//! in it, held open. Refuses: an ID that is too short, ambiguous or unknown, and a process without a cgroup of its own.
//!
//! Which hierarchy decides: version 2 when the container or process has a cgroup of its own there; otherwise the first
//! version 1 controller that separates it, in the order [`PREFERENCE`](crate::sys::cgroupfs::PREFERENCE): memory, pids, cpu, …

mod command;
mod container;
pub mod container_id;
mod error;
mod process;

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use exist_trace::{file::model::ResolvedTarget, session::Target};

pub use self::{
    command::{Command, sweep},
    error::TargetError,
    process::OnlyProcess,
};
use crate::sys::{
    cgroupfs::{Cgroup, Hierarchy, Mount, Mounts},
    procfs::{self, PidNamespace, is_gone},
    roots::Roots,
};

/// What is followed.
#[derive(Debug)]
pub struct Resolved {
    /// The command, where the target is one; it waits for [`Command::release`] and dies with this.
    pub command: Option<Command>,
    /// The hierarchy that decides who belongs to the target.
    pub hierarchy: Hierarchy,
    /// The root cgroups; what is below them belongs to the target too. At least one.
    pub roots: Vec<Cgroup>,
    /// The container's whole ID, where the target is one or is within one.
    pub container: Option<String>,
    /// Only threads of this process are followed.
    pub only_pid: Option<OnlyProcess>,
}

/// What a look at the target finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// A process is in it.
    Populated,
    /// No process is in it: the next one may come.
    Empty,
    /// All its cgroups were removed, or the process that it is has ended: none can come.
    Gone,
}

impl Resolved {
    /// For the file's header.
    #[must_use]
    pub fn header(&self) -> ResolvedTarget {
        ResolvedTarget {
            container: self.container.clone(),
            hierarchy: self.hierarchy.to_string(),
            cgroups: self
                .roots
                .iter()
                .map(|r| (r.path().to_string_lossy().into_owned(), r.id()))
                .collect(),
        }
    }

    /// IDs of all cgroups of the target now: the roots and what is below them. Those of a root that was removed are left out.
    #[must_use]
    pub fn cgroup_ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.roots.iter().filter_map(|r| r.subtree().ok()).flatten().collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Whether a process is in the target still.
    ///
    /// # Errors
    /// As the kernel gives them when a cgroup cannot be read.
    pub fn presence(&self) -> io::Result<Presence> {
        let mut presence = Presence::Gone;
        for root in &self.roots {
            match root.populated() {
                Ok(true) => return Ok(Presence::Populated),
                Ok(false) => presence = Presence::Empty,
                Err(e) if is_gone(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(presence)
    }
}

/// Resolves a target. A command is started, held before it executes. What crashed runs left is swept first: [`sweep`].
///
/// # Errors
/// See [`TargetError`].
pub fn resolve(roots: &Roots, target: &Target) -> Result<Resolved, TargetError> {
    if procfs::pid_namespace(roots) == PidNamespace::Other {
        return Err(TargetError::PidNamespace(roots.proc.clone()));
    }
    let mounts = Mounts::find(roots).map_err(|e| read_error(&roots.proc_file("self/mountinfo"), e))?;
    // What cannot be swept is in nobody's way.
    let _ = sweep(&mounts);
    resolve_in(roots, &mounts, target)
}

fn resolve_in(roots: &Roots, mounts: &Mounts, target: &Target) -> Result<Resolved, TargetError> {
    if mounts.iter().next().is_none() {
        return Err(TargetError::NoHierarchy(roots.cgroup.clone()));
    }
    match target {
        Target::Container(id) => {
            let found = container::find(roots, mounts, id)?;
            let what = || format!("container {}", found.id);
            let cgroups = found
                .paths
                .iter()
                .map(|path| open(found.mount, path, what))
                .collect::<Result<_, _>>()?;
            Ok(resolved(found.mount, cgroups, Some(found.id)))
        }
        Target::Cgroup(path) => {
            let (mount, path) = cgroup(mounts, Path::new(path))?;
            let container = container_id::in_path(&path).map(Into::into);
            let root = open(mount, &path, || format!("cgroup {}", path.display()))?;
            Ok(resolved(mount, vec![root], container))
        }
        Target::Pid(pid) => of_process(roots, mounts, *pid),
        Target::OnlyPid(pid) => {
            let process = OnlyProcess::find(roots, *pid)?;
            let found = match of_process(roots, mounts, *pid) {
                // The root will do: the process alone decides.
                Err(TargetError::RootCgroup(_)) => {
                    let mount = mounts
                        .iter()
                        .next()
                        .ok_or_else(|| TargetError::NoHierarchy(roots.cgroup.clone()))?;
                    let root = open(mount, Path::new("/"), || "the root cgroup".into())?;
                    resolved(mount, vec![root], None)
                }
                other => other?,
            };
            Ok(Resolved {
                only_pid: Some(process),
                ..found
            })
        }
        Target::Command(argv) => {
            let (command, root, hierarchy) = command::start(roots, mounts, argv)?;
            Ok(Resolved {
                command: Some(command),
                hierarchy,
                roots: vec![root],
                container: None,
                only_pid: None,
            })
        }
    }
}

fn resolved(mount: &Mount, roots: Vec<Cgroup>, container: Option<String>) -> Resolved {
    Resolved {
        command: None,
        hierarchy: mount.hierarchy.clone(),
        roots,
        container,
        only_pid: None,
    }
}

fn open(mount: &Mount, path: &Path, what: impl Fn() -> String) -> Result<Cgroup, TargetError> {
    Cgroup::open(mount, path).map_err(|error| match is_gone(&error) {
        true => TargetError::Gone { what: what() },
        false => read_error(&mount.directory(path), error),
    })
}

/// A path below a mount, or an absolute one that begins with a mount point: that mount's then.
fn cgroup<'a>(mounts: &'a Mounts, path: &Path) -> Result<(&'a Mount, PathBuf), TargetError> {
    // Also drops a `/` at the end.
    let below = |path: &Path| {
        Path::new("/")
            .components()
            .chain(path.components())
            .collect::<PathBuf>()
    };
    let whole = mounts
        .iter()
        .find_map(|m| Some((m, below(path.strip_prefix(&m.dir).ok()?))));
    whole
        .into_iter()
        .chain(mounts.iter().map(|m| (m, below(path))))
        .find(|(mount, path)| {
            let leads_out = path.components().any(|c| c == Component::ParentDir);
            !leads_out && mount.directory(path).is_dir()
        })
        .ok_or_else(|| TargetError::NoCgroup {
            path: path.into(),
            searched: searched(mounts),
        })
}

/// The cgroup of a process in the first hierarchy where it is not in the root.
fn of_process(roots: &Roots, mounts: &Mounts, pid: u32) -> Result<Resolved, TargetError> {
    let mut visible = false;
    for mount in mounts.iter() {
        let path = match mounts.of_process(roots, mount, pid) {
            Err(e) if is_gone(&e) => return Err(TargetError::NoProcess(pid)),
            Err(e) => return Err(read_error(&roots.proc_file(format!("{pid}/cgroup")), e)),
            Ok(path) => path,
        };
        visible |= path.is_some();
        if let Some(path) = path.filter(|p| p != Path::new("/")) {
            let root = open(mount, &path, || format!("process {pid}"))?;
            let container = container_id::in_path(&path).map(Into::into);
            return Ok(resolved(mount, vec![root], container));
        }
    }
    Err(match visible {
        true => TargetError::RootCgroup(pid),
        false => TargetError::ProcessNotVisible {
            pid,
            searched: searched(mounts),
        },
    })
}

fn searched(mounts: &Mounts) -> String {
    let each: Vec<String> = mounts
        .iter()
        .map(|m| format!("{} ({})", m.dir.display(), m.hierarchy))
        .collect();
    each.join(", ")
}

fn read_error(path: &Path, error: io::Error) -> TargetError {
    TargetError::Read {
        what: path.display().to_string(),
        error,
    }
}

#[cfg(test)]
mod tests;
