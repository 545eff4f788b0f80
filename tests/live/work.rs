//! The programs that are recorded: threads that wait on a barrier before and after their work, and `perf bench`.
//!
//! A workload waits for the file `go` in a folder, works for some seconds, writes the file `done` and stays.

use std::{
    env, fs,
    io::{PipeReader, PipeWriter, Read, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Set for the workload: `KIND THREADS SECONDS`.
pub const WORK: &str = "EXIST_TRUTH_WORK";
/// Set for the workload: the folder of `go` and `done`, as it sees it.
pub const FOLDER: &str = "EXIST_TRUTH_FOLDER";
/// Name of each worker.
pub const NAME: &str = "truth-worker";

/// Round trips of a run of `perf bench sched pipe`.
const LOOPS: u64 = 100_000;

/// What a workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Threads that compute and wait.
    Mixed,
    /// Pairs of threads that wake each other as fast as they can.
    Pipe,
    /// `perf bench sched pipe`, as many as this, placed as the scheduler likes.
    Perf,
    /// The same, each pair on a CPU of its own: every round trip is two switches, the highest rate that a CPU has.
    PerfPinned,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Mixed, Self::Pipe, Self::Perf, Self::PerfPinned];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Pipe => "pipe",
            Self::Perf => "perf bench sched pipe",
            Self::PerfPinned => "perf bench sched pipe, pinned",
        }
    }
}

/// The value of [`WORK`].
pub fn order(kind: Kind, threads: usize, seconds: u64) -> String {
    format!("{threads} {seconds} {}", kind.name())
}

/// The workload, if this process is to be one.
pub fn run() {
    let Ok(order) = env::var(WORK) else { return };
    let mut words = order.splitn(3, ' ');
    let (threads, seconds) = (words.next().unwrap(), words.next().unwrap());
    let (threads, seconds) = (threads.parse().unwrap(), Duration::from_secs(seconds.parse().unwrap()));
    let name = words.next().unwrap();
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap();
    let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
    let said = match kind {
        Kind::Mixed | Kind::Pipe => on_barriers(kind, threads, seconds, &folder),
        Kind::Perf | Kind::PerfPinned => perf(kind, threads, seconds, &folder),
    };
    fs::write(folder.join("done.part"), said).unwrap();
    fs::rename(folder.join("done.part"), folder.join("done")).unwrap();
    thread::sleep(Duration::from_secs(60));
}

fn wait_for_go(folder: &Path) {
    while !folder.join("go").exists() {
        thread::sleep(Duration::from_millis(10));
    }
}

fn on_barriers(kind: Kind, threads: usize, time: Duration, folder: &Path) -> String {
    let (start, end) = (Arc::new(Barrier::new(threads + 1)), Arc::new(Barrier::new(threads + 1)));
    let stop = Arc::new(AtomicBool::new(false));
    let mut pipes = Pipes::default();
    for index in 0..threads {
        let (start, end, stop) = (Arc::clone(&start), Arc::clone(&end), Arc::clone(&stop));
        let pipe = (kind == Kind::Pipe).then(|| pipes.end(index));
        let work = move || {
            start.wait();
            match pipe {
                Some((reader, writer)) => ping_pong(reader, writer, index, &stop),
                None => mixed(index as u64, &stop),
            }
            end.wait();
        };
        thread::Builder::new().name(NAME.to_owned()).spawn(work).unwrap();
    }
    wait_for_go(folder);
    start.wait();
    thread::sleep(time);
    stop.store(true, Ordering::Relaxed);
    // The workers reach the end barrier and stay there: this thread does not join them.
    thread::sleep(Duration::from_millis(500));
    String::new()
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
            0..4 => thread::sleep(Duration::from_micros(random % 3000)),
            4 | 5 => thread::yield_now(),
            _ => {}
        }
    }
}

fn ping_pong(mut reader: PipeReader, mut writer: PipeWriter, index: usize, stop: &AtomicBool) {
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
    other: Option<(PipeReader, PipeWriter)>,
}

impl Pipes {
    fn end(&mut self, index: usize) -> (PipeReader, PipeWriter) {
        if !index.is_multiple_of(2) {
            return self.other.take().unwrap();
        }
        let ((here, to_here), (there, to_there)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        self.other = Some((there, to_here));
        (here, to_there)
    }
}

/// Runs of `perf bench sched pipe` beside each other until the time is over; says how many round trips they made.
fn perf(kind: Kind, beside: usize, time: Duration, folder: &Path) -> String {
    wait_for_go(folder);
    let end = Instant::now() + time;
    let runs = move |cpu: usize| {
        let loops = LOOPS.to_string();
        let bench = ["/programs/perf", "bench", "sched", "pipe", "-l", &loops];
        let cpu = cpu.to_string();
        let pinned = ["/programs/taskset", "-c", &cpu];
        let command = match kind {
            Kind::PerfPinned => [&pinned[..], &bench].concat(),
            _ => bench.to_vec(),
        };
        let mut made = 0;
        while Instant::now() < end {
            let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            made += LOOPS;
        }
        made
    };
    let threads: Vec<_> = (0..beside).map(|cpu| thread::spawn(move || runs(cpu))).collect();
    let made: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    made.to_string()
}
