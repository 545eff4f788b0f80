//! `bench overhead`: what recording costs the service that is recorded, beside other recorders.
//!
//! A round has one window for each recorder and one without, in random order; each recorder is compared with the window
//! without of its own round. A window is a closed loop for the throughput, then an open loop for the latency.

use std::{
    collections::BTreeSet,
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    Options, Report, Row, budget,
    burner::Burner,
    group::switches,
    loss::{Round, Sample, pooled, rows},
    machine::CpuTime,
    services::{Kind, Service},
    stats::Random,
    tools::{Recording, Tool, Tools},
};

/// Share of the closed loop's throughput that the open loop asks for.
const OPEN_LOOP: f64 = 0.3;
/// How busy the machine is when it is shared.
const BUSY: f64 = 0.95;
/// A window in which other work took more of the machine than this is measured again, while there are spare windows.
const DISTURBED: f64 = 0.03;

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
    let settings: Vec<(Kind, Machine)> = Kind::ALL
        .into_iter()
        .flat_map(|kind| [Machine::Alone, Machine::Shared].map(|machine| (kind, machine)))
        .filter(|&(kind, machine)| options.wants(&name(kind, machine)))
        .collect();
    let mut rounds = Vec::new();
    for &(kind, machine) in &settings {
        let name = name(kind, machine);
        let measured = setting(kind, machine, plan, &tools, &dir, report).with_context(|| name.clone())?;
        rows(&name, &measured, settings.len(), report);
        rounds.extend(measured);
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

fn name(kind: Kind, machine: Machine) -> String {
    format!("{kind}/{machine}")
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
    let bench = Bench {
        service: &service,
        tools,
        plan,
        rate,
        expected,
    };
    // The first window of each is not measured: it warms up, and shows that the recorder records.
    bench.window(None)?;
    let every = [Tool::Exist].into_iter().chain(Tool::PEERS);
    for tool in every.clone() {
        let found = 100.0 * bench.share_recorded(tool)?;
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
    let mut spare = plan.rounds;
    for _ in 0..plan.rounds {
        random.shuffle(&mut order);
        let mut without = None;
        let mut with = Vec::new();
        for &tool in &order {
            let sample = bench.undisturbed(tool, &mut spare)?;
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

/// One service under one load.
#[derive(Clone, Copy, Debug)]
struct Bench<'a> {
    service: &'a Service,
    tools: &'a Tools,
    plan: Plan,
    rate: f64,
    expected: f64,
}

impl Bench<'_> {
    /// A window in which other work took little of the machine; when there is none, the less disturbed of two,
    /// as long as there are `spare` windows.
    fn undisturbed(&self, tool: Option<Tool>, spare: &mut usize) -> Result<Sample> {
        let first = self.window(tool)?;
        if first.others <= DISTURBED || *spare == 0 {
            return Ok(first);
        }
        *spare -= 1;
        let second = self.window(tool)?;
        Ok(if second.others < first.others { second } else { first })
    }

    fn window(&self, tool: Option<Tool>) -> Result<Sample> {
        let recording = tool
            .map(|tool| self.tools.start(tool, self.service.group()))
            .transpose()?;
        let sample = self.load(recording.as_ref())?;
        recording.map(|recording| self.tools.stop(recording)).transpose()?;
        Ok(sample)
    }

    /// How many of the service's switches the recording has: each switch-out has a switch-in.
    fn share_recorded(&self, tool: Tool) -> Result<f64> {
        let recording = self.tools.start(tool, self.service.group())?;
        let tids = self.service.group().threads()?;
        let before = switches(&tids);
        self.load(Some(&recording))?;
        let switched = switches(&tids) - before;
        let recorded = self.tools.stop(recording)?;
        let count = self.tools.count(&recorded, &BTreeSet::from_iter(tids))?;
        Ok(count as f64 / (2.0 * switched.max(1) as f64))
    }

    fn load(&self, recording: Option<&Recording>) -> Result<Sample> {
        let recorder_cpu = || recording.map_or(Ok(Duration::ZERO), |recording| self.tools.cpu(recording));
        let service_cpu = || self.service.group().cpu();
        let before = (Instant::now(), CpuTime::now()?, recorder_cpu()?, service_cpu()?);
        let throughput = self.service.saturate(self.plan.closed, self.expected)?;
        let cpu_before_open = service_cpu()?;
        let open = self.service.load(Some(self.rate), self.plan.open)?;
        let after = (CpuTime::now()?, recorder_cpu()?, service_cpu()?);
        let recorder = after.1.saturating_sub(before.2);
        let service = after.2.saturating_sub(before.3);
        let for_requests = after.2.saturating_sub(cpu_before_open);
        Ok(Sample {
            throughput,
            p99_us: open.p99_us,
            request_us: 1e6 * for_requests.as_secs_f64() / open.answers as f64,
            recorder: recorder.as_secs_f64() / before.0.elapsed().as_secs_f64(),
            others: after.0.others_since(before.1, recorder + service),
        })
    }
}
