//! Whose process IDs a procfs shows.

use std::{fs, path::Path};

use super::Process;
use crate::sys::roots::Roots;

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const INITIAL: &str = "pid:[4026531836]";

/// The PID namespace of a procfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidNamespace {
    /// The one in which the kernel's own records count.
    Initial,
    /// A container's.
    Other,
    /// It cannot be told without CAP_SYS_PTRACE.
    Unknown,
}

/// That of [`Roots::proc`].
#[must_use]
pub fn pid_namespace(roots: &Roots) -> PidNamespace {
    let own = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let init = fs::read_link(roots.proc_file("1/ns/pid")).unwrap_or_default();
    let is_shown = Process::new(roots, 1).comm().is_ok();
    judge(&init, &own, is_shown)
}

/// `init`: of the procfs's process 1, empty if it cannot be read; `own`: ours; `is_shown`: whether the procfs shows a process 1.
fn judge(init: &Path, own: &Path, is_shown: bool) -> PidNamespace {
    let readable = !init.as_os_str().is_empty();
    if init == Path::new(INITIAL) || !readable && own == Path::new(INITIAL) {
        PidNamespace::Initial
    } else if !readable && is_shown {
        PidNamespace::Unknown
    } else {
        PidNamespace::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_procfs_decides_and_our_own_namespace_where_it_is_silent() {
        let check = |init: &str, own: &str, is_shown, expect| {
            assert_eq!(
                judge(Path::new(init), Path::new(own), is_shown),
                expect,
                "{init} {own} {is_shown}"
            );
        };
        let other = "pid:[4026532177]";
        check(INITIAL, INITIAL, true, PidNamespace::Initial);
        // The host's procfs in a container.
        check(INITIAL, other, true, PidNamespace::Initial);
        check("", INITIAL, true, PidNamespace::Initial);
        check(other, other, true, PidNamespace::Other);
        check("", other, true, PidNamespace::Unknown);
        check("", other, false, PidNamespace::Other);
    }
}
