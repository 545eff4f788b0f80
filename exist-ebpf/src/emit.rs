//! Writes records and notices into the rings, and counts those that find no room.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_ringbuf_query},
    maps::ring_buf::RingBufEntry,
};
use exist_common::{CpuState, Notice, NoticeKind, Record};

use crate::{
    frozen::frozen,
    maps::{LIFE, NOTICES, RINGS, ShardRing},
};

/// A ring is looked at for its fill once in so many records.
const LOOK_EVERY: u64 = 256;

#[inline(always)]
pub fn cpu_number() -> u32 {
    // SAFETY: the helper has no conditions.
    unsafe { bpf_get_smp_processor_id() }
}

/// CLOCK_MONOTONIC, nanoseconds.
///
/// Records are stamped after their room is reserved: a reader that finds no unfinished room has all that was stamped
/// before it looked.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: the helper has no conditions.
    unsafe { bpf_ktime_get_ns() }
}

/// Room for `N` records in this CPU's ring; `None` if it is full, or there is none.
#[inline(always)]
pub fn reserve<const N: usize>() -> Option<RingBufEntry<[Record; N]>> {
    RINGS.get(cpu_number())?.reserve_untyped::<[Record; N]>(0)
}

/// Writes the records, or counts them as dropped.
#[inline(always)]
pub fn write<const N: usize>(cpu: &mut CpuState, slot: Option<RingBufEntry<[Record; N]>>, records: [Record; N]) {
    match slot {
        Some(mut slot) => {
            slot.write(records);
            slot.submit(u64::from(BPF_RB_NO_WAKEUP));
        }
        None => cpu.dropped += N as u64,
    }
    if cpu.produced % LOOK_EVERY < N as u64 {
        look_at_fill(cpu);
    }
}

/// Asks for a drain if the ring is past its high mark: the timer of user space may be too slow for the rate.
#[inline(never)]
fn look_at_fill(cpu: &mut CpuState) {
    let Some(ring) = RINGS.get(cpu_number()) else {
        return;
    };
    let ring: *const ShardRing = ring;
    // SAFETY: it is a ring.
    let bytes = unsafe { bpf_ringbuf_query(ring.cast_mut().cast(), u64::from(BPF_RB_AVAIL_DATA)) };
    if bytes > u64::from(frozen!(ring_high_bytes)) {
        notice(cpu, NoticeKind::RingHigh, 0, bytes);
    }
}

/// Writes a record of life: stamped here, in the ring that all CPUs share.
#[inline(always)]
pub fn life(cpu: &mut CpuState, record: Record) {
    match LIFE.reserve(0) {
        Some(mut slot) => {
            slot.write(Record {
                time_ns: now_ns(),
                cpu: cpu_number() as u16,
                ..record
            });
            slot.submit(u64::from(BPF_RB_NO_WAKEUP));
        }
        None => cpu.life_dropped += 1,
    }
}

/// Tells user space at once.
#[inline(always)]
pub fn notice(cpu: &mut CpuState, kind: NoticeKind, pid_tid: u64, id: u64) {
    match NOTICES.reserve(0) {
        Some(mut slot) => {
            slot.write(Notice {
                time_ns: now_ns(),
                kind: kind as u32,
                cpu: cpu_number(),
                pid: (pid_tid >> 32) as u32,
                tid: pid_tid as u32,
                id,
            });
            slot.submit(u64::from(BPF_RB_FORCE_WAKEUP));
        }
        None => cpu.notices_dropped += 1,
    }
}
