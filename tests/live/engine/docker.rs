//! Docker: its daemon with data, state and socket in a folder of its own, without networks.

use std::{path::Path, process::Command};

use super::{
    Container, missing,
    process::{Daemon, program, run, stderr},
    rootfs::RootFs,
};

/// A Docker daemon with one image, `test`.
#[derive(Debug)]
pub struct Docker {
    daemon: Option<Daemon>,
    dir: tempfile::TempDir,
    programs: String,
}

impl Docker {
    /// Starts it, with an image made of `root`.
    pub fn start(root: &RootFs) -> Result<Self, String> {
        if let Some(why) = missing(&["dockerd", "docker", "containerd", "runc", "busybox", "tar"]) {
            return Err(why);
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut command = program("dockerd");
        command
            .args([
                "--iptables=false",
                "--ip6tables=false",
                "--bridge=none",
                "--storage-driver=vfs",
                "--containerd=",
            ])
            .arg("--data-root")
            .arg(at("data"))
            .arg("--exec-root")
            .arg(at("exec"))
            .arg("--pidfile")
            .arg(at("pid"))
            .arg(format!("--host=unix://{}", at("socket").display()));
        let ready = || run(client(dir.path()).arg("info"), dir.path()).is_ok();
        let daemon = Daemon::start(&mut command, &at("log"), ready);
        let docker = Self {
            daemon: Some(daemon),
            dir,
            programs: root.programs(),
        };
        let tar = root.tar(docker.dir.path());
        docker.client(&["import", tar.to_str().unwrap(), "test"]);
        Ok(docker)
    }

    /// Runs a command in a new container: `options` are those of `docker run`.
    pub fn run(&self, options: &[&str], command: &[&str]) -> Container {
        let id = self.client(
            &[
                &["run", "-d", "--network=none", &self.programs],
                options,
                &["test"],
                command,
            ]
            .concat(),
        );
        let pid = self.client(&["inspect", "-f", "{{.State.Pid}}", &id]).parse().unwrap();
        Container { id, pid }
    }

    /// What a container has printed: its standard output, then its standard error.
    pub fn logs(&self, container: &Container) -> String {
        let out = self.client(&["logs", &container.id]);
        out + "\n" + &stderr(self.dir.path())
    }

    /// Waits for a container's end and gives its exit code.
    pub fn wait(&self, container: &Container) -> i32 {
        self.client(&["wait", &container.id]).parse().unwrap()
    }

    fn client(&self, arguments: &[&str]) -> String {
        run(client(self.dir.path()).args(arguments), self.dir.path()).unwrap()
    }
}

fn client(dir: &Path) -> Command {
    let mut command = program("docker");
    command
        .env("DOCKER_HOST", format!("unix://{}", dir.join("socket").display()))
        .env("DOCKER_CONFIG", dir);
    command
}

impl Drop for Docker {
    fn drop(&mut self) {
        if let Ok(all) = run(client(self.dir.path()).args(["ps", "-aq"]), self.dir.path()) {
            let all: Vec<&str> = all.split_whitespace().collect();
            if !all.is_empty() {
                let _ = run(client(self.dir.path()).args(["rm", "-f"]).args(all), self.dir.path());
            }
        }
        // Before its folder goes.
        self.daemon.take();
    }
}
