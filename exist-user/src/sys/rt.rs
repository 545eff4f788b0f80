//! Scheduling of our own threads: they must run when every CPU of the node is busy, and disturb no one more than that.

use std::{io, marker::PhantomData};

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
/// than two seconds. Without the privilege it is only late. Until the result is dropped: what the thread does afterwards is
/// nobody's hurry.
#[must_use]
pub fn be_in_time() -> InTime {
    let before = niceness();
    let _ = be_preferred(Niceness::Drain);
    let _ = become_real_time();
    InTime {
        before,
        _thread: PhantomData,
    }
}

/// The calling thread is in a hurry; see [`be_in_time`].
#[derive(Debug)]
pub struct InTime {
    /// Niceness.
    before: libc::c_int,
    // It is about the thread that it was made on.
    _thread: PhantomData<*const ()>,
}

impl Drop for InTime {
    fn drop(&mut self) {
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: `param` is valid for the call; 0 is the calling thread. To be an ordinary thread needs no privilege.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const param) };
        let _ = set_niceness(self.before);
    }
}

/// Gives the calling thread (not the process) this niceness.
///
/// # Errors
/// EACCES without CAP_SYS_NICE or `RLIMIT_NICE`.
pub fn be_preferred(niceness: Niceness) -> io::Result<()> {
    set_niceness(niceness as libc::c_int)
}

fn set_niceness(niceness: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointer; `PRIO_PROCESS` with 0 means the calling thread on Linux (`kernel/sys.c`, `setpriority`).
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The calling thread's.
fn niceness() -> libc::c_int {
    // SAFETY: takes no pointer.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
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
    fn the_hurry_ends() {
        let policies = std::thread::spawn(|| {
            let may = become_real_time().is_ok();
            let before = niceness();
            let in_time = be_in_time();
            let within = policy();
            drop(in_time);
            (may, within, policy(), niceness() == before)
        });
        let (may, within, after, as_before) = policies.join().unwrap();
        if may {
            assert_eq!(within, libc::SCHED_FIFO);
        }
        assert_eq!((after, as_before), (libc::SCHED_OTHER, true));
    }

    #[test]
    fn niceness_is_of_the_thread() {
        let before = niceness();
        for wanted in [Niceness::Drain, Niceness::Behind] {
            let preferred = std::thread::spawn(move || be_preferred(wanted).map(|()| niceness()));
            match preferred.join().unwrap() {
                Ok(now) => assert_eq!(now, wanted as i32),
                Err(error) => println!("skipped: {error}"),
            }
        }
        assert_eq!(niceness(), before);
    }
}
