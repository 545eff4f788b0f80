//! Cgroups as directories held open.

use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use super::mounts::{Mount, walk};
use crate::sys::procfs::is_gone;

/// A cgroup whose directory is held open: while this lives, its ID is given to no other.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    dir: PathBuf,
    id: u64,
    fd: OwnedFd,
}

impl Cgroup {
    /// Opens the cgroup at a path below a mount.
    ///
    /// # Errors
    /// As `open` gives them; it may be gone ([`is_gone`]).
    pub fn open(mount: &Mount, path: &Path) -> io::Result<Self> {
        let dir = mount.directory(path);
        let file = fs::File::options()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(&dir)?;
        Ok(Self {
            path: path.to_owned(),
            dir,
            // The inode number of a kernfs directory is the node's ID, whole on 64-bit machines (kernfs_ino in
            // include/linux/kernfs.h), which is what bpf_get_current_cgroup_id and `cgrp->kn->id` give.
            id: file.metadata()?.ino(),
            fd: file.into(),
        })
    }

    /// Path below the hierarchy's mount, `/` for its root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's ID of it, unique within its hierarchy (the roots of all have 1).
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// IDs of this cgroup and of all below it now.
    ///
    /// # Errors
    /// When it was removed.
    pub fn subtree(&self) -> io::Result<Vec<u64>> {
        self.check_path()?;
        let ids = walk(&self.dir)?
            .iter()
            .filter_map(|path| fs::metadata(self.dir.join(path.strip_prefix("/").ok()?)).ok())
            .map(|m| m.ino())
            .collect();
        Ok(ids)
    }

    /// Whether any process is in it or below it.
    ///
    /// # Errors
    /// When it was removed.
    pub fn populated(&self) -> io::Result<bool> {
        match self.read("cgroup.events") {
            Ok(events) => Ok(events.split(|&b| b == b'\n').any(|l| l == b"populated 1")),
            // Version 1 has no such file.
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.processes().map(|p| !p.is_empty()),
            Err(e) => Err(e),
        }
    }

    /// Processes in it and below it, in ascending order, as this process's PID namespace numbers them.
    ///
    /// # Errors
    /// When it was removed.
    pub fn processes(&self) -> io::Result<Vec<u32>> {
        self.check_path()?;
        let mut pids = Vec::new();
        for path in walk(&self.dir)? {
            let dir = self.dir.join(path.strip_prefix("/").unwrap_or(&path));
            // A child may vanish, and a threaded one (version 2) has no list of processes: its threads' process is above it.
            let Ok(list) = fs::read(dir.join("cgroup.procs")) else {
                continue;
            };
            pids.extend(
                list.split(|&b| b == b'\n')
                    .filter_map(|l| std::str::from_utf8(l).ok()?.parse::<u32>().ok()),
            );
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Kills every process in it and below it.
    ///
    /// # Errors
    /// When it cannot be read or written; not when it was removed.
    pub fn kill(&self) -> io::Result<()> {
        match self.write("cgroup.kill", b"1") {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) if is_gone(&e) => return Ok(()),
            other => return other,
        }
        // Version 1: processes that fork meanwhile are met in the next round.
        for _ in 0..100 {
            let pids = match self.processes() {
                Err(e) if is_gone(&e) => return Ok(()),
                other => other?,
            };
            if pids.is_empty() {
                return Ok(());
            }
            for pid in pids
                .into_iter()
                .filter_map(|p| libc::pid_t::try_from(p).ok())
                .filter(|&p| p > 0)
            {
                // SAFETY: kill takes no pointers.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// How many CPUs' worth of time its own quota gives it; `None`: no limit, or none that this hierarchy tells.
    #[must_use]
    pub fn quota_cpus(&self) -> Option<f64> {
        let text = |name: &str| String::from_utf8(self.read(name).ok()?).ok();
        let numbers = match text("cpu.max") {
            Some(max) => max,
            // Version 1; a quota of -1 is none.
            None => format!("{} {}", text("cpu.cfs_quota_us")?.trim(), text("cpu.cfs_period_us")?),
        };
        let mut numbers = numbers.split_whitespace().map(|n| n.parse::<f64>().ok());
        let (quota, period) = (numbers.next()??, numbers.next()??);
        (quota > 0.0 && period > 0.0).then(|| quota / period)
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// As the kernel gives them.
    pub fn attach(&self, pid: u32) -> io::Result<()> {
        self.write("cgroup.procs", pid.to_string().as_bytes())
    }

    /// Takes the directory's lock (`flock`), which falls with the last descriptor of this opening.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when another holds it.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open; flock takes no pointers.
        match unsafe { libc::flock(self.fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether its path still leads to it.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.check_path().is_ok()
    }

    /// Removes it and all below it; processes must have left.
    ///
    /// # Errors
    /// `EBUSY` while a process is in it; not when it was removed already.
    pub fn remove(&self) -> io::Result<()> {
        if !self.exists() {
            return Ok(());
        }
        for path in walk(&self.dir)?.iter().rev() {
            let dir = path.strip_prefix("/").unwrap_or(path);
            let dir = if dir.as_os_str().is_empty() {
                self.dir.clone()
            } else {
                self.dir.join(dir)
            };
            match fs::remove_dir(dir) {
                Err(e) if is_gone(&e) => {}
                other => other?,
            }
        }
        Ok(())
    }

    // The path may lead to another cgroup by now: the descriptor is what holds.
    fn check_path(&self) -> io::Result<()> {
        if fs::metadata(&self.dir)?.ino() == self.id {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::ENODEV))
        }
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open_file(name, libc::O_RDONLY)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.open_file(name, libc::O_WRONLY)?.write_all(bytes)
    }

    fn open_file(&self, name: &str, flags: libc::c_int) -> io::Result<fs::File> {
        let name = std::ffi::CString::new(name)?;
        // SAFETY: the descriptor is open and the name ends with 0.
        let fd = unsafe { libc::openat(self.fd.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: openat gave a new descriptor that nothing else owns.
        Ok(unsafe { fs::File::from_raw_fd(fd) })
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Hierarchy, *};

    #[test]
    fn a_tree_is_walked_and_held() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir_all(tree.path().join("a/b/c")).unwrap();
        fs::create_dir_all(tree.path().join("d")).unwrap();
        std::os::unix::fs::symlink("a", tree.path().join("link")).unwrap();
        fs::write(tree.path().join("a/b/cgroup.procs"), "12\n7\n").unwrap();
        let mount = Mount {
            hierarchy: Hierarchy::V2,
            dir: tree.path().into(),
            root: "/".into(),
        };
        let mut walked = mount.walk().unwrap();
        let order = walked.clone();
        walked.sort();
        assert_eq!(walked, ["/", "/a", "/a/b", "/a/b/c", "/d"].map(PathBuf::from));
        assert!(
            order
                .iter()
                .enumerate()
                .all(|(i, p)| p.parent().is_none_or(|up| order[..i].contains(&up.into())))
        );

        let a = Cgroup::open(&mount, Path::new("/a")).unwrap();
        assert_eq!((a.processes().unwrap(), a.populated().unwrap()), (vec![7, 12], true));
        assert_eq!(a.subtree().unwrap().len(), 3);
        assert!(!Cgroup::open(&mount, Path::new("/d")).unwrap().populated().unwrap());
        fs::remove_file(tree.path().join("a/b/cgroup.procs")).unwrap();
        a.remove().unwrap();
        assert!(!a.exists());
        // The path leads to another one now.
        fs::create_dir(tree.path().join("a")).unwrap();
        assert!(is_gone(&a.subtree().unwrap_err()));
        a.remove().unwrap();
        assert!(tree.path().join("a").exists());
    }

    #[test]
    fn a_quota_of_either_version() {
        let tree = tempfile::tempdir().unwrap();
        let mount = Mount {
            hierarchy: Hierarchy::V2,
            dir: tree.path().into(),
            root: "/".into(),
        };
        let root = Cgroup::open(&mount, Path::new("/")).unwrap();
        let write = |name: &str, text: &str| fs::write(tree.path().join(name), text).unwrap();
        assert_eq!(root.quota_cpus(), None);
        write("cpu.cfs_quota_us", "50000\n");
        write("cpu.cfs_period_us", "100000\n");
        assert_eq!(root.quota_cpus(), Some(0.5));
        write("cpu.cfs_quota_us", "-1\n");
        assert_eq!(root.quota_cpus(), None);
        write("cpu.max", "max 100000\n");
        assert_eq!(root.quota_cpus(), None);
        write("cpu.max", "150000 100000\n");
        assert_eq!(root.quota_cpus(), Some(1.5));
    }

    #[test]
    fn of_two_openings_one_locks() {
        let tree = tempfile::tempdir().unwrap();
        let mount = Mount {
            hierarchy: Hierarchy::V2,
            dir: tree.path().into(),
            root: "/".into(),
        };
        let (a, b) = (
            Cgroup::open(&mount, Path::new("/")).unwrap(),
            Cgroup::open(&mount, Path::new("/")).unwrap(),
        );
        a.lock().unwrap();
        assert_eq!(b.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        b.lock().unwrap();
    }
}
