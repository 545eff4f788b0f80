//! The trace file's reader and what reads from it: any bytes, as they are and with checksums made right.
#![no_main]

use exist_trace::{
    analysis::report::report,
    export::perfetto,
    file::{
        Pieces, Trace,
        layout::{ChunkHeader, HEADER_BYTES},
    },
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    read(data);
    // Without this, hardly an input would come past the checksums.
    let mut data = data.to_vec();
    seal(&mut data);
    read(&data);
});

/// Makes the checksums of every chunk right.
fn seal(data: &mut [u8]) {
    let mut at = 0;
    while let Some(header) = data
        .get_mut(at..)
        .and_then(|rest| rest.first_chunk_mut::<HEADER_BYTES>())
    {
        let crc = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
        header[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        let Ok(mut header) = ChunkHeader::from_bytes(header) else {
            return;
        };
        let body = at + HEADER_BYTES;
        let Some(payload) = data
            .get(body..)
            .and_then(|rest| rest.get(..header.payload_bytes as usize))
        else {
            return;
        };
        header.payload_crc = crc32c::crc32c(payload);
        data[at..body].copy_from_slice(&header.to_bytes());
        at = body + header.payload_bytes as usize;
    }
}

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
