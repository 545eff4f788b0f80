//! A CPU's PT bytes decoded with the code that ran, which the ground truth tells: takes both, gives a piece for each
//! stretch of user mode. Whose a stretch is comes from the truth too, so this is about the packets and the walk alone.

use std::collections::BTreeMap;

use exist_lab_truth::{Begin, Owner, Piece, Step as TrueStep, Verdict, Visits};
use exist_trace::{
    flow::{
        CpuFlow,
        cpu::Context,
        segments::{Entry, Segment},
    },
    image::{Image, NoCode},
    pt::{Errata, TimeSettings},
    units::{ClockMap, ClockPair, Cpu, MonoNs, Tsc},
    walk::{Code, Disabled, Start, Step, What},
};

/// One thread stands for all: whose the pieces are is not asked here.
pub const ALL: u64 = 1;

/// What the decoder made of a stream.
pub struct ByTruth {
    /// In the stream's order. A piece at whose place nothing ran has no steps.
    pub pieces: Vec<Piece>,
    /// The visit of each piece.
    pub visit_of: Vec<Option<usize>>,
    pub overflows: usize,
    /// What could not be decoded, in words.
    pub errors: Vec<String>,
}

/// Decodes the stream of a CPU. `reference`: any TSC shortly before its first; `mtc_period`: as it was programmed.
///
/// # Panics
/// Never with a `reference` below 2^63.
pub fn decode(cpu: u32, stream: Vec<u8>, truth: &Visits, reference: u64, mtc_period: u8) -> ByTruth {
    let pair = |tsc: u64| ClockPair {
        mono: MonoNs(tsc),
        tsc_before: Tsc(tsc),
        tsc_after: Tsc(tsc),
    };
    let clock = ClockMap::new(&[pair(reference), pair(reference + (1 << 40))], 0).expect("two readings are a map");
    let context = Context {
        image: &Image::default(),
        clock: &clock,
        time: TimeSettings {
            mtc_period,
            art: (204, 2),
            reference: Tsc(reference),
            ..TimeSettings::default()
        },
    };
    let flow = CpuFlow::new(Cpu(cpu), stream, Errata::of("GenuineIntel", 6, 94), &[], &context);
    let packets = flow.segments.errors.iter();
    let mut errors: Vec<String> = packets.map(|error| format!("cpu {cpu}: {error:x?}")).collect();

    // First by place and time alone, then with the code of the address space that the truth tells.
    let segments = &flow.segments.segments;
    let places: Vec<Piece> = segments.iter().map(|segment| piece(segment, None)).collect();
    let visit_of = Verdict::new(&truth.visits, &places, |_| true).visit_of;
    let mut codes = BTreeMap::new();
    for (space, blocks) in &truth.code {
        codes.insert(*space, Code::new(|ip| bytes(blocks, ip)));
    }
    let mut pieces = Vec::with_capacity(segments.len());
    for (segment, visit) in segments.iter().zip(&visit_of) {
        let space = visit.map(|visit| truth.visits[visit].cr3);
        let code = space.and_then(|space| codes.get_mut(&space));
        let mut steps = Vec::new();
        for step in code.into_iter().flat_map(|code| flow.walk(segment, code)) {
            if let What::Error { .. } = step.what {
                errors.push(format!("cpu {cpu}: {step:x?}"));
            }
            steps.extend(true_step(&step));
        }
        pieces.push(piece(segment, Some(steps)));
    }
    ByTruth {
        pieces,
        visit_of,
        overflows: flow.segments.overflows.len(),
        errors,
    }
}

fn piece(segment: &Segment, steps: Option<Vec<TrueStep>>) -> Piece {
    Piece {
        begin: match segment.entry {
            Entry::Enable(ip) => Begin::Entry(ip),
            Entry::Sync | Entry::Overflow => Begin::Within,
        },
        time: segment.entered.lo.0..=segment.entered.hi.0,
        owner: Owner::Thread(ALL),
        steps,
    }
}

fn bytes(blocks: &BTreeMap<u64, Vec<u8>>, ip: u64) -> Result<&[u8], NoCode> {
    // A block can begin within a longer one; the longest that reaches here gives the most.
    let near = blocks.range(..=ip).rev().take(64);
    let reach = |(start, code): (&u64, &'_ Vec<u8>)| (ip - start < code.len() as u64).then_some(*start);
    let start = near
        .filter_map(reach)
        .max_by_key(|start| start + blocks[start].len() as u64);
    let start = start.ok_or(NoCode::Unmapped)?;
    Ok(&blocks[&start][(ip - start) as usize..])
}

/// A step as the truth has it; what is none there is left out.
pub fn true_step(step: &Step) -> Option<TrueStep> {
    match step.what {
        What::Branch { from, to, .. } | What::Interrupted { at: from, to } => Some((from, to)),
        What::Enabled { ip, why: Start::Enable } => Some((0, ip)),
        What::Disabled(Disabled { at, .. }) => Some((at, 0)),
        _ => None,
    }
}
