//! The life of the target's threads: fork, exec, exit.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use exist_common::{Op, Record};

use crate::{
    emit,
    running::Running,
    target,
    task::{Task, argument},
    warning,
};

/// `sched_process_fork(struct task_struct *parent, struct task_struct *child)`: the child has its cgroup
/// (`cgroup_post_fork`) and has not run yet.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn sched_process_fork(ctx: BtfTracePointContext) -> i32 {
    life(Task::argument(&ctx, 1), Op::Fork, Task::argument(&ctx, 0).pid_tid());
    0
}

/// `sched_process_exec(struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)`.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn sched_process_exec(ctx: BtfTracePointContext) -> i32 {
    life(Task::argument(&ctx, 0), Op::Exec, u64::from(argument(&ctx, 1) as u32));
    0
}

/// `sched_process_exit(struct task_struct *task[, bool group_dead])`.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn sched_process_exit(ctx: BtfTracePointContext) -> i32 {
    life(Task::argument(&ctx, 0), Op::Exit, 0);
    0
}

#[inline(always)]
fn life(task: Task, op: Op, ip: u64) {
    let Some(here) = Running::recording() else {
        return;
    };
    if target::judge_apart(task) {
        emit::life(
            here.cpu,
            Record {
                time_ns: 0,
                ip,
                pid: task.pid(),
                tid: task.tid(),
                cpu: 0,
                op: op as u8,
                flags: 0,
                state: 0,
                seq: 0,
            },
        );
        warning::of_life(here.cpu);
    }
}
