//! Switch records → what each thread did.
//!
//! Takes pieces of a trace file, gives steps in each CPU's order; what is inferred is marked, what is not known is a
//! step of its own.

pub mod state;
