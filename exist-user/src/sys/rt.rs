//! Scheduling of our own threads: they must run when every CPU of the node is busy, and disturb no one more than that.

use std::io;

/// Gives the calling thread real-time priority (`SCHED_FIFO`, the lowest of its priorities): for threads that sleep but for
/// some microseconds at a time. Threads it starts later are ordinary ones.
///
/// # Errors
/// EPERM without CAP_SYS_NICE or `RLIMIT_RTPRIO`, or under a cgroup without real-time budget.
pub fn become_real_time() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 1 };
    // SAFETY: `param` is valid for the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const param) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How much an ordinary thread is preferred to those of the node's own work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Niceness {
    /// For the thread that drains the rings, where it cannot be real-time.
    Drain = -20,
    /// For a thread behind it, whose queue is bounded: it gets its share, and the drain goes first.
    Behind = -10,
}

/// Makes the calling thread the one that drains the rings: what it is late for is lost. Real-time, since niceness says
/// nothing across cgroups (nor sessions, each of which is a group of its own by the kernel's `sched_autogroup_enabled`): seen
/// on Linux 6.18, two hundred threads of one container that wake each other kept a thread of niceness -20 waiting for more
/// than two seconds. Without the privilege it is only late.
pub fn be_in_time() {
    // Also where it becomes real-time: the niceness stands if it is made an ordinary thread again.
    let _ = be_preferred(Niceness::Drain);
    let _ = become_real_time();
}

/// Gives the calling thread (not the process) this niceness.
///
/// # Errors
/// EACCES without CAP_SYS_NICE or `RLIMIT_NICE`.
pub fn be_preferred(niceness: Niceness) -> io::Result<()> {
    // SAFETY: takes no pointer; `PRIO_PROCESS` with 0 means the calling thread on Linux (`kernel/sys.c`, `setpriority`).
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness as libc::c_int) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: takes no pointer.
        unsafe { libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK }
    }

    #[test]
    fn only_the_calling_thread_is_raised() {
        let raised = std::thread::spawn(|| {
            if let Err(error) = become_real_time() {
                println!("skipped: {error}");
                return true;
            }
            let child = std::thread::spawn(policy).join();
            policy() == libc::SCHED_FIFO && child.is_ok_and(|policy| policy == libc::SCHED_OTHER)
        });
        assert!(raised.join().unwrap());
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    #[test]
    fn niceness_is_of_the_thread() {
        let nice = || {
            // SAFETY: takes no pointer.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let before = nice();
        for niceness in [Niceness::Drain, Niceness::Behind] {
            let preferred = std::thread::spawn(move || be_preferred(niceness).map(|()| nice()));
            match preferred.join().unwrap() {
                Ok(now) => assert_eq!(now, niceness as i32),
                Err(error) => println!("skipped: {error}"),
            }
        }
        assert_eq!(nice(), before);
    }
}
