//! Samples of the PT lab: every step of every CPU against the ground truth. Whose a stretch is comes from the truth, so
//! this is about the packets and the walk alone.

use std::{fs, path::Path};

use exist_lab_truth::{Reader, Traced, Verdict, Visit, Visits};

#[path = "../../lab/decode/by_truth.rs"]
mod by_truth;

use by_truth::ALL;

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
    let decoded = by_truth::decode(cpu, stream, &truth, first, mtc_period);
    assert_eq!(decoded.errors, [""; 0]);
    assert_eq!(decoded.overflows, truth.overflows);
    assert!(decoded.visit_of.iter().flatten().is_sorted(), "one stream, one order");
    let mut visits = truth.visits;
    visits.iter_mut().for_each(|visit| visit.tid = ALL);
    Some(Found {
        verdict: Verdict::new(&visits, &decoded.pieces, |_| true),
        visits,
        overflows: truth.overflows,
        stops: truth.stops.len(),
    })
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
