//! The rings of switch records, one for each possible CPU, in memory that the programs on that CPU write and user space
//! reads.
//!
//! All are one BPF array map that user space maps: no helper is called to write a record, and nothing is locked.
//!
//! ```text
//!  slot of CPU c:  c × stride                 + READER        + FIRST               (c + 1) × stride
//!                 | reserved | written |  …  | read |    …   | 2^n records          |
//!                   the programs' line         user space's
//! ```
//! The three words count records since the ring was made; record `i` is in slot `FIRST + i % 2^n`. The programs say in
//! `reserved` how far they are about to write, stamp and write the records, then say so in `written`. So whoever reads the
//! clock, and then finds both words equal, has everything that was stamped before: to within [`STORE_NS`].

/// A slot: the words of one record, or of a header.
pub type Slot = [u64; 4];

/// Slot of the programs' words.
pub const WRITER: u32 = 0;
/// In slot [`WRITER`]: the count of records that are written or about to be.
pub const RESERVED: usize = 0;
/// In slot [`WRITER`]: the count of records that are written.
pub const WRITTEN: usize = 1;
/// Slot of user space's word, in a cache line of its own.
pub const READER: u32 = 2;
/// In slot [`READER`]: the count of records whose room is given back.
pub const READ: usize = 0;
/// Slot of the first record: the headers have a page of 4 KiB, so that each ring can be mapped by itself.
pub const FIRST: u32 = 128;
/// The least room, in records: a page.
pub const LEAST_RECORDS: u32 = 128;

/// Slots of each CPU, with room for `records` (a power of two).
#[must_use]
pub const fn stride(records: u32) -> u32 {
    FIRST + records
}

/// A store may become visible to other CPUs after a later reading of the clock, by as long as it stays in the store
/// buffer: some hundred nanoseconds (and not longer when the CPU is taken away meanwhile, as the buffer drains by
/// itself). A locked instruction would forbid that, and is not to be had for BPF in stable Rust; the reader waits instead.
pub const STORE_NS: u64 = 20_000;

const _: () = assert!(size_of::<Slot>() == crate::RECORD_BYTES);
