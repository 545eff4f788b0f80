//! Processor trace: bytes → packets with offsets, places to start, and time.
//!
//! Takes a CPU's stream as a slice. Gives [`Packets`], the offsets of its [`psbs`], and a
//! [`TimeLine`] that brackets the time of any point of it. Refuses nothing that a processor could
//! send: bytes that are no packet give an error with their offset, and reading goes on at the next PSB.

mod decode;
mod errata;
mod packet;
mod stream;
pub mod text;
mod time;

pub use decode::{PSB, PacketError};
pub use errata::Errata;
pub use packet::{IpCompression, IpPayload, LastIp, Packet, Tnt};
pub use stream::{Located, Packets, find_psb, psbs};
pub use time::{TimeLine, TimeSettings};
