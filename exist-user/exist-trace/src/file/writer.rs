//! Generations → bytes, into anything that implements `Write`. Never seeks.

use std::io::{self, Write};

use super::{
    encode::{TooLarge, encode},
    layout::{ChunkHeader, FLAG_LAST, HEADER_BYTES, VERSION},
    model::Generation,
};

/// Why a generation was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing was written.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The sink refused it. A part of the chunk may have been written: a reader skips it, and later chunks are readable.
    #[error("failed to write the trace: {0}")]
    Sink(#[from] io::Error),
}

/// Writes a trace file, a chunk for each generation.
#[derive(Debug)]
pub struct Writer<W> {
    sink: W,
    /// Reused between chunks.
    chunk: Vec<u8>,
    written_bytes: u64,
}

impl<W: Write> Writer<W> {
    pub const fn new(sink: W) -> Self {
        Self {
            sink,
            chunk: Vec::new(),
            written_bytes: 0,
        }
    }

    /// Writes one chunk in a single `write_all`; gives its size in bytes.
    ///
    /// # Errors
    /// [`WriteError::TooLarge`] before anything is written; [`WriteError::Sink`] with the sink's own error
    /// (disk full, for example): the writer can be used further.
    pub fn write(&mut self, generation: &Generation) -> Result<u64, WriteError> {
        self.chunk.clear();
        self.chunk.resize(HEADER_BYTES, 0);
        encode(generation, &mut self.chunk)?;
        let payload = &self.chunk[HEADER_BYTES..];
        let header = ChunkHeader {
            version: VERSION,
            flags: if generation.end_of_recording.is_some() {
                FLAG_LAST
            } else {
                0
            },
            payload_bytes: u32::try_from(payload.len()).expect("encode keeps to MAX_PAYLOAD_BYTES"),
            recording_id: generation.header.recording_id,
            number: generation.number,
            start: generation.start,
            end: generation.end,
            payload_crc: crc32c::crc32c(payload),
        };
        self.chunk[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        self.sink.write_all(&self.chunk)?;
        self.written_bytes += self.chunk.len() as u64;
        Ok(self.chunk.len() as u64)
    }

    /// Bytes of all chunks that the sink took whole.
    pub const fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    pub const fn get_ref(&self) -> &W {
        &self.sink
    }

    pub const fn get_mut(&mut self) -> &mut W {
        &mut self.sink
    }

    pub fn into_inner(self) -> W {
        self.sink
    }
}
