//! What the hypervisor took: the scheduler's clock stands still meanwhile (`update_rq_clock_task`), the tracer's does not;
//! and when that happens within a switch, the two give the time to different threads.

#![allow(dead_code, reason = "each test target uses a part")]

use std::{fs, thread};

/// The kernel counts it in ticks.
const TICK_NS: u64 = 10_000_000;

/// The count when a measurement began.
pub struct Steal(u64);

impl Steal {
    pub fn start() -> Self {
        Self(counted_ns())
    }

    /// What was counted since, nanoseconds, on all CPUs together.
    pub fn counted_ns(&self) -> u64 {
        counted_ns() - self.0
    }

    /// How much of each thread's time is uncertain now, nanoseconds: what was counted since, and what is less than a tick on
    /// a CPU and not counted yet. 0 on a machine where nothing was ever stolen.
    pub fn uncertain_ns(&self) -> u64 {
        let now = counted_ns();
        if now == 0 {
            return 0;
        }
        now - self.0 + TICK_NS * thread::available_parallelism().unwrap().get() as u64
    }
}

/// `steal` of `/proc/stat`, all CPUs together.
fn counted_ns() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let ticks: u64 = stat
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .nth(8)
        .unwrap()
        .parse()
        .unwrap();
    ticks * TICK_NS
}
