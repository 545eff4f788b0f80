//! Flow on simulated CPUs whose every segment has a known owner.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Flow, Functions, Owner, Streams,
    simulation::{CODE, Plan, Run, run, tid},
};
use crate::{
    file::{
        Trace,
        model::{Generation, LossKind, SwitchOp},
    },
    image::{Image, Symbols},
    pt::psbs,
    units::{Cpu, Tid},
    walk::What,
};

fn flow(generation: &Generation) -> (Flow, Image) {
    let g = generation.clone();
    let trace = Trace {
        header: g.header,
        start: g.start,
        end: g.end,
        clock_pairs: g.clock_pairs,
        threads: g.threads,
        names: g.names,
        mappings: g.mappings,
        waits: Vec::new(),
        records: g.records,
        counters: g.counters,
        losses: g.losses,
        ops: g.ops,
        images: g.images,
        end_of_recording: g.end_of_recording,
    };
    let image = Image::new(&trace, |_| Ok(Arc::from(CODE)));
    let mut streams = Streams::default();
    g.pt.iter().for_each(|chunk| streams.push(chunk));
    (Flow::new(&trace, streams, &image).unwrap(), image)
}

/// Every segment that is given to a thread is that thread's, with its very branches. Gives the share that is not given.
fn check(plan: &Plan) -> f64 {
    let Run { generation, truth } = run(plan);
    let (flow, image) = flow(&generation);
    let cpu = &flow.cpus[0];
    assert_eq!(cpu.segments.errors, [0u64; 0]);
    assert_eq!(cpu.segments.segments.len(), truth.len(), "seed {}", plan.seed);
    let mut unsure = 0;
    let mut expect: BTreeMap<Tid, Vec<(u64, u64)>> = BTreeMap::new();
    for (i, (owner, (true_tid, branches))) in cpu.owners.iter().zip(&truth).enumerate() {
        match owner {
            Owner::Ambiguous => unsure += 1,
            Owner::Foreign => assert_eq!(*true_tid, 0, "seed {}, segment {i}", plan.seed),
            owner => {
                assert_eq!(tid(*owner), Some(Tid(*true_tid)), "seed {}, segment {i}", plan.seed);
                expect.entry(Tid(*true_tid)).or_default().extend(branches);
            }
        }
    }
    for (tid, expect) in &expect {
        let mut got = Vec::new();
        flow.walk(*tid, &image, |s| match s.step.what {
            What::Branch { from, to, .. } => got.push((from, to)),
            What::Error { .. } => panic!("{s:x?}"),
            _ => {}
        });
        assert_eq!(got, *expect, "seed {}, thread {tid}", plan.seed);
    }
    let coverage = flow.coverage();
    assert_eq!(coverage.ambiguous, unsure);
    assert!(
        coverage.traced_ns as f64 / coverage.on_cpu_ns as f64 > 0.99,
        "{coverage:?}"
    );
    assert_eq!(coverage.unsure_ns > 0, unsure > 0, "{coverage:?}");
    assert!(coverage.pt_share() > 0.99 || unsure > 0, "{coverage:?}");
    f64::from(unsure as u32) / truth.len() as f64
}

const PLAN: Plan = Plan {
    seed: 1,
    threads: 4,
    foreign: 0,
    rounds: 400,
    switches: 30,
    kernel_ticks: 4000,
};

#[test]
fn no_segment_is_given_to_a_thread_that_did_not_run_it() {
    for seed in 1..16 {
        check(&Plan { seed, ..PLAN });
        check(&Plan {
            seed,
            foreign: 2,
            ..PLAN
        });
        check(&Plan {
            seed,
            threads: 20,
            switches: 80,
            kernel_ticks: 400,
            ..PLAN
        });
    }
}

#[test]
fn with_time_to_tell_them_apart_nothing_is_ambiguous() {
    for seed in 1..8 {
        let share = check(&Plan {
            seed,
            kernel_ticks: 40_000,
            switches: 10,
            ..PLAN
        });
        assert!(share < 0.03, "seed {seed}: {share}");
    }
}

#[test]
fn system_calls_of_microseconds_are_still_mostly_known() {
    let shares: Vec<f64> = (1..8)
        .map(|seed| {
            check(&Plan {
                seed,
                threads: 20,
                kernel_ticks: 2500,
                switches: 40,
                ..PLAN
            })
        })
        .collect();
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    println!("ambiguous: {:.2} % of segments", mean * 100.0);
    assert!(mean < 0.35, "{mean}");
}

#[test]
fn missing_records_leave_their_segments_unattributed() {
    let Run { mut generation, truth } = run(&PLAN);
    let at = generation.records.len() / 2;
    let lost = generation.records[at];
    generation.records.remove(at);
    let (flow, _) = flow(&generation);
    let owners = &flow.cpus[0].owners;
    let (mut lost_count, mut wrong) = (0, 0);
    for (owner, (true_tid, _)) in owners.iter().zip(&truth) {
        lost_count += usize::from(*owner == Owner::Lost);
        wrong += usize::from(tid(*owner).is_some_and(|t| t != Tid(*true_tid)));
    }
    assert_eq!(wrong, 0, "{lost:?}");
    assert!(lost_count > 0 || lost.op() == Some(SwitchOp::In), "{lost:?}");
}

#[test]
fn overflows_and_damage_are_losses_with_their_place_and_time() {
    let Run { mut generation, .. } = run(&PLAN);
    let bytes = &mut generation.pt[0].bytes;
    let places: Vec<u64> = psbs(bytes).collect();
    let (first, second) = (places[places.len() / 3] as usize, places[places.len() / 2] as usize);
    // From the end, so that offsets before it stay.
    bytes.splice(second..second, [0x02, 0x01, 0x02]);
    bytes.splice(first..first, [0x02, 0xf3]);
    let (flow, _) = flow(&generation);
    let losses = flow.losses();
    let shape: Vec<_> = losses.iter().map(|l| (l.kind, l.cpu, l.bytes)).collect();
    assert_eq!(
        shape,
        [
            (LossKind::PtOverflow, Some(Cpu(0)), 0),
            (LossKind::PtDamaged, Some(Cpu(0)), 3),
        ],
        "{losses:?}"
    );
    let reasons = [format!("byte {first:#x} "), format!("byte {:#x} ", second + 2)];
    for (loss, place) in losses.iter().zip(reasons) {
        assert!(loss.reason.contains(&place), "{loss:?}");
    }
    let [overflow, damage] = &losses[..] else {
        unreachable!()
    };
    assert!(overflow.from <= overflow.to && overflow.to <= damage.to, "{losses:?}");
    let (start, end) = (
        generation.clock_pairs[0].mono,
        generation.clock_pairs[generation.clock_pairs.len() - 1].mono,
    );
    assert!(start < overflow.from && damage.to < end, "{losses:?}");
}

#[test]
fn spans_are_nested_and_calls_are_counted() {
    let Run { generation, truth } = run(&Plan { threads: 1, ..PLAN });
    let (flow, image) = flow(&generation);
    let mut symbols = Symbols::default();
    let mut functions = Functions::default();
    let mut spans = Vec::new();
    flow.spans(Tid(100), &image, &mut symbols, |s| {
        functions.add(&s);
        spans.push(s);
    });
    let calls: usize = truth
        .iter()
        .flat_map(|t| &t.1)
        .filter(|b| b.1 == 0x1020 || b.1 == 0x1030)
        .count();
    // The program has no symbols: all of it is one function of its module.
    let rows = functions.rows(&symbols);
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].name.as_str(), rows[0].calls), ("[program]", calls as u64));
    let ends = spans.iter().map(|s| s.end).max().unwrap();
    let base = spans.iter().find(|s| s.depth == 0).unwrap();
    assert_eq!((base.end, base.inferred), (ends, true));
    assert!(spans.iter().all(|s| s.start <= s.end && s.depth <= 1));
    let own: u64 = spans.iter().map(|s| s.self_ns).sum();
    assert_eq!(own, base.end.0 - base.start.0);
}
