//! A look at the target before a window: where it runs, by the hook's counters, and what it is allowed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use exist_trace::units::Cpu;

use super::streams::Streams;
use crate::{
    alloc::Look,
    sys::{procfs::Process, roots::Roots},
    target::Resolved,
};

/// More threads are not asked for their affinity; the target is then taken to be allowed everywhere.
const MOST_THREADS: usize = 1024;

/// How long to look.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub slots: u32,
    pub slot: Duration,
}

impl Span {
    /// Before a recording.
    pub const SHORT: Self = Self {
        slots: 5,
        slot: Duration::from_millis(10),
    };

    /// So long in all, in eight slots.
    pub fn of(length: Duration) -> Self {
        Self {
            slots: 8,
            slot: length / 8,
        }
    }
}

/// Looks at a target whose hook has begun. Blocks for the whole span.
///
/// # Errors
/// When the hook's counters cannot be read.
pub fn look(streams: &mut Streams, target: &Resolved, roots: &Roots, span: Span) -> anyhow::Result<Look> {
    let hook = streams.hook();
    let read = |hook: &crate::hook::Hook| -> anyhow::Result<BTreeMap<Cpu, u64>> {
        let on_cpu = hook.on_cpu_ns().context("failed to read where the target runs")?;
        Ok(on_cpu.into_iter().collect())
    };
    let begin = Instant::now();
    let mut before = read(hook)?;
    let mut slots = Vec::new();
    for slot in 1..=span.slots {
        std::thread::sleep((begin + span.slot * slot).saturating_duration_since(Instant::now()));
        let now = read(hook)?;
        let ran = |(cpu, ns): (&Cpu, &u64)| {
            let ns = ns.saturating_sub(before.get(cpu).copied().unwrap_or(0));
            (ns > 0).then_some((*cpu, ns))
        };
        slots.push(now.iter().filter_map(ran).collect());
        before = now;
    }
    let slot_ns = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX) / u64::from(span.slots.max(1));
    let threads = Threads::of(target, roots);
    Ok(Look {
        slot_ns,
        slots,
        allowed: threads.allowed,
        quota_cpus: target.roots.iter().map(|root| root.quota_cpus()).sum::<Option<f64>>(),
        threads: threads.count,
        runnable: threads.runnable,
    })
}

#[derive(Default)]
struct Threads {
    count: usize,
    runnable: usize,
    allowed: Option<BTreeSet<Cpu>>,
}

impl Threads {
    /// As they stand. Those that end meanwhile are left out.
    fn of(target: &Resolved, roots: &Roots) -> Self {
        let pids: Vec<u32> = match target.only_pid {
            Some(process) => vec![process.pid.0],
            None => target
                .roots
                .iter()
                .filter_map(|root| root.processes().ok())
                .flatten()
                .collect(),
        };
        let mut threads = Self::default();
        let mut allowed = BTreeSet::new();
        let mut known = true;
        for process in pids.into_iter().map(|pid| Process::new(roots, pid)) {
            for tid in process.threads().unwrap_or_default() {
                threads.count += 1;
                if threads.count > MOST_THREADS {
                    known = false;
                    continue;
                }
                let thread = process.thread(tid);
                threads.runnable += usize::from(thread.stat().is_ok_and(|stat| stat.state == b'R'));
                match thread.status().map(|status| status.allowed_cpus) {
                    Ok(Some(cpus)) => allowed.extend(cpus.into_iter().map(Cpu)),
                    Ok(None) => known = false,
                    Err(_) => {}
                }
            }
        }
        threads.allowed = (known && !allowed.is_empty()).then_some(allowed);
        threads
    }
}
