//! The trace file: generations ↔ bytes.
//!
//! Takes generations and gives a stream of chunks with checksums, without seeking; takes bytes and gives
//! generations, with an error in place of what cannot be read. Refuses to write what a reader would refuse,
//! and to splice recordings. `FORMAT.md` beside this file describes the bytes.

mod decode;
mod encode;
mod gaps;
pub mod layout;
pub mod model;
mod pieces;
mod reader;
mod trace;
mod wire;
mod writer;

pub use encode::TooLarge;
pub use gaps::Gap;
pub use model::{Generation, Header};
pub use pieces::{Piece, Pieces};
pub use reader::{Cause, ReadError, Reader};
pub use trace::Trace;
pub use wire::Malformed;
pub use writer::{WriteError, Writer};
