//! The system below: perf events, clocks, CPUs, scheduling, limits. The only room with `unsafe` and libc.

pub mod clock;
pub mod cpu;
pub mod memlock;
pub mod perf;
pub mod rt;
