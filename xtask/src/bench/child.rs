//! A program that a measurement starts: its output goes to files, it is stopped by its process ID and within a bound.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::group::Group;

/// How long a program gets to do what it was told before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running program; killed on drop.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Running {
    /// Starts the command in `group`, its output in `DIR/NAME.out` and `DIR/NAME.err`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(name: &str, command: &Command, group: &Group, dir: &Path) -> Result<Self> {
        let (stdout, stderr) = (dir.join(format!("{name}.out")), dir.join(format!("{name}.err")));
        let create =
            |path: &Path| fs::File::create(path).with_context(|| format!("failed to create {}", path.display()));
        // The shell joins the group and then becomes the program: so it is in the group from its first instruction.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo 0 > \"$0\" && exec \"$@\""])
            .arg(group.path().join("cgroup.procs"))
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(create(&stdout)?)
            .stderr(create(&stderr)?);
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            shell.current_dir(dir);
        }
        let child = shell.spawn().with_context(|| format!("failed to start {name}"))?;
        Ok(Self {
            child,
            name: name.to_owned(),
            stdout,
            stderr,
        })
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it printed on standard output so far.
    pub fn stdout(&self) -> Vec<u8> {
        fs::read(&self.stdout).unwrap_or_default()
    }

    /// What it printed on standard error so far.
    pub fn stderr(&self) -> String {
        fs::read(&self.stderr)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Waits until `ready` holds.
    ///
    /// # Errors
    /// The program ended, or is not ready in 20 s; with what it printed last.
    pub fn wait_until(&mut self, mut ready: impl FnMut(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready(self) {
            if let Some(status) = self.child.try_wait().context("failed to wait")? {
                bail!(
                    "{} ended with {status} before it was ready: {}",
                    self.name,
                    self.last_words()
                );
            }
            if start.elapsed() > PATIENCE {
                bail!("{} was not ready after {PATIENCE:?}: {}", self.name, self.last_words());
            }
            thread::sleep(Duration::from_millis(3));
        }
        Ok(())
    }

    /// Sends the signal and waits for the end.
    ///
    /// # Errors
    /// It ended earlier, or does not end in 20 s; with what it printed last.
    pub fn stop(&mut self, signal: Signal) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait().context("failed to wait")? {
            bail!("{} ended early with {status}: {}", self.name, self.last_words());
        }
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("process ID out of range")?;
        kill_process(pid, signal).with_context(|| format!("failed to signal {}", self.name))?;
        self.wait()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// It does not end in 20 s; with what it printed last.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context("failed to wait")? {
                return Ok(status);
            }
            if start.elapsed() > PATIENCE {
                bail!("{} did not end within {PATIENCE:?}: {}", self.name, self.last_words());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn last_words(&self) -> String {
        let text = format!("{}{}", String::from_utf8_lossy(&self.stdout()), self.stderr());
        let lines: Vec<_> = text.trim().lines().collect();
        lines[lines.len().saturating_sub(5)..].join(" | ")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails when it has ended already, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
