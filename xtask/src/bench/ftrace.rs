//! The scheduler switches in a Perfetto trace of `traced_probes`: the few messages of it that this needs, by their field
//! numbers in Perfetto's `protos/perfetto/trace/` (trace.proto, trace_packet.proto, ftrace/ftrace_event_bundle.proto,
//! clock_snapshot.proto, ftrace/ftrace_stats.proto). Switches come in its compact form, which is its default: it has the
//! thread that came in; the one that went out is the one that came in before on that CPU.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use prost::Message;

use super::oncpu::Switch;

/// `BuiltinClock` of builtin_clock.proto.
const MONOTONIC: u32 = 3;
const BOOTTIME: u32 = 6;

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(message, optional, tag = "1")]
    ftrace_events: Option<Bundle>,
    #[prost(message, optional, tag = "6")]
    clock_snapshot: Option<ClockSnapshot>,
    #[prost(message, optional, tag = "34")]
    ftrace_stats: Option<FtraceStats>,
}

#[derive(Clone, PartialEq, Message)]
struct Bundle {
    #[prost(uint32, optional, tag = "1")]
    cpu: Option<u32>,
    #[prost(bool, optional, tag = "3")]
    lost_events: Option<bool>,
    #[prost(message, optional, tag = "4")]
    compact_sched: Option<CompactSched>,
}

/// Parallel columns, one entry a switch.
#[derive(Clone, PartialEq, Message)]
struct CompactSched {
    /// The first is absolute in a bundle, the others are differences.
    #[prost(uint64, repeated, tag = "1")]
    switch_timestamp: Vec<u64>,
    #[prost(int32, repeated, tag = "3")]
    switch_next_pid: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    clocks: Vec<Clock>,
}

#[derive(Clone, PartialEq, Message)]
struct Clock {
    #[prost(uint32, optional, tag = "1")]
    clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct FtraceStats {
    #[prost(message, repeated, tag = "2")]
    cpu_stats: Vec<FtraceCpuStats>,
}

#[derive(Clone, PartialEq, Message)]
struct FtraceCpuStats {
    #[prost(uint64, optional, tag = "3")]
    overrun: Option<u64>,
    #[prost(uint64, optional, tag = "8")]
    dropped_events: Option<u64>,
}

/// What a trace says of some threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switches {
    /// In CLOCK_MONOTONIC.
    pub switches: Vec<Switch>,
    /// First and last switch of any thread on the machine.
    pub covered: (u64, u64),
    /// Whether the trace says that it lost events.
    pub lost: bool,
    /// CPUs on which the kernel does not trace all switches: in more than one of 100, what came in had come in before.
    pub blind: BTreeSet<u32>,
}

/// Reads the switches of the threads in `tids`. A switch-out is unknown where it is a CPU's first switch in the trace.
///
/// # Errors
/// Bytes that are not a Perfetto trace; no switch in it; no pair of clocks in it.
pub fn read(trace: &[u8], tids: &BTreeSet<u32>) -> Result<Switches> {
    let trace = Trace::decode(trace).context("not a Perfetto trace")?;
    let ahead = trace
        .packet
        .iter()
        .find_map(|packet| boottime_ahead_ns(packet.clock_snapshot.as_ref()?))
        .context("no snapshot of CLOCK_BOOTTIME beside CLOCK_MONOTONIC")?;
    let mut all = Switches {
        switches: Vec::new(),
        covered: (u64::MAX, 0),
        lost: false,
        blind: BTreeSet::new(),
    };
    let mut cpus: BTreeMap<u32, Vec<(u64, i32)>> = BTreeMap::new();
    for bundle in trace.packet.iter().filter_map(|packet| packet.ftrace_events.as_ref()) {
        all.lost |= bundle.lost_events.unwrap_or(false);
        let (Some(cpu), Some(compact)) = (bundle.cpu, &bundle.compact_sched) else {
            continue;
        };
        let mut boottime = 0u64;
        let cpu = cpus.entry(cpu).or_default();
        for (step, &next) in compact.switch_timestamp.iter().zip(&compact.switch_next_pid) {
            boottime = boottime.saturating_add(*step);
            cpu.push((boottime.saturating_sub(ahead), next));
        }
    }
    for (&number, cpu) in &mut cpus {
        // Bundles of a CPU need not stand in order in the file.
        cpu.sort_by_key(|&(t_ns, _)| t_ns);
        let again = cpu.windows(2).filter(|pair| pair[0].1 == pair[1].1).count();
        if again * 100 > cpu.len() {
            all.blind.insert(number);
        }
        let mut prev = None;
        for &(t_ns, next) in cpu.iter() {
            all.covered = (all.covered.0.min(t_ns), all.covered.1.max(t_ns));
            for (pid, came_in) in [(prev, false), (Some(next), true)] {
                if let Some(tid) = pid
                    .and_then(|pid| u32::try_from(pid).ok())
                    .filter(|tid| tids.contains(tid))
                {
                    all.switches.push(Switch { t_ns, tid, came_in });
                }
            }
            prev = Some(next);
        }
    }
    let stats = trace
        .packet
        .iter()
        .filter_map(|packet| packet.ftrace_stats.as_ref())
        .flat_map(|s| &s.cpu_stats);
    all.lost |= stats
        .clone()
        .any(|cpu| cpu.overrun.unwrap_or(0) + cpu.dropped_events.unwrap_or(0) > 0);
    if all.covered.1 == 0 {
        bail!("no sched_switch in the trace");
    }
    Ok(all)
}

/// How far CLOCK_BOOTTIME, ftrace's clock here, is ahead of CLOCK_MONOTONIC: the time that the machine was suspended.
/// The two are read one after the other, so below a millisecond they are equal.
fn boottime_ahead_ns(snapshot: &ClockSnapshot) -> Option<u64> {
    let clock = |id| {
        snapshot
            .clocks
            .iter()
            .find(|clock| clock.clock_id == Some(id))?
            .timestamp
    };
    let ahead = clock(BOOTTIME)?.abs_diff(clock(MONOTONIC)?);
    Some(if ahead < 1_000_000 { 0 } else { ahead })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two CPUs' bundles of `(step, next)`.
    fn trace(boottime: u64, first: &[(u64, i32)], second: &[(u64, i32)]) -> Trace {
        let clock = |id, t| Clock {
            clock_id: Some(id),
            timestamp: Some(t),
        };
        let clocks = vec![clock(MONOTONIC, 1_000), clock(BOOTTIME, boottime)];
        let bundle = |cpu, switches: &[(u64, i32)]| {
            let (switch_timestamp, switch_next_pid) = switches.iter().copied().unzip();
            let compact_sched = Some(CompactSched {
                switch_timestamp,
                switch_next_pid,
            });
            let bundle = Bundle {
                cpu: Some(cpu),
                lost_events: None,
                compact_sched,
            };
            Packet {
                ftrace_events: Some(bundle),
                ..Packet::default()
            }
        };
        let snapshot = Packet {
            clock_snapshot: Some(ClockSnapshot { clocks }),
            ..Packet::default()
        };
        Trace {
            packet: vec![
                snapshot,
                bundle(0, first),
                bundle(1, second),
                bundle(0, &[(5_000_009_000, 0)]),
            ],
        }
    }

    #[test]
    fn only_the_threads_asked_for_on_the_monotonic_clock() {
        let trace = trace(
            5_000_001_000,
            &[(5_000_002_000, 7), (1_000, 8)],
            &[(5_000_004_000, 9), (500, 8), (1, 9)],
        );
        let read = read(&trace.encode_to_vec(), &BTreeSet::from([8])).unwrap();
        let switches: Vec<_> = read.switches.iter().map(|s| (s.t_ns, s.tid, s.came_in)).collect();
        assert_eq!(
            switches,
            [(3_000, 8, true), (9_000, 8, false), (4_500, 8, true), (4_501, 8, false)]
        );
        assert_eq!(read.covered, (2_000, 9_000));
        assert!(!read.lost);
    }

    #[test]
    fn a_cpu_that_the_kernel_does_not_trace_is_told() {
        // From idle to 7 and back, 100 times; on the second CPU the kernel does not trace the idle task.
        let seen: Vec<_> = (0..200).map(|i| (1_000, 7 * (i % 2))).collect();
        let half: Vec<_> = (0..100).map(|_| (2_000, 0)).collect();
        let blind = |trace: Trace| read(&trace.encode_to_vec(), &BTreeSet::new()).unwrap().blind;
        assert_eq!(blind(trace(1_100, &seen, &half)), BTreeSet::from([1]));
        assert_eq!(blind(trace(1_100, &seen, &seen)), BTreeSet::new());
    }

    #[test]
    fn a_loss_is_seen_wherever_it_is_told() {
        let mut in_bundle = trace(1_100, &[(9, 7)], &[]);
        in_bundle.packet[1].ftrace_events.as_mut().unwrap().lost_events = Some(true);
        let mut in_stats = trace(1_100, &[(9, 7)], &[]);
        let cpu = FtraceCpuStats {
            overrun: Some(1),
            dropped_events: None,
        };
        let stats = FtraceStats { cpu_stats: vec![cpu] };
        in_stats.packet.push(Packet {
            ftrace_stats: Some(stats),
            ..Packet::default()
        });
        for trace in [in_bundle, in_stats] {
            assert!(read(&trace.encode_to_vec(), &BTreeSet::new()).unwrap().lost);
        }
    }

    #[test]
    fn what_cannot_be_compared_is_an_error() {
        let none = BTreeSet::new();
        assert!(read(b"\xff\xff\xff", &none).is_err());
        let mut empty = trace(1_100, &[(9, 7)], &[]);
        empty.packet.truncate(1);
        assert!(read(&empty.encode_to_vec(), &none).is_err());
        let mut no_clock = trace(1_100, &[(9, 7)], &[]);
        no_clock.packet.remove(0);
        assert!(read(&no_clock.encode_to_vec(), &none).is_err());
    }
}
