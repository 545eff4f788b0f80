//! Windows with a recorder against the window without of the same round: losses, their bounds, ours against the peers'.

use super::{
    Report, Row,
    stats::{Estimate, estimate, median, sign_test},
    tools::Tool,
};

/// One window.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Answers a second in the closed loop.
    pub throughput: f64,
    /// Of the open loop.
    pub p99_us: f64,
    /// CPU time of the service for a request of the open loop, in microseconds.
    pub request_us: f64,
    /// CPU time of the recorder's processes, in CPUs.
    pub recorder: f64,
    /// Share of the machine that other work took.
    pub others: f64,
}

/// A round: without, and with each recorder.
#[derive(Clone, Debug)]
pub struct Round {
    /// No recorder.
    pub without: Sample,
    /// One window a recorder.
    pub with: Vec<(Tool, Sample)>,
}

/// What is compared, and how a window's loss against the one without is told: in percent, more is worse.
#[derive(Clone, Copy, Debug)]
struct Measure {
    name: &'static str,
    loss: fn(&Sample, &Sample) -> f64,
}

const MEASURES: [Measure; 3] = [
    Measure {
        name: "throughput lost",
        loss: |without, with| 100.0 * (1.0 - with.throughput / without.throughput),
    },
    Measure {
        name: "p99 added",
        loss: |without, with| 100.0 * (with.p99_us / without.p99_us - 1.0),
    },
    Measure {
        name: "CPU per request added",
        loss: |without, with| 100.0 * (with.request_us / without.request_us - 1.0),
    },
];

/// With fewer pairs than this nothing is demanded: chance alone would often fail it.
const FEW: usize = 8;

/// The losses of one recorder, a round each.
fn losses(rounds: &[Round], tool: Tool, measure: Measure) -> Vec<f64> {
    rounds
        .iter()
        .filter_map(|round| {
            let (_, with) = round.with.iter().find(|(of, _)| *of == tool)?;
            Some((measure.loss)(&round.without, with))
        })
        .collect()
}

/// Ours less the peer's loss, in the same rounds.
fn differences(rounds: &[Round], peer: Tool, measure: Measure) -> Vec<f64> {
    let (ours, peers) = (losses(rounds, Tool::Exist, measure), losses(rounds, peer, measure));
    ours.iter().zip(&peers).map(|(ours, peer)| ours - peer).collect()
}

/// How likely it may be that chance alone fails a run whose costs are equal.
const ALPHA: f64 = 0.05;

/// The rows of one service on one kind of machine, which is one of `settings` in this run. That a peer is cheaper counts as
/// shown when a sign test says so, corrected for the number of comparisons in the run (Bonferroni).
pub fn rows(name: &str, rounds: &[Round], settings: usize, report: &mut Report) {
    let comparisons = settings * MEASURES.len() * Tool::PEERS.len();
    let of = |value: fn(&Sample) -> f64| median(&rounds.iter().map(|round| value(&round.without)).collect::<Vec<_>>());
    report.row(Row::new(format!("{name}: throughput without"), "/s").ours(of(|sample| sample.throughput)));
    report.row(Row::new(format!("{name}: p99 without"), "us").ours(of(|sample| sample.p99_us)));
    report.row(Row::new(format!("{name}: CPU per request without"), "us").ours(of(|sample| sample.request_us)));
    report.row(Row::new(format!("{name}: machine taken by other work"), "%").ours(100.0 * of(|sample| sample.others)));
    for measure in MEASURES {
        let ours = estimate(&losses(rounds, Tool::Exist, measure));
        let what = format!("{name}: {}", measure.name);
        report.row(Row::new(&what, "%").ours(ours.median).note(bound(&ours)));
        for peer in Tool::PEERS {
            let peers = estimate(&losses(rounds, peer, measure));
            let differences = differences(rounds, peer, measure);
            let chance = sign_test(&differences);
            let row = Row::new(format!("{what}, {peer}"), "%")
                .ours(ours.median)
                .peer(peers.median);
            let row = if rounds.len() < FEW {
                row
            } else {
                row.must("ours is not shown to be higher", chance >= ALPHA / comparisons as f64)
            };
            report.row(row.note(format!(
                "peer: {}; {}; higher by chance alone: p = {chance:.3}, of {comparisons} comparisons",
                bound(&peers),
                verdict(&estimate(&differences))
            )));
        }
    }
    for peer in Tool::PEERS {
        let recorder = |tool: Tool| {
            let samples = rounds
                .iter()
                .filter_map(|round| round.with.iter().find(|(of, _)| *of == tool));
            1000.0 * median(&samples.map(|(_, sample)| sample.recorder).collect::<Vec<_>>())
        };
        let row = Row::new(format!("{name}: recorder's own CPU, {peer}"), "ms/s");
        report.row(row.ours(recorder(Tool::Exist)).peer(recorder(peer)));
    }
}

/// Over all services and machines together there are enough pairs to demand that ours is lower, not only not higher.
pub fn pooled(rounds: &[Round], report: &mut Report) {
    for measure in MEASURES {
        for peer in Tool::PEERS {
            let [ours, peers] = [Tool::Exist, peer].map(|tool| estimate(&losses(rounds, tool, measure)));
            let difference = estimate(&differences(rounds, peer, measure));
            let row = Row::new(format!("all: {}, {peer}", measure.name), "%")
                .ours(ours.median)
                .peer(peers.median);
            report.row(row.must("ours is the lowest", difference.median < 0.0).note(format!(
                "ours: {}; peer: {}; {}",
                bound(&ours),
                bound(&peers),
                verdict(&difference)
            )));
        }
    }
}

fn bound(estimate: &Estimate) -> String {
    format!("upper 95 % bound {:.2}, {} pairs", estimate.upper, estimate.samples)
}

fn verdict(difference: &Estimate) -> String {
    let told = if difference.upper < 0.0 {
        "ours is lower"
    } else if difference.lower > 0.0 {
        "ours is higher"
    } else {
        "not told apart"
    };
    let Estimate {
        median, lower, upper, ..
    } = difference;
    format!("ours - peer {median:.2} ({lower:.2} to {upper:.2}): {told}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(throughput: f64, p99_us: f64) -> Sample {
        Sample {
            throughput,
            p99_us,
            request_us: 10.0,
            recorder: 0.0,
            others: 0.0,
        }
    }

    fn rounds(ours: f64, peer: f64) -> Vec<Round> {
        (0..20)
            .map(|i| {
                let scale = 1.0 + f64::from(i) / 100.0;
                Round {
                    without: sample(1000.0 * scale, 100.0),
                    with: vec![
                        (Tool::PerfSched, sample(1000.0 * scale * (1.0 - peer / 100.0), 100.0)),
                        (Tool::Exist, sample(1000.0 * scale * (1.0 - ours / 100.0), 150.0)),
                    ],
                }
            })
            .collect()
    }

    #[test]
    fn losses_are_told_against_the_same_round() {
        let rounds = rounds(1.0, 3.0);
        let [throughput, p99, _] = MEASURES;
        assert!(
            losses(&rounds, Tool::Exist, throughput)
                .iter()
                .all(|loss| (loss - 1.0).abs() < 1e-9)
        );
        assert!(
            losses(&rounds, Tool::Exist, p99)
                .iter()
                .all(|loss| (loss - 50.0).abs() < 1e-9)
        );
        assert!((estimate(&differences(&rounds, Tool::PerfSched, throughput)).median + 2.0).abs() < 1e-9);
        assert!(losses(&rounds, Tool::Bpftrace, throughput).is_empty());
    }

    #[test]
    fn a_dearer_recorder_does_not_pass() {
        let ok = |ours, peer| {
            let mut report = Report::new(true);
            rows("test", &rounds(ours, peer), 6, &mut report);
            report.row_ok("test: throughput lost, perf sched record")
        };
        assert_eq!(ok(1.0, 3.0), Some(true));
        assert_eq!(ok(3.0, 1.0), Some(false));
    }
}
