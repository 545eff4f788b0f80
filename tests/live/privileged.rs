//! Recording another container from within one: host PID namespace, the host's procfs and cgroups mounted elsewhere, little
//! memory, and the least privileges that deploy/README.md names. Needs root and Docker.

#![allow(clippy::unwrap_used)]

mod engine;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use engine::{Container, docker::Docker, rootfs::RootFs};
use exist_trace::file::Trace;
use exist_user::sys::{procfs::Process, roots::Roots};

/// Set in the container that is recorded: this test program then is its program, for so many seconds.
const TICKING: &str = "EXIST_TEST_TICKING";
const THREADS: usize = 8;

/// What `deploy/README.md` names for an engine that does not know BPF and PERFMON, as Debian 12's.
const LEAST: [&str; 3] = ["SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH"];

#[test]
fn another_container_from_within_one() {
    let own = std::env::current_exe().unwrap();
    let root = RootFs::new(&[("ticking", &own), ("exist", Path::new(env!("CARGO_BIN_EXE_exist")))]);
    let docker = match Docker::start(&root) {
        Ok(docker) => docker,
        Err(why) => return println!("skipped: {why}"),
    };
    let seconds = format!("{TICKING}=60");
    let target = docker.run(&["-e", &seconds], &["/programs/ticking", "--exact", "ticking"]);
    let process = Process::new(&Roots::default(), target.pid);
    let end = Instant::now() + Duration::from_secs(30);
    while process.threads().unwrap().len() <= THREADS {
        assert!(
            Instant::now() < end,
            "the threads do not come up: {}",
            docker.logs(&target)
        );
        std::thread::sleep(Duration::from_millis(20));
    }

    let least = with(&LEAST);
    let least: Vec<&str> = least.iter().map(String::as_str).collect();
    let (code, said) = exist(&docker, &least, root.path(), &["doctor", "--json"]);
    if code != 0 && said.contains("without its BPF programs") {
        return println!("skipped: `exist` was built without its BPF programs; `cargo xtask build-ebpf` builds them");
    }
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("/host/sys/fs/cgroup"), "{said}");
    records(&docker, &target, &least);
}

/// Options for a container that has these capabilities and no others.
fn with(capabilities: &[&str]) -> Vec<String> {
    ["--cap-drop=ALL".into(), "--security-opt=seccomp=unconfined".into()]
        .into_iter()
        .chain(capabilities.iter().map(|cap| format!("--cap-add={cap}")))
        .collect()
}

/// Records `target` for a second from a container with these options: the trace holds the target's threads and no others.
fn records(docker: &Docker, target: &Container, options: &[&str]) {
    let out = tempfile::tempdir().unwrap();
    let command = [
        "record",
        "--container",
        &target.id[..12],
        "--pt",
        "off",
        "--for",
        "1s",
        "-o",
        "/out/trace.exist",
    ];
    let (code, said) = exist(docker, options, out.path(), &command);
    assert_eq!(code, 0, "{options:?}: {said}");

    let trace = Trace::read(&fs::read(out.path().join("trace.exist")).unwrap()).unwrap();
    assert_eq!(trace.header.target.container.as_deref(), Some(target.id.as_str()));
    let threads: BTreeSet<u32> = Process::new(&Roots::default(), target.pid)
        .threads()
        .unwrap()
        .into_iter()
        .collect();
    let recorded: BTreeSet<u32> = trace.records.iter().map(|r| r.tid).collect();
    // The first thread waits for the others all the time.
    assert!(
        recorded.len() >= THREADS && recorded.is_subset(&threads),
        "{recorded:?} of {threads:?}"
    );
    assert!(trace.records.iter().all(|r| r.pid == target.pid));
    // What only the host's procfs tells.
    assert!(
        trace.threads.iter().any(|t| t.name.starts_with("tick")),
        "{:?}",
        trace.threads
    );
    assert!(
        trace
            .mappings
            .iter()
            .any(|m| &*m.path == "/programs/ticking" && !m.build_id.is_empty()),
        "{options:?}: {:?}",
        trace.mappings
    );
    assert!(trace.end_of_recording.is_some());
    assert_eq!(trace.losses, []);
}

/// Runs `exist` in a container beside the target; gives its exit code and what it printed.
fn exist(docker: &Docker, options: &[&str], out: &Path, command: &[&str]) -> (i32, String) {
    let out = format!("{}:/out", out.display());
    let place = [
        "--pid=host",
        "--memory=128m",
        "-v=/proc:/host/proc",
        "-v=/sys/fs/cgroup:/host/sys/fs/cgroup",
        "-e=EXIST_PROC_ROOT=/host/proc",
        "-e=EXIST_CGROUP_ROOT=/host/sys/fs/cgroup",
        "-v",
        &out,
    ];
    let container = docker.run(&[&place, options].concat(), &[&["/programs/exist"], command].concat());
    (docker.wait(&container), docker.logs(&container))
}

/// The program of the container that is recorded.
#[test]
fn ticking() {
    let Ok(seconds) = std::env::var(TICKING) else { return };
    let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let tick = move || {
                while Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            std::thread::Builder::new()
                .name(format!("tick{n}"))
                .spawn(tick)
                .unwrap()
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}
