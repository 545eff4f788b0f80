//! Podman with runc and cgroupfs: no daemon, all state in a folder of its own.

use std::{path::Path, process::Command};

use super::{
    Container, missing,
    process::{program, run},
    rootfs::RootFs,
};

/// Podman's state.
#[derive(Debug)]
pub struct Podman {
    dir: tempfile::TempDir,
}

impl Podman {
    pub fn start() -> Result<Self, String> {
        match missing(&["podman", "conmon", "runc", "busybox"]) {
            Some(why) => Err(why),
            None => Ok(Self {
                dir: tempfile::tempdir().unwrap(),
            }),
        }
    }

    /// Runs a command in a new container.
    pub fn run(&self, root: &RootFs, command: &[&str]) -> Container {
        let mut podman = client(self.dir.path());
        // Podman raises these otherwise, which needs CAP_SYS_RESOURCE.
        podman.args(["run", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]);
        podman.args(["--detach", "--network=none", "--log-driver=none", "--rootfs"]);
        let id = run(podman.arg(root.path()).args(command), self.dir.path()).unwrap();
        let pid = run(
            client(self.dir.path()).args(["inspect", "-f", "{{.State.Pid}}", &id]),
            self.dir.path(),
        )
        .unwrap();
        Container {
            id,
            pid: pid.parse().unwrap(),
        }
    }
}

fn client(dir: &Path) -> Command {
    let mut command = program("podman");
    for name in ["root", "runroot", "tmpdir"] {
        command.arg(format!("--{name}")).arg(dir.join(name));
    }
    command.args([
        "--runtime=runc",
        "--cgroup-manager=cgroupfs",
        "--storage-driver=vfs",
        "--events-backend=none",
    ]);
    command
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = run(
            client(self.dir.path()).args(["rm", "--all", "--force", "--time=0"]),
            self.dir.path(),
        );
    }
}
