//! Bytes → generations. What cannot be read is an item in the stream, with its offset, and reading goes on after it.
//!
//! Time is linear in the input and memory is bounded (see `layout`), whatever the bytes are.

use memchr::memmem::Finder;

use super::{
    decode::decode,
    layout::{ChunkHeader, HEADER_BYTES, MAGIC, MAX_PAYLOAD_BYTES, NoHeader, VERSION},
    model::Generation,
    wire::Malformed,
};

/// Bytes that gave no generation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause} (offset {offset}, {bytes} bytes)")]
pub struct ReadError {
    /// Where they begin in the file.
    pub offset: u64,
    /// How many were skipped.
    pub bytes: u64,
    /// The chunk's header, where that is intact: it says which span of time is missing.
    pub chunk: Option<ChunkHeader>,
    pub cause: Cause,
}

/// Why bytes gave no generation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    #[error("not a trace of exist: no chunk in it")]
    NotATrace,
    #[error("the file is cut within a chunk")]
    Cut,
    #[error("damaged: no chunk where one should begin")]
    NoChunk,
    #[error("damaged chunk: its checksum is wrong")]
    Checksum,
    #[error("damaged chunk: it is shorter than its length")]
    Short,
    #[error("chunk of format {0}, and this program reads up to {VERSION}: use a newer exist")]
    Version(u16),
    #[error("chunk of another recording ({found:016x}, not {expected:016x}): separate the files")]
    OtherRecording { found: u64, expected: u64 },
    #[error("malformed chunk: {0}")]
    Malformed(Malformed),
}

/// Iterates over the generations of a file.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    recording_id: Option<u64>,
    /// Bytes that may still be checksummed in vain; bounds the work that nested false headers can cause.
    in_vain: usize,
}

impl<'a> Reader<'a> {
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            at: 0,
            recording_id: None,
            in_vain: data.len().saturating_mul(2),
        }
    }

    /// Offset of the next chunk.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.at as u64
    }

    fn chunk(&mut self, header: ChunkHeader) -> Result<Generation, ReadError> {
        let offset = self.at;
        let body = offset + HEADER_BYTES;
        let len = header.payload_bytes as usize;
        let Some(payload) = self.data.get(body..body + len).filter(|_| len <= MAX_PAYLOAD_BYTES) else {
            return Err(self.skip(Some(header), Cause::Short, body));
        };
        if crc32c::crc32c(payload) != header.payload_crc {
            let end = body + len;
            let whole = end == self.data.len() || ChunkHeader::from_bytes(&self.data[end..]).is_ok();
            let from = if whole || len > self.in_vain { end } else { body };
            self.in_vain = self.in_vain.saturating_sub(len);
            return Err(self.skip(Some(header), Cause::Checksum, from));
        }
        self.at = body + len;
        let error = |cause| ReadError {
            offset: offset as u64,
            bytes: (HEADER_BYTES + len) as u64,
            chunk: Some(header),
            cause,
        };
        let expected = *self.recording_id.get_or_insert(header.recording_id);
        if header.recording_id != expected {
            return Err(error(Cause::OtherRecording {
                found: header.recording_id,
                expected,
            }));
        }
        if header.version > VERSION {
            return Err(error(Cause::Version(header.version)));
        }
        decode(&header, payload, body as u64).map_err(|e| error(Cause::Malformed(e)))
    }

    /// Goes on at the first chunk header at or after `from`.
    fn skip(&mut self, chunk: Option<ChunkHeader>, cause: Cause, from: usize) -> ReadError {
        let offset = self.at;
        let next = next_header(self.data, from);
        self.at = next.unwrap_or(self.data.len());
        let cause = match next {
            None if cause == Cause::Short => Cause::Cut,
            None if offset == 0 && chunk.is_none() => Cause::NotATrace,
            _ => cause,
        };
        ReadError {
            offset: offset as u64,
            bytes: (self.at - offset) as u64,
            chunk,
            cause,
        }
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Generation, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.data.get(self.at..).filter(|rest| !rest.is_empty())?;
        Some(match ChunkHeader::from_bytes(rest) {
            Ok(header) => self.chunk(header),
            Err(NoHeader::Short) => Err(self.skip(None, Cause::Short, self.data.len())),
            Err(NoHeader::Magic | NoHeader::Crc) => Err(self.skip(None, Cause::NoChunk, self.at + 1)),
        })
    }
}

fn next_header(data: &[u8], from: usize) -> Option<usize> {
    let rest = data.get(from..)?;
    let magic = Finder::new(&MAGIC);
    let mut found = magic.find_iter(rest).map(|i| from + i);
    found.find(|&i| ChunkHeader::from_bytes(&data[i..]).is_ok())
}
