//! A root file system for containers: busybox, and programs of this machine with the libraries that they load.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::process;

/// A folder with a root file system, and one with programs to mount into it; removed when this goes.
#[derive(Debug)]
pub struct RootFs {
    dir: tempfile::TempDir,
    programs: tempfile::TempDir,
}

/// Where a container has the programs. They are mounted: copies of debug builds in every layer would fill the disk.
pub const PROGRAMS: &str = "/programs";

impl RootFs {
    /// With busybox (`sh`, `sleep`, `cat`, …), and these programs, each at `/programs/NAME`.
    pub fn new(programs: &[(&str, &Path)]) -> Self {
        let root = Self {
            dir: tempfile::tempdir().unwrap(),
            programs: tempfile::tempdir().unwrap(),
        };
        for dir in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
            fs::create_dir(root.dir.path().join(dir)).unwrap();
        }
        fs::copy(process::find("busybox").unwrap(), root.dir.path().join("bin/busybox")).unwrap();
        for applet in ["sh", "sleep", "cat", "ls", "true"] {
            std::os::unix::fs::symlink("busybox", root.dir.path().join("bin").join(applet)).unwrap();
        }
        for (name, file) in programs {
            root.add(name, file);
        }
        root
    }

    fn add(&self, name: &str, file: &Path) {
        let place = self.programs.path().join(name);
        // A hard link where it is the same file system.
        if fs::hard_link(file, &place).is_err() {
            fs::copy(file, &place).unwrap();
        }
        // A static program has none, and `ldd` says so with an error.
        let libraries = Command::new("ldd").arg(file).output().unwrap();
        let text = String::from_utf8_lossy(&libraries.stdout);
        for library in text.split_whitespace().filter(|w| w.starts_with('/')) {
            let inside = self.dir.path().join(library.trim_start_matches('/'));
            fs::create_dir_all(inside.parent().unwrap()).unwrap();
            fs::copy(library, inside).unwrap();
        }
    }

    /// The option of `docker run` that mounts the programs.
    pub fn programs(&self) -> String {
        format!("--volume={}:{PROGRAMS}:ro", self.programs.path().display())
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The same as a tar file in `folder`.
    pub fn tar(&self, folder: &Path) -> PathBuf {
        let file = folder.join("root.tar");
        process::run(
            Command::new("tar")
                .arg("-C")
                .arg(self.path())
                .arg("-cf")
                .arg(&file)
                .arg("."),
            folder,
        )
        .unwrap();
        file
    }
}
