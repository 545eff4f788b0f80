//! Whether a task is the target's.

use core::ffi::c_void;

use aya_ebpf::programs::BtfTracePointContext;
use exist_common::judge;

use crate::{
    frozen::frozen,
    maps::{TARGETS, VERDICT_BITS, VERDICTS, Verdict},
    task::{Task, argument, load},
};

/// A cgroup.
#[derive(Clone, Copy)]
pub struct Cgroup(*const c_void);

impl Cgroup {
    /// From a tracepoint's argument of type `struct cgroup *`.
    #[inline(always)]
    pub fn argument(ctx: &BtfTracePointContext, n: usize) -> Self {
        Self(argument(ctx, n) as *const c_void)
    }

    /// Of a task, in the hierarchy that decides.
    #[inline(always)]
    fn of(task: Task) -> Self {
        let set = task.cgroups();
        // SAFETY: the pointers come from typed fields of a typed task.
        Self(unsafe {
            if frozen!(judge) == judge::CGROUP1 {
                let css: *const c_void = load(set, frozen!(css_set_subsys));
                load(css, frozen!(css_cgroup))
            } else {
                load(set, frozen!(css_set_dfl_cgrp))
            }
        })
    }

    /// `kn->id`: what `stat` gives as the inode of its directory, never used again for another.
    #[inline(always)]
    pub fn id(self) -> u64 {
        // SAFETY: a cgroup is typed.
        unsafe {
            let kn: *const c_void = load(self.0, frozen!(cgroup_kn));
            load(kn, frozen!(kn_id))
        }
    }

    /// The cgroup above it, if it has one.
    #[inline(always)]
    pub fn parent(self) -> Option<Self> {
        // SAFETY: a cgroup is typed.
        unsafe {
            let css: *const c_void = load(self.0, frozen!(cgroup_self_parent));
            if css.is_null() {
                return None;
            }
            Some(Self(load(css, frozen!(css_cgroup))))
        }
    }

    /// Whether it is in the hierarchy that decides.
    #[inline(always)]
    pub fn decides(self) -> bool {
        // SAFETY: a cgroup is typed.
        let hierarchy: u32 = unsafe {
            let root: *const c_void = load(self.0, frozen!(cgroup_root));
            load(root, frozen!(root_hierarchy_id))
        };
        hierarchy == frozen!(hierarchy_id)
    }
}

/// ID of the cgroup that a task is in, in the hierarchy that decides.
#[inline(always)]
pub fn cgroup_id(task: Task) -> u64 {
    Cgroup::of(task).id()
}

/// Whether the cgroup with this ID is one of the target's.
#[inline(always)]
pub fn holds(id: u64) -> bool {
    // SAFETY: only whether there is a value is asked.
    unsafe { TARGETS.get(&id).is_some() }
}

/// The same by the CPU's memory of what it asked before: most switches are among few cgroups, and a look into the map
/// costs more than all the rest of a switch that is not the target's.
#[inline(always)]
fn remembers(id: u64, epoch: u64) -> bool {
    let Some(verdicts) = VERDICTS.get_ptr_mut(0) else {
        return holds(id);
    };
    // Fibonacci hashing: IDs of cgroups are inode numbers, with the same step from one to the next.
    let place = (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - VERDICT_BITS)) as usize;
    // SAFETY: the place is within the table, and no other program of this CPU uses it meanwhile (see `main`).
    let known = unsafe { &mut (*verdicts)[place] };
    if known.id != id || known.epoch != epoch {
        *known = Verdict {
            id,
            epoch,
            held: u64::from(holds(id)),
        };
    }
    known.held != 0
}

/// Whether the task is the target's, now. An idle task (thread 0) never is.
///
/// `epoch` is user space's: it changes when user space changes the set of targets. What the kernel side adds needs no new
/// epoch, as a new cgroup was never asked for before; nor what it removes, as an ID is not used again.
#[inline(always)]
pub fn judge(task: Task, epoch: u64) -> bool {
    if frozen!(judge) == judge::PROCESS {
        // Never 0, so never an idle task.
        task.pid() == frozen!(tgid)
    } else {
        task.tid() != 0 && remembers(Cgroup::of(task).id(), epoch)
    }
}

/// The same for programs that may interleave with `sched_switch`: they leave the CPU's memory alone.
#[inline(always)]
pub fn judge_apart(task: Task) -> bool {
    if frozen!(judge) == judge::PROCESS {
        task.pid() == frozen!(tgid)
    } else {
        holds(Cgroup::of(task).id())
    }
}
