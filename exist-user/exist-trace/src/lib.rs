//! Everything after the bytes exist: the trace file, and what is read from it.
//!
//! Pure: bytes come in as slices or through closures, and nothing here opens a file, starts a
//! thread or asks a clock. Each room takes one noun and gives the next; a room uses only rooms above it.
#![forbid(unsafe_code)]

pub mod units;
pub mod session;
pub mod file;
pub mod image;
pub mod pt;
pub mod walk;
pub mod flow;
pub mod analysis;
pub mod export;
