//! The kernel's task state at switch-out, as `ps` and ftrace show it.

/// What a thread was when it was switched out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// Still runnable: preempted, or it gave way.
    Runnable,
    Sleeping,
    DiskSleep,
    Stopped,
    Traced,
    Dead,
    Zombie,
    Parked,
    Idle,
}

impl TaskState {
    /// From the raw `task_struct.__state`: include/linux/sched.h, `__task_state_index()`, with `TASK_DEAD` (which that
    /// function leaves out, as `exit_state` then says more) taken as dead.
    #[must_use]
    pub const fn from_raw(state: u16) -> Self {
        const DEAD: u16 = 0x80;
        const IDLE: u16 = 0x402;
        const RTLOCK_WAIT: u16 = 0x1000;
        const FROZEN: u16 = 0x8000;
        if state & IDLE == IDLE {
            return Self::Idle;
        }
        if state & (RTLOCK_WAIT | FROZEN) != 0 {
            return Self::DiskSleep;
        }
        // The highest bit of TASK_REPORT (0x7f) decides, as `fls` there.
        match (state & 0x7f).checked_ilog2() {
            None if state & DEAD != 0 => Self::Dead,
            None => Self::Runnable,
            Some(0) => Self::Sleeping,
            Some(1) => Self::DiskSleep,
            Some(2) => Self::Stopped,
            Some(3) => Self::Traced,
            Some(4) => Self::Dead,
            Some(5) => Self::Zombie,
            Some(_) => Self::Parked,
        }
    }

    /// The letter of `ps`.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Runnable => 'R',
            Self::Sleeping => 'S',
            Self::DiskSleep => 'D',
            Self::Stopped => 'T',
            Self::Traced => 't',
            Self::Dead => 'X',
            Self::Zombie => 'Z',
            Self::Parked => 'P',
            Self::Idle => 'I',
        }
    }

    /// `prev_state` of the ftrace event `sched_switch` (include/trace/events/sched.h, `__trace_sched_switch_state()`),
    /// as kernels since 4.14 give it.
    #[must_use]
    pub const fn ftrace(self) -> i64 {
        match self {
            Self::Runnable => 0,
            Self::Sleeping => 1,
            Self::DiskSleep => 2,
            Self::Stopped => 4,
            Self::Traced => 8,
            Self::Dead => 0x10,
            Self::Zombie => 0x20,
            Self::Parked => 0x40,
            Self::Idle => 0x80,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_states_read_as_the_kernel_shows_them() {
        let cases = [
            (0, 'R'),
            (0x1, 'S'),
            (0x2001, 'S'), // TASK_FREEZABLE
            (0x2, 'D'),
            (0x102, 'D'), // TASK_KILLABLE
            (0x402, 'I'),
            (0x1002, 'D'),
            (0x8000, 'D'),
            (0x4, 'T'),
            (0x104, 'T'),
            (0x8, 't'),
            (0x40, 'P'),
            (0x80, 'X'),  // TASK_DEAD
            (0x200, 'R'), // TASK_WAKING
            (0x800, 'R'), // TASK_NEW
        ];
        for (raw, letter) in cases {
            assert_eq!(TaskState::from_raw(raw).letter(), letter, "{raw:#x}");
        }
    }
}
