//! Each context switch: one record for a task of the target that goes out, one for one that comes in.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use exist_common::flags;

use crate::{
    emit,
    frozen::frozen,
    running::Running,
    target,
    task::{Task, argument},
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
            let slot = emit::reserve::<2>();
            let now = emit::now_ns();
            let records = [out(&mut here, &ctx, prev, now), here.comes_in(next, now, 0)];
            emit::write(here.cpu, slot, records);
        }
        (true, false) => {
            let slot = emit::reserve::<1>();
            let record = out(&mut here, &ctx, prev, emit::now_ns());
            emit::write(here.cpu, slot, [record]);
        }
        (false, true) => {
            let slot = emit::reserve::<1>();
            let record = here.comes_in(next, emit::now_ns(), 0);
            emit::write(here.cpu, slot, [record]);
        }
    }
    0
}

#[inline(always)]
fn out(here: &mut Running, ctx: &BtfTracePointContext, prev: Task, now: u64) -> exist_common::Record {
    let preempted = argument(ctx, 0) & 0xff != 0;
    // As the kernel's own trace and its counters of switches take it (`__schedule`): a preempted task is runnable
    // whatever state it was about to enter.
    let (why, state) = if preempted {
        (flags::PREEMPT, 0)
    } else if frozen!(has_prev_state) != 0 {
        (0, argument(ctx, 3) as u16)
    } else {
        (0, prev.state() as u16)
    };
    here.goes_out(Some(prev), now, why, state)
}
