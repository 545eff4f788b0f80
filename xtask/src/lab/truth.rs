//! `cargo xtask lab truth`: the ground truth of a run in numbers. Takes the bytes of truth files, gives what is in them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use anyhow::{Context, Result};
use exist_lab_truth::{Reader, Record};

/// What one vCPU's truth holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub blocks: u64,
    pub threads: BTreeSet<u64>,
    pub leaves: BTreeMap<String, u64>,
    /// Time and value of each write to IA32_RTIT_CTL.
    pub rtit_writes: Vec<(u64, u64)>,
    pub interrupts: u64,
    /// Interrupts after which the tracer was started again.
    pub restarts: u64,
    pub stops: u64,
    pub overflows: u64,
    /// Not empty: the lab could not explain a transition, and the run proves nothing.
    pub unexplained: Vec<(u64, u64)>,
}

/// Reads one file.
///
/// # Errors
/// A file that is not whole.
pub fn summary(bytes: &[u8]) -> Result<Summary> {
    let mut summary = Summary::default();
    // Raised and not handled; handled and not started again.
    let (mut raised, mut handled) = (false, false);
    for item in Reader::new(bytes).context("failed to read the ground truth")? {
        let item = item.context("failed to read the ground truth")?;
        match item.record {
            Record::Ran { .. } => summary.blocks += 1,
            Record::Thread { tid, .. } => {
                summary.threads.insert(tid);
            }
            Record::Leave { exit, .. } => *summary.leaves.entry(format!("{exit:?}").to_lowercase()).or_default() += 1,
            Record::RtitCtl { value } => {
                summary.rtit_writes.push((item.tsc, value));
                summary.restarts += u64::from(value & 1 != 0 && handled);
                handled = value & 1 == 0 && std::mem::take(&mut raised);
            }
            Record::Pmi => {
                summary.interrupts += 1;
                raised = true;
            }
            Record::Stopped => summary.stops += 1,
            Record::OvfEnd { .. } => summary.overflows += 1,
            Record::Unexplained { from, to } => summary.unexplained.push((from, to)),
            _ => {}
        }
    }
    Ok(summary)
}

/// The numbers as one line.
pub fn line(cpu: usize, summary: &Summary) -> String {
    format!(
        "cpu {cpu}: {} blocks of {} threads; left by {:?}; {} RTIT_CTL writes, {} interrupts ({} restarts), {} stops, {} overflows",
        summary.blocks,
        summary.threads.len(),
        summary.leaves,
        summary.rtit_writes.len(),
        summary.interrupts,
        summary.restarts,
        summary.stops,
        summary.overflows
    )
}

/// The numbers, each write of the control register and each unexplained transition as text.
pub fn text(cpu: usize, summary: &Summary) -> String {
    let mut out = line(cpu, summary);
    out.push('\n');
    for (tsc, value) in &summary.rtit_writes {
        let _ = writeln!(out, "  tsc {tsc}: RTIT_CTL = {value:#x}");
    }
    for (from, to) in &summary.unexplained {
        let _ = writeln!(out, "  UNEXPLAINED: {from:#x} to {to:#x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use exist_lab_truth::{Exit, Header, Writer};

    use super::*;

    #[test]
    fn counts_each_kind() {
        let mut writer = Writer::new(Header { cpu: 0, tsc_hz: 1 });
        for record in [
            Record::RtitCtl { value: 1 },
            Record::Thread {
                tid: 7,
                cr3: 0,
                fs_base: 0,
            },
            Record::Leave {
                exit: Exit::Syscall,
                from: 0,
            },
            Record::Leave {
                exit: Exit::Syscall,
                from: 0,
            },
            Record::Pmi,
            Record::RtitCtl { value: 0 },
            Record::RtitCtl { value: 1 },
            Record::RtitCtl { value: 0 },
            Record::RtitCtl { value: 1 },
            Record::Pmi,
            Record::RtitCtl { value: 0 },
            Record::Unexplained { from: 1, to: 2 },
        ] {
            writer.push(5, &record);
        }
        let found = summary(writer.bytes()).unwrap();
        assert_eq!(
            found.rtit_writes.iter().map(|write| write.1).collect::<Vec<_>>(),
            [1, 0, 1, 0, 1, 0]
        );
        assert_eq!((found.leaves["syscall"], found.threads.len()), (2, 1));
        assert_eq!((found.interrupts, found.restarts), (2, 1));
        assert_eq!(found.unexplained, [(1, 2)]);
        assert!(summary(&writer.bytes()[..30]).is_err());
    }
}
