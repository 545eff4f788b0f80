//! The program `exist record` as live tests use it: started, waited for until it records, stopped; and cgroups to record.
//!
//! Everything is bounded in time, and only what was started here is stopped, by its process ID.

#![allow(dead_code, unused_imports, reason = "each test target uses a part")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use exist_user::{
    hook::OBJECT,
    sys::{cgroupfs::Mounts, procfs::Process, roots::Roots},
};

pub const EXIST: &str = env!("CARGO_BIN_EXE_exist");

/// Why nothing can be recorded here; a test prints it after `skipped: ` and returns.
pub fn cannot() -> Option<String> {
    let status = Process::new(&Roots::default(), std::process::id()).status().unwrap();
    if status.cap_effective.is_none_or(|caps| caps & 1 << 21 == 0) {
        return Some("recording needs root (CAP_SYS_ADMIN)".to_owned());
    }
    if OBJECT.is_none() {
        return Some("built without the BPF programs; `cargo xtask build-ebpf` makes them".to_owned());
    }
    match Mounts::find(&Roots::default()).unwrap().v2 {
        Some(_) => None,
        None => Some("no version 2 cgroup hierarchy is mounted".to_owned()),
    }
}

/// A version 2 cgroup below the root; removed with the processes in it.
pub struct Cgroup {
    pub name: String,
    dir: PathBuf,
}

impl Cgroup {
    pub fn new(name: &str) -> Self {
        let name = format!("exist-test-{name}-{}", std::process::id());
        let dir = Mounts::find(&Roots::default()).unwrap().v2.unwrap().dir.join(&name);
        fs::create_dir(&dir).unwrap();
        Self { name, dir }
    }

    /// Starts a program in it: it is in it before it begins.
    pub fn start(&self, command: &[&str], environment: &[(&str, &str)]) -> Running {
        let procs = self.dir.join("cgroup.procs");
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg("echo $$ > \"$0\" && exec \"$@\"")
            .arg(procs)
            .args(command);
        shell
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Running(shell.spawn().unwrap())
    }

    /// Kills what is in it and removes it.
    pub fn remove(&self) {
        let _ = fs::write(self.dir.join("cgroup.kill"), "1");
        let end = Instant::now() + Duration::from_secs(10);
        while self.dir.exists() && fs::remove_dir(&self.dir).is_err() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A child that is killed when this goes.
pub struct Running(pub Child);

impl Running {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `exist record` at work.
pub struct Recording {
    child: Option<Child>,
    pub out: PathBuf,
}

impl Recording {
    /// Starts it; `arguments` without `-o`.
    pub fn start(out: &Path, arguments: &[&str]) -> Self {
        Self::start_with(Command::new(EXIST), out, arguments)
    }

    /// Starts it through another program that executes it.
    pub fn start_with(mut command: Command, out: &Path, arguments: &[&str]) -> Self {
        command.arg("record").arg("-o").arg(out).args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self {
            child: Some(command.spawn().unwrap()),
            out: out.to_owned(),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Where the file stands meanwhile.
    pub fn part(&self) -> PathBuf {
        let name = format!("{}.{}.part", self.out.file_name().unwrap().display(), self.pid());
        self.out.with_file_name(name)
    }

    /// Waits until it records: its first generation is on disk.
    pub fn wait_until_recording(&mut self) {
        let end = Instant::now() + Duration::from_secs(60);
        while fs::metadata(self.part()).map_or(0, |metadata| metadata.len()) == 0 {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            if ended.is_some() || Instant::now() > end {
                let output = self.child.take().unwrap().wait_with_output().unwrap();
                panic!(
                    "it does not record: {ended:?}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .arg(name)
            .arg(self.pid().to_string())
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for its end; gives its exit code (`None`: killed) and what it said.
    pub fn wait(mut self) -> (Option<i32>, String) {
        let mut child = self.child.take().unwrap();
        let end = Instant::now() + Duration::from_secs(90);
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                panic!("exist record does not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
