//! Warnings in words, by aya-log: for what should not happen, at most one of a kind on a CPU, and never in the path of a
//! switch. What is lost is counted all the same, every time ([`exist_common::CpuState`]).

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use aya_log_ebpf::warn;
use exist_common::CpuState;

use crate::emit::cpu_number;

/// Kinds that a CPU has warned of, a bit each.
#[btf_map]
static WARNED: PerCpuArray<u32, 1> = PerCpuArray::new();

#[derive(Clone, Copy)]
enum Kind {
    Targets = 1,
    Moves = 2,
    Notices = 4,
    Life = 8,
}

/// Whether this CPU has not warned of it before; from now on it has.
#[inline(always)]
fn is_first(kind: Kind) -> bool {
    let Some(warned) = WARNED.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: it is this CPU's own. Should an interrupt come between, one warning more is told.
    unsafe {
        let known = *warned & kind as u32 != 0;
        *warned |= kind as u32;
        !known
    }
}

/// The map of targets has no room for a cgroup.
#[inline(never)]
pub fn targets_full(cgroup: u64) {
    if is_first(Kind::Targets) {
        warn!(
            &(),
            "CPU {}: no room for cgroup {} in the map of the target's cgroups: its threads are not followed",
            cpu_number(),
            cgroup
        );
    }
}

/// A move could not be noted.
#[inline(never)]
pub fn moves_full(pid: u32) {
    if is_first(Kind::Moves) {
        warn!(
            &(),
            "CPU {}: no room to note that process {} was moved: its records may be stamped up to a switch too late",
            cpu_number(),
            pid
        );
    }
}

/// Looks at whether notices were dropped on this CPU.
#[inline(always)]
pub fn of_notices(cpu: &CpuState) {
    if cpu.notices_dropped != 0 {
        notices_full(cpu.notices_dropped);
    }
}

#[inline(never)]
fn notices_full(dropped: u64) {
    if is_first(Kind::Notices) {
        warn!(
            &(),
            "CPU {}: the ring of notices was full, {} dropped so far: user space is late",
            cpu_number(),
            dropped
        );
    }
}

/// Looks at whether records of life were dropped on this CPU.
#[inline(always)]
pub fn of_life(cpu: &CpuState) {
    if cpu.life_dropped != 0 {
        life_full();
    }
}

#[inline(never)]
fn life_full() {
    if is_first(Kind::Life) {
        warn!(
            &(),
            "CPU {}: the ring of forks, execs, exits and moves was full",
            cpu_number()
        );
    }
}
