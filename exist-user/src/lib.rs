//! The node side: from the kernel's events to the trace file.
//!
//! The order of the rooms is the flow; a room uses only rooms above it.

pub mod sys;
pub mod target;
pub mod hook;
pub mod control;
pub mod alloc;
pub mod capture;
pub mod aggregate;
pub mod spool;
pub mod agent;
pub mod cli;
