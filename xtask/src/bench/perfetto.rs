//! `bench perfetto`: ours and Perfetto's `traced_probes` record the same seconds; the time that each thread ran has to be
//! the same in both. Two independent recorders of one truth: what they share is only the kernel's tracepoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{
    Options, Report, Row, ftrace,
    group::Group,
    oncpu::{Switch, running},
    target,
    tools::{Tool, Tools},
};

/// Largest difference of a thread's time on CPU, in percent.
const MUST: f64 = 0.1;
/// When the two stamps of one switch are further apart, the hypervisor took the CPU in the middle of the switch, which no
/// recorder can help: the recording is made again.
const APART_NS: u64 = 100_000;
/// How often at most.
const TRIES: usize = 3;
/// Cut off at both ends, where one of the two starts or stops.
const MARGIN_NS: u64 = 50_000_000;

/// Name, threads, wake-ups a second of each, microseconds of each run. The two stamps of a switch are some hundred
/// nanoseconds apart, more for a CPU that comes from idle: a tenth of a percent takes runs of about a millisecond.
const WORKS: [(&str, u32, f64, u64); 4] = [
    ("1 thread", 1, 200.0, 1000),
    ("8 threads", 8, 100.0, 1000),
    ("200 threads", 200, 5.0, 1000),
    ("8 threads, more than the CPUs can run", 8, 100.0, 4000),
];

/// Runs the bench.
///
/// # Errors
/// One of the two does not record, or its file cannot be read.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let time = Duration::from_secs(if options.short { 3 } else { 15 });
    let dir = super::work_dir("perfetto")?;
    let tools = Tools::new(&dir)?;
    for (name, threads, hz, run_us) in WORKS {
        let args = target::Args {
            threads,
            hz,
            run_us,
            seconds: 120,
        };
        if !options.wants(name) {
            continue;
        }
        let mut compared = record_both(args, time, &tools, &dir)?;
        for _ in 1..TRIES {
            if compared.apart_ns <= APART_NS {
                break;
            }
            compared = record_both(args, time, &tools, &dir)?;
        }
        report.row(compared.row(name));
    }
    Ok(())
}

fn record_both(args: target::Args, time: Duration, tools: &Tools, dir: &Path) -> Result<Compared> {
    let group = Group::new("target")?;
    let _target = target::start(args, &group, dir)?;
    let tids: BTreeSet<u32> = group.threads()?.into_iter().collect();
    let ours = tools.start(Tool::Exist, &group)?;
    let theirs = tools.start(Tool::TracedProbes, &group)?;
    thread::sleep(time);
    let theirs = tools.stop(theirs)?;
    let ours = tools.stop(ours)?;
    let theirs = ftrace::read(&fs::read(&theirs.out)?, &tids)?;
    compare(&ours_switches(&tools.dump(&ours.out)?)?, &theirs)
}

#[derive(Deserialize)]
struct Line {
    t_ns: u64,
    tid: u32,
    op: String,
}

/// `exist dump FILE switches --json`: an object a line.
fn ours_switches(dump: &str) -> Result<Vec<Switch>> {
    dump.lines()
        .map(|line| {
            let Line { t_ns, tid, op } =
                serde_json::from_str(line).with_context(|| format!("exist dump printed {line}"))?;
            ensure!(op == "in" || op == "out", "exist dump printed op {op}");
            Ok(Switch {
                t_ns,
                tid,
                came_in: op == "in",
            })
        })
        .collect()
}

/// What both recorded.
#[derive(Clone, Debug, PartialEq)]
struct Compared {
    seconds: f64,
    threads: usize,
    /// Largest difference of a thread's time on CPU, in percent.
    worst: f64,
    /// Number of switches: ours, Perfetto's.
    switches: (usize, usize),
    /// Time on CPU of all threads: ours, Perfetto's.
    on_cpu_ms: (f64, f64),
    /// Largest distance between the two stamps of one switch; `u64::MAX` when the switches are not the same.
    apart_ns: u64,
    lost: bool,
}

impl Compared {
    fn row(&self, name: &str) -> Row {
        let (ours, peer) = self.switches;
        let (our_ms, peer_ms) = self.on_cpu_ms;
        Row::new(format!("{name}: largest difference of a thread's time on CPU"), "%")
            .ours(self.worst)
            .at_most(MUST)
            .must("every switch seen by both", ours > 0 && self.apart_ns < u64::MAX)
            .must("no loss in Perfetto's trace", !self.lost)
            .note(format!(
                "{} threads, {:.1} s, {ours} switches of ours, {peer} of Perfetto's, {our_ms:.1} ms on CPU in ours, \
                 {peer_ms:.1} in Perfetto's; stamps of one switch at most {:.1} us apart",
                self.threads,
                self.seconds,
                self.apart_ns as f64 / 1e3,
            ))
    }
}

/// Compares the time that both were recording, clipped to what they have in common.
fn compare(ours: &[Switch], theirs: &ftrace::Switches) -> Result<Compared> {
    let first = ours
        .iter()
        .map(|switch| switch.t_ns)
        .min()
        .context("exist recorded no switch")?;
    let last = ours
        .iter()
        .map(|switch| switch.t_ns)
        .max()
        .context("exist recorded no switch")?;
    let from = first.max(theirs.covered.0) + MARGIN_NS;
    let to = last.min(theirs.covered.1).saturating_sub(MARGIN_NS);
    ensure!(from < to, "the two recordings have no time in common: {from}..{to}");
    let [our_threads, their_threads] = [ours, &theirs.switches].map(|switches| by_thread(switches, from, to));
    let count = |threads: &ByThread| threads.values().map(Vec::len).sum();
    let (our_time, their_time) = (running(ours, from, to), running(&theirs.switches, from, to));
    let tids: BTreeSet<u32> = our_time.keys().chain(their_time.keys()).copied().collect();
    let difference = |tid: &u32| {
        let [ours, theirs] = [&our_time, &their_time].map(|time| time.get(tid).copied().unwrap_or(0) as f64);
        if ours == theirs {
            0.0
        } else {
            100.0 * (ours - theirs).abs() / ours.max(theirs)
        }
    };
    Ok(Compared {
        seconds: (to - from) as f64 / 1e9,
        threads: tids.len(),
        worst: tids.iter().map(difference).fold(0.0, f64::max),
        switches: (count(&our_threads), count(&their_threads)),
        on_cpu_ms: (
            our_time.values().sum::<u64>() as f64 / 1e6,
            their_time.values().sum::<u64>() as f64 / 1e6,
        ),
        apart_ns: apart_ns(&our_threads, &their_threads),
        lost: theirs.lost,
    })
}

/// Time and direction (in: `true`) of the switches of each thread.
type ByThread = BTreeMap<u32, Vec<(u64, bool)>>;

/// Time and direction of each switch of each thread in the interval, in order.
fn by_thread(switches: &[Switch], from: u64, to: u64) -> ByThread {
    let mut threads: ByThread = BTreeMap::new();
    for switch in switches.iter().filter(|switch| (from..to).contains(&switch.t_ns)) {
        threads
            .entry(switch.tid)
            .or_default()
            .push((switch.t_ns, switch.came_in));
    }
    threads.values_mut().for_each(|switches| switches.sort_unstable());
    threads
}

fn apart_ns(ours: &ByThread, theirs: &ByThread) -> u64 {
    let directions = |threads: &ByThread| {
        let mut all = Vec::new();
        for (&tid, switches) in threads {
            all.extend(switches.iter().map(|&(_, came_in)| (tid, came_in)));
        }
        all
    };
    if directions(ours) != directions(theirs) {
        return u64::MAX;
    }
    let pairs = ours.values().flatten().zip(theirs.values().flatten());
    pairs.map(|(ours, theirs)| ours.0.abs_diff(theirs.0)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(tid: u32, start_ns: u64, run_ns: u64) -> Vec<Switch> {
        (0..1000)
            .flat_map(|i| {
                let t_ns = start_ns + i * 1_000_000;
                [
                    Switch {
                        t_ns,
                        tid,
                        came_in: true,
                    },
                    Switch {
                        t_ns: t_ns + run_ns,
                        tid,
                        came_in: false,
                    },
                ]
            })
            .collect()
    }

    fn check(ours: Vec<Switch>, theirs: Vec<Switch>, expect: bool) {
        let covered = (1_000_000, 999_000_000);
        let theirs = ftrace::Switches {
            switches: theirs,
            covered,
            lost: false,
        };
        let row = compare(&ours, &theirs).unwrap().row("test");
        assert_eq!(row.ok, expect, "{row:?}");
    }

    #[test]
    fn equal_time_passes_and_other_time_does_not() {
        check(second(1, 0, 500_000), second(1, 0, 500_000), true);
        check(second(1, 0, 500_000), second(1, 100, 500_000), true);
        check(second(1, 0, 500_000), second(1, 0, 501_000), false);
        let mut one_less = second(1, 0, 100);
        one_less.drain(1000..1002);
        check(second(1, 0, 100), one_less, false);
        check(second(1, 0, 500_000), second(2, 0, 500_000), false);
        check(second(1, 0, 500_000), second(1, 0, 500_000)[..1000].to_vec(), false);
    }

    #[test]
    fn dump_lines_are_read() {
        let dump = "{\"t_ns\":5,\"cpu\":1,\"pid\":7,\"tid\":8,\"op\":\"in\"}\n{\"t_ns\":6,\"cpu\":1,\"pid\":7,\"tid\":8,\"op\":\"out\"}\n";
        let switches = ours_switches(dump).unwrap();
        assert_eq!(
            switches[0],
            Switch {
                t_ns: 5,
                tid: 8,
                came_in: true
            }
        );
        assert!(!switches[1].came_in);
        assert!(ours_switches("{\"t_ns\":5,\"tid\":8,\"op\":\"fork\"}").is_err());
        assert!(ours_switches("nonsense").is_err());
    }
}
