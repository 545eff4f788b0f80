//! A program that does nothing: what the kernel's bookkeeping alone costs, for the benches.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

/// At `sched_switch`.
#[btf_tracepoint(function = "sched_switch")]
pub fn empty(_ctx: BtfTracePointContext) -> i32 {
    0
}
