//! The operating system: perf events, clocks, CPUs, processes, cgroups, limits. The only room that calls libc and may hold `unsafe`.
//!
//! Takes: paths, IDs, descriptors. Gives: plain data and owners that release on drop. Refuses: to decide anything.

pub mod bpf_map;
pub mod bpf_ring;
pub mod cgroupfs;
pub mod child;
pub mod clock;
pub mod cpu;
pub mod cpu_ring;
pub mod memlock;
pub mod memory;
pub mod perf;
pub mod poll;
pub mod privileges;
pub mod procfs;
pub mod pt;
pub mod regular;
pub mod roots;
pub mod rt;
pub mod watched;
