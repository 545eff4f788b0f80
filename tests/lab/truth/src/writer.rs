//! Records → bytes, into a `Vec` that the caller empties.

use crate::record::{Header, MAGIC, Record};

/// Encodes the records of one vCPU.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    last_tsc: u64,
}

impl Writer {
    /// A writer whose first bytes are the header.
    pub fn new(header: Header) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&header.cpu.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&header.tsc_hz.to_le_bytes());
        Self { bytes, last_tsc: 0 }
    }

    /// The bytes since the last `clear`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets the bytes, once they are stored; the time goes on.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends one record. A time before the last one counts as the last one.
    pub fn push(&mut self, tsc: u64, record: &Record) {
        let delta = tsc.saturating_sub(self.last_tsc);
        self.last_tsc += delta;
        match record {
            Record::Ran { id } => {
                self.varint(id << 1);
                self.varint(delta);
            }
            Record::Define { id, block } => {
                self.head(0, delta);
                self.varint(*id);
                self.varint(block.start);
                self.varint(u64::from(block.last));
                self.bytes.push(block.class as u8);
                self.varint(block.code.len() as u64);
                self.bytes.extend_from_slice(&block.code);
            }
            Record::Cut { end } => self.fields(1, delta, &[*end]),
            Record::Thread { tid, cr3, fs_base } => self.fields(2, delta, &[*tid, *cr3, *fs_base]),
            Record::Leave { exit, from } => self.fields(3, delta, &[*exit as u64, *from]),
            Record::RtitCtl { value } => self.fields(4, delta, &[*value]),
            Record::Pmi => self.fields(5, delta, &[]),
            Record::OvfBegin => self.fields(6, delta, &[]),
            Record::OvfEnd { bytes } => self.fields(7, delta, &[*bytes]),
            Record::Mark { value } => self.fields(8, delta, &[*value]),
            Record::On => self.fields(9, delta, &[]),
            Record::Off => self.fields(10, delta, &[]),
            Record::Unexplained { from, to } => self.fields(11, delta, &[*from, *to]),
            Record::Stopped => self.fields(12, delta, &[]),
        }
    }

    fn fields(&mut self, kind: u64, delta: u64, fields: &[u64]) {
        self.head(kind, delta);
        for field in fields {
            self.varint(*field);
        }
    }

    fn head(&mut self, kind: u64, delta: u64) {
        self.varint(kind << 1 | 1);
        self.varint(delta);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}
