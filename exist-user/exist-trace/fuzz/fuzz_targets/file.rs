//! The trace file's reader and what reads from it: any bytes, as they are and as the payload of a sound chunk.
#![no_main]

use exist_trace::{
    analysis::report::report,
    export::perfetto,
    file::{
        Pieces, Trace,
        layout::{ChunkHeader, HEADER_BYTES, VERSION},
    },
    units::MonoNs,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    read(data);
    // Without this, hardly an input would come past the checksums.
    let Ok(payload_bytes) = u32::try_from(data.len()) else { return };
    let header = ChunkHeader {
        version: VERSION,
        flags: 0,
        payload_bytes,
        recording_id: 0x1122_3344_5566_7788,
        number: 0,
        start: MonoNs(1_000_000_000_000),
        end: MonoNs(1_000_100_000_000),
        payload_crc: crc32c::crc32c(data),
    };
    let mut chunk = Vec::with_capacity(HEADER_BYTES + data.len());
    chunk.extend_from_slice(&header.to_bytes());
    chunk.extend_from_slice(data);
    read(&chunk);
});

fn read(data: &[u8]) {
    let _ = Trace::read(data);
    if let Ok(pieces) = Pieces::new(data) {
        let r = report(pieces);
        assert!(r.threads.iter().all(|t| t.on_cpu_ns <= t.on_cpu_max_ns));
    }
    if let Ok(pieces) = Pieces::new(data) {
        let _ = perfetto::write(pieces, std::io::sink());
    }
}
