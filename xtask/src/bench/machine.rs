//! The rest of the machine: how busy it is, what of that is not the measurement's own, and precedence over it.

use std::{fs, time::Duration};

use anyhow::{Context, Result};

/// `USER_HZ` (include/asm-generic/param.h): a tick of procfs.
const TICK: Duration = Duration::from_millis(10);
/// What the measurement runs at, so that other work on the machine takes little from it.
const NICE: i32 = -15;

/// CPU time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    idle: u64,
    all: u64,
    own: u64,
}

impl CpuTime {
    /// Reads `/proc/stat` and `/proc/self/stat`.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn now() -> Result<Self> {
        let machine = fs::read_to_string("/proc/stat").context("failed to read /proc/stat")?;
        let own = fs::read_to_string("/proc/self/stat").context("failed to read /proc/self/stat")?;
        parse(&machine, &own).context("/proc/stat or /proc/self/stat is not understood")
    }

    /// Share of the machine's time that was not idle; 0 when no time has passed.
    pub fn busy_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        if all == 0 {
            return 0.0;
        }
        1.0 - self.idle.saturating_sub(earlier.idle) as f64 / all as f64
    }

    /// Share of the machine's time that went to neither this process (with the children it waited for) nor to
    /// `measured`, nor was idle. Time that the hypervisor took is in it.
    pub fn others_since(self, earlier: Self, measured: Duration) -> f64 {
        let all = TICK.as_secs_f64() * self.all.saturating_sub(earlier.all) as f64;
        let own = TICK.as_secs_f64() * self.own.saturating_sub(earlier.own) as f64;
        if all == 0.0 {
            return 0.0;
        }
        (self.busy_since(earlier) - (own + measured.as_secs_f64()) / all).max(0.0)
    }
}

/// `cpu user nice system idle iowait irq softirq steal …` (guest time is part of user time), and fields 14 to 17 of
/// `/proc/PID/stat`: utime, stime, cutime, cstime.
fn parse(machine: &str, own: &str) -> Option<CpuTime> {
    let line = machine.strip_prefix("cpu ")?.lines().next()?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // The name may hold spaces and parentheses; the fields go on after its last one.
    let own = own.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
    let own: Vec<u64> = own.map_while(|field| field.parse().ok()).collect();
    Some(CpuTime {
        idle: fields.get(3)? + fields.get(4)?,
        all: fields.iter().take(8).sum(),
        own: (own.len() == 4).then(|| own.iter().sum())?,
    })
}

/// Precedence of this session's processes over others while it lives. With autogroups the kernel shares CPUs between
/// sessions first (sched/autogroup.c), so the session gets it and not only the process.
#[derive(Debug)]
pub struct Precedence {
    autogroup: Option<String>,
    nice: i32,
}

impl Precedence {
    /// Takes it; where that is not allowed the measurement goes on without.
    pub fn take() -> Self {
        let autogroup = fs::read_to_string("/proc/self/autogroup").ok().and_then(|text| {
            let (_, nice) = text.trim().rsplit_once("nice ")?;
            Some(nice.to_owned())
        });
        let nice = rustix::process::getpriority_process(None).unwrap_or(0);
        let of_session = autogroup.is_none() || fs::write("/proc/self/autogroup", NICE.to_string()).is_ok();
        if rustix::process::setpriority_process(None, NICE).is_err() || !of_session {
            eprintln!("note: no precedence over other work on this machine; run as root");
        }
        Self { autogroup, nice }
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        // The process ends soon, so only the session's matters; what could be set can be set back.
        if let Some(nice) = &self.autogroup {
            let _ = fs::write("/proc/self/autogroup", nice);
        }
        let _ = rustix::process::setpriority_process(None, self.nice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 10 5 3 2 20 0 1 0";

    #[test]
    fn busy_is_what_is_not_idle() {
        let before = parse("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 1 1 1\n", OWN).unwrap();
        let after = parse("cpu  40 0 20 120 20 0 0 0 9 0\ncpu0 1 1 1 1\n", OWN).unwrap();
        assert_eq!(
            before,
            CpuTime {
                idle: 80,
                all: 100,
                own: 20
            }
        );
        assert_eq!(after.busy_since(before), 0.4);
        assert_eq!(before.busy_since(before), 0.0);
        assert_eq!(parse("intr 1\n", OWN), None);
        assert_eq!(parse("cpu  1 2 3\n", OWN), None);
        assert_eq!(parse("cpu  1 2 3 4 5 6 7 8\n", "7 (a) S 1"), None);
    }

    #[test]
    fn others_are_what_is_neither_ours_nor_measured_nor_idle() {
        let before = CpuTime {
            idle: 100,
            all: 1000,
            own: 10,
        };
        let after = CpuTime {
            idle: 140,
            all: 1100,
            own: 30,
        };
        // 100 ticks: 40 idle, 20 of our own, 30 measured, so 10 of others.
        let others = after.others_since(before, Duration::from_millis(300));
        assert!((others - 0.1).abs() < 1e-9, "{others}");
        assert_eq!(after.others_since(before, Duration::from_secs(9)), 0.0);
    }
}
