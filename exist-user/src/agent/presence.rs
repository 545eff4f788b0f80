//! Whether the target is still there, from looks at it.

use exist_trace::units::MonoNs;

use crate::target::Presence;

/// How long a target may hold no process before it counts as ended. A shell's loop or a supervisor leaves its cgroup empty
/// between the end of one process and the start of the next.
const GRACE_NS: u64 = 1_000_000_000;

/// Looks at the target until it has ended.
#[derive(Debug, Default)]
pub struct Watch {
    /// It has held a process: one that is started later is waited for.
    was_populated: bool,
    empty_since: Option<MonoNs>,
}

impl Watch {
    /// Takes what a look found, and tells whether the target has ended: removed, or empty for [`GRACE_NS`].
    pub fn has_ended(&mut self, now: MonoNs, presence: Presence) -> bool {
        match presence {
            Presence::Populated => {
                self.was_populated = true;
                self.empty_since = None;
                false
            }
            Presence::Empty if self.was_populated => {
                let since = *self.empty_since.get_or_insert(now);
                now.0.saturating_sub(since.0) >= GRACE_NS
            }
            Presence::Empty => false,
            Presence::Gone => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Presence::{Empty, Gone, Populated};

    /// Looks every 100 ms; gives the number of the look that found the end.
    fn ends_at(looks: impl IntoIterator<Item = Presence>) -> Option<usize> {
        let mut watch = Watch::default();
        (0u64..)
            .zip(looks)
            .position(|(look, presence)| watch.has_ended(MonoNs(look * 100_000_000), presence))
    }

    #[test]
    fn ends_when_empty_for_a_second() {
        let stays_empty = std::iter::once(Populated).chain([Empty; 20]);
        assert_eq!(ends_at(stays_empty), Some(11));
    }

    #[test]
    fn a_moment_without_processes_is_no_end() {
        let moments = std::iter::once(Populated).chain([Empty; 10]);
        assert_eq!(ends_at(moments.clone().chain([Populated]).chain(moments)), None);
    }

    #[test]
    fn removed_is_ended() {
        assert_eq!(ends_at([Populated, Empty, Gone]), Some(2));
        assert_eq!(ends_at([Gone]), Some(0));
    }

    #[test]
    fn one_that_was_never_populated_is_waited_for() {
        assert_eq!(ends_at([Empty; 50]), None);
    }
}
