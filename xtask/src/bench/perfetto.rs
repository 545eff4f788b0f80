//! `bench perfetto`: ours and Perfetto's `traced_probes` record the same seconds; the time that each thread ran has to be
//! the same in both. Two independent recorders of one truth: what they share is only the kernel's tracepoint.

use std::{collections::BTreeSet, fs, path::Path, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{
    Options, Report, Row, ftrace,
    group::Group,
    oncpu::{Joined, Runs, Switch, join, runs},
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
    // CPUs whose switches Perfetto can see; none: all.
    let mut seeing = Vec::new();
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
        let mut compared = record_both(args, &seeing, time, &tools, &dir)?;
        if !compared.blind.is_empty() {
            let online = online()?;
            seeing = online.into_iter().filter(|cpu| !compared.blind.contains(cpu)).collect();
            ensure!(
                !seeing.is_empty(),
                "this kernel's ftrace, on which Perfetto stands, does not see the switches of any CPU"
            );
            eprintln!(
                "this kernel's ftrace, on which Perfetto stands, misses switches of CPU {:?}: compared on {seeing:?}",
                compared.blind
            );
            compared = record_both(args, &seeing, time, &tools, &dir)?;
        }
        for _ in 1..TRIES {
            if compared.is_undisturbed() {
                break;
            }
            compared = record_both(args, &seeing, time, &tools, &dir)?;
        }
        report.row(compared.row(name, &seeing));
    }
    Ok(())
}

/// Numbers of the CPUs that are online.
fn online() -> Result<Vec<u32>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").context("failed to read which CPUs are online")?;
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().with_context(|| format!("CPU list {list}"));
        cpus.extend(number(first)?..=number(last)?);
    }
    Ok(cpus)
}

fn record_both(args: target::Args, cpus: &[u32], time: Duration, tools: &Tools, dir: &Path) -> Result<Compared> {
    let group = Group::new("target")?;
    let _target = target::start(args, cpus, &group, dir)?;
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
    /// Largest difference of a thread's time on CPU in the runs that both have seen, in percent.
    worst: f64,
    /// Runs that both have seen, only ours, only Perfetto's.
    runs: [usize; 3],
    /// Time on CPU of all threads in the runs that both have seen: ours, Perfetto's.
    on_cpu_ms: [f64; 2],
    /// Largest distance between the two stamps of one switch.
    apart_ns: u64,
    lost: bool,
    /// CPUs of which Perfetto cannot see all switches.
    blind: BTreeSet<u32>,
}

impl Compared {
    fn row(&self, name: &str, cpus: &[u32]) -> Row {
        let [both, ours, theirs] = self.runs;
        let [our_ms, their_ms] = self.on_cpu_ms;
        let only = if cpus.is_empty() {
            String::new()
        } else {
            format!("only CPU {cpus:?}, the others' switches are not all in ftrace; ")
        };
        Row::new(format!("{name}: largest difference of a thread's time on CPU"), "%")
            .ours(self.worst)
            .at_most(MUST)
            .must("no run that only Perfetto saw", both > 0 && theirs == 0)
            .must("1 run in 100 that only exist saw at most", ours * 100 <= both)
            .must("no loss in Perfetto's trace", !self.lost)
            .note(format!(
                "{only}{} threads, {:.1} s, {both} runs, {ours} more that ftrace did not see; {our_ms:.1} ms on CPU in ours, \
                 {their_ms:.1} in Perfetto's; stamps of one switch at most {:.1} us apart",
                self.threads,
                self.seconds,
                self.apart_ns as f64 / 1e3,
            ))
    }

    /// Nothing but the recorders stood between the two.
    fn is_undisturbed(&self) -> bool {
        self.apart_ns <= APART_NS && self.runs[2] == 0
    }
}

/// Compares the time that both were recording, clipped to what they have in common.
fn compare(ours: &[Switch], theirs: &ftrace::Switches) -> Result<Compared> {
    let times = || ours.iter().map(|switch| switch.t_ns);
    let first = times().min().context("exist recorded no switch")?;
    let last = times().max().context("exist recorded no switch")?;
    let from = first.max(theirs.covered.0) + MARGIN_NS;
    let to = last.min(theirs.covered.1).saturating_sub(MARGIN_NS);
    ensure!(from < to, "the two recordings have no time in common: {from}..{to}");
    let [our_runs, their_runs] = [ours, &theirs.switches].map(|switches| runs(switches, from, to));
    let joined = by_thread(&our_runs, &their_runs);
    let pairs = || joined.iter().flat_map(|joined| &joined.pairs);
    let sum_ms = |which: usize| pairs().map(|pair| length(pair[which])).sum::<u64>() as f64 / 1e6;
    let alone = |which: usize| joined.iter().map(|joined| joined.alone[which]).sum();
    Ok(Compared {
        seconds: (to - from) as f64 / 1e9,
        threads: joined.len(),
        worst: joined.iter().map(difference).fold(0.0, f64::max),
        runs: [pairs().count(), alone(0), alone(1)],
        on_cpu_ms: [sum_ms(0), sum_ms(1)],
        apart_ns: pairs()
            .map(|[ours, theirs]| ours.0.abs_diff(theirs.0).max(ours.1.abs_diff(theirs.1)))
            .max()
            .unwrap_or(0),
        lost: theirs.lost,
        blind: theirs.blind.clone(),
    })
}

/// The joined runs of each thread that is in either.
fn by_thread(ours: &Runs, theirs: &Runs) -> Vec<Joined> {
    let tids: BTreeSet<&u32> = ours.keys().chain(theirs.keys()).collect();
    let of = |runs: &Runs, tid: &u32| runs.get(tid).cloned().unwrap_or_default();
    tids.into_iter()
        .map(|tid| join(&of(ours, tid), &of(theirs, tid)))
        .collect()
}

fn length((start, end): (u64, u64)) -> u64 {
    end - start
}

/// How much the time in the one differs from that in the other, in percent.
fn difference(joined: &Joined) -> f64 {
    let [ours, theirs] = [0, 1].map(|which| joined.pairs.iter().map(|pair| length(pair[which])).sum::<u64>() as f64);
    if ours == theirs {
        0.0
    } else {
        100.0 * (ours - theirs).abs() / ours.max(theirs)
    }
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
            blind: BTreeSet::new(),
        };
        let row = compare(&ours, &theirs).unwrap().row("test", &[]);
        assert_eq!(row.ok, expect, "{row:?}");
    }

    #[test]
    fn equal_time_passes_and_other_time_does_not() {
        check(second(1, 0, 500_000), second(1, 0, 500_000), true);
        check(second(1, 0, 500_000), second(1, 100, 500_000), true);
        check(second(1, 0, 500_000), second(1, 0, 501_000), false);
        // A run or two that ftrace did not see; a run that we did not; a switch-out that ftrace did not see.
        let without = |range: std::ops::Range<usize>| {
            let mut switches = second(1, 0, 500_000);
            switches.drain(range);
            switches
        };
        check(second(1, 0, 500_000), without(1000..1004), true);
        check(without(1000..1004), second(1, 0, 500_000), false);
        check(second(1, 0, 500_000), without(1001..1003), false);
        check(second(1, 0, 500_000), without(1000..1040), false);
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
