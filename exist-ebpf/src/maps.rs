//! The maps. Their sizes here are the least; user space sets them at load.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
    macros::btf_map,
};
use exist_common::{Control, CpuState, Notice, Record, ring::Slot};

/// One ring for each possible CPU, see [`exist_common::ring`]: a switch is written without a lock that another CPU holds,
/// and a busy CPU cannot take the room of a quiet one. One array and not a map of maps, because the kernel compiles the
/// look-up of an array into a few instructions, and that of an inner map into a call.
#[btf_map]
pub static RINGS: Array<Slot, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Records of life (fork, exec, exit, attach): rare, so one ring.
#[btf_map]
pub static LIFE: RingBuf<Record, 4096> = RingBuf::new();

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
