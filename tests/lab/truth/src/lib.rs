//! The ground truth of a lab run: takes what the plugin saw a vCPU do, gives it back as records and as taken branches.
//!
//! One file for each vCPU. Refuses a file with a wrong magic, an unknown record or a block that was never defined;
//! a file that was cut short gives what was whole and then an error with its offset.
//!
//! ```text
//! header   "EXLABTR1" · cpu u32 · 0 u32 · tsc_hz u64                         (little endian, 24 bytes)
//! records  head varint; bit 0 clear: a block ran    id = head >> 1 · tsc delta varint
//!                       bit 0 set:   something else kind = head >> 1 · tsc delta varint · fields (see `Record`)
//! ```
//!
//! Varints are LEB128, unsigned. A delta counts from the record before it; the first counts from 0. The TSC is the
//! guest's own (what RDTSC answers and what TSC packets carry).
#![forbid(unsafe_code)]

mod branches;
mod reader;
mod record;
mod verdict;
mod visits;
mod writer;

pub use branches::{Branch, Branches, Edge};
pub use reader::{Error, Item, Reader};
pub use record::{Block, Class, Exit, HEADER_BYTES, Header, MAGIC, Record};
pub use verdict::{Begin, Owner, Piece, Tally, Verdict};
pub use visits::{Step, Traced, Visit, Visits};
pub use writer::Writer;
