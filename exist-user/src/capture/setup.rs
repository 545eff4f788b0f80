//! From what was asked of the processor trace to tracers that are ready, or the reason why there are none.

use std::path::Path;

use anyhow::Context;
use exist_trace::session::{PtMode, PtRequest};

use super::{IntelPt, Prepared, PtSource, prepare};
use crate::{
    alloc::{Asked, CpuSets, Plan, choose},
    sys::memory,
};

/// Tracers that are ready, and where they come from: what [`super::Operator::start`] takes.
pub struct Setup {
    pub source: Box<dyn PtSource>,
    pub prepared: Prepared,
}

/// Finds this machine's processor trace (below `sys` and `proc`), plans the buffers, and opens every CPU's tracer. To be
/// called just before the period: from then on, no other program can use Intel PT.
///
/// The inner error is the reason why there will be none, for the header and the user: it was not asked for, or with
/// `auto` it cannot be had.
///
/// # Errors
/// When what was asked cannot be: CPUs that are not there, a budget too small, or with `on` no processor trace.
pub fn set_up(request: &PtRequest, sys: &Path, proc: &Path) -> anyhow::Result<Result<Setup, String>> {
    let find = || match IntelPt::find(sys, proc) {
        Ok(source) => Ok(Box::new(source) as Box<dyn PtSource>),
        Err(error) => Err(error.to_string()),
    };
    let machine = || -> anyhow::Result<Machine> {
        Ok(Machine {
            cpus: CpuSets::read(sys).context("failed to read the machine's CPUs")?,
            memory_bytes: memory::total_bytes(proc).context("failed to read the machine's memory")?,
        })
    };
    set_up_with(request, find, machine)
}

struct Machine {
    cpus: CpuSets,
    memory_bytes: u64,
}

fn set_up_with(
    request: &PtRequest,
    find: impl FnOnce() -> Result<Box<dyn PtSource>, String>,
    machine: impl FnOnce() -> anyhow::Result<Machine>,
) -> anyhow::Result<Result<Setup, String>> {
    if request.mode == PtMode::Off {
        return Ok(Err("switched off (--pt off)".to_owned()));
    }
    // With `auto`, no trace is a recording without one; with `on`, an error.
    let absent = |reason: String| match request.mode {
        PtMode::On => Err(anyhow::anyhow!("no processor trace, which --pt on asks for: {reason}")),
        PtMode::Auto | PtMode::Off => Ok(Err(reason)),
    };
    let source = match find() {
        Ok(source) => source,
        Err(reason) => return absent(reason),
    };
    let machine = machine()?;
    let (cpus, left_out) = choose(&machine.cpus, request.cpus.as_deref())?;
    let asked = Asked {
        buffer_bytes: request.buffer_bytes,
        budget_bytes: request.budget_bytes,
    };
    let plan = Plan::new(cpus, &asked, machine.memory_bytes)?;
    match prepare(&*source, plan) {
        Ok(mut prepared) => {
            prepared.notes.splice(0..0, left_out);
            Ok(Ok(Setup { source, prepared }))
        }
        Err(error) => absent(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::fake::FakePt;
    use exist_trace::units::Cpu;

    fn machine() -> anyhow::Result<Machine> {
        Ok(Machine {
            cpus: CpuSets {
                online: [0, 1, 2].into(),
                isolated: [2].into(),
                nohz_full: [].into(),
            },
            memory_bytes: 64 << 30,
        })
    }

    /// `Ok`: the CPUs that are ready, or the reason; `Err`: the error.
    fn check(request: &PtRequest, pt: Option<&FakePt>, expect: Result<Result<&[u32], &str>, &str>) {
        let find = || match pt {
            Some(pt) => Ok(Box::new(pt.clone()) as Box<dyn PtSource>),
            None => Err("no Intel PT here".to_owned()),
        };
        match (set_up_with(request, find, machine), expect) {
            (Ok(Ok(setup)), Ok(Ok(expect))) => {
                let ready: Vec<_> = setup.prepared.settings.buffers.iter().map(|b| b.cpu.0).collect();
                assert_eq!(ready, expect);
            }
            (Ok(Err(reason)), Ok(Err(expect))) => assert!(reason.contains(expect), "{reason}"),
            (Err(error), Err(expect)) => assert!(format!("{error:#}").contains(expect), "{error:#}"),
            (got, expect) => panic!("{:?} is not {expect:?}", got.map(|setup| setup.map(|_| "a setup"))),
        }
    }

    #[test]
    fn auto_goes_without_and_on_insists() {
        let ask = |mode| PtRequest {
            mode,
            ..PtRequest::default()
        };
        let pt = FakePt::default();
        check(&ask(PtMode::Auto), Some(&pt), Ok(Ok(&[0, 1])));
        check(&ask(PtMode::On), Some(&pt), Ok(Ok(&[0, 1])));
        check(&ask(PtMode::Off), Some(&pt), Ok(Err("--pt off")));
        check(&ask(PtMode::Auto), None, Ok(Err("no Intel PT here")));
        check(&ask(PtMode::On), None, Err("--pt on asks for: no Intel PT here"));
        (0..3).for_each(|cpu| pt.refuse(Cpu(cpu), libc::EBUSY));
        check(&ask(PtMode::Auto), Some(&pt), Ok(Err("is taken")));
        check(&ask(PtMode::On), Some(&pt), Err("is taken"));
    }

    #[test]
    fn what_was_asked_and_cannot_be_is_an_error_even_with_auto() {
        let pt = FakePt::default();
        let ask = |cpus: &[u32], budget_bytes| PtRequest {
            cpus: Some(cpus.iter().copied().map(Cpu).collect()),
            budget_bytes,
            ..PtRequest::default()
        };
        check(&ask(&[1, 2], None), Some(&pt), Ok(Ok(&[1, 2])));
        check(&ask(&[7], None), Some(&pt), Err("CPU 7 of --cpus is not online"));
        check(&ask(&[0], Some(4096)), Some(&pt), Err("raise --budget"));
    }

    #[test]
    fn isolated_cpus_that_are_left_out_are_said_first() {
        let find = || Ok(Box::new(FakePt::default()) as Box<dyn PtSource>);
        let setup = set_up_with(&PtRequest::default(), find, machine).unwrap().unwrap();
        assert!(setup.prepared.notes[0].contains("no processor trace on CPU 2"));
    }

    #[test]
    fn this_machine_is_recorded_or_says_why_not() {
        match set_up(&PtRequest::default(), Path::new("/sys"), Path::new("/proc")) {
            Ok(Ok(setup)) => assert!(!setup.prepared.settings.buffers.is_empty()),
            Ok(Err(reason)) => assert!(!reason.is_empty()),
            Err(error) => panic!("{error:#}"),
        }
    }
}
