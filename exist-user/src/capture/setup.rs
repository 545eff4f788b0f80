//! From what was asked of the processor trace to tracers that are ready, or the reason why there are none.

use std::{collections::BTreeSet, path::Path};

use anyhow::Context;
use exist_trace::{
    session::{PtMode, PtRequest},
    units::Cpu,
};

use super::{IntelPt, Prepared, PtSource, prepare};
use crate::{
    alloc::{Asked, CpuSets, Earlier, Known, Look, Plan, choose},
    sys::memory,
};

/// Tracers that are ready, and where they come from: what [`super::Operator::start`] takes.
pub struct Setup {
    pub source: Box<dyn PtSource>,
    pub prepared: Prepared,
}

/// How long a period is taken to be that has no end.
pub const UNBOUNDED_NS: u64 = 1_000_000_000;

/// What a set-up asks before it plans: the target's look-back, taken only where there is a processor trace. `None`: nothing can
/// be known of the target yet.
pub type LookBack<'a> = &'a mut dyn FnMut() -> anyhow::Result<Option<Look>>;

/// What is wanted, of a target with these earlier windows.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub request: &'a PtRequest,
    pub period_ns: Option<u64>,
    pub earlier: &'a Earlier,
}

/// As [`set_up_for`], for nobody that anything is known of: every CPU gets the same.
///
/// # Errors
/// As there.
pub fn set_up(request: &PtRequest, sys: &Path, proc: &Path) -> anyhow::Result<Result<Setup, String>> {
    let wanted = Wanted {
        request,
        period_ns: None,
        earlier: &Earlier::default(),
    };
    set_up_for(&wanted, sys, proc, &mut || Ok(None))
}

/// What was asked of the buffers.
#[must_use]
pub fn asked(request: &PtRequest) -> Asked {
    Asked {
        buffer_bytes: request.buffer_bytes,
        budget_bytes: request.budget_bytes,
        least_bytes: request.least_buffer_bytes,
        most_bytes: request.most_buffer_bytes,
    }
}

/// Finds this machine's processor trace (below `sys` and `proc`), plans the buffers for the target, and opens every CPU's tracer. To be
/// called just before the period: from then on, no other program can use Intel PT.
///
/// The inner error is the reason why there will be none, for the header and the user: it was not asked for, or with
/// `auto` it cannot be had.
///
/// # Errors
/// When what was asked cannot be: CPUs that are not there, a budget too small, or with `on` no processor trace.
pub fn set_up_for(
    wanted: &Wanted<'_>,
    sys: &Path,
    proc: &Path,
    look: LookBack<'_>,
) -> anyhow::Result<Result<Setup, String>> {
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
    set_up_with(wanted, find, machine, look)
}

struct Machine {
    cpus: CpuSets,
    memory_bytes: u64,
}

fn set_up_with(
    wanted: &Wanted<'_>,
    find: impl FnOnce() -> Result<Box<dyn PtSource>, String>,
    machine: impl FnOnce() -> anyhow::Result<Machine>,
    look: LookBack<'_>,
) -> anyhow::Result<Result<Setup, String>> {
    let request = wanted.request;
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
    let chosen: BTreeSet<u32> = cpus.iter().map(|cpu| cpu.0).collect();
    let looked = look()?.unwrap_or_default();
    let known = Known {
        look: &looked,
        earlier: wanted.earlier,
        period_ns: wanted.period_ns.unwrap_or(UNBOUNDED_NS),
    };
    let plan = Plan::decide(cpus, &known, &asked(request), machine.memory_bytes)?;
    match prepare(&*source, plan) {
        Ok(mut prepared) => {
            prepared.notes.splice(0..0, left_out);
            prepared.left_out = machine.cpus.online.difference(&chosen).copied().map(Cpu).collect();
            Ok(Ok(Setup { source, prepared }))
        }
        Err(error) => absent(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::fake::FakePt;

    fn wanted(request: &PtRequest) -> Wanted<'_> {
        static NONE: Earlier = Earlier { windows: Vec::new() };
        Wanted {
            request,
            period_ns: None,
            earlier: &NONE,
        }
    }

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
        match (set_up_with(&wanted(request), find, machine, &mut || Ok(None)), expect) {
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
        let request = PtRequest::default();
        let setup = set_up_with(&wanted(&request), find, machine, &mut || Ok(None))
            .unwrap()
            .unwrap();
        assert!(setup.prepared.notes[0].contains("no processor trace on CPU 2"));
        assert_eq!(setup.prepared.left_out, [Cpu(2)].into());
    }

    #[test]
    fn what_a_look_back_shows_decides_and_it_is_not_asked_for_in_vain() {
        let find = || Ok(Box::new(FakePt::default()) as Box<dyn PtSource>);
        let mut look = || {
            Ok(Some(Look {
                slot_ns: 10_000_000,
                slots: vec![[(Cpu(1), 10_000_000)].into(); 5],
                ..Look::default()
            }))
        };
        let request = PtRequest {
            budget_bytes: Some(64 << 20),
            ..PtRequest::default()
        };
        let setup = set_up_with(&wanted(&request), find, machine, &mut look)
            .unwrap()
            .unwrap();
        let of = |cpu| {
            setup
                .prepared
                .settings
                .buffers
                .iter()
                .find(|b| b.cpu == Cpu(cpu))
                .map(|b| b.bytes)
        };
        assert!(of(1) > of(0), "{:?} {:?}", of(1), of(0));
        let absent = || Err("no Intel PT here".to_owned());
        let mut never = || -> anyhow::Result<Option<Look>> { panic!("a look-back for nothing") };
        assert!(
            set_up_with(&wanted(&request), absent, machine, &mut never)
                .unwrap()
                .is_err()
        );
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
