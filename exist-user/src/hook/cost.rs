//! For benches: the kernel's statistics of BPF programs, and a program that does nothing to compare with.
//!
//! Takes: nothing. Gives: run time and count of the empty program. Refuses to leave the statistics on: they end with
//! the descriptor, in whatever way this process ends.

use std::os::fd::OwnedFd;

use aya::{Ebpf, EbpfLoader, sys::Stats};

use super::{HookError, ProgramStats, load, object::OBJECT};

/// The kernel counts run time and runs of every program while this lives (`BPF_ENABLE_STATS`, since 5.8).
#[derive(Debug)]
pub struct Statistics(#[expect(dead_code, reason = "the kernel counts while it is open")] OwnedFd);

impl Statistics {
    /// Turns them on.
    ///
    /// # Errors
    /// [`HookError::NotPermitted`] without CAP_SYS_ADMIN.
    pub fn enable() -> Result<Self, HookError> {
        aya::sys::enable_stats(Stats::RunTime)
            .map(Self)
            .map_err(|e| HookError::load("turn on the statistics of BPF programs", &e))
    }
}

/// A program at `sched_switch` that does nothing: what the kernel's bookkeeping costs.
pub struct Empty(Ebpf);

impl std::fmt::Debug for Empty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Empty")
    }
}

impl Empty {
    const NAME: &str = "empty";

    /// Loads and attaches it.
    ///
    /// # Errors
    /// See [`HookError`].
    pub fn attach() -> Result<Self, HookError> {
        let object = OBJECT.ok_or(HookError::NoObject)?;
        let kernel = aya::Btf::from_sys_fs().map_err(|e| HookError::load("read the kernel's types", &e))?;
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&kernel))
            .load(object)
            .map_err(|e| HookError::load("load the BPF object", &e))?;
        let program = load::tracepoint(&mut ebpf, Self::NAME)?;
        program
            .load("sched_switch", &kernel)
            .map_err(|e| HookError::load("load the BPF program empty", &e))?;
        program
            .attach()
            .map_err(|e| HookError::load("attach the BPF program empty", &e))?;
        Ok(Self(ebpf))
    }

    /// Its time and count.
    ///
    /// # Errors
    /// [`HookError::Load`].
    pub fn stats(&mut self) -> Result<ProgramStats, HookError> {
        load::stats(load::tracepoint(&mut self.0, Self::NAME)?, Self::NAME)
    }
}
