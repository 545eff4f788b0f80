//! What one CPU's tracer wrote in a window.

use exist_trace::{
    file::model::{ControlKind, ControlOp, PtBytes},
    units::{Cpu, MonoNs},
};

use super::{now, op};
use crate::capture::{AuxLog, Tracer, aux_log::Window};

/// The window of one CPU, stopped: to be read, written to the file, and closed at once, since until then no other
/// program can use the CPU's tracer.
pub struct Recording {
    pub(super) window: Window,
    pub(super) tracer: Box<dyn Tracer>,
    pub(super) log: AuxLog,
    /// Offset of the buffer's first byte in the CPU's stream.
    pub(super) base: u64,
}

impl Recording {
    #[must_use]
    pub fn cpu(&self) -> Cpu {
        self.window.cpu
    }

    /// When the tracer stopped: when it was disabled, or before that because its buffer was full or its CPU gone.
    #[must_use]
    pub fn recorded_until(&self) -> MonoNs {
        self.full_since().unwrap_or(self.window.disabled)
    }

    /// When its buffer was full, if it was.
    #[must_use]
    pub fn full_since(&self) -> Option<MonoNs> {
        self.log.full_since(self.window.buffer_bytes)
    }

    /// What the tracer wrote, bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tracer.bytes().len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the tracer wrote, in pieces of at most 1 MiB. A second window of the CPU starts at a higher offset than the
    /// first ended: the streams do not join.
    pub fn pieces(&self) -> impl Iterator<Item = PtBytes> + '_ {
        self.log.pieces(self.window.cpu, self.base, self.tracer.bytes())
    }

    /// Gives the tracer and its memory back.
    #[must_use]
    pub fn close(self) -> ControlOp {
        let (cpu, from) = (self.window.cpu, now());
        drop(self);
        op(ControlKind::PtClose, cpu, from, None)
    }
}
