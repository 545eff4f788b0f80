//! A second witness: the kernel's own trace of `sched_switch`, through a tracefs instance.
//!
//! Whoever comes in at one event of a CPU must go out at its next. Some kernels break that chain (seen on a 6.18 guest kernel
//! under load: switches from certain threads of its host's agent fire no tracepoint, for whatever tracer). The thread that
//! goes out then has come in unseen by every tracer, while the kernel's accounting counts it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

pub struct Witness {
    dir: PathBuf,
}

impl Witness {
    /// Starts it; `None` where there is no tracefs.
    pub fn start() -> Option<Self> {
        let dir = Path::new("/sys/kernel/tracing/instances").join(format!("exist-test-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let witness = Self { dir };
        for (file, value) in [
            ("trace_clock", "mono"),
            ("buffer_size_kb", "65536"),
            ("events/sched/sched_switch/enable", "1"),
        ] {
            fs::write(witness.dir.join(file), value).ok()?;
        }
        Some(witness)
    }

    /// Ends it. For each thread: how often it came in unseen, and for how long at most it ran then, nanoseconds.
    pub fn unseen(self) -> BTreeMap<u32, (u64, u64)> {
        let _ = fs::write(self.dir.join("tracing_on"), "0");
        let mut unseen = BTreeMap::<u32, (u64, u64)>::new();
        for cpu in fs::read_dir(self.dir.join("per_cpu")).unwrap() {
            let text = String::from_utf8_lossy(&fs::read(cpu.unwrap().path().join("trace")).unwrap()).into_owned();
            let mut last = None;
            for (time_ns, prev, next) in text.lines().filter_map(event) {
                if let Some((at, running)) = last
                    && running != prev
                {
                    // The one that ran by the trace is as wrong as the one that did not.
                    for tid in [running, prev] {
                        let (count, ns) = unseen.entry(tid).or_default();
                        *count += u64::from(tid == prev);
                        *ns += time_ns - at;
                    }
                }
                last = Some((time_ns, next));
            }
        }
        unseen
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("events/sched/sched_switch/enable"), "0");
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Time, the thread that goes out, the one that comes in.
fn event(line: &str) -> Option<(u64, u32, u32)> {
    let (head, body) = line.split_once(": sched_switch: ")?;
    let (seconds, micros) = head.rsplit(' ').next()?.split_once('.')?;
    let number = |key: &str| body.rsplit_once(key)?.1.split(' ').next()?.parse().ok();
    let time_ns = (seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?) * 1000;
    Some((time_ns, number(" prev_pid=")?, number(" next_pid=")?))
}
