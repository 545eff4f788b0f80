//! containerd, and its client `ctr`, in one of its namespaces.

use std::{fs, path::Path, process::Command};

use super::{
    Container, missing,
    process::{Daemon, program, run},
    rootfs::RootFs,
};

/// A containerd.
#[derive(Debug)]
pub struct Containerd {
    daemon: Option<Daemon>,
    dir: tempfile::TempDir,
    started: Vec<(String, String)>,
}

impl Containerd {
    pub fn start() -> Result<Self, String> {
        if let Some(why) = missing(&["containerd", "ctr", "runc", "busybox"]) {
            return Err(why);
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = {:?}\n",
            at("root"),
            at("state"),
            at("socket"),
        );
        fs::write(at("config.toml"), config).unwrap();
        let ready = || run(client(dir.path(), "default").arg("version"), dir.path()).is_ok();
        let mut command = program("containerd");
        let daemon = Daemon::start(command.arg("--config").arg(at("config.toml")), &at("log"), ready);
        Ok(Self {
            daemon: Some(daemon),
            dir,
            started: Vec::new(),
        })
    }

    /// Runs a command in a new container of this ID, in a namespace; `cgroup`: its cgroup's path, instead of the engine's choice.
    pub fn run(
        &mut self,
        namespace: &str,
        id: &str,
        cgroup: Option<&str>,
        root: &RootFs,
        command: &[&str],
    ) -> Container {
        let mut ctr = client(self.dir.path(), namespace);
        ctr.args(["run", "--detach", "--null-io"]);
        if let Some(cgroup) = cgroup {
            ctr.args(["--cgroup", cgroup]);
        }
        ctr.arg("--rootfs").arg(root.path()).arg(id).args(command);
        run(&mut ctr, self.dir.path()).unwrap();
        self.started.push((namespace.into(), id.into()));
        let tasks = run(client(self.dir.path(), namespace).args(["task", "ls"]), self.dir.path()).unwrap();
        let pid = tasks
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.first() == Some(&id))
            .map(|words| words[1].parse().unwrap());
        Container {
            id: id.into(),
            pid: pid.unwrap(),
        }
    }
}

fn client(dir: &Path, namespace: &str) -> Command {
    let mut command = program("ctr");
    command
        .arg("--address")
        .arg(dir.join("socket"))
        .args(["--namespace", namespace]);
    command
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for (namespace, id) in &self.started {
            for words in [["task", "rm", "--force"].as_slice(), &["container", "rm"]] {
                let _ = run(client(self.dir.path(), namespace).args(words).arg(id), self.dir.path());
            }
        }
        self.daemon.take();
    }
}
