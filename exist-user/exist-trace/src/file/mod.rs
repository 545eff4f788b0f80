//! The trace file: events and chunks ↔ bytes.

pub mod model;
