//! What this process may do and see on the node: capabilities, memory lock, hierarchies, PID namespace, engines, Intel PT.

use std::path::Path;

use exist_trace::units::Cpu;

use super::check::{Check, Need};
use crate::{
    capture::{IntelPt, PtSource},
    sys::{
        cgroupfs::Mounts,
        cpu,
        privileges::{CapSet, Capability},
        procfs::{self, PidNamespace, Process},
        pt::PtDevice,
        roots::Roots,
    },
    target::container_id,
};

/// `have`: the effective set.
pub fn privileges(have: CapSet) -> Check {
    let admin = have.has(Capability::SysAdmin);
    // CAP_SYS_ADMIN stands for both (bpf_capable and perfmon_capable in include/linux/capability.h).
    let lacks = |list: &[Capability]| -> Vec<&str> {
        let stands = |c| admin && matches!(c, Capability::Bpf | Capability::Perfmon);
        list.iter()
            .filter(|&&c| !have.has(c) && !stands(c))
            .map(|c| c.name())
            .collect()
    };
    let known = have.and(CapSet::of(&Capability::ALL));
    let found = if known == CapSet::default() {
        "none of the capabilities that matter".into()
    } else {
        known.to_string()
    };
    let check = Check::ok("privileges", Need::Switches, found);
    let needed = lacks(&[Capability::Bpf, Capability::Perfmon]);
    let useful = lacks(&[Capability::SysPtrace]);
    if !needed.is_empty() {
        check.missing(format!("run as root, or with {}", needed.join(" and ")))
    } else if !useful.is_empty() {
        check.limited(format!(
            "without {} mappings and build IDs of other users' processes stay unknown",
            useful.join(" and ")
        ))
    } else {
        check
    }
}

/// `limit_bytes`: the limit of locked memory, `None`: none; `mlock_kb`: `kernel.perf_event_mlock_kb`.
pub fn memory_lock(limit_bytes: Option<u64>, mlock_kb: Option<&str>, have: CapSet) -> Check {
    let limit = limit_bytes.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
    let for_each_cpu = mlock_kb.map_or("?", str::trim);
    let found = format!("{limit}, and {for_each_cpu} KiB for perf rings of each CPU");
    let check = Check::ok("memory lock", Need::Comfort, found);
    // perf_mmap in kernel/events/core.c: what exceeds both limits needs CAP_IPC_LOCK, unless perf_event_paranoid is -1.
    let unbounded = limit_bytes.is_none() || have.has(Capability::IpcLock) || have.has(Capability::SysResource);
    if unbounded {
        check
    } else {
        check.limited("processor trace buffers are limited to that: raise `ulimit -l`, or run with CAP_IPC_LOCK or CAP_SYS_RESOURCE")
    }
}

/// Which hierarchies there are, and which would decide.
pub fn hierarchies(roots: &Roots, mounts: &Mounts) -> Check {
    let v1: Vec<String> = mounts.v1.iter().map(|m| m.hierarchy.to_string()).collect();
    let (found, first) = match (&mounts.v2, mounts.v1.first()) {
        (Some(v2), None) => (format!("version 2 at {}", v2.dir.display()), Some(v2)),
        (Some(v2), Some(memory)) => (
            format!(
                "hybrid: version 2 at {} decides where a container has a cgroup there, else {} (then {})",
                v2.dir.display(),
                memory.hierarchy,
                v1[1..].join(", ")
            ),
            Some(v2),
        ),
        (None, Some(first)) => (
            format!(
                "version 1: {} decides where it separates a container, then {}",
                v1[0],
                v1[1..].join(", ")
            ),
            Some(first),
        ),
        (None, None) => ("none".into(), None),
    };
    let check = Check::ok("cgroups", Need::Switches, found);
    let remedy = "mount the host's /sys/fs/cgroup and name it with --cgroup-root";
    match first {
        None => check.missing(format!(
            "no hierarchy is mounted below {}: {remedy}",
            roots.cgroup.display()
        )),
        Some(mount) if mount.root != Path::new("/") && !mount.root.starts_with("/..") => {
            check.limited(format!("only what is below {} is seen: {remedy}", mount.root.display()))
        }
        Some(_) => check,
    }
}

/// The hook counts process IDs in the initial PID namespace, so the procfs must be that one's.
pub fn pid_namespace(roots: &Roots) -> Check {
    let proc = roots.proc.display();
    let check = |found: String| Check::ok("PID namespace", Need::Switches, found);
    match procfs::pid_namespace(roots) {
        PidNamespace::Initial => check(format!("{proc} is of the initial one")),
        PidNamespace::Unknown => check(format!("{proc}: cannot be told without CAP_SYS_PTRACE"))
            .limited("process names and mappings are right only with the host's procfs"),
        PidNamespace::Other => check(format!("{proc} is not of the initial one"))
            .missing("start the container with the host's PID namespace (--pid=host, hostPID: true), or mount the host's /proc and name it with --proc-root"),
    }
}

/// Sockets of engines, below the host's root.
const SOCKETS: [(&str, &str); 7] = [
    ("Docker", "run/docker.sock"),
    ("containerd", "run/containerd/containerd.sock"),
    ("k3s", "run/k3s/containerd/containerd.sock"),
    ("CRI-O", "run/crio/crio.sock"),
    ("Podman", "run/podman/podman.sock"),
    ("cri-dockerd", "run/cri-dockerd.sock"),
    ("kubelet", "var/lib/kubelet/device-plugins/kubelet.sock"),
];
/// Their processes, by the names that the kernel keeps (15 bytes).
const PROCESSES: [(&str, &str); 8] = [
    ("Docker", "dockerd"),
    ("containerd", "containerd"),
    ("CRI-O", "crio"),
    ("Podman", "podman"),
    ("Podman or CRI-O", "conmon"),
    ("kubelet", "kubelet"),
    ("k3s", "k3s-server"),
    ("k3s", "k3s-agent"),
];

/// Engines that run, and how many containers the cgroups show. None is needed: cgroups tell enough.
pub fn engines(roots: &Roots, mounts: &Mounts) -> Check {
    // The host's root, also from within a container.
    let host = roots.proc.join("1/root");
    let host = if host.join("run").is_dir() { host } else { "/".into() };
    let mut engines: Vec<&str> = SOCKETS
        .iter()
        .filter(|(_, socket)| host.join(socket).exists())
        .map(|&(name, _)| name)
        .collect();
    for pid in procfs::processes(roots).unwrap_or_default() {
        let comm = Process::new(roots, pid).comm().unwrap_or_default();
        engines.extend(
            PROCESSES
                .iter()
                .filter(|(_, name)| name.as_bytes() == comm)
                .map(|&(engine, _)| engine),
        );
    }
    engines.sort_unstable();
    engines.dedup();
    let names = if engines.is_empty() {
        "none runs".into()
    } else {
        engines.join(", ")
    };
    Check::ok(
        "container engines",
        Need::Comfort,
        format!("{names}; {} containers have cgroups", containers(mounts)),
    )
}

fn containers(mounts: &Mounts) -> usize {
    let mut ids: Vec<String> = mounts
        .iter()
        .flat_map(|m| m.walk().unwrap_or_default())
        .filter_map(|path| container_id::in_component(path.file_name()?.to_str()?).map(Into::into))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

/// A buffer that every kernel takes.
const PROBE_BUFFER_BYTES: u64 = 64 << 10;

/// Intel PT: whether it is there, what it can, and whether a tracer can be had now.
pub fn processor_trace(sys: &Path, roots: &Roots) -> Check {
    let check = |found: String| Check::ok("Intel PT", Need::ProcessorTrace, found);
    let device = match PtDevice::read(sys) {
        Ok(device) => device,
        Err(error) => return check("none".into()).missing(error.to_string()),
    };
    let caps: Vec<String> = device
        .caps
        .iter()
        .filter(|(_, value)| value.as_str() != "0")
        .map(|(name, value)| {
            if value == "1" {
                name.clone()
            } else {
                format!("{name}={value}")
            }
        })
        .collect();
    let pt = match IntelPt::find(sys, &roots.proc) {
        Ok(pt) => pt,
        Err(error) => return check(caps.join(" ")).missing(error.to_string()),
    };
    let first = cpu::online(sys)
        .ok()
        .and_then(|cpus| cpus.first().copied())
        .unwrap_or(0);
    let check = check(format!("{} · recorded as {}", caps.join(" "), pt.terms()));
    match pt.open(Cpu(first), PROBE_BUFFER_BYTES) {
        Err(error) => check.missing(error.to_string()),
        Ok(_) if pt.choice().notes.is_empty() => check,
        Ok(_) => check.limited(pt.choice().notes.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::doctor::check::State;

    fn mounts(mountinfo: &str) -> Mounts {
        let own = b"8:pids:/\n4:memory:/\n0::/\n";
        Mounts::from_tables(mountinfo.as_bytes(), own, Path::new("/sys/fs/cgroup"))
    }

    #[test]
    fn privileges_that_suffice() {
        use Capability::{Bpf, Perfmon, SysAdmin, SysPtrace, SysResource};
        for (have, expect, words) in [
            (&[][..], State::Missing, "CAP_BPF and CAP_PERFMON"),
            (&[SysPtrace, Perfmon], State::Missing, "CAP_BPF"),
            (&[Bpf, SysPtrace], State::Missing, "CAP_PERFMON"),
            (&[Bpf, Perfmon], State::Limited, "CAP_SYS_PTRACE"),
            (&[SysAdmin], State::Limited, "CAP_SYS_PTRACE"),
            (&[Bpf, Perfmon, SysPtrace], State::Ok, ""),
            (&[SysAdmin, SysPtrace, SysResource], State::Ok, ""),
        ] {
            let check = privileges(CapSet::of(have));
            assert_eq!(check.state, expect, "{have:?}");
            assert!(check.remedy.unwrap_or_default().contains(words), "{have:?}");
        }
    }

    #[test]
    fn memory_that_may_be_locked() {
        let check = |limit, have: &[Capability], expect| {
            assert_eq!(memory_lock(limit, Some("516\n"), CapSet::of(have)).state, expect);
        };
        check(None, &[], State::Ok);
        check(Some(8 << 20), &[], State::Limited);
        check(Some(8 << 20), &[Capability::IpcLock], State::Ok);
        check(Some(8 << 20), &[Capability::SysResource], State::Ok);
    }

    #[test]
    fn which_hierarchy_would_decide() {
        let check = |mountinfo: &str, expect, words: &str| {
            let check = hierarchies(&Roots::default(), &mounts(mountinfo));
            assert_eq!(check.state, expect, "{mountinfo}");
            let text = format!("{} {}", check.found, check.remedy.unwrap_or_default());
            assert!(text.contains(words), "{text}");
        };
        let v2 = "1 0 0:1 / /sys/fs/cgroup/unified rw - cgroup2 x rw\n";
        let v1 =
            "2 0 0:2 / /sys/fs/cgroup/m rw - cgroup x rw,memory\n3 0 0:3 / /sys/fs/cgroup/p rw - cgroup x rw,pids\n";
        check("", State::Missing, "--cgroup-root");
        check(v2, State::Ok, "version 2 at /sys/fs/cgroup/unified");
        check(
            v1,
            State::Ok,
            "version 1: memory decides where it separates a container, then pids",
        );
        check(
            &[v2, v1].concat(),
            State::Ok,
            "hybrid: version 2 at /sys/fs/cgroup/unified decides",
        );
        check(
            &v2.replace(" / ", " /docker/x "),
            State::Limited,
            "below /docker/x is seen",
        );
        check(&v2.replace(" / ", " /../.. "), State::Ok, "version 2");
    }

    #[test]
    fn engines_are_found_by_socket_and_by_process() {
        let node = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = node.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let roots = Roots {
            proc: node.path().join("proc"),
            cgroup: node.path().join("cg"),
        };
        file("proc/1/root/run/x", "");
        let found = || engines(&roots, &Mounts::default()).found;
        assert_eq!(found(), "none runs; 0 containers have cgroups");
        file("proc/1/root/run/crio/crio.sock", "");
        file("proc/77/comm", "dockerd\n");
        file("proc/78/comm", "conmon\n");
        file("proc/79/comm", "notdockerd\n");
        assert_eq!(found(), "CRI-O, Docker, Podman or CRI-O; 0 containers have cgroups");
    }

    #[test]
    fn a_machine_without_pt_is_told_so() {
        let check = processor_trace(Path::new("/nonexistent"), &Roots::default());
        assert_eq!((check.state, check.found.as_str()), (State::Missing, "none"));
    }
}
