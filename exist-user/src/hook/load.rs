//! Loads the BPF programs: the object, the kernel's types and what was asked, to programs in the kernel, not attached yet.

use std::{io, os::fd::AsFd};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, PerCpuArray},
    programs::{BtfTracePoint, RawTracePoint},
};
use exist_common::{Control, CpuState, RECORD_BYTES, ring};

use super::{
    HookError, HookOptions, ProgramStats,
    btf::{Btf, BtfError},
    compat::BTF_PATH,
    layout::{self, Choice},
    object::OBJECT,
    warnings::{self, Warnings},
};
use crate::sys::{bpf_ring::BpfRing, cpu_ring::CpuRing};

/// Room for notices: one for each CPU and period, and what moves.
const NOTICES_BYTES: u32 = 64 << 10;

/// Programs that keep the set of the target's cgroups, in the order in which they are attached.
const CGROUP_PROGRAMS: &[&str] = &["cgroup_mkdir", "cgroup_rmdir", "cgroup_release", "cgroup_attach_task"];
/// Programs of the target's life.
const PROCESS_PROGRAMS: &[&str] = &["sched_process_fork", "sched_process_exec", "sched_process_exit"];
/// Programs of waits: who is woken, and when.
const WAIT_PROGRAMS: &[&str] = &["sched_waking", "sched_wakeup", "sched_wakeup_new"];
/// How many threads of the target may wait at a time: 4 MiB, and only where waits are recorded.
const WAITING_THREADS: u32 = 1 << 15;
/// The program of its switches, last: what it needs is there before.
const SWITCH_PROGRAM: &str = "sched_switch";
/// The program that is run, not attached.
pub const SNAPSHOT_PROGRAM: &str = "snapshot";

/// The programs in the kernel, with typed maps.
pub struct Loaded {
    pub ebpf: Ebpf,
    /// Those to attach, in order.
    pub programs: Vec<&'static str>,
    pub control: Array<MapData, [u64; Control::WORDS]>,
    pub cpus: PerCpuArray<MapData, [u64; CpuState::WORDS]>,
    pub targets: HashMap<MapData, u64, u32>,
    /// A ring for each possible CPU, ascending.
    pub rings: Vec<(u32, CpuRing)>,
    pub life: BpfRing,
    /// Waits, where they are recorded.
    pub waits: Option<BpfRing>,
    pub notices: BpfRing,
    pub warnings: Warnings,
}

/// The running kernel's types.
///
/// # Errors
/// [`HookError::NoBtf`], [`HookError::Btf`].
pub fn kernel_btf() -> Result<Btf, HookError> {
    let bytes = std::fs::read(BTF_PATH).map_err(|source| HookError::NoBtf { path: BTF_PATH, source })?;
    Ok(Btf::parse(bytes)?)
}

/// Loads everything.
///
/// # Errors
/// See [`HookError`].
pub fn load(options: &HookOptions) -> Result<Loaded, HookError> {
    let object = OBJECT.ok_or(HookError::NoObject)?;
    let ring_records = (options.ring_bytes.get() / RECORD_BYTES as u32)
        .max(ring::LEAST_RECORDS)
        .next_power_of_two();
    let frozen = layout::frozen(
        &kernel_btf()?,
        Choice {
            hierarchy: &options.hierarchy,
            only_pid: options.only_pid.map(|pid| pid.0),
            ring_records,
            waits: options.waits,
        },
    )?
    .to_words();
    let kernel = aya::Btf::from_sys_fs().map_err(|e| HookError::load("read the kernel's types", &e))?;
    let cpus = aya::util::nr_cpus().map_err(|(path, source)| HookError::Io {
        what: format!("read {path}"),
        source,
    })?;
    let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
    let slots = ring::stride(ring_records)
        .checked_mul(cpus)
        .ok_or(HookError::RingsTooLarge {
            ring_bytes: options.ring_bytes.get(),
            cpus,
        })?;
    let life_bytes = options.ring_bytes.get().next_power_of_two().clamp(256 << 10, 1 << 20);
    // A wait takes as much as two switches, but of one ring for all CPUs.
    let (waits_bytes, waiting) = if options.waits {
        (
            life_bytes.max(options.ring_bytes.get().next_power_of_two().min(8 << 20)),
            WAITING_THREADS,
        )
    } else {
        (4096, 1)
    };
    let mut ebpf = EbpfLoader::new()
        .btf(Some(&kernel))
        .override_global("FROZEN", &frozen[..], true)
        .map_max_entries("RINGS", slots)
        .map_max_entries("LIFE", life_bytes)
        .map_max_entries("WAITS", waits_bytes)
        .map_max_entries("WAITING", waiting)
        .map_max_entries("NOTICES", NOTICES_BYTES)
        .map_max_entries(warnings::MAP, warnings::BYTES)
        .map_max_entries("TARGETS", options.max_cgroups.get())
        .load(object)
        .map_err(|e| HookError::load_object(&e, options.ring_bytes.get(), cpus))?;

    let mut programs = Vec::new();
    if options.only_pid.is_none() {
        programs.extend(CGROUP_PROGRAMS);
    }
    programs.extend(PROCESS_PROGRAMS);
    if options.waits {
        programs.extend(WAIT_PROGRAMS);
    }
    programs.push(SWITCH_PROGRAM);
    for name in &programs {
        tracepoint(&mut ebpf, name)?
            .load(name, &kernel)
            .map_err(|e| HookError::load(format!("load the BPF program {name}"), &e))?;
    }
    snapshot(&mut ebpf)?
        .load()
        .map_err(|e| HookError::load("load the BPF program snapshot", &e))?;

    Ok(Loaded {
        control: take(&mut ebpf, "CONTROL")?,
        cpus: take(&mut ebpf, "CPUS")?,
        targets: take(&mut ebpf, "TARGETS")?,
        rings: rings(&ebpf, cpus, ring_records)?,
        life: bpf_ring(&mut ebpf, "LIFE", life_bytes)?,
        waits: options
            .waits
            .then(|| bpf_ring(&mut ebpf, "WAITS", waits_bytes))
            .transpose()?,
        notices: bpf_ring(&mut ebpf, "NOTICES", NOTICES_BYTES)?,
        warnings: Warnings::new(&mut ebpf)?,
        programs,
        ebpf,
    })
}

/// A program that is attached to a tracepoint.
pub fn tracepoint<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut BtfTracePoint, HookError> {
    let program = ebpf.program_mut(name).ok_or_else(|| stale(name))?;
    program.try_into().map_err(|_| stale(name))
}

/// Time and count of a program.
pub fn stats(program: &BtfTracePoint, name: &'static str) -> Result<ProgramStats, HookError> {
    let info = program
        .info()
        .map_err(|e| HookError::load(format!("read the statistics of {name}"), &e))?;
    Ok(ProgramStats {
        name,
        id: info.id(),
        run_ns: u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX),
        runs: info.run_count(),
        jited_bytes: info.size_jitted(),
    })
}

/// The program that is run, not attached.
pub fn snapshot(ebpf: &mut Ebpf) -> Result<&mut RawTracePoint, HookError> {
    let program = ebpf
        .program_mut(SNAPSHOT_PROGRAM)
        .ok_or_else(|| stale(SNAPSHOT_PROGRAM))?;
    program.try_into().map_err(|_| stale(SNAPSHOT_PROGRAM))
}

fn take<T: TryFrom<Map>>(ebpf: &mut Ebpf, name: &str) -> Result<T, HookError> {
    let map = ebpf.take_map(name).ok_or_else(|| stale(name))?;
    T::try_from(map).map_err(|_| stale(name))
}

/// Maps the ring of each possible CPU. One that is offline has one too: it may come.
fn rings(ebpf: &Ebpf, cpus: u32, records: u32) -> Result<Vec<(u32, CpuRing)>, HookError> {
    let Some(Map::Array(data)) = ebpf.map("RINGS") else {
        return Err(stale("RINGS"));
    };
    (0..cpus)
        .map(|cpu| {
            let ring = CpuRing::map(data.fd().as_fd(), cpu, records).map_err(|source| HookError::Io {
                what: format!("map the ring of CPU {cpu}, {records} records"),
                source,
            })?;
            Ok((cpu, ring))
        })
        .collect()
}

fn bpf_ring(ebpf: &mut Ebpf, name: &str, bytes: u32) -> Result<BpfRing, HookError> {
    let Some(Map::RingBuf(data)) = ebpf.take_map(name) else {
        return Err(stale(name));
    };
    duplicate(data.fd())
        .and_then(|fd| BpfRing::map(fd, bytes))
        .map_err(|source| HookError::Io {
            what: format!("map the ring {name}"),
            source,
        })
}

fn duplicate(fd: &impl AsFd) -> io::Result<std::os::fd::OwnedFd> {
    fd.as_fd().try_clone_to_owned()
}

/// The object has no such program or map.
fn stale(name: &str) -> HookError {
    HookError::Load {
        what: format!("find {name} in the BPF object"),
        why: format!(
            "{}; run `cargo xtask build-ebpf` and build `exist` again",
            BtfError::NoType(name.to_owned())
        ),
    }
}
