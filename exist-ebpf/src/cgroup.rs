//! Keeps the set of the target's cgroups, and notes tasks that are moved.
//!
//! All of these tracepoints fire with interrupts off (`TRACE_CGROUP_PATH`).

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use exist_common::{NoticeKind, Op, Record, flags};

use crate::{
    emit,
    maps::{BELOW, MOVES, ROOT, TARGETS},
    running::{self, Running},
    target::{self, Cgroup},
    task::{Task, argument},
    warning,
};

/// How many levels above a new cgroup are looked at. Any ancestor counts, not the parent alone: user space inserts the
/// roots first and walks down from there, so a cgroup made ahead of the walk is still found.
const LEVELS: usize = 16;

/// `cgroup_mkdir(struct cgroup *cgrp, const char *path)`.
#[btf_tracepoint(function = "cgroup_mkdir")]
pub fn cgroup_mkdir(ctx: BtfTracePointContext) -> i32 {
    let made = Cgroup::argument(&ctx, 0);
    if !made.decides() {
        return 0;
    }
    let mut above = made;
    for _ in 0..LEVELS {
        let Some(parent) = above.parent() else {
            return 0;
        };
        if target::holds(parent.id()) {
            add(made.id());
            return 0;
        }
        above = parent;
    }
    0
}

#[inline(always)]
fn add(id: u64) {
    if TARGETS.insert(&id, &BELOW, 0).is_err()
        && let Some(cpu) = running::this_cpu()
    {
        cpu.targets_full += 1;
        emit::notice(cpu, NoticeKind::TargetsFull, 0, id);
        warning::targets_full(id);
        warning::of_notices(cpu);
    }
}

/// `cgroup_rmdir(struct cgroup *cgrp, const char *path)`: no task can enter it any more.
#[btf_tracepoint(function = "cgroup_rmdir")]
pub fn cgroup_rmdir(ctx: BtfTracePointContext) -> i32 {
    let removed = Cgroup::argument(&ctx, 0);
    let id = removed.id();
    // SAFETY: the value of a removed cgroup does not change any more.
    if removed.decides()
        && unsafe { TARGETS.get(&id) } == Some(&ROOT)
        && let Some(cpu) = running::this_cpu()
    {
        emit::notice(cpu, NoticeKind::TargetRemoved, 0, id);
        warning::of_notices(cpu);
    }
    0
}

/// `cgroup_release(struct cgroup *cgrp, const char *path)`: its last task is gone, an exiting one too.
#[btf_tracepoint(function = "cgroup_release")]
pub fn cgroup_release(ctx: BtfTracePointContext) -> i32 {
    let gone = Cgroup::argument(&ctx, 0);
    if gone.decides() {
        // Most are not the target's, so most are not there.
        let _ = TARGETS.remove(&gone.id());
    }
    0
}

/// `cgroup_attach_task(struct cgroup *dst_cgrp, const char *path, struct task_struct *task, bool threadgroup)`:
/// the move has been made.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub fn cgroup_attach_task(ctx: BtfTracePointContext) -> i32 {
    let to = Cgroup::argument(&ctx, 0);
    if !to.decides() {
        return 0;
    }
    let task = Task::argument(&ctx, 2);
    let threadgroup = argument(&ctx, 3) & 0xff != 0;
    let (pid, tid) = (task.pid(), task.tid());
    // The time first, then the epoch that makes every CPU look at it. A full LRU map makes room by itself.
    if MOVES
        .insert(if threadgroup { &pid } else { &tid }, &emit::now_ns(), 0)
        .is_err()
    {
        warning::moves_full(pid);
    }
    running::count_move();
    let Some(here) = Running::recording() else {
        return 0;
    };
    let enters = target::holds(to.id());
    emit::life(
        here.cpu,
        Record {
            time_ns: 0,
            ip: 0,
            pid,
            tid,
            cpu: 0,
            op: if enters { Op::AttachIn } else { Op::AttachOut } as u8,
            flags: if threadgroup { flags::THREADGROUP } else { 0 },
            state: 0,
            seq: 0,
        },
    );
    if enters {
        emit::notice(
            here.cpu,
            NoticeKind::Attached,
            u64::from(pid) << 32 | u64::from(tid),
            to.id(),
        );
        warning::of_notices(here.cpu);
    }
    warning::of_life(here.cpu);
    0
}
