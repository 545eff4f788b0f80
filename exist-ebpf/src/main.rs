//! The BPF programs of exist: one file for each family of hooks.
//!
//! Takes: the kernel's tracepoints, and what user space froze ([`frozen`]) and keeps ([`maps::CONTROL`],
//! [`maps::TARGETS`]). Gives: records in the rings of the CPUs, notices, counters for each CPU. Refuses: to read
//! anything of a task before it is known to be the target's, but for its cgroup and number.
//!
//! What may interleave on one CPU. The kernel runs tracepoint programs with preemption off, and the
//! scheduler's with interrupts off; `snapshot` comes as an interrupt from another CPU. So `sched_switch` and
//! `snapshot`, the only writers of a CPU's state and ring, never meet there, and need no atomics.
//! Records of life have a ring of their own.
#![no_std]
#![no_main]

mod cgroup;
mod emit;
mod empty;
mod frozen;
mod maps;
mod process;
mod running;
mod sched_switch;
mod snapshot;
mod target;
mod task;
mod wait;
mod warning;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: the programs have no panic that is reached; the verifier would refuse one that could be.
    unsafe { core::hint::unreachable_unchecked() }
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
