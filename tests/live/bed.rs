//! What the hook is tested with: cgroups, and children that are copies of the test.

#![allow(dead_code, reason = "each test target uses a part")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    sync::Barrier,
    time::{Duration, Instant},
};

use exist_common::{Op, Record};
use exist_user::{
    hook::{Hook, HookError, HookOptions},
    sys::{
        cgroupfs::{Hierarchy, Mounts},
        roots::Roots,
    },
};

const ROLE: &str = "EXIST_TEST_ROLE";
const CGROUP: &str = "EXIST_TEST_CGROUP";

/// The hook, or why it cannot run here.
pub fn load(options: &HookOptions) -> Option<Hook> {
    match Hook::load(options) {
        Ok(hook) => Some(hook),
        Err(e @ (HookError::NoObject | HookError::NotPermitted { .. } | HookError::NoBtf { .. })) => {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Two cgroups in one hierarchy: the target, and one beside it.
pub struct Bed {
    pub hierarchy: Hierarchy,
    pub dir: PathBuf,
    pub outside: PathBuf,
}

/// A bed in version 2 and one in version 1, where they are.
pub fn beds(name: &str) -> Vec<Bed> {
    let mounts = Mounts::find(&Roots::default()).unwrap();
    let mut beds = Vec::new();
    for mount in mounts.v2.iter().chain(mounts.v1.first()) {
        let dir = mount.dir.join(format!("exist-test-{}-{name}", std::process::id()));
        let outside = dir.with_file_name(format!("exist-test-{}-{name}-outside", std::process::id()));
        if let Err(e) = fs::create_dir(&dir).and_then(|()| fs::create_dir(&outside)) {
            println!("skipped: failed to make {}: {e}", dir.display());
            continue;
        }
        beds.push(Bed {
            hierarchy: mount.hierarchy.clone(),
            dir,
            outside,
        });
    }
    beds
}

impl Bed {
    pub fn id(&self) -> u64 {
        fs::metadata(&self.dir).unwrap().ino()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for dir in [&self.dir, &self.outside] {
            if dir.exists() && !std::thread::panicking() {
                remove(dir);
            }
        }
    }
}

/// Removes a cgroup as soon as its last process is gone.
pub fn remove(dir: &Path) {
    until("the cgroup is empty", || fs::remove_dir(dir).is_ok());
}

/// Moves a process.
pub fn enter(dir: &Path, pid: u32) {
    fs::write(dir.join("cgroup.procs"), pid.to_string()).unwrap();
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What the kernel says of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kernels {
    pub switches: u64,
    pub on_cpu_ns: u64,
}

/// A child; killed on drop.
pub struct Child {
    child: std::process::Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

/// Starts a copy of this test in a role, in a cgroup (which it enters itself, before it does anything).
pub fn spawn(role: &str, cgroup: &Path) -> Child {
    // Ahead of whatever else this machine does: tests look at moments.
    let mut child = Command::new("nice")
        .args(["-n", "-20"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(CGROUP, cgroup)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Child {
        stdin: child.stdin.take().unwrap(),
        stdout: BufReader::new(child.stdout.take().unwrap()),
        child,
    }
}

impl Child {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that is the child's own, not the test harness's.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the child ended");
            if let Some((_, said)) = line.split_once("child: ") {
                return said.trim().to_owned();
            }
        }
    }

    pub fn ready(&mut self) {
        assert_eq!(self.line(), "ready");
    }

    pub fn go(&mut self) {
        self.stdin.write_all(b"go\n").unwrap();
    }

    pub fn wait(&mut self) {
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Time that its threads have run.
    pub fn ran_ns(&self) -> u64 {
        fs::read_dir(format!("/proc/{}/task", self.pid()))
            .unwrap()
            .filter_map(|entry| {
                let text = fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
                text.split(' ').next()?.parse::<u64>().ok()
            })
            .sum()
    }

    /// What the kernel says of each thread, once all of them wait and stay so.
    pub fn parked(&self) -> BTreeMap<u32, Kernels> {
        let read = || -> Option<BTreeMap<u32, Kernels>> {
            fs::read_dir(format!("/proc/{}/task", self.pid()))
                .ok()?
                .map(|entry| {
                    let dir = entry.ok()?.path();
                    let status = fs::read_to_string(dir.join("status")).ok()?;
                    let number = |key: &str| -> Option<u64> {
                        status.lines().find_map(|l| l.strip_prefix(key))?.trim().parse().ok()
                    };
                    let schedstat = fs::read_to_string(dir.join("schedstat")).ok()?;
                    let tid = dir.file_name()?.to_str()?.parse().ok()?;
                    let sleeps = status.lines().any(|l| l.starts_with("State:\tS"));
                    let kernels = Kernels {
                        switches: number("voluntary_ctxt_switches:")? + number("nonvoluntary_ctxt_switches:")?,
                        on_cpu_ns: schedstat.split(' ').next()?.parse().ok()?,
                    };
                    sleeps.then_some((tid, kernels))
                })
                .collect()
        };
        let mut last = None;
        until("all threads wait", || {
            std::thread::sleep(Duration::from_millis(30));
            let now = read();
            let same = now.is_some() && now == last;
            last = now;
            same
        });
        last.unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The sums of a thread's records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Thread {
    /// Switch-outs, without those that tell of a move or the end.
    pub outs: u64,
    pub on_cpu_ns: u64,
}

/// Checks that each thread's records are `In`, `Out`, `In`, `Out` …, that a CPU runs one thread at a time, and that times
/// never go back. Whole pairs only.
pub fn alternate(records: &[Record]) -> BTreeMap<u32, Thread> {
    let mut switches: Vec<_> = records
        .iter()
        .filter(|r| matches!(r.op(), Some(Op::In | Op::Out)))
        .collect();
    // Stable: records of one CPU at one time stay in their order, `Out` before `In`.
    switches.sort_by_key(|r| r.time_ns);
    let mut in_since: BTreeMap<u32, (u64, u16)> = BTreeMap::new();
    let mut on_cpu: BTreeMap<u16, u32> = BTreeMap::new();
    let mut threads: BTreeMap<u32, Thread> = BTreeMap::new();
    for r in switches {
        let thread = threads.entry(r.tid).or_default();
        if r.op() == Some(Op::In) {
            let was = in_since.insert(r.tid, (r.time_ns, r.cpu));
            assert_eq!(was, None, "thread {} comes in twice: {r:?}", r.tid);
            let before = on_cpu.insert(r.cpu, r.tid);
            assert_eq!(before, None, "two threads on one CPU: {r:?}");
        } else {
            let since = in_since.remove(&r.tid);
            let (since, cpu) = since.unwrap_or_else(|| panic!("thread {} goes out twice: {r:?}", r.tid));
            assert_eq!(cpu, r.cpu, "out of another CPU: {r:?}");
            assert_eq!(on_cpu.remove(&r.cpu), Some(r.tid));
            thread.on_cpu_ns += r.time_ns - since;
            let synthetic = exist_common::flags::MOVED | exist_common::flags::END;
            thread.outs += u64::from(r.flags & synthetic == 0);
        }
    }
    assert!(in_since.is_empty(), "threads that never go out: {in_since:?}");
    threads
}

/// Plays the role that the parent gave; returns at once when there is none.
pub fn act() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let cgroup = std::env::var_os(CGROUP).unwrap_or_default();
    if !cgroup.is_empty() {
        enter(Path::new(&cgroup), std::process::id());
    }
    match role.to_str().unwrap() {
        "threads" => threads(),
        "spin" => {
            say("ready");
            loop {
                std::hint::spin_loop();
            }
        }
        "exec-from-thread" => {
            let thread = std::thread::spawn(|| Command::new("true").exec());
            panic!("{:?}", thread.join());
        }
        "record" => {
            let mut hook = Hook::load(&HookOptions::new(Hierarchy::V2)).unwrap();
            hook.attach().unwrap();
            hook.insert_cgroup(1, exist_user::hook::Role::Root).unwrap();
            hook.begin().unwrap();
            let ids: Vec<_> = hook.program_stats().unwrap().iter().map(|p| p.id.to_string()).collect();
            say(&ids.join(" "));
            std::thread::sleep(Duration::from_secs(600));
        }
        other => panic!("no role {other}"),
    }
}

/// Threads that wait, work with many switches of all kinds, and wait again.
fn threads() {
    const THREADS: usize = 6;
    static GATE: Barrier = Barrier::new(THREADS + 1);
    for number in 0..THREADS {
        std::thread::spawn(move || {
            GATE.wait();
            for round in 0..400 {
                match number % 3 {
                    0 => std::thread::sleep(Duration::from_micros(50)),
                    1 => std::thread::yield_now(),
                    _ => (0..2000_u64).for_each(|i| {
                        std::hint::black_box(i * round);
                    }),
                }
            }
            GATE.wait();
            std::thread::park();
        });
    }
    let mut line = String::new();
    say("ready");
    std::io::stdin().read_line(&mut line).unwrap();
    GATE.wait();
    GATE.wait();
    say("ready");
    std::io::stdin().read_line(&mut line).unwrap();
}

fn say(what: &str) {
    println!("child: {what}");
}
