//! One process that is followed by itself: its number, and what tells it from the next one that gets the number.

use exist_trace::units::Pid;

use super::TargetError;
use crate::sys::{
    procfs::{Process, is_gone},
    roots::Roots,
};

/// A process that lived when it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnlyProcess {
    pub pid: Pid,
    start_ticks: u64,
}

impl OnlyProcess {
    /// Refuses a number that is a thread's, and a process that has ended.
    pub fn find(roots: &Roots, pid: u32) -> Result<Self, TargetError> {
        let process = Process::new(roots, pid);
        let failed = |error| match is_gone(&error) {
            true => TargetError::NoProcess(pid),
            false => super::read_error(&roots.proc_file(pid.to_string()), error),
        };
        let stat = process.stat().map_err(failed)?;
        // Threads have a folder in procfs too, though none of the kernel's lists shows it.
        let of = process.status().map_err(failed)?.tgid.unwrap_or(pid);
        if of != pid {
            return Err(TargetError::IsThread { tid: pid, pid: of });
        }
        if process.has_ended() {
            return Err(TargetError::Ended(pid));
        }
        Ok(Self {
            pid: Pid(pid),
            start_ticks: stat.start_ticks,
        })
    }

    /// Whether it still lives. Another process with its number is not it.
    #[must_use]
    pub fn lives(&self, roots: &Roots) -> bool {
        let process = Process::new(roots, self.pid.0);
        !process.has_ended()
            && process
                .stat()
                .map_or_else(|error| !is_gone(&error), |stat| stat.start_ticks == self.start_ticks)
    }
}
