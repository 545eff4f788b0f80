//! The report against the truth of a made-up machine: exact where nothing is lost, within its bounds where something is.

mod simulate;

use std::time::Instant;

use exist_trace::{
    analysis::report::{Report, report},
    file::{Generation, Pieces, Writer, model::flags},
};
use simulate::{Plan, Truth, simulate};

fn written(generations: &[Generation]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for generation in generations {
        writer.write(generation).expect("a made-up generation fits a chunk");
    }
    writer.into_inner()
}

fn plan(seed: u64, drop_one_in: u64) -> Plan {
    Plan {
        seed,
        cpus: 1 + (seed % 5) as u16,
        threads: 12,
        records: 20_000,
        drop_one_in,
        records_a_generation: 500,
    }
}

fn read(data: &[u8]) -> Report {
    report(Pieces::new(data).expect("it has good chunks"))
}

/// Every thread's truth lies within its bounds.
fn assert_within(r: &Report, truth: &Truth, what: &str) {
    for t in &r.threads {
        let true_ns = truth.on_cpu_ns.get(&t.tid).copied().unwrap_or(0);
        let (low, high) = (t.on_cpu_ns, t.on_cpu_max_ns);
        assert!(
            low <= true_ns && true_ns <= high,
            "{what}: thread {}: {low} <= {true_ns} <= {high}",
            t.tid
        );
    }
}

#[test]
fn exact_when_nothing_is_lost() {
    for seed in 1..20 {
        let (generations, truth) = simulate(&plan(seed, 0));
        let r = read(&written(&generations));
        for t in &r.threads {
            assert_eq!(
                Some(&t.on_cpu_ns),
                truth.on_cpu_ns.get(&t.tid),
                "seed {seed}: thread {}",
                t.tid
            );
            assert_eq!(t.on_cpu_max_ns, t.on_cpu_ns);
            assert_eq!(
                t.switches,
                truth.switches.get(&t.tid).copied().unwrap_or(0),
                "seed {seed}: thread {}",
                t.tid
            );
        }
        assert_eq!(
            (r.threads.len(), r.losses.len(), r.blind_ns),
            (truth.on_cpu_ns.len(), 0, 0)
        );
    }
}

#[test]
fn within_bounds_when_records_were_dropped() {
    for seed in 1..20 {
        let (generations, truth) = simulate(&plan(seed, 400));
        let r = read(&written(&generations));
        assert!(
            truth.dropped > 0 && r.blind_ns > 0 && r.blind_ns < r.period_ns / 5,
            "{}",
            r.blind_ns
        );
        assert_within(&r, &truth, &format!("seed {seed}"));
        assert_eq!(r.cpus.iter().map(|c| c.lost).sum::<u64>(), truth.dropped, "seed {seed}");
        assert!(
            r.losses.iter().all(|l| l.kind == "ring_full"),
            "seed {seed}: the recorder's losses account for all"
        );
    }
}

#[test]
fn within_bounds_when_chunks_are_damaged_and_missing() {
    for seed in 1..20 {
        let (generations, truth) = simulate(&plan(seed, 0));
        let mut chunks: Vec<_> = generations.iter().map(|g| written(std::slice::from_ref(g))).collect();
        let (damaged, missing) = (1 + seed as usize % 20, 25);
        let at = chunks[damaged].len() / 2;
        chunks[damaged][at] ^= 1;
        chunks.remove(missing);
        let r = read(&chunks.concat());
        assert_within(&r, &truth, &format!("seed {seed}"));
        assert_eq!(
            r.losses.iter().map(|l| l.kind).collect::<Vec<_>>(),
            ["file_damaged"; 2],
            "seed {seed}"
        );
        // A cut tail says nothing about the time after it: compare with the truth of what is there.
        let cut = read(&chunks[..20].concat());
        assert_eq!(cut.losses.last().map(|l| l.kind), Some("file_cut"));
    }
}

/// Ten million records: `cargo test --release -p exist-trace --test report -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement: takes a minute without optimization"]
fn ten_million_records() {
    let plan = Plan {
        seed: 3,
        cpus: 64,
        threads: 200,
        records: 10_000_000,
        drop_one_in: 0,
        records_a_generation: 30_000,
    };
    let (generations, truth) = simulate(&plan);
    let data = written(&generations);
    drop(generations);
    let start = Instant::now();
    let r = read(&data);
    println!(
        "{} records, {} bytes: {:.2} s",
        r.records,
        data.len(),
        start.elapsed().as_secs_f64()
    );
    assert_eq!(r.threads.len(), truth.on_cpu_ns.len());
}

#[test]
fn what_was_reconstructed_is_counted() {
    let (mut generations, _) = simulate(&plan(1, 0));
    let records = generations.iter_mut().flat_map(|g| &mut g.records);
    let marked = records.step_by(7).map(|r| r.flags |= flags::MISSED).count() as u64;
    let r = read(&written(&generations));
    assert!(marked > 1000 && r.missed == marked, "{} of {marked}", r.missed);
}

#[test]
fn the_least_cpu_is_that_of_times_in_which_nothing_is_missing() {
    for seed in 1..20 {
        let whole = read(&written(&simulate(&plan(seed, 0)).0));
        let r = read(&written(&simulate(&plan(seed, 400)).0));
        assert!(
            !whole.utilization.is_empty() && !r.utilization.is_empty(),
            "seed {seed}"
        );
        for (row, window) in (r.utilization.iter()).flat_map(|row| row.worst.iter().map(move |w| (row, w))) {
            let (from, to) = (window.start_ns, window.start_ns + row.window_ns);
            assert!(
                r.losses.iter().all(|l| l.to_ns <= from || to <= l.t_ns),
                "seed {seed}: {} ns from {from}",
                row.window_ns
            );
        }
    }
}
