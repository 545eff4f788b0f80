//! Real recordings: branches and instructions against what other decoders found in them.

use std::fs;

use exist_trace::{
    image::NoCode,
    pt::{Errata, Packets, find_psb},
    walk::{Code, Disabled, Start, Step, WalkError, Walker, What},
};

use super::captures::folder;

/// Code of an executable whose first segment, at file offset 0, is at `base`.
pub fn fetch<'a>(file: &'a [u8], base: u64, len: usize) -> impl FnMut(u64) -> Result<&'a [u8], NoCode> {
    let text = &file[..len];
    move |ip| {
        let offset = usize::try_from(ip.wrapping_sub(base))
            .ok()
            .and_then(|at| text.get(at..));
        offset.filter(|bytes| !bytes.is_empty()).ok_or(NoCode::Unmapped)
    }
}

/// The bytes of all AUXTRACE events of a perf.data (tools/perf/Documentation/perf.data-file-format.txt).
fn auxtrace(perf_data: &[u8]) -> Vec<u8> {
    const AUXTRACE: u32 = 71;
    let u64_at = |at: usize| u64::from_le_bytes(perf_data[at..at + 8].try_into().unwrap()) as usize;
    assert_eq!(&perf_data[..8], b"PERFILE2");
    let (mut at, end) = (u64_at(40), u64_at(40) + u64_at(48));
    let mut bytes = Vec::new();
    while at < end {
        let kind = u32::from_le_bytes(perf_data[at..at + 4].try_into().unwrap());
        at += usize::from(u16::from_le_bytes(perf_data[at + 6..at + 8].try_into().unwrap()));
        if kind == AUXTRACE {
            // Its payload, whose size its first field gives, follows the event.
            let header = at - 48;
            bytes.extend_from_slice(&perf_data[at..at + u64_at(header + 8)]);
            at += u64_at(header + 8);
        }
    }
    bytes
}

/// `from to` in hexadecimal; 0 for what is not user mode.
fn branch(step: &Step) -> Option<(u64, u64)> {
    match step.what {
        What::Branch { from, to, .. } | What::Interrupted { at: from, to } => Some((from, to)),
        What::Enabled { ip, why: Start::Enable } => Some((0, ip)),
        What::Disabled(Disabled { at, .. }) => Some((at, 0)),
        _ => None,
    }
}

#[test]
fn the_branches_of_a_skylake_recording_are_those_that_perf_found() {
    let Some(folder) = folder("hase") else { return };
    let read = |name: &str| fs::read(folder.join(name)).unwrap();
    let elf = read("control_flow.20180404.elf");
    let stream = auxtrace(&read("control_flow-20180404T163033.perf"));
    let expect = String::from_utf8(read("control_flow-20180404T163033.trace")).unwrap();
    let expect: Vec<(u64, u64)> = expect
        .lines()
        .map(|line| {
            let (from, to) = line.split_once('\t').unwrap();
            (
                u64::from_str_radix(from, 16).unwrap(),
                u64::from_str_radix(to, 16).unwrap(),
            )
        })
        .collect();
    let mut code = Code::new(fetch(&elf, 0x40_0000, 0xabc));
    let packets = Packets::new(&stream, 0, Errata::of("GenuineIntel", 6, 94));
    let steps: Vec<Step> = Walker::new(packets, u64::MAX, &mut code).collect();
    let errors: Vec<&Step> = steps.iter().filter(|s| matches!(s.what, What::Error { .. })).collect();
    assert!(errors.is_empty(), "{errors:x?}");
    let got: Vec<(u64, u64)> = steps.iter().filter_map(branch).collect();
    let first = got.iter().zip(&expect).position(|(a, b)| a != b);
    assert_eq!(got.len(), expect.len(), "first difference at {first:?}");
    assert_eq!(
        first,
        None,
        "ours {:x?}, theirs {:x?}",
        got[first.unwrap()],
        expect[first.unwrap()]
    );
    println!("{} branches", got.len());
}

const SKYLAKE_SERVER: fn() -> Errata = || Errata::of("GenuineIntel", 6, 85);

/// Instructions up to the first error, and again from the PSB that follows it.
///
/// A walk starts again as soon as a packet says where execution is; the figures that are compared come from a
/// decoder that waits for a PSB.
fn count_from_psbs(stream: &[u8], elf: &[u8]) -> u64 {
    let mut instructions = 0;
    let mut from = Some(0);
    while let Some(psb) = from {
        let mut code = Code::new(fetch(elf, 0x40_0000, 0x1f82));
        let packets = Packets::new(stream, psb, SKYLAKE_SERVER());
        let mut steps = Vec::new();
        for step in Walker::new(packets, u64::MAX, &mut code) {
            steps.push(step);
            if let What::Error { .. } = step.what {
                break;
            }
        }
        from = steps.last().and_then(|last| find_psb(stream, last.offset + 1));
        instructions += count(steps.into_iter(), elf).0;
    }
    instructions
}

/// Instructions on the straight lines between steps.
pub fn count(steps: impl Iterator<Item = Step>, elf: &[u8]) -> (u64, Vec<Step>) {
    let mut code = Code::new(fetch(elf, 0x40_0000, 0x1f82));
    let (mut instructions, mut errors) = (0, Vec::new());
    let mut next = None;
    let mut run = |next: Option<u64>, to: u64, with_last: bool| {
        let mut ip = next.unwrap_or(to);
        let mut n = 0;
        while next.is_some() && (ip < to || with_last && ip == to) {
            let Ok(instruction) = code.instruction(ip) else { break };
            ip = instruction.next_ip();
            n += 1;
        }
        n
    };
    for step in steps {
        match step.what {
            What::Enabled { ip, .. } => next = Some(ip),
            What::Branch { from, to, .. } => {
                instructions += run(next, from, true);
                next = Some(to);
            }
            What::Interrupted { at, to } => {
                instructions += run(next, at, false);
                next = Some(to);
            }
            What::Disabled(disabled) => {
                instructions += run(next, disabled.at, !disabled.asynchronous);
                next = None;
            }
            What::Error { ip, .. } => {
                instructions += run(next, ip, false);
                next = None;
                errors.push(step);
            }
            What::End { ip } => instructions += run(next, ip, false),
            What::Overflow => next = None,
            What::Event { .. } => {}
        }
    }
    (instructions, errors)
}

#[test]
fn the_instructions_of_two_skylake_server_cores_are_as_many_as_libipt_found() {
    let Some(folder) = folder("lldb-multi-core") else {
        return;
    };
    let elf = fs::read(folder.join("modules/m.out")).unwrap();
    for (cpu, expect) in [(45, 61_825), (51, 19_521)] {
        let stream = fs::read(folder.join(format!("cores/{cpu}.intelpt_trace"))).unwrap();
        // The files end with a line end.
        let stream = stream.strip_suffix(b"\n").unwrap_or(&stream);
        let mut code = Code::new(fetch(&elf, 0x40_0000, 0x1f82));
        let packets = Packets::new(stream, 0, SKYLAKE_SERVER());
        let (all, errors) = count(Walker::new(packets, u64::MAX, &mut code), &elf);
        let got = count_from_psbs(stream, &elf);
        println!(
            "cpu {cpu}: {got} instructions before errors, {all} in all, {} errors",
            errors.len()
        );
        for error in &errors {
            // Only the executable is at hand, not the libraries.
            assert!(
                matches!(
                    error.what,
                    What::Error {
                        error: WalkError::NoCode(_),
                        ..
                    }
                ),
                "{error:x?}"
            );
        }
        assert_eq!(got, expect, "cpu {cpu}");
    }
}
