//! Flow: switch records, and branches where there is processor trace → what each thread did.
//!
//! Takes pieces of a trace file, gives steps in each CPU's order; what is not known is a step of its own, with its
//! bounds. Refuses nothing: records that contradict each other are counted.
//! Takes a recording's streams and images beside them; gives, for every thread of the target, what it executed, its
//! call spans, and how much of it is known. Refuses to guess: a stretch that two threads can have executed is counted
//! as ambiguous and shown to neither; what is inferred is marked.

pub mod attribution;
pub mod cpu;
mod damage;
mod decoded;
mod functions;
mod runs;
pub mod sched;
pub mod segments;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod simulation;
pub mod spans;
pub mod state;
mod streams;
#[cfg(test)]
mod tests;
mod threads;
mod windows;

pub use attribution::{Counts, Owner};
pub use cpu::CpuFlow;
pub use decoded::{Coverage, Flow, ThreadStep, Told};
pub use functions::{FunctionRow, Functions};
pub use sched::{Sched, Seen, Step, Why};
pub use spans::Span;
pub use streams::Streams;
pub use threads::{Thread, ThreadIx, Threads};
pub use windows::{Window, Windows};
