//! When each CPU's processor trace was recorded.
//!
//! Takes the decoded streams and the recording's operations; gives a row for each CPU that has a trace or should have one.
//! A window begins and ends with the first and the last packet that tells a time: a full buffer ends it before the tracer
//! is disabled.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Flow;
use crate::{
    file::{
        Trace,
        model::{ControlKind, LossKind, SwitchOp},
    },
    units::Cpu,
};

/// The processor trace of one CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Window {
    pub cpu: u32,
    /// Bytes of trace.
    pub bytes: u64,
    /// First and last time that its packets tell, CLOCK_MONOTONIC, nanoseconds; `null` when they tell none.
    pub from_ns: Option<u64>,
    pub until_ns: Option<u64>,
    /// Its buffer was full before the end.
    pub full: bool,
    /// Times that the tracer was enabled and disabled.
    pub enabled: u64,
    pub disabled: u64,
}

/// All CPUs' windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Windows {
    pub cpus: Vec<Window>,
    /// When all CPUs that the target ran on were recorded, from and until; `null` when there is no such time.
    pub all_ns: Option<(u64, u64)>,
    /// Times that a tracer was enabled or disabled.
    pub ops: u64,
}

impl Windows {
    /// Of a recording.
    #[must_use]
    pub fn new(flow: &Flow, trace: &Trace) -> Self {
        let mut rows: BTreeMap<Cpu, Window> = BTreeMap::new();
        for cpu in &flow.cpus {
            let span = cpu.line.span();
            let row = rows.entry(cpu.cpu).or_default();
            row.bytes = cpu.bytes.len() as u64;
            row.from_ns = span.map(|span| flow.clock.mono(span.lo).0);
            row.until_ns = span.map(|span| flow.clock.mono(span.hi).0);
        }
        for op in trace.ops.iter().filter(|op| op.error.is_none()) {
            let Some(cpu) = op.cpu else { continue };
            match op.kind {
                ControlKind::PtEnable => rows.entry(cpu).or_default().enabled += 1,
                ControlKind::PtDisable => rows.entry(cpu).or_default().disabled += 1,
                _ => {}
            }
        }
        for loss in trace.losses.iter().filter(|loss| loss.kind == LossKind::AuxTruncated) {
            if let Some(row) = loss.cpu.and_then(|cpu| rows.get_mut(&cpu)) {
                row.full = true;
            }
        }
        let ran = |r: &&crate::file::model::Record| matches!(r.op(), Some(SwitchOp::In | SwitchOp::Out));
        let touched: BTreeSet<Cpu> = trace.records.iter().filter(ran).map(|r| Cpu(r.cpu.into())).collect();
        for &cpu in &touched {
            rows.entry(cpu).or_default();
        }
        for (cpu, row) in &mut rows {
            row.cpu = cpu.0;
        }
        Self {
            all_ns: common(touched.iter().map(|cpu| &rows[cpu])),
            ops: rows.values().map(|row| row.enabled + row.disabled).sum(),
            cpus: rows.into_values().collect(),
        }
    }
}

/// The time that all windows share.
fn common<'a>(windows: impl Iterator<Item = &'a Window>) -> Option<(u64, u64)> {
    let mut shared = None;
    for window in windows {
        let (from, until) = (window.from_ns?, window.until_ns?);
        let (low, high) = shared.unwrap_or((from, until));
        shared = Some((low.max(from), high.min(until)));
    }
    shared.filter(|(from, until)| from < until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(windows: &[Option<(u64, u64)>], expect: Option<(u64, u64)>) {
        let windows: Vec<_> = windows
            .iter()
            .map(|times| Window {
                from_ns: times.map(|t| t.0),
                until_ns: times.map(|t| t.1),
                ..Window::default()
            })
            .collect();
        assert_eq!(common(windows.iter()), expect);
    }

    #[test]
    fn the_time_in_which_all_were_recorded() {
        check(&[], None);
        check(&[Some((3, 9))], Some((3, 9)));
        check(&[Some((3, 9)), Some((1, 7)), Some((2, 20))], Some((3, 7)));
        // One that ended before another began; one without a trace.
        check(&[Some((3, 9)), Some((9, 12))], None);
        check(&[Some((3, 9)), None], None);
    }
}
