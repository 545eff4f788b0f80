//! Carries out what the controller decides on the tracers of logical CPUs, one each.
//!
//! Takes: a plan of buffers, then [`Request`]s. Gives: [`Report`]s: each control operation with its time, losses, and
//! after the window what a tracer wrote. Refuses: a processor that has no trace, or whose trace another program holds,
//! with the reason. Who shares a CPU with whom is the controller's business.
//!
//! A CPU that the target comes to while it is watched is started at once, on the real-time thread, before the controller is
//! asked, which is no longer than it has the time for. What it then does not ask for is stopped when the watch ends.
//!
//! ```text
//!  source.open(cpu)     enable: one operation           disable: one operation     pieces, close
//!  prepare ──▶ ready ──────────────────────▶ running ──────────────────────▶ Recording ──▶ gone
//!  (ordinary priority)        (real-time thread)                (whoever writes the file)
//! ```

mod aux_log;
mod holders;
mod hotplug;
mod intel_pt;
mod operator;
mod prepare;
mod settings;
mod setup;

#[cfg(test)]
pub mod fake;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use exist_trace::{file::model::PtSettings, units::Cpu};
use thiserror::Error;

use crate::hook::{Notice, Notices};

pub use aux_log::{AuxLog, PIECE_BYTES};
pub use hotplug::{Change, Hotplug};
pub use intel_pt::{IntelPt, IntelPtError};
pub use operator::{Operator, Recording, Report, Request};
pub use prepare::{Prepared, prepare};
pub use settings::{Choice, SettingsError};
pub use setup::{LookBack, Setup, UNBOUNDED_NS, Wanted, asked, set_up, set_up_for};

/// Where the processor trace of a machine comes from.
pub trait PtSource: Send {
    /// What the file's header says, without the buffers.
    fn settings(&self) -> PtSettings;

    /// Opens the tracer of one CPU with a buffer, not started.
    ///
    /// # Errors
    /// [`OpenError`]; after [`OpenError::Memory`] a smaller buffer may go.
    fn open(&self, cpu: Cpu, buffer_bytes: u64) -> Result<Box<dyn Tracer>, OpenError>;
}

/// Tells which CPUs the target comes to, while it is watched for that.
pub trait Sightings: Send {
    /// Readable when there is something to take.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Gives what waits.
    fn take(&mut self, sink: &mut dyn FnMut(Notice));
}

impl Sightings for Notices {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn take(&mut self, sink: &mut dyn FnMut(Notice)) {
        Self::take(self, sink);
    }
}

/// The tracer of one CPU, with its buffer: a full one stops it.
pub trait Tracer: Send {
    /// Starts it: one operation.
    ///
    /// # Errors
    /// What the kernel says.
    fn enable(&mut self) -> io::Result<()>;

    /// Stops it: one operation. Nothing writes to the buffer after that.
    ///
    /// # Errors
    /// What the kernel says.
    fn disable(&mut self) -> io::Result<()>;

    /// Readable when the buffer is full; `None`: never.
    fn full_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Appends the kernel's records since the last call, for [`crate::sys::perf::record::records`].
    fn drain_records_into(&mut self, out: &mut Vec<u8>);

    /// What the tracer wrote; empty while it is enabled.
    fn bytes(&self) -> &[u8];

    /// Size of the buffer, bytes.
    fn buffer_bytes(&self) -> u64;
}

/// Why a CPU's tracer could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("the tracer of CPU {cpu} is taken: {holders}")]
    Busy { cpu: Cpu, holders: String },
    #[error("failed to allocate a buffer of {}: {error}{}", crate::alloc::size(*.bytes), remedy(.error))]
    Memory { bytes: u64, error: io::Error },
    #[error("CPU {0} is offline")]
    Offline(Cpu),
    #[error(
        "no permission to trace every process of CPU {cpu}: {error}; run as root, or with CAP_PERFMON, or with \
         kernel.perf_event_paranoid at -1"
    )]
    Privilege { cpu: Cpu, error: io::Error },
    #[error("failed to open the tracer of CPU {cpu}: {error}")]
    Other { cpu: Cpu, error: io::Error },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "; raise `ulimit -l` or kernel.perf_event_mlock_kb, or grant CAP_IPC_LOCK",
        _ => "",
    }
}
