//! A command in a cgroup of its own, which is removed with all its processes at the end.
//!
//! The cgroup is made below our own, so that the limits of the session that started us hold for the command too. We hold
//! the lock of its directory while we live: a cgroup of this name that nobody has locked is what a crashed run left.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use super::error::TargetError;
use crate::sys::{
    cgroupfs::{Cgroup, Hierarchy, Mount, Mounts},
    child::HeldChild,
    procfs::is_gone,
    roots::Roots,
};

/// Names of the cgroups that we make begin so.
const PREFIX: &str = "exist-run-";
/// Version 1 controllers whose child cgroups work without any setting and change nothing.
const HARMLESS: [&str; 4] = ["pids", "freezer", "devices", "memory"];

/// A command that waits in its own cgroup, or runs there.
#[derive(Debug)]
pub struct Command {
    /// The cgroup; [`super::Resolved::roots`] holds another opening of it.
    cgroup: Cgroup,
    child: HeldChild,
    program: String,
}

impl Command {
    /// Process ID of the command.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Lets the command begin: to be called once tracing is attached.
    ///
    /// # Errors
    /// [`TargetError::Command`] when the program cannot be executed.
    pub fn release(&mut self) -> Result<(), TargetError> {
        self.child.release().map_err(|error| TargetError::Command {
            program: self.program.clone(),
            error,
        })
    }

    /// The child: its descriptor becomes readable when it ends.
    pub fn child(&mut self) -> &mut HeldChild {
        &mut self.child
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        // What cannot be removed now is swept at the next start.
        let _ = clear(&self.cgroup);
    }
}

/// Starts `argv` in a new cgroup, held before it executes. Gives a second opening of the cgroup.
pub fn start(roots: &Roots, mounts: &Mounts, argv: &[String]) -> Result<(Command, Cgroup, Hierarchy), TargetError> {
    let program = argv.first().cloned().unwrap_or_default();
    let failed = |error| TargetError::Command {
        program: program.clone(),
        error,
    };
    let mount = place(mounts).ok_or_else(|| TargetError::NoHierarchy(roots.cgroup.clone()))?;
    // A child that cannot be started leaves no cgroup behind.
    let child = HeldChild::spawn(argv).map_err(failed)?;
    let own = mounts
        .of_process(roots, mount, process::id())
        .ok()
        .flatten()
        .unwrap_or_else(|| "/".into());
    let make_failed = |error| TargetError::MakeCgroup {
        dir: mount.directory(&own),
        error,
    };
    let cgroup = make(mount, &own).map_err(make_failed)?;
    // From here on dropping it removes the cgroup.
    let command = Command { cgroup, child, program };
    command.cgroup.attach(command.child.pid()).map_err(make_failed)?;
    let root = Cgroup::open(mount, command.cgroup.path()).map_err(make_failed)?;
    Ok((command, root, mount.hierarchy.clone()))
}

/// Where [`place`] may have put a command.
fn holds_commands(mount: &Mount) -> bool {
    mount.hierarchy == Hierarchy::V2 || HARMLESS.contains(&mount.hierarchy.to_string().as_str())
}

fn place(mounts: &Mounts) -> Option<&Mount> {
    let v1 = |name: &&str| mounts.v1.iter().find(|m| m.hierarchy.to_string() == *name);
    mounts.v2.as_ref().or_else(|| HARMLESS.iter().find_map(v1))
}

/// Makes a cgroup below `own` and locks it. A sweep of another run may remove it in between: then once more.
fn make(mount: &Mount, own: &Path) -> io::Result<Cgroup> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut last = io::ErrorKind::AlreadyExists.into();
    for _ in 0..16 {
        let path = own.join(format!(
            "{PREFIX}{}-{}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        match fs::create_dir(mount.directory(&path)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            other => other?,
        }
        match Cgroup::open(mount, &path).and_then(|cgroup| cgroup.lock().map(|()| cgroup)) {
            Ok(cgroup) if cgroup.exists() => return Ok(cgroup),
            Ok(_) => {}
            Err(e) if is_gone(&e) || e.kind() == io::ErrorKind::WouldBlock => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Removes what crashed runs left: their cgroups with the processes in them. Gives the paths of those removed.
///
/// # Errors
/// When a hierarchy cannot be listed. A leftover that cannot be removed (no permission) is left for another start.
pub fn sweep(mounts: &Mounts) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for mount in mounts.iter().filter(|m| holds_commands(m)) {
        for path in mount.walk()? {
            let ours = path
                .file_name()
                .is_some_and(|n| n.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
            if ours
                && let Ok(cgroup) = Cgroup::open(mount, &path)
                && cgroup.lock().is_ok()
                && clear(&cgroup).is_ok()
            {
                removed.push(mount.directory(&path));
            }
        }
    }
    Ok(removed)
}

/// Kills what is in a cgroup and removes it. Killed processes leave when they are scheduled next, so for a short while it is busy.
fn clear(cgroup: &Cgroup) -> io::Result<()> {
    let end = Instant::now() + Duration::from_secs(2);
    cgroup.kill()?;
    loop {
        match cgroup.remove() {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}
