//! Accounts of threads: on-CPU time and switch-outs, by the kernel and by a trace file.

#![allow(dead_code, reason = "each test target uses a part")]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use exist_trace::file::{
    Piece, Pieces,
    model::{Record, SwitchOp, flags},
};
use exist_user::sys::{procfs::Process, roots::Roots};

/// One account of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub on_cpu_ns: u64,
    /// Switch-outs: voluntary and nonvoluntary together.
    pub switches: u64,
}

impl Account {
    /// What has come since.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            on_cpu_ns: self.on_cpu_ns - earlier.on_cpu_ns,
            switches: self.switches - earlier.switches,
        }
    }

    /// How far our on-CPU time may be from this: 0.1 % and 20 µs a switch.
    pub fn allowed_ns(self) -> f64 {
        self.on_cpu_ns as f64 * 0.001 + 20_000.0 * self.switches as f64
    }
}

/// The threads of a process that have this name, by the kernel's accounting.
pub fn by_kernel(pid: u32, name: &str) -> BTreeMap<u32, Account> {
    let process = Process::new(&Roots::default(), pid);
    let mut accounts = BTreeMap::new();
    for tid in process.threads().unwrap() {
        let thread = process.thread(tid);
        if thread.comm().unwrap() == name.as_bytes() {
            let (run, status) = (thread.schedstat().unwrap(), thread.status().unwrap());
            let account = Account {
                on_cpu_ns: run.on_cpu_ns,
                switches: status.voluntary_switches.unwrap() + status.nonvoluntary_switches.unwrap(),
            };
            accounts.insert(tid, account);
        }
    }
    accounts
}

/// The account that stands still: every one of so many threads waits.
pub fn settled(pid: u32, name: &str, threads: usize) -> BTreeMap<u32, Account> {
    let end = Instant::now() + Duration::from_secs(60);
    let mut last = BTreeMap::new();
    loop {
        let now = by_kernel(pid, name);
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

/// What a file tells: accounts by process and thread, switch records, those it says are lost, those that the hook counted.
#[derive(Debug, Default)]
pub struct Told {
    pub accounts: BTreeMap<(u32, u32), Account>,
    pub records: u64,
    pub lost: u64,
    pub produced: u64,
    pub losses: Vec<String>,
}

pub fn by_file(path: &Path) -> Told {
    let data = fs::read(path).unwrap();
    let mut told = Told::default();
    let mut produced = BTreeMap::new();
    let mut running = BTreeMap::new();
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
        let account = self.accounts.entry((record.pid, record.tid)).or_default();
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

    /// Records that are neither in the file nor said to be lost.
    pub fn missing(&self) -> f64 {
        self.produced as f64 - (self.records + self.lost) as f64
    }
}
