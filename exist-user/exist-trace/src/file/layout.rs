//! The bytes of a chunk's frame: header, section tags, limits. `FORMAT.md` beside this file is the description.
//!
//! Takes and gives bytes of one header; refuses headers whose magic or checksum is not right.

use crate::units::MonoNs;

/// First bytes of every chunk. The non-ASCII byte and the line ends show transfers that changed bytes, as in PNG.
pub const MAGIC: [u8; 8] = *b"\x89exist\r\n";
/// Version of the payload's layout that this program writes, and the newest that it reads.
pub const VERSION: u16 = 1;
/// Size of the chunk header, for every version.
pub const HEADER_BYTES: usize = 56;
/// [`ChunkHeader::flags`]: the last chunk of its recording.
pub const FLAG_LAST: u16 = 1;

/// The most payload of a chunk. Raw bytes and records may fill it; see [`MAX_TABLE_BYTES`] for the rest.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// The most bytes of a chunk's sections other than records, processor trace and images, in sum.
/// Decoding makes at most about twelve bytes of memory from each of these, so this bounds what a reader allocates.
pub const MAX_TABLE_BYTES: usize = 4 << 20;
/// The most bytes of the header's JSON.
pub const MAX_JSON_BYTES: usize = 1 << 20;
/// The most bytes of a CPU's vendor and kind, which every CPU repeats in memory.
pub const MAX_CPU_TEXT_BYTES: usize = 64;
/// The most logical CPUs (the kernel's largest `NR_CPUS`).
pub const MAX_CPUS: usize = 8192;

/// Size of a section's frame: tag and length.
pub const SECTION_BYTES: usize = 8;

/// Tags of sections. A reader skips the ones that it does not know.
pub mod tag {
    pub const STRINGS: [u8; 4] = *b"STRS";
    pub const HEADER: [u8; 4] = *b"HEAD";
    pub const CPUS: [u8; 4] = *b"CPUS";
    pub const CLOCKS: [u8; 4] = *b"CLKP";
    pub const THREADS: [u8; 4] = *b"THRD";
    pub const FILES: [u8; 4] = *b"FILE";
    pub const MAPPINGS: [u8; 4] = *b"MAPS";
    pub const NAMES: [u8; 4] = *b"NAME";
    pub const RECORDS: [u8; 4] = *b"RECS";
    pub const WAITS: [u8; 4] = *b"WAIT";
    pub const COUNTERS: [u8; 4] = *b"CNTR";
    pub const LOSSES: [u8; 4] = *b"LOSS";
    pub const OPS: [u8; 4] = *b"OPS ";
    pub const PT: [u8; 4] = *b"PT  ";
    pub const IMAGE: [u8; 4] = *b"IMAG";
}

/// The frame of a chunk, little-endian, the same for every version:
///
/// ```text
///  0       8         10      12            16             24       32         40       48            52          56
///  | magic | version | flags | payload_len | recording_id | number | start_ns | end_ns | payload_crc | header_crc | payload …
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    pub version: u16,
    pub flags: u16,
    pub payload_bytes: u32,
    pub recording_id: u64,
    /// The generation's number.
    pub number: u64,
    /// The generation's span: known even when its payload is damaged.
    pub start: MonoNs,
    pub end: MonoNs,
    /// CRC32C of the payload.
    pub payload_crc: u32,
}

/// Why bytes are not a chunk header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHeader {
    /// Fewer than [`HEADER_BYTES`], and all of them could begin a header.
    Short,
    Magic,
    Crc,
}

impl ChunkHeader {
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&self.version.to_le_bytes());
        out[10..12].copy_from_slice(&self.flags.to_le_bytes());
        out[12..16].copy_from_slice(&self.payload_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.recording_id.to_le_bytes());
        out[24..32].copy_from_slice(&self.number.to_le_bytes());
        out[32..40].copy_from_slice(&self.start.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.end.0.to_le_bytes());
        out[48..52].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&out[..52]);
        out[52..56].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// [`NoHeader`] says which check failed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NoHeader> {
        let Some(b) = bytes.first_chunk::<HEADER_BYTES>() else {
            let n = bytes.len().min(MAGIC.len());
            return Err(if bytes[..n] == MAGIC[..n] {
                NoHeader::Short
            } else {
                NoHeader::Magic
            });
        };
        if b[..8] != MAGIC {
            return Err(NoHeader::Magic);
        }
        if crc32c::crc32c(&b[..52]) != u32_at(b, 52) {
            return Err(NoHeader::Crc);
        }
        Ok(Self {
            version: u16::from_le_bytes([b[8], b[9]]),
            flags: u16::from_le_bytes([b[10], b[11]]),
            payload_bytes: u32_at(b, 12),
            recording_id: u64_at(b, 16),
            number: u64_at(b, 24),
            start: MonoNs(u64_at(b, 32)),
            end: MonoNs(u64_at(b, 40)),
            payload_crc: u32_at(b, 48),
        })
    }
}

fn u32_at(b: &[u8; HEADER_BYTES], i: usize) -> u32 {
    u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]])
}

fn u64_at(b: &[u8; HEADER_BYTES], i: usize) -> u64 {
    u64::from(u32_at(b, i)) | u64::from(u32_at(b, i + 4)) << 32
}
