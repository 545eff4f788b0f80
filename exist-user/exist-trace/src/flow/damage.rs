//! What is missing within the processor trace: overflows of the processor, and bytes that are no packets.
//!
//! Takes the decoded streams; gives a loss for each place, with the CPU and the span of time in which it lies.

use super::{CpuFlow, Flow};
use crate::{
    file::model::{Loss, LossKind},
    pt::find_psb,
};

impl Flow {
    /// The losses within the streams, CPU by CPU in the streams' order.
    #[must_use]
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses = Vec::new();
        for cpu in &self.cpus {
            for &at in &cpu.segments.overflows {
                let reason =
                    format!("the processor wrote faster than memory took it, at byte {at:#x} of the CPU's trace");
                losses.push(self.loss(cpu, at, LossKind::PtOverflow, (0, reason)));
            }
            for &at in &cpu.segments.errors {
                // Reading goes on at the next synchronization point.
                let next = find_psb(&cpu.bytes, at + 1).unwrap_or(cpu.bytes.len() as u64);
                let reason = format!("no packets at byte {at:#x} of the CPU's trace");
                losses.push(self.loss(cpu, at, LossKind::PtDamaged, (next - at, reason)));
            }
        }
        losses
    }

    fn loss(&self, cpu: &CpuFlow, at: u64, kind: LossKind, (bytes, reason): (u64, String)) -> Loss {
        let when = cpu.line.at(at);
        // Behind the last packet that tells a time there is no bound but the stream's end.
        let last = cpu.line.span().map_or(when.hi, |span| span.hi).max(when.lo);
        Loss {
            from: self.clock.mono(when.lo),
            to: self.clock.mono(when.hi.min(last)),
            cpu: Some(cpu.cpu),
            kind,
            records: 0,
            bytes,
            reason,
        }
    }
}
