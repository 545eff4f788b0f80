//! What the kernel tells of the target: the hook and the side-band of every CPU, drained in the order that judging needs.

use std::{num::NonZeroU32, path::Path};

use anyhow::Context as _;
use exist_trace::{
    file::model::{ControlKind, ControlOp},
    session::Waits,
    units::{Cpu, MonoNs},
};

use crate::{
    aggregate::Aggregator,
    capture::Change,
    hook::{Cpus, Event, Hook, HookOptions, Role},
    sys::{
        clock, cpu,
        perf::{RING_BYTES, SideBand},
    },
    target::Resolved,
};

/// The open streams.
#[derive(Debug)]
pub struct Streams {
    hook: Hook,
    side_bands: Vec<SideBand>,
    /// Reused between drains.
    bytes: Vec<u8>,
    /// What is not as it should be, in words.
    warnings: Vec<String>,
}

/// What a drain found.
#[derive(Clone, Copy, Debug)]
pub struct Drained {
    /// Everything that happened before this has been given to the aggregator.
    pub complete_to: MonoNs,
    /// How full the fullest ring was, from 0 to 1.
    pub fill: f32,
}

impl Streams {
    /// Loads and attaches the hook. Nothing is recorded yet.
    ///
    /// # Errors
    /// With the reason and the remedy, for the user.
    pub fn open(target: &Resolved, ring_bytes: Option<NonZeroU32>, waits: Waits) -> anyhow::Result<(Self, ControlOp)> {
        let mut options = HookOptions {
            only_pid: target.only_pid.map(|process| process.pid),
            waits: waits == Waits::On,
            ..HookOptions::new(target.hierarchy.clone())
        };
        options.ring_bytes = ring_bytes.unwrap_or(options.ring_bytes);
        let cgroups = target.cgroup_ids();
        options.max_cgroups = room_for(cgroups.len()).max(options.max_cgroups);
        let mut hook = match ring_bytes {
            Some(_) => Hook::load(&options),
            None => Hook::load_within_memory(&options),
        }?;
        let mut warnings = Vec::new();
        if hook.each_ring_bytes() < options.ring_bytes.get() as usize {
            warnings.push(format!(
                "memory is short: each CPU's ring has {} KiB instead of {} KiB; a higher memory limit mends it",
                hook.each_ring_bytes() >> 10,
                options.ring_bytes.get() >> 10
            ));
        }
        let from = MonoNs(clock::mono_ns());
        hook.attach()?;
        for root in &target.roots {
            hook.insert_cgroup(root.id(), Role::Root)?;
        }
        for id in target.cgroup_ids() {
            hook.insert_cgroup(id, Role::Below)?;
        }
        let attached = op(ControlKind::HookAttach, from, None);
        Ok((
            Self {
                hook,
                side_bands: Vec::new(),
                bytes: Vec::new(),
                warnings,
            },
            attached,
        ))
    }

    /// Opens the side-band on all online CPUs. It tells of every process of the node, so it is opened no earlier than it is
    /// drained: not for a look-back.
    ///
    /// # Errors
    /// With the reason and the remedy, for the user.
    pub fn open_side_bands(&mut self) -> anyhow::Result<()> {
        let online = cpu::online(Path::new("/sys")).context("failed to list the online CPUs")?;
        self.side_bands = online.into_iter().map(open_side_band).collect::<anyhow::Result<_>>()?;
        Ok(())
    }

    /// Lets the hook record. Gives the time from which it does.
    ///
    /// # Errors
    /// With the reason and the remedy, for the user.
    pub fn begin(&mut self) -> anyhow::Result<MonoNs> {
        Ok(self.hook.begin()?)
    }

    /// The hook, for what is no stream.
    pub fn hook(&mut self) -> &mut Hook {
        &mut self.hook
    }

    /// Hands everything over that waits in the rings: the side-band first, so that the records of the hook that tell whose
    /// it is come with it at the latest.
    ///
    /// # Errors
    /// When the hook's counters cannot be read.
    pub fn drain(&mut self, aggregator: &mut Aggregator) -> anyhow::Result<Drained> {
        let began = MonoNs(clock::mono_ns());
        let mut fill = 0_f32;
        for side_band in &mut self.side_bands {
            self.bytes.clear();
            side_band.drain_into(&mut self.bytes);
            fill = fill.max(self.bytes.len() as f32 / RING_BYTES as f32);
            aggregator.side_band(Cpu(side_band.cpu()), &self.bytes, began);
        }
        let drained = self.hook.drain(|event| take(aggregator, event))?;
        Ok(Drained {
            complete_to: began.min(drained.complete_to),
            fill: fill.max(drained.fill),
        })
    }

    /// Hands over the counters, the losses that only they tell, and what the BPF programs warn of.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn count(&mut self, aggregator: &mut Aggregator) -> anyhow::Result<()> {
        let now = MonoNs(clock::mono_ns());
        for side_band in &self.side_bands {
            if let Some(lost) = side_band.lost() {
                aggregator.side_band_lost(Cpu(side_band.cpu()), lost, now);
            }
        }
        let counters = self.hook.counters(|event| take(aggregator, event))?;
        aggregator.counters(counters);
        for warning in self.hook.warnings() {
            aggregator.op(ControlOp {
                error: Some(warning.clone()),
                ..op(ControlKind::Other, now, None)
            });
            self.warnings.push(format!("the BPF programs warn: {warning}"));
        }
        Ok(())
    }

    /// Judges again what runs now on every CPU: something was moved into the target.
    ///
    /// # Errors
    /// As the hook gives them.
    pub fn judge_again(&mut self) -> anyhow::Result<()> {
        Ok(self.hook.snapshot(Cpus::Online)?)
    }

    /// Follows a CPU that came or went; the kernel closes the side-band of one that goes.
    ///
    /// # Errors
    /// When the side-band of a CPU that came cannot be opened.
    pub fn follow(&mut self, change: Change) -> anyhow::Result<()> {
        match change {
            Change::Offline(_) => {} // what its rings hold is drained as before
            Change::Online(Cpu(cpu)) => {
                self.side_bands.retain(|side_band| side_band.cpu() != cpu);
                self.side_bands.push(open_side_band(cpu)?);
            }
        }
        Ok(())
    }

    /// Takes the hook out of the kernel. Gives what is not as it should be besides, in words.
    pub fn detach(mut self) -> (ControlOp, Vec<String>) {
        let from = MonoNs(clock::mono_ns());
        let warnings = std::mem::take(&mut self.warnings);
        drop(self);
        (op(ControlKind::HookDetach, from, None), warnings)
    }
}

/// Room for so many cgroups, and as many that come while it records.
fn room_for(cgroups: usize) -> NonZeroU32 {
    let room = u32::try_from(cgroups).unwrap_or(u32::MAX).saturating_mul(2);
    NonZeroU32::new(room).unwrap_or(NonZeroU32::MIN)
}

/// An operation that is just done.
pub fn op(kind: ControlKind, from: MonoNs, cpu: Option<Cpu>) -> ControlOp {
    ControlOp {
        from,
        to: MonoNs(clock::mono_ns()),
        cpu,
        kind,
        error: None,
    }
}

fn take(aggregator: &mut Aggregator, event: Event) {
    match event {
        Event::Record(record) => aggregator.records([record]),
        Event::Wait(wait) => aggregator.wait(wait),
        Event::Loss(loss) => aggregator.loss(loss),
    }
}

fn open_side_band(cpu: u32) -> anyhow::Result<SideBand> {
    SideBand::open(cpu, RING_BYTES).with_context(|| {
        format!(
            "failed to follow mappings and names on CPU {cpu}; run as root, or with CAP_PERFMON and CAP_IPC_LOCK \
             (`exist doctor` tells what is missing)"
        )
    })
}
