//! Opens the tracers of a plan before the period: the memory is allocated and zeroed now, so that enabling one later is
//! a single operation. Runs with ordinary priority.

use std::collections::{BTreeMap, BTreeSet};

use exist_trace::{
    file::model::{ControlKind, ControlOp, Loss, LossKind, PtBuffer, PtSettings},
    units::{Cpu, MonoNs},
};

use super::{OpenError, PtSource, Tracer};
use crate::{
    alloc::{Plan, Reserve},
    sys::clock,
};

/// Tracers that are ready to be enabled.
#[derive(Default)]
pub struct Prepared {
    pub(super) tracers: BTreeMap<Cpu, Box<dyn Tracer>>,
    /// What each opening took.
    pub ops: Vec<ControlOp>,
    /// CPUs that cannot be recorded.
    pub losses: Vec<Loss>,
    /// For CPUs that turn up without a tracer.
    pub reserve: Reserve,
    /// CPUs that are not to be recorded, whoever runs there.
    pub left_out: BTreeSet<Cpu>,
    /// For the header: settings and buffers.
    pub settings: PtSettings,
    /// For the user: where it is not what was planned.
    pub notes: Vec<String>,
}

impl Prepared {
    /// Locked memory of all buffers, bytes.
    #[must_use]
    pub fn locked_bytes(&self) -> u64 {
        self.settings.buffers.iter().map(|buffer| buffer.bytes).sum()
    }

    /// Time that allocating and zeroing took in all, nanoseconds.
    #[must_use]
    pub fn map_ns(&self) -> u64 {
        self.settings.buffers.iter().map(|buffer| buffer.map_ns).sum()
    }
}

/// Opens every CPU of the plan. Memory that the kernel refuses makes all buffers smaller; a CPU that cannot be opened for
/// another reason is a loss.
///
/// # Errors
/// The first CPU's reason, when none can be opened.
pub fn prepare(source: &dyn PtSource, plan: Plan) -> Result<Prepared, OpenError> {
    let mut plan = plan;
    loop {
        match open_all(source, &plan) {
            Ok(prepared) => return Ok(prepared),
            Err(error @ OpenError::Memory { .. }) => match plan.smaller(&error.to_string()) {
                Some(smaller) => plan = smaller,
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}

/// With buffers of the plan's sizes or not at all: the first memory error ends it, and the plan becomes smaller for everybody.
fn open_all(source: &dyn PtSource, plan: &Plan) -> Result<Prepared, OpenError> {
    let mut prepared = Prepared {
        settings: source.settings(),
        notes: plan.said(),
        reserve: plan.reserve,
        ..Prepared::default()
    };
    let mut first_error = None;
    for (cpu, buffer_bytes) in plan.traced() {
        let from = clock::mono_ns();
        let opened = source.open(cpu, buffer_bytes);
        let to = clock::mono_ns();
        let error = match opened {
            Ok(tracer) => {
                prepared.settings.buffers.push(PtBuffer {
                    cpu,
                    bytes: tracer.buffer_bytes(),
                    map_ns: to - from,
                });
                prepared.tracers.insert(cpu, tracer);
                None
            }
            Err(error @ OpenError::Memory { .. }) => return Err(error),
            Err(error) => {
                let said = error.to_string();
                prepared.losses.push(unavailable(cpu, MonoNs(from), MonoNs(to), &said));
                first_error.get_or_insert(error);
                Some(said)
            }
        };
        prepared.ops.push(ControlOp {
            from: MonoNs(from),
            to: MonoNs(to),
            cpu: Some(cpu),
            kind: ControlKind::PtOpen,
            error,
        });
    }
    match first_error {
        Some(error) if prepared.tracers.is_empty() => Err(error),
        _ => Ok(prepared),
    }
}

/// The CPU's tracer could not be opened or enabled between these: it has no processor trace from then on.
pub(super) fn unavailable(cpu: Cpu, from: MonoNs, to: MonoNs, reason: &str) -> Loss {
    Loss {
        from,
        to,
        cpu: Some(cpu),
        kind: LossKind::PtUnavailable,
        records: 0,
        bytes: 0,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakePt;
    use super::*;
    use crate::alloc::Asked;

    const MIB: u64 = 1 << 20;

    fn plan(cpus: u32) -> Plan {
        Plan::equal((0..cpus).map(Cpu).collect(), &Asked::default(), 1 << 40).unwrap()
    }

    fn buffers(prepared: &Prepared) -> Vec<(u32, u64)> {
        prepared
            .settings
            .buffers
            .iter()
            .map(|b| (b.cpu.0, b.bytes / MIB))
            .collect()
    }

    #[test]
    fn every_cpu_of_the_plan_is_opened_once() {
        let source = FakePt::default();
        let prepared = prepare(&source, plan(3)).unwrap();
        assert_eq!(buffers(&prepared), [(0, 16), (1, 16), (2, 16)]);
        assert_eq!(prepared.locked_bytes(), 48 * MIB);
        assert!(
            prepared
                .ops
                .iter()
                .all(|op| op.kind == ControlKind::PtOpen && op.error.is_none())
        );
        assert!(prepared.losses.is_empty() && prepared.notes.is_empty());
        assert_eq!(source.said(), "open0 open1 open2");
    }

    #[test]
    fn memory_that_is_refused_makes_all_buffers_smaller_and_is_said() {
        // Two of 16 MiB go, the third does not; nor does the fourth of 8.
        let source = FakePt::with_memory(40 * MIB);
        let prepared = prepare(&source, plan(4)).unwrap();
        assert_eq!(buffers(&prepared), [(0, 8), (1, 8), (2, 8), (3, 8)]);
        assert!(
            prepared.notes[0].contains("buffers of 8 MiB a CPU, 32 MiB together, not 64 MiB")
                && prepared.notes[0].contains("ulimit -l")
        );
        drop(prepared);
        assert!(
            source.said().ends_with("close0 close1 close2 close3"),
            "{}",
            source.said()
        );
        let error = prepare(&FakePt::with_memory(1000), plan(4)).err().unwrap();
        assert!(matches!(error, OpenError::Memory { bytes: 32768, .. }), "{error}");
    }

    #[test]
    fn a_cpu_that_is_taken_is_a_loss_and_all_taken_is_an_error() {
        let source = FakePt::default();
        source.refuse(Cpu(1), libc::EBUSY);
        let prepared = prepare(&source, plan(3)).unwrap();
        assert_eq!(buffers(&prepared), [(0, 16), (2, 16)]);
        let [loss] = &prepared.losses[..] else {
            panic!("{:?}", prepared.losses)
        };
        assert_eq!((loss.cpu, loss.kind), (Some(Cpu(1)), LossKind::PtUnavailable));
        assert!(prepared.ops[1].error.as_ref().unwrap().contains("is taken"));
        source.refuse(Cpu(0), libc::ENODEV);
        source.refuse(Cpu(2), libc::EBUSY);
        let error = prepare(&source, plan(3)).err().unwrap();
        assert!(matches!(error, OpenError::Offline(Cpu(0))), "{error}");
    }
}
