//! Where the hierarchies are mounted, and what stands below.

use std::{
    collections::VecDeque,
    fmt, fs, io,
    path::{Component, Path, PathBuf},
};

use crate::sys::{
    procfs::{self, Process, is_gone},
    roots::Roots,
};

/// One hierarchy of cgroups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hierarchy {
    /// cgroup version 2.
    V2,
    /// A version 1 controller's (`memory`, `pids`, …; co-mounted ones share a number).
    V1 {
        /// Name as in `/proc/cgroups`.
        controller: String,
        /// The kernel's number of the hierarchy, as in `/proc/PID/cgroup`; not 0.
        number: u32,
    },
}

impl fmt::Display for Hierarchy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V2 => f.write_str("cgroup2"),
            Self::V1 { controller, .. } => f.write_str(controller),
        }
    }
}

/// Where a hierarchy is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub hierarchy: Hierarchy,
    /// The mount point.
    pub dir: PathBuf,
    /// The cgroup that is mounted there, as paths in `/proc/PID/cgroup` are written: `/` unless
    /// only a part is mounted (a container's own), or this process has a cgroup namespace (`/../..`).
    pub root: PathBuf,
}

impl Mount {
    /// The path below this mount of a cgroup that `/proc/PID/cgroup` names so; `None` when it is not below it.
    #[must_use]
    pub fn below(&self, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix(&self.root).ok()?;
        if rest.components().any(|c| c == Component::ParentDir) {
            return None;
        }
        Some(Path::new("/").join(rest))
    }

    /// The directory of a path below this mount.
    #[must_use]
    pub fn directory(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/").unwrap_or(path) {
            rest if rest.as_os_str().is_empty() => self.dir.clone(),
            rest => self.dir.join(rest),
        }
    }

    /// All cgroups below this mount, its root first, each before its children. Those that vanish meanwhile are left out.
    ///
    /// # Errors
    /// When the mount itself cannot be listed.
    pub fn walk(&self) -> io::Result<Vec<PathBuf>> {
        walk(&self.dir)
    }
}

/// All hierarchies that can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    pub v2: Option<Mount>,
    /// Those with a controller, best to decide by first: see [`PREFERENCE`].
    pub v1: Vec<Mount>,
}

/// Version 1 controllers in the order in which they are asked to separate a container. Every engine gives each container
/// a memory and a pids cgroup of its own; the others may be left out or shared. Named hierarchies (`name=systemd`) have no
/// controller, so the kernel keeps no pointer from a task to its cgroup there that the hook could follow.
pub const PREFERENCE: [&str; 13] = [
    "memory",
    "pids",
    "cpu",
    "cpuacct",
    "devices",
    "freezer",
    "blkio",
    "cpuset",
    "perf_event",
    "net_cls",
    "net_prio",
    "hugetlb",
    "rdma",
];

impl Mounts {
    /// Finds the hierarchies mounted at or below [`Roots::cgroup`]. The mount table is asked rather than the magic number of
    /// `/sys/fs/cgroup`: it also tells which controllers a version 1 mount holds, and whether it is a whole hierarchy.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn find(roots: &Roots) -> io::Result<Self> {
        let own = |name: &str| match fs::read(roots.proc.join("self").join(name)) {
            // A procfs of a PID namespace that this process is not in has no `self`.
            Err(e) if is_gone(&e) => fs::read(Path::new("/proc/self").join(name)),
            other => other,
        };
        // The mount table has canonical paths.
        let cgroup_root = fs::canonicalize(&roots.cgroup).unwrap_or_else(|_| roots.cgroup.clone());
        Ok(Self::from_tables(&own("mountinfo")?, &own("cgroup")?, &cgroup_root))
    }

    /// The same from the bytes of `/proc/self/mountinfo` and `/proc/self/cgroup`.
    #[must_use]
    pub fn from_tables(mountinfo: &[u8], own_cgroups: &[u8], cgroup_root: &Path) -> Self {
        let lines = procfs::parse_mountinfo(mountinfo);
        let numbers = procfs::parse_cgroup(own_cgroups);
        let mut mounts = Self::default();
        for (i, line) in lines.iter().enumerate() {
            let hidden = lines[i + 1..].iter().any(|later| later.mount_point == line.mount_point);
            if hidden || !line.mount_point.starts_with(cgroup_root) {
                continue;
            }
            let hierarchy = match line.fs_type.as_str() {
                "cgroup2" => Hierarchy::V2,
                "cgroup" => {
                    let Some(controller) = PREFERENCE.iter().find(|&&c| line.super_options.iter().any(|o| o == c))
                    else {
                        continue;
                    };
                    let Some(own) = numbers.iter().find(|n| n.controllers.iter().any(|c| c == controller)) else {
                        continue;
                    };
                    Hierarchy::V1 {
                        controller: (*controller).into(),
                        number: own.hierarchy,
                    }
                }
                _ => continue,
            };
            mounts.add(Mount {
                hierarchy,
                dir: line.mount_point.clone(),
                root: line.root.clone(),
            });
        }
        let rank = |m: &Mount| PREFERENCE.iter().position(|&c| c == m.hierarchy.to_string());
        mounts.v1.sort_by_key(rank);
        mounts
    }

    // Of several mounts of one hierarchy the one that shows most: the shortest root, `/` before `/docker/…`.
    fn add(&mut self, new: Mount) {
        let known = match new.hierarchy {
            Hierarchy::V2 => self.v2.as_mut(),
            Hierarchy::V1 { .. } => self.v1.iter_mut().find(|m| m.hierarchy == new.hierarchy),
        };
        match known {
            Some(known) => {
                // `/../..` shows more than `/..`, and that more than `/`, which is this process's own cgroup then.
                let shows = |m: &Mount| {
                    let up = m.root.components().filter(|&c| c == Component::ParentDir).count();
                    (std::cmp::Reverse(up), m.root.components().count())
                };
                if shows(&new) < shows(known) {
                    *known = new;
                }
            }
            None if new.hierarchy == Hierarchy::V2 => self.v2 = Some(new),
            None => self.v1.push(new),
        }
    }

    /// Version 2 first, then version 1 in the order of [`PREFERENCE`].
    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.v2.iter().chain(&self.v1)
    }

    /// The path below `mount` of the cgroup that a process is in.
    ///
    /// # Errors
    /// When the process is gone. `Ok(None)`: it is not below what is mounted.
    pub fn of_process(&self, roots: &Roots, mount: &Mount, pid: u32) -> io::Result<Option<PathBuf>> {
        let lines = Process::new(roots, pid).cgroups()?;
        let line = lines.iter().find(|l| match &mount.hierarchy {
            Hierarchy::V2 => l.hierarchy == 0,
            Hierarchy::V1 { number, .. } => l.hierarchy == *number,
        });
        Ok(line.and_then(|l| mount.below(&l.path)))
    }
}

/// Level by level: a tenant may nest as deep as it likes, and neither descriptors nor the stack grow with it.
pub(super) fn walk(top: &Path) -> io::Result<Vec<PathBuf>> {
    // Only the top must be there.
    fs::read_dir(top)?;
    let mut found = Vec::new();
    let mut waiting = VecDeque::from([PathBuf::from("/")]);
    while let Some(path) = waiting.pop_front() {
        let Ok(entries) = fs::read_dir(top.join(path.strip_prefix("/").unwrap_or(&path))) else {
            continue;
        };
        // A directory that vanishes while it is listed ends its listing.
        let below = entries
            .filter_map(Result::ok)
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        waiting.extend(below.map(|entry| path.join(entry.file_name())));
        found.push(path);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mountinfo: &str, root: &str, expect: &[(&str, u32, &str, &str)]) {
        let own = b"9:name=systemd:/\n8:pids:/\n4:memory:/a\n2:cpu,cpuacct:/\n0::/\n";
        let got = Mounts::from_tables(mountinfo.as_bytes(), own, Path::new(root));
        let got: Vec<_> = got
            .iter()
            .map(|m| {
                let number = match m.hierarchy {
                    Hierarchy::V2 => 0,
                    Hierarchy::V1 { number, .. } => number,
                };
                (
                    m.hierarchy.to_string(),
                    number,
                    m.dir.to_str().unwrap(),
                    m.root.to_str().unwrap(),
                )
            })
            .collect();
        let expect: Vec<_> = expect
            .iter()
            .map(|&(h, n, dir, root)| (h.to_owned(), n, dir, root))
            .collect();
        assert_eq!(got, expect, "{mountinfo}");
    }

    const HYBRID: &str = "1 0 0:1 / /sys/fs/cgroup rw - tmpfs tmpfs rw
2 1 0:2 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
3 1 0:3 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
4 1 0:4 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
5 1 0:5 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
6 1 0:6 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";

    #[test]
    fn hybrid_v1_and_v2_hosts() {
        let unified = ("cgroup2", 0, "/sys/fs/cgroup/unified", "/");
        let v1 = [
            ("memory", 4, "/sys/fs/cgroup/memory", "/"),
            ("pids", 8, "/sys/fs/cgroup/pids", "/"),
            ("cpu", 2, "/sys/fs/cgroup/cpu,cpuacct", "/"),
        ];
        check(HYBRID, "/sys/fs/cgroup", &[unified, v1[0], v1[1], v1[2]]);
        check(&HYBRID[..HYBRID.find("\n6").unwrap()], "/sys/fs/cgroup", &v1);
        check(
            "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 x rw",
            "/sys/fs/cgroup",
            &[("cgroup2", 0, "/sys/fs/cgroup", "/")],
        );
        check("", "/sys/fs/cgroup", &[]);
    }

    #[test]
    fn what_is_hidden_elsewhere_or_unknown_is_left_out() {
        // A tmpfs over the version 2 mount hides it.
        check(
            "1 0 0:1 / /c rw - cgroup2 x rw\n2 0 0:2 / /c rw - tmpfs x rw",
            "/c",
            &[],
        );
        check(HYBRID, "/host/sys/fs/cgroup", &[]);
        // This kernel's /proc/self/cgroup does not list it.
        check("1 0 0:1 / /c/rdma rw - cgroup x rw,rdma", "/c", &[]);
    }

    #[test]
    fn of_two_mounts_the_one_that_shows_more() {
        let two = |a: &str, b: &str| format!("1 0 0:1 {a} /c/a rw - cgroup2 x rw\n2 0 0:1 {b} /c/b rw - cgroup2 x rw");
        check(&two("/docker/x", "/"), "/c", &[("cgroup2", 0, "/c/b", "/")]);
        check(&two("/", "/docker/x"), "/c", &[("cgroup2", 0, "/c/a", "/")]);
        // In a cgroup namespace: `/` is this container's own, `/../..` the host's.
        check(&two("/", "/../.."), "/c", &[("cgroup2", 0, "/c/b", "/../..")]);
    }

    #[test]
    fn paths_of_procfs_below_a_mount() {
        let below = |root: &str, path: &str| {
            let mount = Mount {
                hierarchy: Hierarchy::V2,
                dir: "/c".into(),
                root: root.into(),
            };
            mount
                .below(Path::new(path))
                .map(|p| (p.to_str().unwrap().to_owned(), mount.directory(&p)))
        };
        let some = |path: &str, dir: &str| Some((path.to_owned(), PathBuf::from(dir)));
        assert_eq!(below("/", "/"), some("/", "/c"));
        assert_eq!(below("/", "/docker/x"), some("/docker/x", "/c/docker/x"));
        assert_eq!(below("/docker/x", "/docker/x/init"), some("/init", "/c/init"));
        assert_eq!(below("/docker/x", "/docker/y"), None);
        assert_eq!(below("/docker/x", "/docker/xy"), None);
        assert_eq!(below("/", "/../y"), None);
        assert_eq!(
            below("/../..", "/../../kubepods/p"),
            some("/kubepods/p", "/c/kubepods/p")
        );
        // This process's own cgroup: no text tells its name.
        assert_eq!(below("/../..", "/"), None);
    }

    #[test]
    fn a_deep_tree_is_walked_to_its_end() {
        const LEVELS: usize = 300;
        let tree = tempfile::tempdir().unwrap();
        let deepest = (0..LEVELS).fold(tree.path().to_owned(), |path, _| path.join("x"));
        fs::create_dir_all(&deepest).unwrap();
        let walked = walk(tree.path()).unwrap();
        assert_eq!(walked.len(), LEVELS + 1);
        assert!(deepest.ends_with(walked[LEVELS].strip_prefix("/").unwrap()));
    }
}
