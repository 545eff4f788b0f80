//! The operating system: the only room that calls libc and may hold `unsafe`.
//!
//! Takes: paths, IDs, descriptors. Gives: plain data and owners that release on drop. Refuses: to decide anything.

pub mod cgroupfs;
pub mod child;
pub mod procfs;
pub mod roots;
