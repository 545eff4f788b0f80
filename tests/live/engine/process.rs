//! Programs that are run to their end within a time, and daemons that are stopped.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The path of a program: Debian's own first, so that client and daemon are of one version.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    ["/usr/sbin", "/usr/bin"]
        .into_iter()
        .map(PathBuf::from)
        .chain(env::split_paths(&path))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

pub fn program(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| panic!("{name} is not installed")))
}

/// Runs a program and gives its standard output without blanks around it, or what it printed on standard error.
/// Output goes through files: a process that the program leaves behind would keep a pipe open.
pub fn run(command: &mut Command, scratch: &Path) -> Result<String, String> {
    let (out, err) = (scratch.join("stdout"), scratch.join("stderr"));
    let child = command
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out).unwrap())
        .stderr(fs::File::create(&err).unwrap())
        .spawn();
    let mut child = child.map_err(|e| format!("{command:?}: {e}"))?;
    let ended = wait(&mut child, Duration::from_secs(60));
    let said = stderr(scratch);
    match ended {
        Some(status) if status.success() => Ok(String::from_utf8_lossy(&fs::read(&out).unwrap()).trim().to_owned()),
        Some(status) => Err(format!("{command:?}: {status}: {said}")),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            Err(format!("{command:?} does not end: {said}"))
        }
    }
}

/// What the program that [`run`] ran last in this folder printed on standard error.
pub fn stderr(scratch: &Path) -> String {
    let bytes = fs::read(scratch.join("stderr")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub fn wait(child: &mut Child, time: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + time;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A daemon that is asked to end, then killed, when this goes.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts it and waits until `ready`.
    pub fn start(command: &mut Command, log: &Path, ready: impl Fn() -> bool) -> Self {
        let file = fs::File::create(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let mut daemon = Self { child, log: log.into() };
        let end = Instant::now() + Duration::from_secs(60);
        while !ready() {
            let ended = daemon.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < end,
                "{command:?} does not come up: {}",
                daemon.said()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        daemon
    }

    fn said(&self) -> String {
        let text = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Asked to end by its client's own means where it has one: a daemon has children to stop first.
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        if wait(&mut self.child, Duration::from_secs(20)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
