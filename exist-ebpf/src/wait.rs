//! Waits: what a thread of the target was off the CPU for, told once, when it runs again.
//!
//! `sched_switch` calls [`leaves`] and [`enters`] for threads of the target alone. The programs at a wake-up look the
//! woken thread up among those that have left; one of somebody else is not there, and that is all that it costs.
//!
//! What may interleave: a thread can be woken on one CPU while it is still going out on another. So the wake-up's words
//! are cleared when the thread comes in, never when it goes out, and a wake-up that is stamped before the switch counts
//! as at the switch.

use aya_ebpf::{
    bindings::BPF_RB_NO_WAKEUP, helpers::bpf_get_current_pid_tgid, macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use exist_common::{CpuState, Wait, flags, holder, takes_file, wait_flags};

use crate::{
    emit,
    frozen::frozen,
    maps::{WAITING, WAITS, Waiting},
    running::{Running, this_cpu},
    target,
    task::Task,
};

/// `TASK_DEAD`, include/linux/sched.h.
const DEAD: u16 = 0x80;
/// States that are told: those of the lowest byte, without `TASK_DEAD`. (`TASK_WAKEKILL`, `TASK_FREEZABLE` and such
/// qualify a state and are none.)
const STATES: u16 = 0x7f;

/// A thread of the target goes out. `why` and `state` are those of its switch record.
#[inline(always)]
pub fn leaves(cpu: &mut CpuState, prev: Task, now: u64, why: u8, state: u16) {
    if frozen!(waits) == 0 {
        return;
    }
    let key = prev.mark();
    if state & DEAD != 0 {
        let _ = WAITING.remove(&key);
        return;
    }
    let (syscall, arg0) = if prev.is_kernel() {
        (Wait::NO_SYSCALL, 0)
    } else {
        prev.syscall()
    };
    let state = (state & STATES) as u8;
    let file = if state != 0 && takes_file(syscall) {
        prev.file_type(arg0)
    } else {
        0
    };
    let mut bits = 0;
    if why & flags::PREEMPT != 0 {
        bits |= wait_flags::PREEMPT;
    }
    if prev.throttled() {
        bits |= wait_flags::THROTTLED;
    }
    let Some(waiting) = of(key) else {
        let new = Waiting {
            off_ns: now,
            arg0,
            syscall,
            file,
            state,
            flags: u64::from(bits),
            ..Waiting::NEW
        };
        if WAITING.insert(&key, &new, 0).is_err() {
            cpu.waiting_full += 1;
        }
        return;
    };
    waiting.off_ns = now;
    waiting.arg0 = arg0;
    waiting.syscall = syscall;
    waiting.file = file;
    waiting.state = state;
    waiting.flags = u64::from(bits);
}

/// A thread of the target comes in after `prev`.
#[inline(always)]
pub fn enters(cpu: &mut CpuState, next: Task, prev: Task, prev_is_target: bool, now: u64) {
    if frozen!(waits) == 0 {
        return;
    }
    let Some(waiting) = of(next.mark()) else {
        return;
    };
    let off_ns = waiting.off_ns;
    if off_ns != 0 {
        let holder_tid = prev.tid();
        let whose = if holder_tid == 0 {
            holder::IDLE
        } else if prev_is_target {
            holder::TARGET
        } else if prev.is_kernel() {
            holder::KERNEL
        } else {
            holder::OTHER
        };
        let record = Wait {
            off_ns,
            waking_ns: at_or_after(waiting.waking_ns, off_ns),
            runnable_ns: if waiting.state == 0 {
                off_ns
            } else {
                at_or_after(waiting.runnable_ns, off_ns)
            },
            run_ns: now,
            pid: next.pid(),
            tid: next.tid(),
            waker: waiting.waker,
            holder_tid,
            arg0: waiting.arg0,
            syscall: waiting.syscall,
            cpu: emit::cpu_number() as u16,
            holder: whose,
            flags: waiting.flags as u8,
            file: waiting.file,
            state: waiting.state,
            holder_cgroup: if whose == holder::OTHER {
                target::cgroup_id(prev)
            } else {
                0
            },
        };
        match WAITS.reserve(0) {
            Some(mut slot) => {
                slot.write(record);
                slot.submit(u64::from(BPF_RB_NO_WAKEUP));
            }
            None => cpu.waits_dropped += 1,
        }
    } else {
        // It is known, so it has gone out since it was made known, and nobody saw that.
        cpu.waits_missed += 1;
    }
    waiting.off_ns = 0;
    waiting.waking_ns = 0;
    waiting.runnable_ns = 0;
    waiting.waker = 0;
}

/// A thread of the target came in and nobody saw it: its wait ended at a time that is not known well enough.
#[inline(always)]
pub fn came_in(cpu: &mut CpuState, task: Task) {
    if frozen!(waits) == 0 {
        return;
    }
    if WAITING.remove(&task.mark()).is_ok() {
        cpu.waits_missed += 1;
    }
}

/// A thread has left the target: what it waits for is not told any more.
#[inline(always)]
pub fn forget(task: Task) {
    if frozen!(waits) != 0 {
        let _ = WAITING.remove(&task.mark());
    }
}

/// `sched_waking(struct task_struct *p)`: on the waker's CPU, interrupts off.
#[btf_tracepoint(function = "sched_waking")]
pub fn sched_waking(ctx: BtfTracePointContext) -> i32 {
    if let Some(waiting) = of(Task::argument(&ctx, 0).mark()) {
        waiting.waking_ns = emit::now_ns();
        waiting.waker = bpf_get_current_pid_tgid() as u32;
    }
    0
}

/// `sched_wakeup(struct task_struct *p)`: it stands on a run queue.
#[btf_tracepoint(function = "sched_wakeup")]
pub fn sched_wakeup(ctx: BtfTracePointContext) -> i32 {
    if let Some(waiting) = of(Task::argument(&ctx, 0).mark()) {
        waiting.runnable_ns = emit::now_ns();
    }
    0
}

/// `sched_wakeup_new(struct task_struct *p)`: a new thread stands on a run queue.
#[btf_tracepoint(function = "sched_wakeup_new")]
pub fn sched_wakeup_new(ctx: BtfTracePointContext) -> i32 {
    if Running::recording().is_none() {
        return 0;
    }
    let task = Task::argument(&ctx, 0);
    if !target::judge_apart(task) {
        return 0;
    }
    let new = Waiting {
        off_ns: emit::now_ns(),
        waker: bpf_get_current_pid_tgid() as u32,
        flags: u64::from(wait_flags::NEW),
        ..Waiting::NEW
    };
    if WAITING.insert(&task.mark(), &new, 0).is_err()
        && let Some(cpu) = this_cpu()
    {
        cpu.waiting_full += 1;
    }
    0
}

/// What is known of the thread.
#[inline(always)]
fn of(key: u64) -> Option<&'static mut Waiting> {
    // SAFETY: a place of a preallocated map. A waker and the switch may write different words of it at a time, and each
    // word is whole.
    WAITING.get_ptr_mut(&key).map(|waiting| unsafe { &mut *waiting })
}

/// A wake-up that overtook the switch-out is told as at it; 0 stays 0.
#[inline(always)]
fn at_or_after(time: u64, off_ns: u64) -> u64 {
    if time != 0 && time < off_ns { off_ns } else { time }
}
