//! CPUs that come and go while a period is open. The kernel stops and removes the events of a CPU that goes
//! (`kernel/events/core.c`, `perf_event_exit_cpu_context`) and does not bring them back: somebody has to look.

use std::collections::BTreeSet;

use exist_trace::units::Cpu;

/// What happened to a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Offline(Cpu),
    Online(Cpu),
}

/// The CPUs that were online at the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hotplug {
    online: BTreeSet<Cpu>,
}

impl Hotplug {
    /// Starts with these online.
    #[must_use]
    pub fn new(online: &[u32]) -> Self {
        Self {
            online: online.iter().copied().map(Cpu).collect(),
        }
    }

    /// Takes the CPUs that are online now (see [`crate::sys::cpu::online`]) and gives what changed since the last look. A
    /// CPU that went and came back between two looks does not show: its tracer's window ends with its record.
    pub fn look(&mut self, online: &[u32]) -> Vec<Change> {
        let now: BTreeSet<_> = online.iter().copied().map(Cpu).collect();
        let gone = self.online.difference(&now).copied().map(Change::Offline);
        let come = now.difference(&self.online).copied().map(Change::Online);
        let changes = gone.chain(come).collect();
        self.online = now;
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_told_and_only_once() {
        let mut hotplug = Hotplug::new(&[0, 1, 2]);
        assert_eq!(hotplug.look(&[0, 1, 2]), []);
        assert_eq!(
            hotplug.look(&[0, 2, 3]),
            [Change::Offline(Cpu(1)), Change::Online(Cpu(3))]
        );
        assert_eq!(hotplug.look(&[0, 2, 3]), []);
        assert_eq!(hotplug.look(&[0, 1, 2, 3]), [Change::Online(Cpu(1))]);
    }
}
