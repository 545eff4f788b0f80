//! Judges the task that runs here, out of turn: user space runs this on the CPUs that it chooses, when recording
//! begins and ends, when a period begins, and after a task was moved.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use exist_common::flags;

use crate::{emit, running::Running, task::Task};

/// Never attached: run by `BPF_PROG_TEST_RUN`, which on another CPU is an interrupt there.
#[raw_tracepoint]
pub fn snapshot(_ctx: RawTracePointContext) -> i32 {
    let task = Task::current();
    match Running::recording() {
        Some(mut here) => {
            here.catch_up(task);
            if here.cpu.target != 0 {
                here.note_seen(emit::now_ns());
            }
        }
        None => end(task),
    }
    0
}

/// Recording has ended: the target's task that still runs here goes out.
#[inline(always)]
fn end(task: Task) {
    let Some(mut here) = Running::ended() else {
        return;
    };
    if here.cpu.target != 0 {
        let end = here.control.end_ns;
        let at = if end > here.cpu.last_ns { end } else { here.cpu.last_ns };
        let room = emit::reserve::<1>(here.cpu);
        let record = here.goes_out(task.user_ip(), at, flags::END, 0);
        emit::write(here.cpu, room, [record]);
    }
    here.cpu.epoch = 0;
}
