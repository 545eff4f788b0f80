//! `bench overhead`: what recording costs the service that is recorded, beside other recorders.
//!
//! A round has one window for each recorder and one without, in random order; each recorder is compared with the window
//! without of its own round. A window is a closed loop for the throughput, then an open loop for the latency.

use std::{collections::BTreeSet, fmt, path::Path, time::Duration};

use anyhow::{Context, Result, bail};

use super::{
    Options, Report, Row, budget,
    burner::Burner,
    group::switches,
    services::{Kind, Service},
    stats::{Estimate, Random, estimate, median},
    tools::{Tool, Tools},
};

/// Share of the closed loop's throughput that the open loop asks for.
const OPEN_LOOP: f64 = 0.3;
/// How busy the machine is when it is shared.
const BUSY: f64 = 0.95;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Machine {
    Alone,
    Shared,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alone => "alone",
            Self::Shared => "shared",
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    rounds: usize,
    closed: Duration,
    open: Duration,
}

/// One window.
#[derive(Clone, Copy, Debug)]
struct Sample {
    throughput: f64,
    p99_us: f64,
    /// CPU time of the recorder's processes, in CPUs.
    recorder: f64,
}

/// A round: without, and with each recorder.
#[derive(Clone, Debug)]
struct Round {
    without: Sample,
    with: Vec<(Tool, Sample)>,
}

/// What is compared, and how a window's loss against the one without is told: in percent, more is worse.
#[derive(Clone, Copy, Debug)]
struct Measure {
    name: &'static str,
    loss: fn(&Sample, &Sample) -> f64,
}

const MEASURES: [Measure; 2] = [
    Measure {
        name: "throughput lost",
        loss: |without, with| 100.0 * (1.0 - with.throughput / without.throughput),
    },
    Measure {
        name: "p99 added",
        loss: |without, with| 100.0 * (with.p99_us / without.p99_us - 1.0),
    },
];

/// Runs the bench.
///
/// # Errors
/// A service or a recorder does not start, or is found not to record.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let plan = if options.short {
        Plan {
            rounds: 2,
            closed: Duration::from_millis(500),
            open: Duration::from_millis(500),
        }
    } else {
        Plan {
            rounds: 20,
            closed: Duration::from_millis(900),
            open: Duration::from_millis(900),
        }
    };
    let dir = super::work_dir("overhead")?;
    let tools = Tools::new(&dir)?;
    let mut rounds = Vec::new();
    for kind in Kind::ALL {
        for machine in [Machine::Alone, Machine::Shared] {
            let name = format!("{kind}/{machine}");
            if options.wants(&name) {
                let measured = setting(kind, machine, plan, &tools, &dir, report).with_context(|| name.clone())?;
                rows(&name, &measured, report);
                rounds.extend(measured);
            }
        }
    }
    if rounds.is_empty() && !options.wants("budget") {
        bail!(
            "nothing is called {}; there are SERVICE/alone, SERVICE/shared and budget",
            options.only.join(", ")
        );
    }
    if !rounds.is_empty() && !options.short {
        pooled(&rounds, report);
    }
    if options.wants("budget") {
        budget::run(options, &tools, &dir, report).context("budget")?;
    }
    Ok(())
}

/// All rounds of one service on one kind of machine.
fn setting(
    kind: Kind,
    machine: Machine,
    plan: Plan,
    tools: &Tools,
    dir: &Path,
    report: &mut Report,
) -> Result<Vec<Round>> {
    let service = Service::start(kind, dir)?;
    let first = service.load(None, plan.closed)?.throughput;
    let mut expected = service.saturate(plan.closed, first)?;
    let rate = expected * OPEN_LOOP;
    let burner = Burner::start();
    if machine == Machine::Shared {
        let reached = burner.fill(BUSY, || service.load(Some(rate), Duration::from_millis(700)).map(drop))?;
        report.row(Row::new(format!("{kind}/{machine}: machine busy"), "%").ours(100.0 * reached));
        expected = service.saturate(plan.closed, expected / 2.0)?;
    }
    let window = |tool: Option<Tool>, check: bool| -> Result<(Sample, Option<f64>)> {
        let recording = tool.map(|tool| tools.start(tool, service.group())).transpose()?;
        let tids = service.group().threads()?;
        let switches_before = switches(&tids);
        let cpu_before = recording.as_ref().map(|recording| tools.cpu(recording)).transpose()?;
        let start = std::time::Instant::now();
        let throughput = service.saturate(plan.closed, expected)?;
        let open = service.load(Some(rate), plan.open)?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu_after = recording.as_ref().map(|recording| tools.cpu(recording)).transpose()?;
        let switched = switches(&tids) - switches_before;
        let recorder = match (cpu_before, cpu_after) {
            (Some(before), Some(after)) => after.saturating_sub(before).as_secs_f64() / seconds,
            _ => 0.0,
        };
        let mut found = None;
        if let Some(recorded) = recording.map(|recording| tools.stop(recording)).transpose()?
            && check
        {
            // Each switch-out has a switch-in.
            let count = tools.count(&recorded, &BTreeSet::from_iter(tids))?;
            found = Some(count as f64 / (2.0 * switched.max(1) as f64));
        }
        Ok((
            Sample {
                throughput,
                p99_us: open.p99_us,
                recorder,
            },
            found,
        ))
    };
    // The first window of each is not measured: it warms up, and shows that the recorder records.
    window(None, false)?;
    let every = [Tool::Exist].into_iter().chain(Tool::PEERS);
    for tool in every.clone() {
        let (_, found) = window(Some(tool), true)?;
        let found = 100.0 * found.unwrap_or(0.0);
        let row = Row::new(format!("{kind}/{machine}: switches recorded by {tool}"), "%");
        let row = if tool == Tool::Exist {
            row.ours(found)
        } else {
            row.peer(found)
        };
        report.row(row.must("it records", found >= 10.0));
    }
    let mut random = Random::new(kind as u64 * 2 + machine as u64);
    let mut order: Vec<Option<Tool>> = every.map(Some).chain([None]).collect();
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        random.shuffle(&mut order);
        let mut without = None;
        let mut with = Vec::new();
        for &tool in &order {
            let (sample, _) = window(tool, false)?;
            match tool {
                Some(tool) => with.push((tool, sample)),
                None => without = Some(sample),
            }
        }
        let without = without.context("a round has a window without a recorder")?;
        rounds.push(Round { without, with });
    }
    Ok(rounds)
}

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
fn difference(rounds: &[Round], peer: Tool, measure: Measure) -> Estimate {
    let (ours, peers) = (losses(rounds, Tool::Exist, measure), losses(rounds, peer, measure));
    let differences: Vec<f64> = ours.iter().zip(&peers).map(|(ours, peer)| ours - peer).collect();
    estimate(&differences)
}

fn rows(name: &str, rounds: &[Round], report: &mut Report) {
    let of = |value: fn(&Sample) -> f64| median(&rounds.iter().map(|round| value(&round.without)).collect::<Vec<_>>());
    report.row(Row::new(format!("{name}: throughput without"), "/s").ours(of(|sample| sample.throughput)));
    report.row(Row::new(format!("{name}: p99 without"), "us").ours(of(|sample| sample.p99_us)));
    for measure in MEASURES {
        let ours = estimate(&losses(rounds, Tool::Exist, measure));
        let what = format!("{name}: {}", measure.name);
        report.row(Row::new(&what, "%").ours(ours.median).note(bound(&ours)));
        for peer in Tool::PEERS {
            let peers = estimate(&losses(rounds, peer, measure));
            let difference = difference(rounds, peer, measure);
            let row = Row::new(format!("{what}, {peer}"), "%")
                .ours(ours.median)
                .peer(peers.median);
            report.row(
                row.must("ours is not shown to be higher", difference.lower <= 0.0)
                    .note(format!("peer: {}; {}", bound(&peers), verdict(&difference))),
            );
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
fn pooled(rounds: &[Round], report: &mut Report) {
    for measure in MEASURES {
        for peer in Tool::PEERS {
            let [ours, peers] = [Tool::Exist, peer].map(|tool| estimate(&losses(rounds, tool, measure)));
            let difference = difference(rounds, peer, measure);
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
            recorder: 0.0,
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
        let [throughput, p99] = MEASURES;
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
        assert!((difference(&rounds, Tool::PerfSched, throughput).median + 2.0).abs() < 1e-9);
        assert!(losses(&rounds, Tool::Bpftrace, throughput).is_empty());
    }

    #[test]
    fn a_dearer_recorder_does_not_pass() {
        let ok = |ours, peer| {
            let mut report = Report::new(true);
            rows("test", &rounds(ours, peer), &mut report);
            report.row_ok("test: throughput lost, perf sched record")
        };
        assert_eq!(ok(1.0, 3.0), Some(true));
        assert_eq!(ok(3.0, 1.0), Some(false));
    }
}
