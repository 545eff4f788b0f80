//! The maps. Their sizes here are the least; user space sets them at load.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
    macros::btf_map,
};
use exist_common::{Control, CpuState, Notice, Record, Wait, ring::Slot};

/// One ring for each possible CPU, see [`exist_common::ring`]: a switch is written without a lock that another CPU holds,
/// and a busy CPU cannot take the room of a quiet one. One array and not a map of maps, because the kernel compiles the
/// look-up of an array into a few instructions, and that of an inner map into a call.
#[btf_map]
pub static RINGS: Array<Slot, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Records of life (fork, exec, exit, attach): rare, so one ring.
#[btf_map]
pub static LIFE: RingBuf<Record, 4096> = RingBuf::new();

/// Waits, a record each. One ring for all CPUs, drained on the timer, without wake-ups: only the target's switches write
/// it, and its memory does not grow with the CPUs of a node.
#[btf_map]
pub static WAITS: RingBuf<Wait, 4096> = RingBuf::new();

/// What is known of each thread of the target: by its `task_struct`'s address, which an exec does not change.
#[btf_map]
pub static WAITING: HashMap<u64, Waiting, 1> = HashMap::new();

/// A thread between two of its switches.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Waiting {
    /// 0: it runs.
    pub off_ns: u64,
    pub waking_ns: u64,
    pub runnable_ns: u64,
    pub arg0: u64,
    pub waker: u32,
    pub syscall: u16,
    pub file: u8,
    pub state: u8,
    pub flags: u64,
}

impl Waiting {
    pub const NEW: Self = Self {
        off_ns: 0,
        waking_ns: 0,
        runnable_ns: 0,
        arg0: 0,
        waker: 0,
        syscall: Wait::NO_SYSCALL,
        file: 0,
        state: 0,
        flags: 0,
    };
}

/// Notices; the only ring with wake-ups.
#[btf_map]
pub static NOTICES: RingBuf<Notice, 4096> = RingBuf::new();

/// What user space says.
#[btf_map]
pub static CONTROL: Array<Control, 1> = Array::new();

/// Each CPU's state and counters.
#[btf_map]
pub static CPUS: PerCpuArray<CpuState, 1> = PerCpuArray::new();

/// The target's cgroups: their IDs in the hierarchy that decides (`FROZEN.hierarchy_id`), each with
/// [`ROOT`] or [`BELOW`].
#[btf_map]
pub static TARGETS: HashMap<u64, u32, 1> = HashMap::new();

/// A cgroup that user space named.
pub const ROOT: u32 = 1;
/// A cgroup below a root.
pub const BELOW: u32 = 0;

/// When a process (or a thread alone) was last moved within the hierarchy that decides.
#[btf_map]
pub static MOVES: LruHashMap<u32, u64, 1024> = LruHashMap::new();

/// What a CPU remembers of [`TARGETS`]: one table for each CPU.
#[btf_map]
pub static VERDICTS: PerCpuArray<[Verdict; 1 << VERDICT_BITS], 1> = PerCpuArray::new();

/// 64 places, 1.5 KiB a CPU.
pub const VERDICT_BITS: u32 = 6;

/// Whether a cgroup was one of the target's when it was asked.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Verdict {
    pub id: u64,
    /// Epoch of user space in which it was asked; 0: never.
    pub epoch: u64,
    pub held: u64,
}
