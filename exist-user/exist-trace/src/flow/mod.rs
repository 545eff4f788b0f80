//! Switch records → what each thread did.
//!
//! Takes pieces of a trace file, gives steps in each CPU's order; what is not known is a step of its own, with its
//! bounds. Refuses nothing: records that contradict each other are counted.

pub mod sched;
pub mod state;
#[cfg(test)]
mod tests;
mod threads;

pub use sched::{Sched, Seen, Step, Why};
pub use threads::{Thread, ThreadIx, Threads};
