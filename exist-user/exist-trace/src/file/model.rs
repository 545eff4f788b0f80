//! What a trace file holds, as plain data: the contract between the recorder and every reader.
//!
//! A file is a sequence of [`Generation`]s (chunks with a checksum each). A generation is
//! self-contained: it repeats the header and the state at its start, so a file can be cut
//! between any two of them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::units::ClockPair;
use crate::{
    session::Session,
    units::{Cpu, MonoNs, Pid, Tid},
};
pub use exist_common::{Op as SwitchOp, RECORD_BYTES, Record, WAIT_BYTES, Wait, WaitKind, flags, holder};

/// The longest span of time that a generation covers when something happens, and so the most that a cut file loses.
pub const GENERATION_NS: u64 = 100_000_000;
/// The most payload that a generation holds before it is closed, and so the most that a cut file loses, in bytes.
pub const GENERATION_BYTES: usize = 1 << 20;

/// What is true for a whole recording; repeated in each generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Tells generations of one recording from those of another in a concatenated file.
    pub recording_id: u64,
    /// Version of the program that wrote it.
    pub exist_version: String,
    /// What was asked.
    pub session: Session,
    /// What was resolved: the cgroups that are the target, at the start.
    pub target: ResolvedTarget,
    /// The node.
    pub node: Node,
    /// Start of the period on CLOCK_MONOTONIC.
    pub start: MonoNs,
    /// CLOCK_REALTIME at `start`, nanoseconds since 1970.
    pub start_realtime_ns: u64,
    /// Whether the file holds packets of processes that are not the target's (undecoded processor trace of whole CPUs).
    pub holds_foreign_packets: bool,
    /// Processor trace settings as programmed; absent: none was recorded, for this reason.
    pub pt: Result<PtSettings, String>,
}

/// What the target was resolved to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResolvedTarget {
    /// The container's full ID, where it is one.
    pub container: Option<String>,
    /// The hierarchy that decides membership: `cgroup2`, or a version 1 controller's name.
    pub hierarchy: String,
    /// Root cgroups below that hierarchy's mount, with their kernel IDs.
    pub cgroups: Vec<(String, u64)>,
}

/// The machine and its kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// `uname -r`.
    pub kernel: String,
    /// `x86_64`.
    pub machine: String,
    /// Logical CPUs that were online at the start, with what they are.
    pub cpus: Vec<CpuInfo>,
    /// Nominal TSC frequency in kHz, 0 when unknown.
    pub tsc_khz: u64,
}

/// One logical CPU. Errata are chosen by these numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuInfo {
    pub cpu: Cpu,
    pub vendor: String,
    pub family: u32,
    pub model: u32,
    pub stepping: u32,
    pub microcode: u64,
    /// `core`, `atom` on hybrid processors; empty elsewhere.
    pub kind: String,
}

/// Settings of the processor trace as the kernel accepted them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PtSettings {
    /// `perf_event_attr.config`.
    pub config: u64,
    /// Ratio of TSC to the core crystal clock (CPUID 15H), 0 when unknown.
    pub tsc_art_numerator: u32,
    pub tsc_art_denominator: u32,
    /// Ratio of the maximum non-turbo frequency to the bus clock (`caps/max_nonturbo_ratio`).
    pub max_nonturbo_ratio: u32,
    /// Each capability under `caps/`, as read.
    pub caps: Vec<(String, String)>,
    /// What this machine cannot do, and what that means.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The buffer of each CPU that could be recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<PtBuffer>,
}

/// One CPU's buffer for the processor trace: locked memory, allocated and zeroed before the period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtBuffer {
    pub cpu: Cpu,
    /// Its size; when that many bytes are written, the CPU's trace ends.
    pub bytes: u64,
    /// How long allocating and zeroing it took.
    pub map_ns: u64,
}

/// Where a thread is at the start of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStatus {
    pub pid: Pid,
    pub tid: Tid,
    /// `comm`, lossy UTF-8 of the at most 15 bytes that the kernel gives. Shared: each generation repeats it.
    pub name: Arc<str>,
    /// The CPU it runs on, since when.
    pub running: Option<(Cpu, MonoNs)>,
}

/// A name given to a thread within the generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameChange {
    pub time: MonoNs,
    pub pid: Pid,
    pub tid: Tid,
    pub name: Arc<str>,
}

/// An executable mapping of a target process, or one of a virtual CPU (`anon_inode:kvm-vcpu:…`), which holds no code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// When it was made; for one that existed before, the start of the period.
    pub time: MonoNs,
    pub pid: Pid,
    pub start: u64,
    pub len: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub inode: u64,
    /// Path as the process sees it, `[vdso]`, `//anon` and such, lossy UTF-8. Shared by every mapping of the file.
    pub path: Arc<str>,
    /// The file's GNU build ID; empty when unknown.
    pub build_id: Arc<[u8]>,
}

/// Something that is missing from the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// It happened between these.
    pub from: MonoNs,
    pub to: MonoNs,
    /// `None`: not of one CPU.
    pub cpu: Option<Cpu>,
    pub kind: LossKind,
    /// Records lost, where they are counted.
    pub records: u64,
    /// Bytes lost, where they are counted.
    pub bytes: u64,
    /// For a person: what happened and what mends it.
    pub reason: String,
}

/// Kinds of loss. Each has a place where it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossKind {
    /// A shard ring was full: switch records are missing.
    RingFull,
    /// The side-band of mappings and names was full.
    SideBandFull,
    /// A BPF map was full: part of the target was not followed.
    MapFull,
    /// The trace file could not take it (disk full, for example).
    Write,
    /// AUX: the buffer was full and the tracer stopped or data was dropped (`PERF_AUX_FLAG_TRUNCATED`).
    AuxTruncated,
    /// AUX: gaps (`PERF_AUX_FLAG_PARTIAL`).
    AuxPartial,
    /// The CPU's tracer could not be enabled.
    PtUnavailable,
    /// The CPU ran the target before its tracer was enabled.
    PtLate,
    /// A CPU went offline or came online.
    CpuHotplug,
    /// Found by a reader: bytes of the file are damaged or missing, with every record in them.
    FileDamaged,
    /// Found by a reader: the file ends before the recording does.
    FileCut,
    /// Found by a reader: sequence numbers or counters say that records are missing, and no other loss accounts for them.
    Unaccounted,
    /// Found by a decoder: the processor could not write its trace fast enough (OVF).
    PtOverflow,
    /// Found by a decoder: bytes of the processor trace are no packets.
    PtDamaged,
    /// Waits are missing: their ring, or the map of waiting threads, was full, or the kernel did not run the hook. Switch records are not.
    WaitsLost,
    /// Written by a newer version that knows more kinds; the reason says which.
    Other,
}

impl LossKind {
    /// The name in JSON and in text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RingFull => "ring_full",
            Self::SideBandFull => "side_band_full",
            Self::MapFull => "map_full",
            Self::Write => "write",
            Self::AuxTruncated => "aux_truncated",
            Self::AuxPartial => "aux_partial",
            Self::PtUnavailable => "pt_unavailable",
            Self::PtLate => "pt_late",
            Self::CpuHotplug => "cpu_hotplug",
            Self::FileDamaged => "file_damaged",
            Self::FileCut => "file_cut",
            Self::Unaccounted => "unaccounted",
            Self::PtOverflow => "pt_overflow",
            Self::PtDamaged => "pt_damaged",
            Self::WaitsLost => "waits_lost",
            Self::Other => "other",
        }
    }
}

/// A control operation on a CPU's tracer, or on the hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlOp {
    /// Just before and just after it.
    pub from: MonoNs,
    pub to: MonoNs,
    pub cpu: Option<Cpu>,
    pub kind: ControlKind,
    /// `None`: done. Otherwise the error.
    pub error: Option<String>,
}

/// Kinds of control operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlKind {
    HookAttach,
    HookDetach,
    PtOpen,
    PtEnable,
    PtDisable,
    PtClose,
    /// First switch-in of the target on this CPU in the period (from the hook's notice).
    CpuSeen,
    /// Written by a newer version that knows more kinds.
    Other,
}

impl ControlKind {
    /// The name in JSON and in text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HookAttach => "hook_attach",
            Self::HookDetach => "hook_detach",
            Self::PtOpen => "pt_open",
            Self::PtEnable => "pt_enable",
            Self::PtDisable => "pt_disable",
            Self::PtClose => "pt_close",
            Self::CpuSeen => "cpu_seen",
            Self::Other => "other",
        }
    }
}

/// Bytes of one CPU's processor trace, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtBytes {
    pub cpu: Cpu,
    /// Offset of the first byte in this CPU's AUX stream of the recording.
    pub offset: u64,
    /// `PERF_AUX_FLAG_*` of the AUX record that ends within these bytes.
    pub aux_flags: u64,
    pub bytes: Vec<u8>,
}

/// A file that a decoder needs and that cannot be read later: the vDSO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageBytes {
    pub pid: Pid,
    /// Address where it stands in the process.
    pub start: u64,
    pub path: String,
    pub bytes: Vec<u8>,
}

/// What the hook counted on one CPU: running totals of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuCounters {
    pub cpu: Cpu,
    /// Time the target ran on it, counted in the kernel.
    pub on_cpu_ns: u64,
    /// Records produced, dropped ones included.
    pub produced: u64,
    /// Records dropped because the ring was full.
    pub dropped: u64,
}

/// How the recording ended; only in the last generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub time: MonoNs,
    /// `period`, `interrupted`, `target_exited`, `buffers_full`, `error: …`.
    pub reason: String,
}

/// One self-contained piece of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    pub header: Header,
    /// Counts from 0 without gaps.
    pub number: u64,
    /// Everything in `records` lies in `start..=end`, but for synthetic records, which carry their own time.
    pub start: MonoNs,
    pub end: MonoNs,
    pub clock_pairs: Vec<ClockPair>,
    /// Every live thread of the target at `start`.
    pub threads: Vec<ThreadStatus>,
    /// Mappings that stood at `start` of every process that has a record here, and those made since.
    pub mappings: Vec<Mapping>,
    pub names: Vec<NameChange>,
    /// Sorted by time; equal times keep their CPU's order.
    pub records: Vec<Record>,
    /// Waits that ended here, sorted by that; empty unless they were asked for.
    pub waits: Vec<Wait>,
    pub counters: Vec<CpuCounters>,
    pub losses: Vec<Loss>,
    pub ops: Vec<ControlOp>,
    pub pt: Vec<PtBytes>,
    pub images: Vec<ImageBytes>,
    pub end_of_recording: Option<End>,
}

impl Generation {
    /// One in which nothing has happened.
    #[must_use]
    pub const fn empty(header: Header, number: u64, start: MonoNs, end: MonoNs) -> Self {
        Self {
            header,
            number,
            start,
            end,
            clock_pairs: Vec::new(),
            threads: Vec::new(),
            mappings: Vec::new(),
            names: Vec::new(),
            records: Vec::new(),
            waits: Vec::new(),
            counters: Vec::new(),
            losses: Vec::new(),
            ops: Vec::new(),
            pt: Vec::new(),
            images: Vec::new(),
            end_of_recording: None,
        }
    }
}
