//! The trace file: it round-trips, does not change unseen, and no input harms its reader.

mod sample;

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use exist_trace::file::{Cause, Generation, ReadError, Reader, Writer, layout::HEADER_BYTES};
use peak_alloc::PeakAlloc;

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
