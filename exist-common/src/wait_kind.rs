//! What a wait was for, from what the kernel showed of it.

use crate::{Wait, wait_flags};

/// Why a thread was off the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKind {
    /// A socket.
    Net,
    /// A pipe or FIFO.
    Pipe,
    /// A futex: locks, conditions, joins.
    Sync,
    /// `poll`, `select`, `epoll_wait`, `io_uring_enter`: any of several things.
    Poll,
    /// A time.
    Sleep,
    /// Reading or writing a file or a block device.
    Disk,
    /// Until written data is on the disk.
    Fsync,
    /// A page, outside of system calls.
    PageFault,
    /// A child process.
    Child,
    /// Its cgroup's quota was used up.
    Throttled,
    /// Somebody else was given the CPU.
    Preempted,
    /// It gave the CPU away (`sched_yield`).
    Yielded,
    /// Stopped by a signal or a tracer.
    Stopped,
    /// New, not run yet.
    New,
    /// None of these: the system call says more.
    Other,
}

impl WaitKind {
    /// Every kind, in the order in which they are shown.
    pub const ALL: [Self; 15] = [
        Self::Net,
        Self::Pipe,
        Self::Sync,
        Self::Poll,
        Self::Sleep,
        Self::Disk,
        Self::Fsync,
        Self::PageFault,
        Self::Child,
        Self::Throttled,
        Self::Preempted,
        Self::Yielded,
        Self::Stopped,
        Self::New,
        Self::Other,
    ];

    /// The name in JSON and in text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Net => "net",
            Self::Pipe => "pipe",
            Self::Sync => "sync",
            Self::Poll => "poll",
            Self::Sleep => "sleep",
            Self::Disk => "disk",
            Self::Fsync => "fsync",
            Self::PageFault => "page_fault",
            Self::Child => "child",
            Self::Throttled => "throttled",
            Self::Preempted => "preempted",
            Self::Yielded => "yielded",
            Self::Stopped => "stopped",
            Self::New => "new",
            Self::Other => "other",
        }
    }
}

/// `__TASK_STOPPED` and `__TASK_TRACED`, include/linux/sched.h (the same since 4.14).
const STOPPED: u8 = 4 | 8;
const SCHED_YIELD: u16 = 24;

impl Wait {
    /// Whether it slept. Otherwise it was runnable all the time.
    #[must_use]
    pub const fn slept(&self) -> bool {
        self.state != 0 && self.flags & wait_flags::NEW == 0
    }

    /// Since when it was runnable; `None`: it slept, and nobody saw its wake-up.
    #[must_use]
    pub const fn runnable_from(&self) -> Option<u64> {
        if self.slept() && self.runnable_ns == 0 {
            None
        } else if self.runnable_ns > self.off_ns {
            Some(self.runnable_ns)
        } else {
            Some(self.off_ns)
        }
    }

    /// Until when it waited for what its kind says: a sleep ends when it is runnable, as far as that was seen; all else
    /// when it runs.
    #[must_use]
    pub const fn waited_until(&self) -> u64 {
        match self.runnable_from() {
            Some(runnable) if self.slept() => runnable,
            _ => self.run_ns,
        }
    }

    /// The system call that it slept in, or yielded by. Where it was preempted tells nothing of why.
    #[must_use]
    pub const fn slept_in(&self) -> Option<u16> {
        let gave_way = self.slept() || matches!(self.kind(), WaitKind::Yielded);
        if gave_way && self.syscall != Self::NO_SYSCALL {
            Some(self.syscall)
        } else {
            None
        }
    }

    /// Why it was off the CPU.
    #[must_use]
    pub const fn kind(&self) -> WaitKind {
        if self.flags & wait_flags::NEW != 0 {
            WaitKind::New
        } else if self.state & STOPPED != 0 {
            WaitKind::Stopped
        } else if self.state != 0 {
            of_sleep(self.syscall, self.file)
        } else if self.flags & wait_flags::THROTTLED != 0 {
            WaitKind::Throttled
        } else if self.flags & wait_flags::PREEMPT == 0 && self.syscall == SCHED_YIELD {
            WaitKind::Yielded
        } else {
            WaitKind::Preempted
        }
    }
}

/// Numbers of arch/x86/entry/syscalls/syscall_64.tbl.
const fn of_sleep(syscall: u16, file: u8) -> WaitKind {
    match syscall {
        Wait::NO_SYSCALL => WaitKind::PageFault,
        // futex, futex_waitv, futex_wait
        202 | 449 | 455 => WaitKind::Sync,
        // nanosleep, clock_nanosleep
        35 | 230 => WaitKind::Sleep,
        // poll, select, io_getevents, epoll_wait, pselect6, ppoll, epoll_pwait, io_uring_enter, epoll_pwait2
        7 | 23 | 208 | 232 | 270 | 271 | 281 | 426 | 441 => WaitKind::Poll,
        // vfork, wait4, waitid
        58 | 61 | 247 => WaitKind::Child,
        // msync, fsync, fdatasync, sync, sync_file_range, syncfs
        26 | 74 | 75 | 162 | 277 | 306 => WaitKind::Fsync,
        // connect, accept, sendto, recvfrom, sendmsg, recvmsg, accept4, recvmmsg, sendmmsg
        42..=47 | 288 | 299 | 307 => WaitKind::Net,
        _ if takes_file(syscall) => match file {
            12 => WaitKind::Net,         // S_IFSOCK
            1 => WaitKind::Pipe,         // S_IFIFO
            8 | 6 | 4 => WaitKind::Disk, // S_IFREG, S_IFBLK, S_IFDIR
            _ => WaitKind::Other,
        },
        _ => WaitKind::Other,
    }
}

/// Whether the kind depends on the file behind the call's first argument.
#[must_use]
#[inline(always)]
pub const fn takes_file(syscall: u16) -> bool {
    // read, write, pread64, pwrite64, readv, writev, sendfile, getdents, getdents64, splice, preadv, pwritev, preadv2, pwritev2
    matches!(syscall, 0 | 1 | 17..=20 | 40 | 78 | 217 | 275 | 295 | 296 | 327 | 328)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_when_it_is_runnable() {
        let check = |state, times: [u64; 3], runnable, until| {
            let mut wait = Wait::from_bytes(&[0; crate::WAIT_BYTES]).unwrap();
            (wait.state, [wait.off_ns, wait.runnable_ns, wait.run_ns]) = (state, times);
            assert_eq!((wait.runnable_from(), wait.waited_until()), (runnable, until));
            wait.syscall = 74;
            assert_eq!(wait.slept_in(), (state != 0).then_some(74));
        };
        check(1, [10, 15, 20], Some(15), 15);
        check(1, [10, 5, 20], Some(10), 10);
        check(1, [10, 0, 20], None, 20);
        check(0, [10, 10, 20], Some(10), 20);
        check(0, [10, 0, 20], Some(10), 20);
    }

    #[test]
    fn kinds_of_waits() {
        let check = |syscall, file, state, flags, expect: WaitKind| {
            let mut wait = Wait::from_bytes(&[0; crate::WAIT_BYTES]).unwrap();
            (wait.syscall, wait.file, wait.state, wait.flags) = (syscall, file, state, flags);
            assert_eq!(wait.kind(), expect, "{syscall} {file} {state} {flags}");
        };
        check(45, 0, 1, 0, WaitKind::Net);
        check(0, 12, 1, 0, WaitKind::Net);
        check(0, 1, 1, 0, WaitKind::Pipe);
        check(0, 8, 2, 0, WaitKind::Disk);
        check(0, 2, 1, 0, WaitKind::Other);
        check(74, 0, 2, 0, WaitKind::Fsync);
        check(202, 0, 1, 0, WaitKind::Sync);
        check(230, 0, 1, 0, WaitKind::Sleep);
        check(232, 0, 1, 0, WaitKind::Poll);
        check(61, 0, 1, 0, WaitKind::Child);
        check(Wait::NO_SYSCALL, 0, 2, 0, WaitKind::PageFault);
        check(0, 1, 4, 0, WaitKind::Stopped);
        check(24, 0, 0, 0, WaitKind::Yielded);
        check(24, 0, 0, wait_flags::PREEMPT, WaitKind::Preempted);
        check(Wait::NO_SYSCALL, 0, 0, 0, WaitKind::Preempted);
        check(Wait::NO_SYSCALL, 0, 0, wait_flags::THROTTLED, WaitKind::Throttled);
        check(0, 0, 0, wait_flags::NEW, WaitKind::New);
    }
}
