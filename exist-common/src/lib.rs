//! The wire between the BPF programs (`exist-ebpf`) and user space (`exist-user`).
//!
//! Takes: bytes that a BPF program wrote into a ring buffer or a map. Gives: plain data.
//! Refuses: a record of another length and an operation it does not know; it never panics.
//! Nothing here allocates, and every layout is little-endian, without padding, its size asserted.
#![no_std]
#![forbid(unsafe_code)]

mod frozen;
mod notice;
mod record;
pub mod ring;
mod state;
mod wait;
mod wait_kind;
mod words;

pub use frozen::{Frozen, judge};
pub use notice::{NOTICE_BYTES, Notice, NoticeKind};
pub use record::{Op, RECORD_BYTES, Record, WireError, flags};
pub use state::{Control, CpuState};
pub use wait::{WAIT_BYTES, Wait, holder, wait_flags};
pub use wait_kind::{WaitKind, takes_file};
