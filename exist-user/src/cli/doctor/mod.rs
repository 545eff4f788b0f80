//! `exist doctor`: what this node can do, what is missing, and what mends it.
//!
//! Takes: the roots. Gives: a list, as text or JSON. Fails when switches cannot be recorded.

mod check;
mod kernel;
mod node;

use std::{io::Write, path::Path};

use clap::Args;

use self::check::{Check, Need, Report};
use super::{Outcome, roots::RootArgs};
use crate::sys::{
    cgroupfs::{Hierarchy, Mounts},
    cpu, memlock, privileges,
};

/// Say what this node can do, what is missing and what mends it
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 0 when switches can be recorded, with 1 when not.

Examples:
  exist doctor
  exist doctor --json
  exist doctor --proc-root /host/proc --cgroup-root /host/sys/fs/cgroup")]
pub struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    roots: RootArgs,
}

impl Doctor {
    pub fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let report = Report::new(self.checks(Path::new("/sys")));
        if self.json {
            serde_json::to_writer_pretty(&mut *out, &report)?;
            writeln!(out)?;
        } else {
            report.write_text(out)?;
        }
        if !report.can_record_switches {
            out.flush()?;
            anyhow::bail!("switches cannot be recorded here: {}", report.blockers());
        }
        Ok(Outcome::Done)
    }

    fn checks(&self, sys: &Path) -> Vec<Check> {
        let roots = self.roots.roots();
        let proc_text = |name: &str| kernel::text(&roots.proc_file(name));
        let mounts = Mounts::find(&roots).unwrap_or_default();
        let have = privileges::effective().unwrap_or_default();
        let first_cpu = cpu::online(sys)
            .ok()
            .and_then(|cpus| cpus.first().copied())
            .unwrap_or(0);
        let decides = mounts.iter().next().map_or(Hierarchy::V2, |m| m.hierarchy.clone());

        let mut checks = vec![kernel::version(
            proc_text("sys/kernel/osrelease").unwrap_or_default().trim(),
        )];
        checks.push(node::privileges(have));
        checks.extend(kernel::bpf(decides));
        checks.push(kernel::lockdown(
            kernel::text(&sys.join("kernel/security/lockdown")).as_deref(),
        ));
        checks.push(kernel::perf_events(
            proc_text("sys/kernel/perf_event_paranoid").as_deref(),
            first_cpu,
        ));
        checks.push(match memlock::limit() {
            Ok(limit) => node::memory_lock(limit, proc_text("sys/kernel/perf_event_mlock_kb").as_deref(), have),
            Err(e) => Check::ok("memory lock", Need::Comfort, format!("unknown: {e}")),
        });
        checks.push(node::hierarchies(&roots, &mounts));
        checks.push(node::pid_namespace(&roots));
        checks.push(node::engines(&roots, &mounts));
        checks.push(node::processor_trace(sys, &roots));
        checks
    }
}
