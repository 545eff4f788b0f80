//! Writes records and notices into the rings, and counts those that find no room.

use core::sync::atomic::{Ordering, compiler_fence};

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
};
use exist_common::{
    CpuState, Notice, NoticeKind, RECORD_BYTES, Record,
    ring::{self, Slot},
};

use crate::{
    frozen::frozen,
    maps::{LIFE, NOTICES, RINGS},
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
/// Switches are stamped after the room of their records is reserved (see [`ring`]), and after all that a cold cache makes
/// slow: so the stamp is near the return to the thread that comes in, and two tracers agree on it.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: the helper has no conditions.
    unsafe { bpf_ktime_get_ns() }
}

/// Room for records in this CPU's ring.
pub struct Room {
    /// The ring's first slot.
    ring: u32,
    /// Its header for us.
    writer: *mut Slot,
    /// Count of the records before.
    at: u64,
}

/// Room for `N` records; `None` if the ring is full.
#[inline(always)]
pub fn reserve<const N: u64>(cpu: &mut CpuState) -> Option<Room> {
    let ring = cpu_number() * ring::stride(frozen!(ring_records));
    let at = cpu.produced - cpu.dropped;
    let end = at + N;
    let records = u64::from(frozen!(ring_records));
    if end - cpu.read > records {
        look_what_is_read(cpu, ring);
        if end - cpu.read > records {
            return None;
        }
    }
    let writer = RINGS.get_ptr_mut(ring + ring::WRITER)?;
    store_release(writer, ring::RESERVED, end);
    compiler_fence(Ordering::SeqCst);
    Some(Room { ring, writer, at })
}

/// Writes the records, or counts them as dropped.
#[inline(always)]
pub fn write<const N: usize>(cpu: &mut CpuState, room: Option<Room>, records: [Record; N]) {
    let Some(Room { ring, writer, mut at }) = room else {
        cpu.dropped += N as u64;
        return;
    };
    for record in records {
        let place = at as u32 & (frozen!(ring_records) - 1);
        if let Some(slot) = RINGS.get_ptr_mut(ring + ring::FIRST + place) {
            // SAFETY: a slot is as large as a record and as aligned, and it is ours until `written` passes it.
            unsafe { slot.cast::<Record>().write(record) };
        }
        at += 1;
    }
    store_release(writer, ring::WRITTEN, at);
    if at % LOOK_EVERY < N as u64 {
        look_at_fill(cpu, ring, at);
    }
}

/// Asks for a drain if the ring is past its high mark: the timer of user space may be too slow for the rate.
#[inline(never)]
fn look_at_fill(cpu: &mut CpuState, ring: u32, at: u64) {
    look_what_is_read(cpu, ring);
    let records = at - cpu.read;
    if records > u64::from(frozen!(ring_records) / 2) {
        notice(cpu, NoticeKind::RingHigh, 0, records * RECORD_BYTES as u64);
    }
}

/// Takes over how many records user space has read.
#[inline(always)]
fn look_what_is_read(cpu: &mut CpuState, ring: u32) {
    if let Some(reader) = RINGS.get(ring + ring::READER) {
        // SAFETY: volatile, as user space writes it meanwhile.
        cpu.read = unsafe { (&raw const reader[ring::READ]).read_volatile() };
        compiler_fence(Ordering::Acquire);
    }
}

/// x86 keeps stores in order; LLVM has no such operation for BPF, so the compiler is told with `volatile`.
#[inline(always)]
fn store_release(header: *mut Slot, word: usize, value: u64) {
    compiler_fence(Ordering::Release);
    // SAFETY: a header has 4 words.
    unsafe { header.cast::<u64>().add(word).write_volatile(value) };
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
