//! Any bytes are packets or an error with an offset inside them; time brackets are in order.
#![no_main]

use exist_trace::{
    pt::{Errata, Packets, TimeLine, TimeSettings, psbs, text::assemble},
    units::Tsc,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [model, data @ ..] = data else { return };
    let errata = Errata::of("GenuineIntel", 6, u32::from(*model));
    let mut packets = Packets::new(data, 0, errata);
    let mut last = None;
    loop {
        match packets.next() {
            Some(Ok(located)) => {
                assert!(last.is_none_or(|offset| offset < located.offset));
                last = Some(located.offset);
                // What is shown can be read again.
                assemble(&located.packet.to_string()).expect("a packet's text is a packet");
            }
            Some(Err(error)) => {
                assert!(error.offset() < data.len() as u64);
                if !packets.resync(error.offset() + 1) {
                    break;
                }
                // A PSB that was taken for the rest of a packet before it is gone back to.
                last = None;
            }
            None => break,
        }
    }
    assert!(psbs(data).all(|offset| offset + 16 <= data.len() as u64));
    let settings = TimeSettings { mtc_period: model & 15, art: (167, 2), nonturbo_ratio: 20, reference: Tsc(1 << 60) };
    let line = TimeLine::read(Packets::new(data, 0, errata), u64::MAX, &settings);
    for offset in 0..data.len() as u64 {
        let bracket = line.at(offset);
        assert!(bracket.lo <= bracket.hi);
    }
});
