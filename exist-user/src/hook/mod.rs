//! The hook: the BPF programs in the kernel, and what they tell.
//!
//! Takes: which hierarchy decides, and IDs of cgroups. Gives: [`Event`]s (drained on a timer), [`Notice`]s (with a wake-up),
//! counters for each CPU. Refuses: a kernel that lacks what [`compat`] lists as needed.
//!
//! ```text
//!  Hook::load ─▶ attach ─▶ insert_cgroup … ─▶ begin ─▶ drain, notices, begin_period … ─▶ end ─▶ drain ─▶ counters ─▶ drop
//! ```
//! Attach comes first, then the roots, then what is below them: a cgroup made meanwhile is added by the kernel side, and
//! inserting it twice does no harm. Nothing is recorded before `begin`.
//!
//! Nothing is pinned: when the `Hook` is dropped, or the process dies in whatever way, the kernel lets go of all of it.

mod btf;
pub mod compat;
pub mod cost;
mod error;
mod layout;
mod load;
mod notices;
mod object;
mod rings;
mod tally;
mod warnings;

use std::{
    num::NonZeroU32,
    sync::atomic::{Ordering, fence},
};

use aya::programs::{RawTracePointRunOptions, TestRun};
use exist_common::{Control, CpuState, Record, WAIT_BYTES, Wait, ring};
pub use exist_common::{Notice, NoticeKind};
use exist_trace::{
    file::model::CpuCounters,
    units::{Cpu, MonoNs, Pid},
};

pub use self::{
    btf::{Btf, BtfError},
    error::HookError,
    load::kernel_btf,
    notices::Notices,
    object::OBJECT,
    rings::{Drained, Event},
};
use self::{
    load::Loaded,
    rings::{Shard, other_losses},
    warnings::Warnings,
};
use crate::sys::{bpf_ring::BpfRing, cgroupfs::Hierarchy, clock, cpu, cpu_ring::RingDrained};

/// What is asked of the hook.
#[derive(Clone, Debug)]
pub struct HookOptions {
    /// The hierarchy whose cgroups are the target.
    pub hierarchy: Hierarchy,
    /// Only threads of this process (initial PID namespace), in whatever cgroup.
    pub only_pid: Option<Pid>,
    /// Bytes of each CPU's ring, rounded up to a power of two; a record takes 32.
    pub ring_bytes: NonZeroU32,
    /// How many cgroups the target may have.
    pub max_cgroups: NonZeroU32,
    /// Whether each wait of the target's threads is told too ([`Event::Wait`]).
    pub waits: bool,
}

impl HookOptions {
    /// A CPU's ring, when no more is asked: room for 262,144 records, a second and more of the fastest pipe. On nodes with
    /// many CPUs less, as long as all of them together would take more than [`Self::DEFAULT_TOTAL_BYTES`].
    pub const DEFAULT_RING_BYTES: u32 = 8 << 20;
    /// What a ring has at the least, when no less is asked.
    pub const LEAST_RING_BYTES: u32 = 256 << 10;
    /// What all default rings together take at the most (on up to 256 CPUs), so that a container with a limit of 128 MiB
    /// has room for them and for what they are drained into.
    pub const DEFAULT_TOTAL_BYTES: u32 = 64 << 20;
    /// A Kubernetes node's worth of cgroups.
    pub const DEFAULT_MAX_CGROUPS: NonZeroU32 = NonZeroU32::new(4096).expect("not 0");

    /// With the defaults.
    #[must_use]
    pub fn new(hierarchy: Hierarchy) -> Self {
        Self {
            hierarchy,
            only_pid: None,
            // Each possible CPU of the node has a ring, however few of them this process may use. What cannot be counted
            // is refused at load.
            ring_bytes: Self::default_ring_bytes(aya::util::nr_cpus().unwrap_or(usize::MAX)),
            max_cgroups: Self::DEFAULT_MAX_CGROUPS,
            waits: false,
        }
    }

    /// The default for a node with so many possible CPUs: a power of two, at least 256 KiB.
    fn default_ring_bytes(cpus: usize) -> NonZeroU32 {
        let cpus = u32::try_from(cpus)
            .unwrap_or(u32::MAX)
            .clamp(1, 1 << 16)
            .next_power_of_two();
        let share = (Self::DEFAULT_TOTAL_BYTES / cpus).clamp(Self::LEAST_RING_BYTES, Self::DEFAULT_RING_BYTES);
        NonZeroU32::new(share).expect("at least 256 KiB")
    }
}

/// What a cgroup is to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Named by the user; its removal gives a notice.
    Root,
    /// Below a root.
    Below,
}

/// Which CPUs a snapshot looks at.
#[derive(Clone, Copy, Debug)]
pub enum Cpus<'a> {
    /// All that are online.
    Online,
    /// These.
    These(&'a [Cpu]),
}

/// Time and count of a program, while `kernel.bpf_stats_enabled` is 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramStats {
    pub name: &'static str,
    /// The kernel's number of the program.
    pub id: u32,
    pub run_ns: u64,
    pub runs: u64,
    /// Bytes of machine code.
    pub jited_bytes: u32,
}

/// The programs in the kernel.
pub struct Hook {
    ebpf: aya::Ebpf,
    programs: Vec<&'static str>,
    control_map: aya::maps::Array<aya::maps::MapData, [u64; Control::WORDS]>,
    cpus: aya::maps::PerCpuArray<aya::maps::MapData, [u64; CpuState::WORDS]>,
    targets: aya::maps::HashMap<aya::maps::MapData, u64, u32>,
    shards: Vec<Shard>,
    life: BpfRing,
    waits: Option<BpfRing>,
    /// Until somebody takes them.
    notices: Option<Notices>,
    notices_bytes: usize,
    warnings: Warnings,
    /// What the kernel side was told last.
    control: Control,
    /// Losses outside the shards that have been told, for each CPU.
    told: Vec<CpuState>,
    told_at: MonoNs,
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hook")
            .field("programs", &self.programs)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

impl Hook {
    /// As [`Hook::load`], with smaller rings where memory is short: a container's memory limit holds for them too, and they
    /// are a default for a whole node. [`Hook::each_ring_bytes`] says what they are.
    ///
    /// # Errors
    /// See [`HookError`].
    pub fn load_within_memory(options: &HookOptions) -> Result<Self, HookError> {
        let mut options = options.clone();
        loop {
            match Self::load(&options) {
                Err(HookError::NoMemory { .. }) if options.ring_bytes.get() > HookOptions::LEAST_RING_BYTES => {
                    options.ring_bytes = NonZeroU32::new(options.ring_bytes.get() / 2).unwrap_or(NonZeroU32::MIN);
                }
                other => return other,
            }
        }
    }

    /// Loads the programs; nothing runs yet.
    ///
    /// # Errors
    /// See [`HookError`].
    pub fn load(options: &HookOptions) -> Result<Self, HookError> {
        let loaded: Loaded = load::load(options)?;
        let now = MonoNs(clock::mono_ns());
        Ok(Self {
            ebpf: loaded.ebpf,
            programs: loaded.programs,
            control_map: loaded.control,
            cpus: loaded.cpus,
            targets: loaded.targets,
            told: vec![CpuState::default(); loaded.rings.len()],
            shards: loaded
                .rings
                .into_iter()
                .map(|(cpu, ring)| Shard::new(cpu, ring, now))
                .collect(),
            life: loaded.life,
            waits: loaded.waits,
            notices_bytes: loaded.notices.data_bytes(),
            notices: Some(Notices::new(loaded.notices)),
            warnings: loaded.warnings,
            control: Control::default(),
            told_at: now,
        })
    }

    /// Attaches the programs: from now on the set of cgroups is kept. Nothing is recorded yet.
    ///
    /// # Errors
    /// [`HookError::Load`] with the program's name.
    pub fn attach(&mut self) -> Result<(), HookError> {
        for name in &self.programs {
            load::tracepoint(&mut self.ebpf, name)?
                .attach()
                .map_err(|e| HookError::load(format!("attach the BPF program {name}"), &e))?;
        }
        Ok(())
    }

    /// Adds a cgroup of the hierarchy that decides. Insert roots before what is below them. When recording has begun,
    /// threads of it that run already are told as moved.
    ///
    /// # Errors
    /// [`HookError::Load`] when the map is full ([`HookOptions::max_cgroups`]).
    pub fn insert_cgroup(&mut self, id: u64, role: Role) -> Result<(), HookError> {
        // As `maps::ROOT` and `maps::BELOW` of the kernel side. What it knows as a root stays one.
        let (value, flags) = match role {
            Role::Root => (1, BPF_ANY),
            Role::Below => (0, BPF_NOEXIST),
        };
        match self.targets.insert(id, value, flags) {
            Ok(()) => {}
            Err(e) if role == Role::Below && self.targets.get(&id, 0).is_ok() => drop(e),
            Err(e) => return Err(HookError::load(format!("add cgroup {id} to the target"), &e)),
        }
        if self.control.epoch != 0 {
            self.control.change_ns = clock::mono_ns();
            self.control.epoch += 1;
            self.tell()?;
            self.snapshot(Cpus::Online)?;
        }
        Ok(())
    }

    /// Begins to record, with period 1. Gives the time at which the target's threads that ran already are told to start.
    ///
    /// # Errors
    /// [`HookError::Load`].
    pub fn begin(&mut self) -> Result<MonoNs, HookError> {
        // The time first: the epoch opens the gate.
        self.control.start_ns = clock::mono_ns();
        self.control.period = 1;
        self.tell()?;
        self.control.epoch = 1;
        self.tell()?;
        self.snapshot(Cpus::Online)?;
        Ok(MonoNs(self.control.start_ns))
    }

    /// Begins period `number`: each CPU that runs the target, now or later, gives [`NoticeKind::CpuSeen`] again.
    ///
    /// # Errors
    /// [`HookError::Load`].
    pub fn begin_period(&mut self, number: u64) -> Result<(), HookError> {
        self.control.period = number;
        self.tell()?;
        self.snapshot(Cpus::Online)
    }

    /// Judges what runs now on these CPUs: after [`NoticeKind::Attached`], so that a thread that was moved while it runs is
    /// told at once and not at its next switch. Each CPU is interrupted once.
    ///
    /// # Errors
    /// [`HookError::Load`]; a CPU that is offline is none.
    pub fn snapshot(&mut self, cpus: Cpus<'_>) -> Result<(), HookError> {
        let online;
        let cpus = match cpus {
            Cpus::These(cpus) => cpus,
            Cpus::Online => {
                online = cpu::online(std::path::Path::new("/sys")).map_err(|source| HookError::Io {
                    what: "list the online CPUs".into(),
                    source,
                })?;
                &*online.into_iter().map(Cpu).collect::<Vec<_>>()
            }
        };
        let program = load::snapshot(&mut self.ebpf)?;
        for cpu in cpus {
            let options = RawTracePointRunOptions {
                cpu: Some(cpu.0),
                ..RawTracePointRunOptions::new()
            };
            match program.test_run(options) {
                Ok(_) => {}
                // ENXIO: it went offline, so it runs nothing.
                Err(e) if error::os_error(&e) == Some(libc::ENXIO) => {}
                Err(e) => return Err(HookError::load(format!("take a snapshot of CPU {cpu}"), &e)),
            }
        }
        Ok(())
    }

    /// Ends the recording: threads of the target that still run are told to go out at the time that this gives.
    /// Drain once more after it.
    ///
    /// # Errors
    /// [`HookError::Load`].
    pub fn end(&mut self) -> Result<MonoNs, HookError> {
        // A move that no switch has shown yet comes before the end.
        self.snapshot(Cpus::Online)?;
        self.control.end_ns = clock::mono_ns();
        self.tell()?;
        self.control.epoch = 0;
        self.tell()?;
        self.snapshot(Cpus::Online)?;
        Ok(MonoNs(self.control.end_ns))
    }

    /// Gives everything that is in the rings.
    ///
    /// # Errors
    /// [`HookError::Load`] when records were lost and the counters cannot be read.
    pub fn drain(&mut self, mut sink: impl FnMut(Event)) -> Result<Drained, HookError> {
        let mut drained = Drained {
            complete_to: MonoNs(clock::mono_ns().saturating_sub(ring::STORE_NS)),
            ..Drained::default()
        };
        // The clock first, then the rings.
        fence(Ordering::SeqCst);
        drained.fill = self.shards.iter().map(|s| s.ring.fill()).fold(0.0, f32::max);
        // Records are dropped only when a ring is full, so seldom; then the counters are read before room is given back.
        let states = if drained.fill > NEARLY_FULL {
            self.states()?
        } else {
            Vec::new()
        };
        for (index, shard) in self.shards.iter_mut().enumerate() {
            let RingDrained { records, unfinished } = shard.drain(&mut sink);
            drained.records += records;
            if unfinished {
                drained.complete_to = drained.complete_to.min(shard.tally.last());
            }
            if let Some(state) = states.get(index) {
                shard.tally.know(state.dropped);
            }
        }
        self.life.drain(|item| {
            // The programs write nothing else, so nothing is left out here.
            if let Ok(record) = Record::from_bytes(item) {
                drained.records += 1;
                sink(Event::Record(record));
            }
        });
        if let Some(waits) = &mut self.waits {
            let mut bytes = 0;
            waits.drain(|item| {
                bytes += ITEM_HEADER_BYTES + WAIT_BYTES;
                if let Ok(wait) = Wait::from_bytes(item) {
                    sink(Event::Wait(wait));
                }
            });
            drained.fill = drained.fill.max(bytes as f32 / waits.data_bytes() as f32);
        }
        Ok(drained)
    }

    /// Running totals of each CPU, and the losses that no gap between records has shown: call it after the last drain at
    /// least, and a second of recording.
    ///
    /// # Errors
    /// [`HookError::Load`].
    pub fn counters(&mut self, mut sink: impl FnMut(Event)) -> Result<Vec<CpuCounters>, HookError> {
        let now = MonoNs(clock::mono_ns());
        let states = self.states()?;
        for ((cpu, state), told) in (0..).zip(&states).zip(&mut self.told) {
            for loss in other_losses(cpu, told, state, self.told_at, now) {
                sink(Event::Loss(loss));
            }
        }
        self.told_at = now;
        // While records still come, a drop may show in a gap that the next drain finds.
        if self.control.epoch == 0 {
            for (shard, state) in self.shards.iter_mut().zip(&states) {
                if let Some(loss) = shard.rest(state.dropped, now) {
                    sink(Event::Loss(loss));
                }
            }
        }
        Ok((0..)
            .zip(&states)
            .map(|(cpu, state)| CpuCounters {
                cpu: Cpu(cpu),
                on_cpu_ns: state.on_cpu_ns,
                produced: state.produced,
                dropped: state.dropped,
            })
            .collect())
    }

    /// Time that the target ran on each CPU since the hook began, up to now: what runs now counts too. Nanoseconds.
    ///
    /// # Errors
    /// [`HookError::Load`].
    pub fn on_cpu_ns(&self) -> Result<Vec<(Cpu, u64)>, HookError> {
        let states = self.states()?;
        let now = clock::mono_ns();
        let running = |state: &CpuState| match state.target {
            0 => 0,
            _ => now.saturating_sub(state.since_ns),
        };
        let on_cpu = states.iter().map(|state| state.on_cpu_ns + running(state));
        Ok((0..).map(Cpu).zip(on_cpu).collect())
    }

    /// The notices, once: they can be read on another thread.
    pub const fn take_notices(&mut self) -> Option<Notices> {
        self.notices.take()
    }

    /// What the programs have warned of since the last call: one of a kind on each CPU at the most.
    pub fn warnings(&mut self) -> Vec<String> {
        self.warnings.take()
    }

    /// Bytes of each CPU's ring.
    #[must_use]
    pub fn each_ring_bytes(&self) -> usize {
        self.shards.first().map_or(0, |shard| shard.ring.data_bytes())
    }

    /// Bytes that the rings hold in the kernel's memory.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        let shards: usize = self.shards.iter().map(|s| s.ring.data_bytes()).sum();
        shards + self.waits.as_ref().map_or(0, BpfRing::data_bytes) + self.life.data_bytes() + self.notices_bytes
    }

    /// Time and count of each attached program. All 0 unless `kernel.bpf_stats_enabled` is 1.
    ///
    /// # Errors
    /// [`HookError::Load`].
    pub fn program_stats(&mut self) -> Result<Vec<ProgramStats>, HookError> {
        let ebpf = &mut self.ebpf;
        self.programs
            .iter()
            .map(|name| load::stats(load::tracepoint(ebpf, name)?, name))
            .collect()
    }

    fn tell(&mut self) -> Result<(), HookError> {
        self.control_map
            .set(0, self.control.to_words(), 0)
            .map_err(|e| HookError::load("write the control map", &e))
    }

    fn states(&self) -> Result<Vec<CpuState>, HookError> {
        let values = self
            .cpus
            .get(&0, 0)
            .map_err(|e| HookError::load("read the counters of the CPUs", &e))?;
        Ok(values.iter().map(|words| CpuState::from_words(*words)).collect())
    }
}

/// A ring that is fuller than this may have refused a record.
const NEARLY_FULL: f32 = 0.9;

/// What an item of a BPF ring buffer takes besides itself (`BPF_RINGBUF_HDR_SZ`).
const ITEM_HEADER_BYTES: usize = 8;

/// Flags of `bpf_map_update_elem`, include/uapi/linux/bpf.h.
const BPF_ANY: u64 = 0;
const BPF_NOEXIST: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_counts_the_cpus_of_the_node_and_not_those_of_this_process() {
        let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap();
        let last: usize = possible.trim().rsplit(['-', ',']).next().unwrap().parse().unwrap();
        let here = || HookOptions::new(Hierarchy::V2).ring_bytes;
        assert_eq!(here(), HookOptions::default_ring_bytes(last + 1));
    }

    #[test]
    fn default_rings_are_large_on_small_nodes_and_bounded_on_large_ones() {
        let check = |cpus, expect: u32| assert_eq!(HookOptions::default_ring_bytes(cpus).get(), expect, "{cpus} CPUs");
        check(1, 8 << 20);
        check(8, 8 << 20);
        check(9, 4 << 20);
        check(64, 1 << 20);
        check(192, 256 << 10);
        check(1 << 20, 256 << 10);
        check(usize::MAX, 256 << 10);
    }
}
