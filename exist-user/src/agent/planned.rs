//! The plan that a recording would begin with, without recording.

use std::{path::Path, time::Duration};

use anyhow::Context as _;
use exist_trace::{
    file::model::ResolvedTarget,
    session::{PtRequest, Target, Waits},
};

use super::{
    look_back::{Span, look},
    streams::Streams,
};
use crate::{
    alloc::{CpuSets, Earlier, Known, Look, Plan, choose},
    capture::{IntelPt, UNBOUNDED_NS, asked},
    sys::{memlock, memory, roots::Roots},
    target::resolve,
};

/// Whose plan.
#[derive(Clone, Debug)]
pub struct PlanOptions {
    pub target: Target,
    pub request: PtRequest,
    pub period_ns: Option<u64>,
    pub earlier: Earlier,
    /// How long to look where the target runs.
    pub look: Duration,
    pub roots: Roots,
}

/// A plan, with what it comes from.
#[derive(Clone, Debug)]
pub struct Planned {
    pub target: ResolvedTarget,
    pub look: Look,
    pub period_ns: u64,
    pub plan: Plan,
    /// Bytes of trace a second of on-CPU time, of each CPU of the plan.
    pub rates: Vec<f64>,
    /// CPUs left out.
    pub notes: Vec<String>,
    /// Why a recording here would have no processor trace.
    pub no_pt: Option<String>,
}

/// Looks at the target, and plans.
///
/// # Errors
/// When the target cannot be followed, or what was asked cannot be.
pub fn plan(options: &PlanOptions) -> anyhow::Result<Planned> {
    let _ = memlock::raise();
    let sys = Path::new("/sys");
    let target = resolve(&options.roots, &options.target)?;
    let (mut streams, _) = Streams::open(&target, None, Waits::Off)?;
    streams.begin()?;
    let look = look(&mut streams, &target, &options.roots, Span::of(options.look))?;
    drop(streams);
    let sets = CpuSets::read(sys).context("failed to read the machine's CPUs")?;
    let memory_bytes = memory::total_bytes(&options.roots.proc).context("failed to read the machine's memory")?;
    let (cpus, notes) = choose(&sets, options.request.cpus.as_deref())?;
    let period_ns = options.period_ns.unwrap_or(UNBOUNDED_NS);
    let known = Known {
        look: &look,
        earlier: &options.earlier,
        period_ns,
    };
    let plan = Plan::decide(cpus, &known, &asked(&options.request), memory_bytes)?;
    let rates = plan
        .buffers
        .iter()
        .map(|buffer| options.earlier.rate(buffer.cpu) * 1e9)
        .collect();
    Ok(Planned {
        target: target.header(),
        look,
        period_ns,
        plan,
        rates,
        notes,
        no_pt: IntelPt::find(sys, &options.roots.proc)
            .err()
            .map(|error| error.to_string()),
    })
}
