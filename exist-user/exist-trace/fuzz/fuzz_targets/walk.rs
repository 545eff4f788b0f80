//! Any packets over any code: a walk ends, and every step lies within the bytes.
#![no_main]

use exist_trace::{
    flow::segments::Segments,
    image::NoCode,
    pt::{Errata, Packets, TimeLine},
    walk::{Code, Walker},
};
use libfuzzer_sys::fuzz_target;

const BASE: u64 = 0x1000;

fuzz_target!(|data: &[u8]| {
    let [model, len, data @ ..] = data else { return };
    let (code, stream) = data.split_at(data.len().min(usize::from(*len)));
    let errata = Errata::of("GenuineIntel", 6, u32::from(*model));
    let mut code = Code::new(|ip: u64| {
        let bytes = usize::try_from(ip.wrapping_sub(BASE)).ok().and_then(|at| code.get(at..));
        bytes.filter(|b| !b.is_empty()).ok_or(NoCode::Unmapped)
    });
    for step in Walker::new(Packets::new(stream, 0, errata), u64::MAX, &mut code) {
        assert!(step.offset <= stream.len() as u64);
    }
    let segments = Segments::read(Packets::new(stream, 0, errata), &TimeLine::default());
    for segment in &segments.segments {
        assert!(segment.start <= segment.end && segment.end <= stream.len() as u64);
        let packets = Packets::new(stream, segment.start, errata);
        let steps = Walker::resume(packets, segment.end, &mut code, segment.resume);
        assert!(steps.last().is_none_or(|s| s.offset <= stream.len() as u64));
    }
});
