//! The trace file: it round-trips, does not change unseen, and no input harms its reader.

mod sample;
mod simulate;

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use exist_trace::{
    analysis::report::report,
    export::perfetto,
    file::{
        Cause, Generation, Pieces, ReadError, Reader, Trace, WriteError, Writer,
        layout::{ChunkHeader, HEADER_BYTES, MAX_PAYLOAD_BYTES},
        model::{CpuInfo, Mapping, WAIT_BYTES, Wait},
    },
    units::{Cpu, MonoNs},
};
use peak_alloc::PeakAlloc;
use simulate::Random;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const LIMIT_BYTES: usize = 64 << 20;
const LIMIT: Duration = Duration::from_secs(1);

fn written(generations: &[Generation]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for generation in generations {
        writer.write(generation).expect("the sample fits a chunk");
    }
    writer.into_inner()
}

/// Reads all of `data` within the limits.
fn read(data: &[u8]) -> Vec<Result<Generation, ReadError>> {
    // One reader at a time: the peak is the process's.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let start = Instant::now();
    let items: Vec<_> = Reader::new(data).collect();
    let (took, peak) = (start.elapsed(), MEMORY.peak_usage().saturating_sub(before));
    assert!(took < LIMIT, "{took:?} for {} bytes", data.len());
    assert!(peak < LIMIT_BYTES, "{peak} bytes of memory for {} bytes", data.len());
    let mut at = 0;
    for error in items.iter().filter_map(|i| i.as_ref().err()) {
        assert!(error.offset >= at && error.bytes > 0, "{error:?}");
        at = error.offset + error.bytes;
        assert!(at <= data.len() as u64, "{error:?}");
    }
    items
}

/// Where each chunk ends.
fn ends(generations: &[Generation]) -> Vec<usize> {
    (1..=generations.len())
        .map(|n| written(&generations[..n]).len())
        .collect()
}

fn good(items: &[Result<Generation, ReadError>]) -> Vec<u64> {
    items.iter().flatten().map(|g| g.number).collect()
}

#[test]
fn every_field_round_trips() {
    let recording = sample::recording();
    let back: Vec<_> = read(&written(&recording)).into_iter().map(Result::unwrap).collect();
    assert_eq!(back, recording);
}

#[test]
fn waits_round_trip_and_half_of_one_is_refused() {
    let mut recording = sample::recording();
    for (generation, n) in recording.iter_mut().zip(1..) {
        let wait = |i: usize| Wait::from_bytes(&std::array::from_fn::<u8, WAIT_BYTES, _>(|b| (b + i) as u8)).unwrap();
        generation.waits = (0..n).map(wait).collect();
    }
    let data = written(&recording);
    let back: Vec<_> = read(&data).into_iter().map(Result::unwrap).collect();
    assert_eq!(back, recording);

    // The first generation has one: its section made a byte shorter, its last byte a section of its own would begin.
    let one = &recording[..1];
    let mut data = written(one);
    let at = data.windows(4).position(|tag| tag == b"WAIT").unwrap();
    data[at + 4..at + 8].copy_from_slice(&(WAIT_BYTES as u32 - 1).to_le_bytes());
    let header = ChunkHeader::from_bytes(&data).unwrap();
    let payload_crc = crc32c::crc32c(&data[HEADER_BYTES..]);
    data[..HEADER_BYTES].copy_from_slice(&ChunkHeader { payload_crc, ..header }.to_bytes());
    let error = read(&data).remove(0).unwrap_err();
    assert!(error.to_string().contains("waits that are not whole"), "{error}");
}

/// `EXIST_BLESS=1` writes the golden file anew: only with a new version, or before the first release.
#[test]
fn the_format_is_that_of_the_golden_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/v1.exist");
    let now = written(&sample::recording());
    if std::env::var_os("EXIST_BLESS").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let golden = std::fs::read(path).unwrap();
    assert!(
        golden == now,
        "the format changed: old traces would not be read the same"
    );
    assert_eq!(good(&read(&golden)), [0, 1, 2]);
}

#[test]
fn cut_anywhere_only_the_last_chunk_is_missing() {
    let data = written(&sample::recording());
    let ends = ends(&sample::recording());
    for len in 0..data.len() {
        let items = read(&data[..len]);
        let whole = ends.iter().filter(|&&end| end <= len).count();
        assert_eq!(good(&items).len(), whole, "{len}");
        let last = ends[..whole].last().copied().unwrap_or(0);
        let errors: Vec<_> = items.into_iter().filter_map(Result::err).collect();
        if len == last {
            assert_eq!(errors, [], "{len}");
            continue;
        }
        assert_eq!(errors.len(), 1, "{len}");
        assert_eq!(
            (errors[0].offset, errors[0].bytes),
            (last as u64, (len - last) as u64),
            "{len}"
        );
        assert_eq!(errors[0].cause, Cause::Cut, "{len}");
        assert_eq!(errors[0].chunk.is_some(), len - last >= HEADER_BYTES, "{len}");
    }
}

#[test]
fn a_byte_flipped_anywhere_costs_one_chunk_and_is_said() {
    let recording = sample::recording();
    let data = written(&recording);
    let ends = ends(&recording);
    for at in 0..data.len() {
        for bits in [0x01, 0x80, 0xff] {
            let mut bad = data.clone();
            bad[at] ^= bits;
            let items = read(&bad);
            let hit = ends.iter().filter(|&&end| end <= at).count();
            let begin = if hit == 0 { 0 } else { ends[hit - 1] };
            let rest: Vec<u64> = (0..3).filter(|&n| n != hit as u64).collect();
            assert_eq!(good(&items), rest, "{at} ^ {bits}");
            let errors: Vec<_> = items.into_iter().filter_map(Result::err).collect();
            assert_eq!(errors.len(), 1, "{at} ^ {bits}: {errors:?}");
            assert_eq!(errors[0].offset, begin as u64, "{at} ^ {bits}");
        }
    }
}

/// All that reads a file, within the limits.
fn digest(data: &[u8]) {
    read(data);
    let before = MEMORY.current_usage();
    let start = Instant::now();
    if let Ok(pieces) = Pieces::new(data) {
        let r = report(pieces);
        assert!(r.threads.iter().all(|t| t.on_cpu_ns <= t.on_cpu_max_ns));
        let pieces = Pieces::new(data).expect("it was read before");
        perfetto::write(pieces, std::io::sink()).expect("a sink takes all");
        Trace::read(data).expect("it was read before");
    }
    assert!(start.elapsed() < LIMIT * 3, "{:?}", start.elapsed());
    assert!(MEMORY.current_usage().saturating_sub(before) < LIMIT_BYTES);
}

/// Makes the checksums of every chunk right again, so that mutations reach what is behind them.
fn seal(data: &mut [u8]) {
    let mut at = 0;
    while let Some(header) = data.get(at..at + HEADER_BYTES) {
        let Ok(mut header) = ChunkHeader::from_bytes(header) else {
            return;
        };
        let body = at + HEADER_BYTES;
        let Some(payload) = data.get(body..body + header.payload_bytes as usize) else {
            return;
        };
        header.payload_crc = crc32c::crc32c(payload);
        data[at..body].copy_from_slice(&header.to_bytes());
        at = body + header.payload_bytes as usize;
    }
}

#[test]
fn mutations_do_no_harm() {
    let whole = written(&sample::recording());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..300 {
        let mut data = whole.clone();
        for _ in 0..1 + random.below(6) {
            let at = random.below(data.len() as u64) as usize;
            match random.below(4) {
                0 => data[at] = random.below(256) as u8,
                1 => data[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                2 => data[at] = data[random.below(data.len() as u64) as usize],
                _ => {
                    let (from, to) = (at.min(data.len() - 8), random.below(data.len() as u64 - 8) as usize);
                    data.copy_within(from..from + 8, to);
                }
            }
        }
        digest(&data);
        seal(&mut data);
        digest(&data);
    }
}

#[test]
fn false_headers_within_each_other_cost_no_more_than_their_bytes() {
    let mut data = Vec::new();
    while data.len() < 4 << 20 {
        let header = ChunkHeader {
            version: 1,
            flags: 0,
            payload_bytes: (3 << 20) - 1,
            recording_id: 1,
            number: 0,
            start: MonoNs(0),
            end: MonoNs(0),
            payload_crc: 0,
        };
        data.extend_from_slice(&header.to_bytes());
    }
    assert!(good(&read(&data)).is_empty());
}

#[test]
fn the_largest_tables_fit_into_memory() {
    let mut generation = sample::recording().remove(0);
    let mapping = generation.mappings[0].clone();
    let path: std::sync::Arc<str> = "p".repeat(100_000).into();
    generation.mappings = (0..400_000)
        .map(|_| Mapping {
            start: 0,
            len: 0,
            offset: 0,
            path: path.clone(),
            ..mapping.clone()
        })
        .collect();
    let data = written(std::slice::from_ref(&generation));
    let items = read(&data);
    assert_eq!(items[0].as_ref().map(|g| g.mappings.len()), Ok(400_000));
}

#[test]
fn what_a_reader_would_refuse_is_not_written() {
    let mut generation = sample::recording().remove(0);
    generation.pt[0].bytes = vec![0; MAX_PAYLOAD_BYTES + 1];
    let mut writer = Writer::new(Vec::new());
    assert!(matches!(writer.write(&generation), Err(WriteError::TooLarge(_))));
    assert!(writer.into_inner().is_empty());
}

#[test]
fn a_sink_that_is_full_is_said_and_later_chunks_are_readable() {
    /// Takes so many bytes, then says that it is full; once.
    struct Disk(Vec<u8>, Option<usize>);
    impl std::io::Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let room = self.1.map_or(bytes.len(), |room| room.min(bytes.len()));
            if room == 0 {
                self.1 = None;
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(&bytes[..room]);
            self.1 = self.1.map(|left| left - room);
            Ok(room)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let recording = sample::recording();
    let mut writer = Writer::new(Disk(Vec::new(), Some(2000)));
    let said: Vec<_> = recording.iter().map(|g| writer.write(g)).collect();
    assert!(
        matches!(&said[..], [Ok(_), Err(WriteError::Sink(e)), Ok(_)] if e.kind() == std::io::ErrorKind::StorageFull)
    );
    assert_eq!(good(&read(&writer.into_inner().0)), [0, 2]);
}

#[test]
fn other_recordings_and_newer_versions_are_said_never_spliced() {
    let ours = written(&sample::recording());
    let mut others = sample::recording();
    others.iter_mut().for_each(|g| g.header.recording_id += 1);
    let items = read(&[ours.clone(), written(&others)].concat());
    assert_eq!(good(&items), [0, 1, 2]);
    let causes: Vec<_> = items.into_iter().filter_map(Result::err).map(|e| e.cause).collect();
    let other = Cause::OtherRecording {
        found: sample::RECORDING + 1,
        expected: sample::RECORDING,
    };
    assert_eq!(causes, vec![other; 3]);

    let mut newer = ours.clone();
    let mut header = ChunkHeader::from_bytes(&newer).expect("the first chunk");
    header.version = 2;
    newer[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    let items = read(&newer);
    assert_eq!(
        (good(&items), items[0].as_ref().err().map(|e| &e.cause)),
        (vec![1, 2], Some(&Cause::Version(2)))
    );
}

#[test]
fn a_quiet_generation_is_small() {
    let mut generation = sample::recording().remove(1);
    generation.records.clear();
    generation.mappings.clear();
    generation.pt.clear();
    generation.images.clear();
    let cpu = generation.header.node.cpus[0].clone();
    generation.header.node.cpus = (0..192)
        .map(|n| CpuInfo {
            cpu: Cpu(n),
            ..cpu.clone()
        })
        .collect();
    assert!(written(&[generation]).len() < 1200);
}
