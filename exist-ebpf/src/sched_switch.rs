//! Each context switch: one record for a task of the target that goes out, one for one that comes in.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use exist_common::flags;

use crate::{
    emit,
    frozen::frozen,
    running::Running,
    target,
    task::{Task, argument},
    wait,
};

/// `sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next[, unsigned int prev_state])`.
/// The current task is still `prev`.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let Some(mut here) = Running::recording() else {
        return 0;
    };
    let prev = Task::argument(&ctx, 1);
    let next = Task::argument(&ctx, 2);
    here.catch_up(prev);
    here.cpu.task = next.mark();
    let leaves = here.cpu.target != 0;
    let enters = target::judge(next, here.targets_epoch);
    match (leaves, enters) {
        (false, false) => {}
        (true, true) => {
            let room = emit::reserve::<2>(here.cpu);
            let (left, resumes) = (prev.user_ip(), next.user_ip());
            let (why, state) = reason(&ctx, prev);
            let now = emit::now_ns();
            let records = [
                here.goes_out(left, now, why, state),
                here.comes_in(next, resumes, now, 0),
            ];
            emit::write(here.cpu, room, records);
            wait::leaves(here.cpu, prev, now, why, state);
            wait::enters(here.cpu, next, prev, true, now);
        }
        (true, false) => {
            let room = emit::reserve::<1>(here.cpu);
            let left = prev.user_ip();
            let (why, state) = reason(&ctx, prev);
            let now = emit::now_ns();
            let record = here.goes_out(left, now, why, state);
            emit::write(here.cpu, room, [record]);
            wait::leaves(here.cpu, prev, now, why, state);
        }
        (false, true) => {
            let room = emit::reserve::<1>(here.cpu);
            let resumes = next.user_ip();
            let now = emit::now_ns();
            let record = here.comes_in(next, resumes, now, 0);
            emit::write(here.cpu, room, [record]);
            wait::enters(here.cpu, next, prev, false, now);
        }
    }
    0
}

/// Flags and state of the record of the task that goes out.
#[inline(always)]
fn reason(ctx: &BtfTracePointContext, prev: Task) -> (u8, u16) {
    let preempted = argument(ctx, 0) & 0xff != 0;
    // As the kernel's own trace and its counters of switches take it (`__schedule`): a preempted task is runnable
    // whatever state it was about to enter.
    if preempted {
        (flags::PREEMPT, 0)
    } else if frozen!(has_prev_state) != 0 {
        (0, argument(ctx, 3) as u16)
    } else {
        (0, prev.state() as u16)
    }
}
