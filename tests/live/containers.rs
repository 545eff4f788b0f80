//! Containers of real engines are resolved to the cgroups in which their threads are. Needs root and the engines.

#![allow(clippy::unwrap_used)]

mod engine;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use engine::{Container, containerd::Containerd, docker::Docker, podman::Podman, rootfs::RootFs};
use exist_trace::session::Target;
use exist_user::{
    sys::{
        cgroupfs::{Hierarchy, Mounts},
        procfs::Process,
        roots::Roots,
    },
    target::{Presence, Resolved, TargetError, resolve},
};

/// Set in containers: this test program then is their program, with so many more threads.
const THREADS: &str = "EXIST_TEST_THREADS";

fn container(id: &str) -> Result<Resolved, TargetError> {
    resolve(&Roots::default(), &Target::Container(id.into()))
}

/// Each thread of the container's first process is in the resolved cgroup, as the kernel says, in the hierarchy that decides.
fn check(container: &Container, wanted: &str) -> Resolved {
    let resolved = self::container(wanted).unwrap();
    assert_eq!(resolved.container.as_deref(), Some(container.id.as_str()));
    let process = Process::new(&Roots::default(), container.pid);
    let threads = process.threads().unwrap();
    assert!(!threads.is_empty());
    for tid in threads {
        let lines = process.thread(tid).cgroups().unwrap();
        let line = lines.iter().find(|l| match &resolved.hierarchy {
            Hierarchy::V2 => l.hierarchy == 0,
            Hierarchy::V1 { number, .. } => l.hierarchy == *number,
        });
        let path = &line.unwrap().path;
        assert!(
            resolved.roots.iter().any(|r| path.starts_with(r.path())),
            "{path:?} is not in {resolved:?}"
        );
    }
    assert_ne!(resolved.roots[0].path(), Path::new("/"));
    assert!(resolved.roots[0].processes().unwrap().contains(&container.pid));
    assert_eq!(resolved.presence().unwrap(), Presence::Populated);
    resolved
}

#[test]
fn docker() {
    let own = std::env::current_exe().unwrap();
    let root = RootFs::new(&[("threads", &own)]);
    let docker = match Docker::start(&root) {
        Ok(docker) => docker,
        Err(why) => return println!("skipped: {why}"),
    };
    for threads in [1u32, 8, 200] {
        let count = format!("{THREADS}={threads}");
        let workload = docker.run(
            &["-e", &count],
            &["/programs/threads", "--exact", "workload", "--nocapture"],
        );
        let process = Process::new(&Roots::default(), workload.pid);
        let end = Instant::now() + Duration::from_secs(30);
        while process.threads().unwrap().len() <= threads as usize {
            assert!(
                Instant::now() < end,
                "{threads} threads do not come up: {}",
                docker.logs(&workload)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        check(&workload, &workload.id);
        check(&workload, &workload.id[..12]);
        let by_pid = resolve(&Roots::default(), &Target::Pid(workload.pid)).unwrap();
        assert_eq!(by_pid.container.as_deref(), Some(workload.id.as_str()));
    }

    let short = docker.run(&[], &["/bin/sleep", "0.3"]);
    let held = container(&short.id).unwrap();
    assert_eq!(docker.wait(&short), 0);
    assert_ne!(held.presence().unwrap(), Presence::Populated);
    let gone = container(&short.id).unwrap_err();
    assert!(matches!(gone, TargetError::NotFound { .. }), "{gone}");
}

/// The program of the containers above.
#[test]
fn workload() {
    let Ok(threads) = std::env::var(THREADS) else { return };
    let sleepers: Vec<_> = (0..threads.parse().unwrap())
        .map(|_| std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60))))
        .collect();
    sleepers.into_iter().for_each(|s| s.join().unwrap());
}

#[test]
fn containerd_and_its_kubernetes_namespace() {
    let mut containerd = match Containerd::start() {
        Ok(containerd) => containerd,
        Err(why) => return println!("skipped: {why}"),
    };
    let root = RootFs::new(&[]);
    // IDs of this run alone: others may run this test on the same machine.
    let run = format!("{:08x}", std::process::id());
    let (a, b) = (format!("{run}{}", "a".repeat(56)), format!("{run}{}", "b".repeat(56)));
    let sleep = ["/bin/sleep", "60"];
    let first = containerd.run("default", &a, None, &root, &sleep);
    check(&first, &a);
    check(&first, &run);
    let pod = format!("/kubepods/burstable/pod8a2e17a5-94a5-4e3c-9e64-{run}cdd1/{b}");
    let second = containerd.run("k8s.io", &b, Some(&pod), &root, &sleep);
    let resolved = check(&second, &format!("{run}b"));
    assert_eq!(resolved.roots[0].path(), Path::new(&pod));

    match container(&run).unwrap_err() {
        TargetError::Ambiguous { candidates, .. } => {
            let ids: Vec<&str> = candidates.iter().map(|(id, _)| id.as_str()).collect();
            assert_eq!(ids, [&a, &b]);
        }
        other => panic!("{other}"),
    }
    // `ctr` takes a name as ID.
    let name = format!("web-{run}");
    let third = containerd.run("default", &name, None, &root, &sleep);
    check(&third, &name);
}

#[test]
fn podman() {
    let podman = match Podman::start() {
        Ok(podman) => podman,
        Err(why) => return println!("skipped: {why}"),
    };
    let root = RootFs::new(&[]);
    let container = podman.run(&root, &["/bin/sleep", "60"]);
    let resolved = check(&container, &container.id[..12]);
    // Its conmon watches it from a cgroup of its own.
    let conmon = Process::new(&Roots::default(), container.pid).stat().unwrap().ppid;
    assert!(!resolved.roots[0].processes().unwrap().contains(&conmon));
}

/// An old engine on a hybrid host: a container that only version 1 knows.
#[test]
fn a_container_in_version_1_alone() {
    let mounts = Mounts::find(&Roots::default()).unwrap();
    let Some(mount) = mounts.v1.first() else {
        return println!("skipped: no version 1 hierarchy is mounted");
    };
    let id = format!("{:08x}{}", std::process::id(), "c".repeat(56));
    let parent = mount.dir.join(format!("exist-test-{}", std::process::id()));
    let dir = parent.join(&id);
    if let Err(e) = std::fs::create_dir_all(&dir) {
        return println!("skipped: {}: {e}", dir.display());
    }
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    std::fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
    let resolved = check(
        &Container {
            id: id.clone(),
            pid: child.id(),
        },
        &id[..12],
    );
    assert_eq!(resolved.hierarchy, mount.hierarchy);
    let by_pid = resolve(&Roots::default(), &Target::Pid(child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(resolved.presence().unwrap(), Presence::Empty);
    std::fs::remove_dir(&dir).unwrap();
    std::fs::remove_dir(&parent).unwrap();
    assert!(!resolved.roots[0].exists());
    // The process may have a version 2 cgroup from whatever started this test.
    if by_pid.hierarchy == mount.hierarchy {
        assert_eq!(by_pid.roots[0].id(), resolved.roots[0].id());
    }
}
