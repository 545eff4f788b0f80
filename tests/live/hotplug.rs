//! A CPU that goes and comes back while it is recorded. Needs root, the BPF programs, and a CPU that can be taken offline.
//!
//! It disturbs the whole machine, so it runs only where `EXIST_HOTPLUG` is set, as CI does. The CPU comes back also when the
//! test fails, and so do the version 1 cpusets that the kernel takes it out of (`cpuset_hotplug_workfn`: it does not put it
//! back there).

#![allow(clippy::unwrap_used)]

mod accounts;
mod bed;
mod engine;
mod recording;
mod started;
mod steal;
mod work;

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use accounts::{Account, settled};
use exist_trace::file::{
    Trace,
    model::{LossKind, SwitchOp},
};
use exist_user::sys::{
    cgroupfs::{Hierarchy, Mounts},
    clock, cpu,
    roots::Roots,
};
use recording::EXIST;
use started::Started;
use steal::Steal;
use work::{Kind, NAME};

const THREADS: usize = 8;
const SECONDS: u64 = 8;
/// Longer than the recorder takes to look twice which CPUs are online.
const STAYS: Duration = Duration::from_millis(700);
const TIMES: usize = 2;

/// A CPU that is offline; back when this goes.
struct Offline {
    cpu: u32,
    /// Files `cpuset.cpus` of version 1, parents first, with what they held.
    cpusets: Vec<(PathBuf, String)>,
}

impl Offline {
    /// Takes it offline, or says why it cannot.
    fn take(cpu: u32) -> Result<Self, String> {
        let offline = Self {
            cpu,
            cpusets: cpusets(),
        };
        offline.switch("0").map(|()| offline)
    }

    fn switch(&self, to: &str) -> Result<(), String> {
        let file = format!("/sys/devices/system/cpu/cpu{}/online", self.cpu);
        fs::write(&file, to).map_err(|e| format!("{file}: {e}"))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        let back = self.switch("1");
        for (file, cpus) in &self.cpusets {
            // One that was removed meanwhile needs nothing.
            let _ = fs::write(file, cpus);
        }
        if !thread::panicking() {
            back.unwrap();
        }
    }
}

fn cpusets() -> Vec<(PathBuf, String)> {
    let mounts = Mounts::find(&Roots::default()).unwrap();
    let is_cpuset = |h: &Hierarchy| matches!(h, Hierarchy::V1 { controller, .. } if controller == "cpuset");
    let Some(mount) = mounts.v1.iter().find(|mount| is_cpuset(&mount.hierarchy)) else {
        return Vec::new();
    };
    let mut files: Vec<_> = mount
        .walk()
        .unwrap()
        .iter()
        .map(|path| mount.directory(path).join("cpuset.cpus"))
        .collect();
    // The root's cannot be written, and follows by itself.
    files.retain(|file| file.parent() != Some(&*mount.dir));
    files.sort_by_key(|file| file.components().count());
    let read = |file: PathBuf| Some((file.clone(), fs::read_to_string(&file).ok()?.trim().to_owned()));
    files
        .into_iter()
        .filter_map(read)
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect()
}

fn online() -> Vec<u32> {
    cpu::online(Path::new("/sys")).unwrap()
}

/// When the CPU was certainly away: CLOCK_MONOTONIC, nanoseconds.
#[derive(Debug)]
struct Away {
    from: u64,
    to: u64,
}

/// Has the process run on this CPU: on a busy machine the scheduler may leave it to others for seconds.
fn make_it_run_on(cpu: u32, pid: u32) {
    let pin = |cpus: &[u32]| {
        let cpus: Vec<_> = cpus.iter().map(u32::to_string).collect();
        let pinned = Command::new("taskset")
            .args(["--all-tasks", "--pid", "--cpu-list", &cpus.join(","), &pid.to_string()])
            .output()
            .unwrap();
        assert!(pinned.status.success(), "{}", String::from_utf8_lossy(&pinned.stderr));
    };
    pin(&[cpu]);
    wait_until_it_runs_on(cpu, pid);
    pin(&online());
}

/// Waits until a thread of the process has run on this CPU since the call.
fn wait_until_it_runs_on(cpu: u32, pid: u32) {
    let runs = || -> HashMap<PathBuf, String> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        threads
            .filter_map(|thread| {
                // The 39th field of the line, the 37th behind the name (Documentation/filesystems/proc.rst).
                let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
                let last: u32 = stat.rsplit_once(')')?.1.split_whitespace().nth(36)?.parse().ok()?;
                let runs = fs::read_to_string(thread.path().join("schedstat")).ok()?;
                (last == cpu).then_some((thread.path(), runs))
            })
            .collect()
    };
    let (before, began) = (runs(), Instant::now());
    while !runs().iter().any(|(thread, runs)| before.get(thread) != Some(runs)) {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "nothing of {pid} runs on CPU {cpu}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

fn go_and_come(cpu: u32, pid: u32) -> Away {
    make_it_run_on(cpu, pid);
    let offline = Offline::take(cpu).unwrap();
    let from = clock::mono_ns();
    assert!(!online().contains(&cpu));
    thread::sleep(STAYS);
    let to = clock::mono_ns();
    drop(offline);
    assert!(online().contains(&cpu));
    make_it_run_on(cpu, pid);
    thread::sleep(STAYS);
    Away { from, to }
}

#[test]
fn a_cpu_goes_and_comes_back() {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    if env::var_os("EXIST_HOTPLUG").is_none() {
        return println!(
            "skipped: it takes a CPU offline, which disturbs the whole machine; EXIST_HOTPLUG=1 allows it"
        );
    }
    let Some(&cpu) = online().iter().rev().find(|cpu| **cpu != 0) else {
        return println!("skipped: there is only one CPU");
    };
    match Offline::take(cpu) {
        Ok(offline) => drop(offline),
        Err(why) => return println!("skipped: CPU {cpu} cannot be taken offline: {why}"),
    }

    let workload = Started::in_cgroup(Kind::Mixed, THREADS, SECONDS);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.exist");
    let recording = workload.record(&out);
    let before = settled(workload.pid, NAME, THREADS);
    let steal = Steal::start();
    let (aways, probes) = thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let began = Instant::now();
            let changes: Vec<_> = (0..TIMES)
                .map(|n| (go_and_come(cpu, workload.pid), probe(&workload, folder.path(), cpu, n)))
                .collect();
            assert!(
                began.elapsed() < Duration::from_secs(SECONDS),
                "the workload has ended before the changes"
            );
            changes
        });
        workload.work("hotplug");
        changes.join().unwrap()
    })
    .into_iter()
    .unzip::<_, _, Vec<_>, Vec<_>>();
    let after = settled(workload.pid, NAME, THREADS);
    let uncertain_ns = steal.uncertain_ns();
    recording.signal("-INT");
    let (code, said) = recording.wait();
    assert_eq!(code, Some(0), "{said}");

    let trace = Trace::read(&fs::read(&out).unwrap()).unwrap();
    // The state is consistent: every thread comes in and goes out by turns, on one CPU at a time, and is out at the end.
    let threads = bed::alternate(&trace.records);
    for (tid, after) in &after {
        let kernel = after.since(before[tid]);
        let ours = Account {
            on_cpu_ns: threads[tid].on_cpu_ns,
            switches: threads[tid].outs,
        };
        assert_eq!(ours.switches, kernel.switches, "switch-outs of thread {tid}");
        let error = ours.on_cpu_ns.abs_diff(kernel.on_cpu_ns) as f64;
        let allowed = kernel.allowed_ns() + uncertain_ns as f64;
        assert!(
            error <= allowed,
            "thread {tid}: {ours:?} recorded, {kernel:?} by the kernel"
        );
    }
    let switches = trace
        .records
        .iter()
        .filter(|r| matches!(r.op(), Some(SwitchOp::In | SwitchOp::Out)));
    let on_it: Vec<u64> = switches
        .filter(|r| u32::from(r.cpu) == cpu)
        .map(|r| r.time_ns)
        .collect();
    for away in &aways {
        assert!(
            !on_it.iter().any(|t| (away.from..away.to).contains(t)),
            "records of CPU {cpu} in {away:?}"
        );
        assert!(on_it.iter().any(|&t| t < away.from), "it ran before {away:?}");
        assert!(on_it.iter().any(|&t| t >= away.to), "it runs after {away:?}");
    }
    // Everything is said: each change, and nothing else is missing.
    let told = accounts::by_file(&out);
    assert_eq!((told.missing(), told.lost), (0.0, 0));
    let losses: Vec<_> = trace.losses.iter().map(|l| (l.kind, l.cpu.map(|cpu| cpu.0))).collect();
    assert_eq!(
        losses,
        [(LossKind::CpuHotplug, Some(cpu)); 2 * TIMES],
        "{:?}",
        trace.losses
    );
    // Mappings that are made on it after it came back are followed again.
    for probe in &probes {
        assert!(
            trace.mappings.iter().any(|m| *m.path == *probe),
            "{probe} ran on CPU {cpu} after it came back"
        );
    }
    println!(
        "CPU {cpu} away {TIMES} times: {} records, {} of them on it, losses {:?}",
        trace.records.len(),
        on_it.len(),
        trace.losses.iter().map(|l| l.reason.as_str()).collect::<Vec<_>>()
    );
    let strict = Command::new(EXIST)
        .arg("report")
        .arg(&out)
        .arg("--strict")
        .output()
        .unwrap();
    assert_eq!(strict.status.code(), Some(3));
}

/// Executes a program of its own in the target, on this CPU; gives its path.
fn probe(workload: &Started, folder: &Path, cpu: u32, number: usize) -> String {
    let program = folder.join(format!("probe{number}"));
    fs::copy("/bin/true", &program).unwrap();
    let (cpu, program) = (cpu.to_string(), program.to_str().unwrap().to_owned());
    let mut probe = workload.beside(&["taskset", "-c", &cpu, &program]);
    assert!(probe.0.wait().unwrap().success());
    program
}

/// The program that is recorded.
#[test]
fn workload() {
    work::run();
}
