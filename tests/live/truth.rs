//! What is recorded beside what the kernel's own accounting says, thread by thread. Needs root and the BPF programs.
//!
//! The workload's threads wait on a barrier when the recording starts and when it ends, so that both accounts cover exactly
//! the same: on-CPU time as in `schedstat`, switch-outs as the sum of voluntary and nonvoluntary context switches.
//!
//! `EXIST_TRUTH_SECONDS` gives the length of each run (2 without it); `EXIST_TRUTH_ROWS` is a file that gets a JSON row for
//! each figure.

#![allow(clippy::unwrap_used)]

mod engine;
mod recording;
mod steal;

use std::{
    collections::BTreeMap,
    env, fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use engine::{docker::Docker, rootfs::RootFs};
use exist_trace::file::{
    Piece, Pieces,
    model::{Record, SwitchOp, flags},
};
use exist_user::sys::{procfs::Process, roots::Roots};
use recording::{Cgroup, Recording};
use steal::Steal;

/// Set for the workload: `KIND THREADS SECONDS`.
const WORK: &str = "EXIST_TRUTH_WORK";
/// Set for the workload: the folder of `go` and `done`, as it sees it.
const FOLDER: &str = "EXIST_TRUTH_FOLDER";
const NAME: &str = "truth-worker";

/// One account of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Account {
    on_cpu_ns: u64,
    switches: u64,
}

/// The workload's threads, by the kernel's accounting.
fn by_kernel(pid: u32) -> BTreeMap<u32, Account> {
    let process = Process::new(&Roots::default(), pid);
    let mut accounts = BTreeMap::new();
    for tid in process.threads().unwrap() {
        let thread = process.thread(tid);
        if thread.comm().unwrap() == NAME.as_bytes() {
            let (run, status) = (thread.schedstat().unwrap(), thread.status().unwrap());
            let switches = status.voluntary_switches.unwrap() + status.nonvoluntary_switches.unwrap();
            accounts.insert(
                tid,
                Account {
                    on_cpu_ns: run.on_cpu_ns,
                    switches,
                },
            );
        }
    }
    accounts
}

/// The account that stands still: every worker waits on a barrier.
fn settled(pid: u32, threads: usize) -> BTreeMap<u32, Account> {
    let end = Instant::now() + Duration::from_secs(60);
    let mut last = BTreeMap::new();
    loop {
        let now = by_kernel(pid);
        if now.len() == threads && now == last {
            return now;
        }
        assert!(
            Instant::now() < end,
            "the workload does not settle: {} of {threads} threads",
            now.len()
        );
        last = now;
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What a file tells: accounts by thread, switch records, those it says are lost, those that the hook counted.
#[derive(Debug, Default)]
struct Told {
    accounts: BTreeMap<u32, Account>,
    records: u64,
    lost: u64,
    produced: u64,
    losses: Vec<String>,
}

fn by_file(path: &Path) -> Told {
    let data = fs::read(path).unwrap();
    let mut told = Told::default();
    let mut produced = BTreeMap::new();
    let mut running = BTreeMap::<u32, u64>::new();
    for piece in Pieces::new(&data).unwrap() {
        match piece {
            Piece::Generation(generation, _) => {
                produced.extend(generation.counters.iter().map(|c| (c.cpu, c.produced)));
                generation
                    .records
                    .iter()
                    .for_each(|record| told.add(record, &mut running));
            }
            Piece::Loss(loss) => {
                told.lost += loss.records;
                told.losses.push(format!("{loss:?}"));
            }
            // A part of a loss that has been told.
            Piece::Unseen(_) => {}
        }
    }
    told.produced = produced.values().sum();
    told
}

impl Told {
    fn add(&mut self, record: &Record, running: &mut BTreeMap<u32, u64>) {
        let account = self.accounts.entry(record.tid).or_default();
        match record.op() {
            Some(SwitchOp::In) => {
                running.insert(record.tid, record.time_ns);
            }
            Some(SwitchOp::Out) => {
                if let Some(since) = running.remove(&record.tid) {
                    account.on_cpu_ns += record.time_ns - since;
                }
                account.switches += u64::from(record.flags & (flags::MOVED | flags::END) == 0);
            }
            _ => return,
        }
        self.records += 1;
    }
}

/// A row of the measurement, printed and kept for whoever asked. Gives whether it is as it must be.
fn row(what: &str, ours: f64, must: &str, ok: bool) -> bool {
    println!("{what}: {ours} (must be {must}): {}", if ok { "ok" } else { "NOT OK" });
    if let Some(path) = env::var_os("EXIST_TRUTH_ROWS") {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        writeln!(
            file,
            "{{\"what\":\"{what}\",\"ours\":{ours},\"must\":\"{must}\",\"ok\":{ok}}}"
        )
        .unwrap();
    }
    ok
}

/// Records a workload that waits in `target` with process `pid`, and compares. `folder` is where it looks for `go`.
fn check(what: &str, target: &[&str], pid: u32, threads: usize, folder: &Path) {
    // One at a time: they would disturb each other.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seen_by_it = |name: &str| {
        let below = folder.strip_prefix("/").unwrap().join(name);
        Path::new(&format!("/proc/{pid}/root")).join(below)
    };
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("x.exist");
    settled(pid, threads);
    let mut recording = Recording::start(&out, target);
    recording.wait_until_recording();
    let before = settled(pid, threads);
    let steal = Steal::start();
    let began = Instant::now();
    fs::write(seen_by_it("go"), "").unwrap();
    while !seen_by_it("done").exists() {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "{what}: the workload does not end"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = settled(pid, threads);
    let uncertain_ns = steal.uncertain_ns();
    recording.signal("-INT");
    let (code, said) = recording.wait();
    assert_eq!(code, Some(0), "{said}");

    let told = by_file(&out);
    println!(
        "{what}: {} records in {:.1} s",
        told.records,
        began.elapsed().as_secs_f64()
    );
    let mut worst = 0.0_f64;
    let mut unequal = 0;
    for (tid, after) in &after {
        let before = before[tid];
        let kernel = Account {
            on_cpu_ns: after.on_cpu_ns - before.on_cpu_ns,
            switches: after.switches - before.switches,
        };
        let ours = told.accounts.get(tid).copied().unwrap_or_default();
        let allowed_ns = kernel.on_cpu_ns as f64 * 0.001 + 20_000.0 * kernel.switches as f64 + uncertain_ns as f64;
        if ours.on_cpu_ns.abs_diff(kernel.on_cpu_ns) as f64 > allowed_ns {
            println!(
                "{what}: thread {tid}: {ours:?} recorded, {kernel:?} by the kernel, {uncertain_ns} ns not certain"
            );
        }
        worst = worst.max(ours.on_cpu_ns.abs_diff(kernel.on_cpu_ns) as f64 / allowed_ns.max(1.0));
        if ours.switches != kernel.switches {
            println!(
                "{what}: thread {tid}: {} switch-outs recorded, {} by the kernel",
                ours.switches, kernel.switches
            );
            unequal += 1;
        }
    }
    if uncertain_ns > 0 {
        println!(
            "{what}: a hypervisor takes CPU time here; {} ms more is allowed",
            uncertain_ns / 1_000_000
        );
    }
    let missing = told.produced as f64 - (told.records + told.lost) as f64;
    let figure = |name: &str| format!("truth {what}: {name}");
    let rows = [
        row(
            &figure("threads compared"),
            after.len() as f64,
            &threads.to_string(),
            after.len() == threads,
        ),
        row(
            &figure("worst on-CPU error, share of what is allowed"),
            worst,
            "<= 1",
            worst <= 1.0,
        ),
        row(
            &figure("threads with other switch-outs"),
            f64::from(unequal),
            "0",
            unequal == 0,
        ),
        row(
            &figure("records neither written nor counted as lost"),
            missing,
            "0",
            missing == 0.0,
        ),
        row(&figure("records lost"), told.lost as f64, "0", told.lost == 0),
    ];
    assert!(rows.iter().all(|&ok| ok), "{what}: see above");
    assert_eq!(told.losses, [""; 0], "{what}");
}

fn work(kind: &str, threads: usize) -> String {
    let seconds = env::var("EXIST_TRUTH_SECONDS").unwrap_or_else(|_| "2".to_owned());
    format!("{kind} {threads} {seconds}")
}

fn in_cgroup(kind: &str, threads: usize) {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let cgroup = Cgroup::new(&format!("{kind}-{threads}"));
    let folder = tempfile::tempdir().unwrap();
    let own = env::current_exe().unwrap();
    let command = [own.to_str().unwrap(), "--exact", "workload", "--nocapture"];
    let environment = [(WORK, &*work(kind, threads)), (FOLDER, folder.path().to_str().unwrap())];
    let workload = cgroup.start(&command, &environment);
    let what = format!("{kind}, {threads} threads, cgroup");
    check(
        &what,
        &["--cgroup", &cgroup.name],
        workload.pid(),
        threads,
        folder.path(),
    );
}

#[test]
fn one_thread() {
    in_cgroup("mixed", 1);
}

#[test]
fn eight_threads() {
    in_cgroup("mixed", 8);
}

#[test]
fn two_hundred_threads() {
    in_cgroup("mixed", 200);
}

/// What `perf bench sched pipe` does: two threads wake each other as fast as they can, on as many pairs as there are CPUs.
#[test]
fn pipes_at_the_highest_rate() {
    in_cgroup("pipe", 2 * std::thread::available_parallelism().unwrap().get());
}

#[test]
fn containers_by_id() {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let own = env::current_exe().unwrap();
    let root = RootFs::new(&[("workload", &own)]);
    let docker = match Docker::start(&root) {
        Ok(docker) => docker,
        Err(why) => return println!("skipped: {why}"),
    };
    for threads in [1, 8, 200] {
        let work = format!("{WORK}={}", work("mixed", threads));
        let folder = format!("{FOLDER}=/");
        let workload = docker.run(
            &["-e", &work, "-e", &folder],
            &["/programs/workload", "--exact", "workload", "--nocapture"],
        );
        let what = format!("mixed, {threads} threads, container");
        check(
            &what,
            &["--container", &workload.id[..12]],
            workload.pid,
            threads,
            Path::new("/"),
        );
    }
}

/// The program that is recorded.
#[test]
fn workload() {
    let Ok(work) = env::var(WORK) else { return };
    let words: Vec<_> = work.split(' ').collect();
    let (kind, threads, seconds) = (
        words[0].to_owned(),
        words[1].parse().unwrap(),
        words[2].parse().unwrap(),
    );
    let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
    let (start, end) = (Arc::new(Barrier::new(threads + 1)), Arc::new(Barrier::new(threads + 1)));
    let stop = Arc::new(AtomicBool::new(false));
    let mut pipes = Pipes::default();
    for index in 0..threads {
        let (start, end, stop) = (Arc::clone(&start), Arc::clone(&end), Arc::clone(&stop));
        let pipe = (kind == "pipe").then(|| pipes.end(index));
        let work = move || {
            start.wait();
            match pipe {
                Some((reader, writer)) => ping_pong(reader, writer, index, &stop),
                None => mixed(index as u64, &stop),
            }
            end.wait();
        };
        std::thread::Builder::new().name(NAME.to_owned()).spawn(work).unwrap();
    }
    while !folder.join("go").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    start.wait();
    std::thread::sleep(Duration::from_secs(seconds));
    stop.store(true, Ordering::Relaxed);
    // The workers reach the end barrier and stay there: this thread does not join them.
    std::thread::sleep(Duration::from_millis(500));
    fs::write(folder.join("done"), "").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Some computing, then a wait or none: threads of all kinds.
fn mixed(seed: u64, stop: &AtomicBool) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while !stop.load(Ordering::Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut sum = random;
        (0..random % 200_000).for_each(|i| sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(i)));
        match random % 8 {
            0..4 => std::thread::sleep(Duration::from_micros(random % 3000)),
            4 | 5 => std::thread::yield_now(),
            _ => {}
        }
    }
}

fn ping_pong(mut reader: std::io::PipeReader, mut writer: std::io::PipeWriter, index: usize, stop: &AtomicBool) {
    let mut byte = [0];
    if index.is_multiple_of(2) {
        writer.write_all(&byte).unwrap();
    }
    // Whoever sees the end tells the other by one last byte.
    while reader.read_exact(&mut byte).is_ok() {
        let last = stop.load(Ordering::Relaxed);
        if writer.write_all(&byte).is_err() || last {
            break;
        }
    }
}

/// Ends of the pipes of pairs of threads.
#[derive(Default)]
struct Pipes {
    other: Option<(std::io::PipeReader, std::io::PipeWriter)>,
}

impl Pipes {
    fn end(&mut self, index: usize) -> (std::io::PipeReader, std::io::PipeWriter) {
        if !index.is_multiple_of(2) {
            return self.other.take().unwrap();
        }
        let ((here, to_here), (there, to_there)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        self.other = Some((there, to_here));
        (here, to_there)
    }
}
