//! What the hypervisor took: the scheduler's clock stands still meanwhile (`update_rq_clock_task`), the tracer's does not.

use std::fs;

/// CPU time that the hypervisor gave to others, all CPUs together: `steal` of `/proc/stat`, in ticks of 10 ms.
pub fn stolen_ns() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    stat.lines()
        .next()
        .unwrap()
        .split_whitespace()
        .nth(8)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 10_000_000
}
