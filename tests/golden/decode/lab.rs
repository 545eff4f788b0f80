//! Samples of the PT lab: every step of every CPU against the ground truth. Whose a stretch is comes from the truth, so
//! this is about the packets and the walk alone.

use std::{collections::BTreeMap, fs, path::Path};

use exist_lab_truth::{Begin, Owner, Piece, Reader, Step as TrueStep, Traced, Verdict, Visit, Visits};
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
const ALL: u64 = 1;

/// What one CPU of a sample came to.
struct Found {
    verdict: Verdict,
    visits: Vec<Visit>,
    overflows: usize,
    stops: usize,
}

fn decode(folder: &Path, cpu: u32, mtc_period: u8) -> Option<Found> {
    let read = |kind: &str| fs::read(folder.join(format!("cpu{cpu}.{kind}")));
    let (stream, truth) = (read("pt").ok()?, read("truth").ok()?);
    let first = Reader::new(&truth).unwrap().next()?.unwrap().tsc;
    let truth = Visits::read(&truth).unwrap();
    assert!(truth.unexplained.is_empty());

    let pair = |tsc: u64| ClockPair {
        mono: MonoNs(tsc),
        tsc_before: Tsc(tsc),
        tsc_after: Tsc(tsc),
    };
    let clock = ClockMap::new(&[pair(first), pair(first + (1 << 40))], 0).unwrap();
    let context = Context {
        image: &Image::default(),
        clock: &clock,
        time: TimeSettings {
            mtc_period,
            art: (204, 2),
            reference: Tsc(first),
            ..TimeSettings::default()
        },
    };
    let flow = CpuFlow::new(Cpu(cpu), stream, Errata::of("GenuineIntel", 6, 94), &[], &context);
    assert!(flow.segments.errors.is_empty(), "{:x?}", flow.segments.errors);

    // First by place and time alone, then with the code of the address space that the truth tells.
    let segments = &flow.segments.segments;
    let places: Vec<Piece> = segments.iter().map(|segment| piece(segment, None)).collect();
    let places = Verdict::new(&truth.visits, &places, |_| true).visit_of;
    let mut codes = BTreeMap::new();
    for (space, blocks) in &truth.code {
        codes.insert(*space, Code::new(|ip| bytes(blocks, ip)));
    }
    let pieces: Vec<Piece> = segments
        .iter()
        .zip(&places)
        .map(|(segment, visit)| {
            let space = visit.map(|visit| truth.visits[visit].cr3);
            let steps = space.and_then(|space| codes.get_mut(&space)).map(|code| {
                let walked: Vec<Step> = flow.walk(segment, code).collect();
                for step in &walked {
                    assert!(!matches!(step.what, What::Error { .. }), "cpu {cpu}: {step:x?}");
                }
                walked.iter().filter_map(true_step).collect()
            });
            piece(segment, Some(steps.unwrap_or_default()))
        })
        .collect();
    assert_eq!(flow.segments.overflows.len(), truth.overflows);
    let mut visits = truth.visits;
    visits.iter_mut().for_each(|visit| visit.tid = ALL);
    Some(Found {
        verdict: Verdict::new(&visits, &pieces, |_| true),
        visits,
        overflows: truth.overflows,
        stops: truth.stops,
    })
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

fn true_step(step: &Step) -> Option<TrueStep> {
    match step.what {
        What::Branch { from, to, .. } | What::Interrupted { at: from, to } => Some((from, to)),
        What::Enabled { ip, why: Start::Enable } => Some((0, ip)),
        What::Disabled(Disabled { at, .. }) => Some((at, 0)),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Overflows {
    None,
    Some,
}

/// Decodes a sample; `overflows` says whether it holds any.
fn check(name: &str, mtc_period: u8, overflows: Overflows) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/lab")
        .join(name);
    let (mut exact, mut lost, mut overflowed) = (0, 0, 0);
    for cpu in 0..2 {
        let Some(found) = decode(&folder, cpu, mtc_period) else {
            continue;
        };
        let tally = found.verdict.threads.get(&ALL).copied().unwrap_or_default();
        println!("{name}, cpu {cpu}: {tally:?}");
        assert_eq!(
            tally.different, 0,
            "{name}, cpu {cpu}: {:#?}",
            found.verdict.differences
        );
        assert_eq!(tally.exact + tally.lost, tally.ran);
        assert_eq!(found.stops, 0);
        let whole = found.visits.iter().filter(|visit| visit.traced == Traced::Whole);
        assert!(tally.exact >= whole.map(|visit| visit.count).sum());
        exact += tally.exact;
        lost += tally.lost;
        overflowed += found.overflows;
    }
    assert!(exact > 1000, "{name}: only {exact} steps");
    assert_eq!(overflowed > 0, overflows == Overflows::Some);
    assert_eq!(lost > 0, overflows == Overflows::Some, "{name}: {lost} steps lost");
}

#[test]
fn one_thread() {
    check("single", 9, Overflows::None);
}

#[test]
fn every_form_of_packet() {
    check("forms", 0, Overflows::None);
}

#[test]
fn around_an_overflow() {
    check("overflow", 0, Overflows::Some);
}

#[test]
fn several_threads_on_two_cpus() {
    check("threads", 9, Overflows::None);
}
