//! A workload that is ready to be recorded, in a cgroup or a container.

#![allow(dead_code, reason = "each test target uses a part")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{
    engine::Container,
    recording::{Cgroup, Recording, Running},
    work::{FOLDER, Kind, WORK, order},
};

/// A workload that waits for its `go`.
pub struct Started {
    /// The options of `exist record`.
    target: Vec<String>,
    pub pid: u32,
    /// Where it looks for `go`, as it sees it.
    folder: PathBuf,
    /// What keeps it.
    kept: Option<(Running, Cgroup, TempDir)>,
}

impl Started {
    /// This program as the workload in a cgroup.
    pub fn in_cgroup(kind: Kind, threads: usize, seconds: u64) -> Self {
        let cgroup = Cgroup::new(&format!("{}-{threads}", kind.name()));
        let folder = tempfile::tempdir().unwrap();
        let own = env::current_exe().unwrap();
        let command = [own.to_str().unwrap(), "--exact", "workload", "--nocapture"];
        let environment = [
            (WORK, &*order(kind, threads, seconds)),
            (FOLDER, folder.path().to_str().unwrap()),
        ];
        let running = cgroup.start(&command, &environment);
        Self {
            target: vec!["--cgroup".to_owned(), cgroup.name.clone()],
            pid: running.pid(),
            folder: folder.path().to_owned(),
            kept: Some((running, cgroup, folder)),
        }
    }

    /// The workload in a container, which looks at its root folder.
    pub fn in_container(container: &Container) -> Self {
        Self {
            target: vec!["--container".to_owned(), container.id[..12].to_owned()],
            pid: container.pid,
            folder: PathBuf::from("/"),
            kept: None,
        }
    }

    /// Another program in the same cgroup.
    pub fn beside(&self, command: &[&str]) -> Running {
        let (_, cgroup, _) = self.kept.as_ref().expect("it is in a cgroup");
        cgroup.start(command, &[])
    }

    fn file(&self, name: &str) -> PathBuf {
        let below = self.folder.strip_prefix("/").unwrap().join(name);
        Path::new(&format!("/proc/{}/root", self.pid)).join(below)
    }

    pub fn record(&self, out: &Path) -> Recording {
        let target: Vec<&str> = self.target.iter().map(String::as_str).collect();
        let mut recording = Recording::start(out, &target);
        recording.wait_until_recording();
        recording
    }

    /// Lets it work; gives what it says at its end, and how long it took.
    pub fn work(&self, what: &str) -> (String, Duration) {
        let began = Instant::now();
        fs::write(self.file("go"), "").unwrap();
        while !self.file("done").exists() {
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "{what}: the workload does not end"
            );
            thread::sleep(Duration::from_millis(20));
        }
        (fs::read_to_string(self.file("done")).unwrap(), began.elapsed())
    }
}
