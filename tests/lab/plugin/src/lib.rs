//! The PT lab's plugin: takes what QEMU executes, gives the guest kernel an Intel PT whose packets describe it, and the
//! host a ground truth. `README.md` in tests/lab says what is faithful and what is missing.
//!
//! ```text
//! glue ─ blocks, events ─▶ flow ─ branches ─▶ tracer ─ packets ─▶ output ─▶ guest memory (ToPA) ─▶ apic (interrupt)
//!  ├─ CPUID ▶ cpuid          └─ records ─▶ truth file
//!  └─ RDMSR, WRMSR ▶ msr ─ enable, disable ─▶ tracer
//! ```
//!
//! Everything but `ffi`, `machine` and `glue` is pure and has its tests beside it.

pub mod apic;
pub mod block;
pub mod clock;
pub mod cpuid;
pub mod ffi;
pub mod flow;
mod glue;
pub mod machine;
pub mod msr;
pub mod output;
pub mod packet;
pub mod tracer;
pub mod vcpu;
