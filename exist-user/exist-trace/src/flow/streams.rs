//! Chunks of processor trace → one stream for each CPU.

use std::collections::BTreeMap;

use crate::{file::model::PtBytes, units::Cpu};

/// The stream of each CPU. Where bytes are missing stands one that starts no packet, so that packets on both sides
/// are not joined: a decoder goes on at the next PSB.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    pub(super) cpus: BTreeMap<Cpu, Vec<u8>>,
    next: BTreeMap<Cpu, u64>,
}

/// Starts no packet.
const NO_PACKET: u8 = 0xc9;
/// `PERF_AUX_FLAG_TRUNCATED` (include/uapi/linux/perf_event.h): the buffer was full at the end of these bytes.
const TRUNCATED: u64 = 1;

impl Streams {
    /// Appends a chunk; those of a CPU come in its order.
    pub fn push(&mut self, chunk: &PtBytes) {
        let stream = self.cpus.entry(chunk.cpu).or_default();
        let next = self.next.entry(chunk.cpu).or_insert(chunk.offset);
        if *next != chunk.offset {
            stream.push(NO_PACKET);
        }
        stream.extend_from_slice(&chunk.bytes);
        *next = chunk.offset + chunk.bytes.len() as u64;
        if chunk.aux_flags & TRUNCATED != 0 {
            stream.push(NO_PACKET);
        }
    }

    /// Each CPU's bytes.
    pub fn iter(&self) -> impl Iterator<Item = (Cpu, &[u8])> {
        self.cpus.iter().map(|(cpu, bytes)| (*cpu, bytes.as_slice()))
    }
}
