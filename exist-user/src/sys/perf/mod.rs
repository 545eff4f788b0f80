//! Perf events: opened, mapped, drained and closed.
//!
//! Takes: which event on which CPU. Gives: records as bytes ([`SideBand::drain`]) and as plain data
//! ([`record::parse`]). Refuses: what the kernel refuses, with its error. Each descriptor and each mapping has one
//! owner and goes away with it.

mod aux;
mod event;
pub mod record;
mod ring;
mod side_band;

pub use aux::{AuxEvent, Step};
pub use event::Event;
pub use ring::Ring;
pub use side_band::{RING_BYTES, SideBand};
