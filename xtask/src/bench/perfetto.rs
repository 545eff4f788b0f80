//! `bench perfetto`: ours and Perfetto's `traced_probes` record the same seconds; the time that each thread ran has to be
//! the same in both. Two independent recorders of one truth: what they share is only the kernel's tracepoint.

use std::{collections::BTreeSet, fs, thread, time::Duration};

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
/// Cut off at both ends, where one of the two starts or stops.
const MARGIN_NS: u64 = 50_000_000;

/// Runs the bench.
///
/// # Errors
/// One of the two does not record, or its file cannot be read.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let time = Duration::from_secs(if options.short { 3 } else { 15 });
    let dir = super::work_dir("perfetto")?;
    let tools = Tools::new(&dir)?;
    for (name, args) in [
        (
            "1 thread",
            target::Args {
                threads: 1,
                hz: 300.0,
                run_us: 500,
                seconds: 120,
            },
        ),
        (
            "8 threads",
            target::Args {
                threads: 8,
                hz: 200.0,
                run_us: 400,
                seconds: 120,
            },
        ),
        (
            "40 threads",
            target::Args {
                threads: 40,
                hz: 100.0,
                run_us: 200,
                seconds: 120,
            },
        ),
        (
            "8 threads, more than the CPUs can run",
            target::Args {
                threads: 8,
                hz: 100.0,
                run_us: 4000,
                seconds: 120,
            },
        ),
    ] {
        if !options.wants(name) {
            continue;
        }
        let group = Group::new("target")?;
        let _target = target::start(args, &group, &dir)?;
        let tids: BTreeSet<u32> = group.threads()?.into_iter().collect();
        let ours = tools.start(Tool::Exist, &group)?;
        let theirs = tools.start(Tool::TracedProbes, &group)?;
        thread::sleep(time);
        let theirs = tools.stop(theirs)?;
        let ours = tools.stop(ours)?;
        let theirs = ftrace::read(&fs::read(&theirs.out)?, &tids)?;
        let ours = ours_switches(&tools.dump(&ours.out)?)?;
        report.row(compare(name, &ours, &theirs)?);
    }
    Ok(())
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

/// The largest difference over all threads, in what both recorded.
fn compare(name: &str, ours: &[Switch], theirs: &ftrace::Switches) -> Result<Row> {
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
    let in_common = |switches: &[Switch]| switches.iter().filter(|s| (from..to).contains(&s.t_ns)).count();
    let (our_count, their_count) = (in_common(ours), in_common(&theirs.switches));
    let (ours, peers) = (running(ours, from, to), running(&theirs.switches, from, to));
    let tids: BTreeSet<u32> = ours.keys().chain(peers.keys()).copied().collect();
    let difference = |tid: &u32| {
        let of = |time: &std::collections::BTreeMap<u32, u64>| time.get(tid).copied().unwrap_or(0) as f64;
        let (ours, peer) = (of(&ours), of(&peers));
        // The main thread only waits for the others, and a thread that runs for nothing has nothing to compare.
        if ours == peer {
            0.0
        } else {
            100.0 * (ours - peer).abs() / ours.max(peer)
        }
    };
    let worst = tids.iter().map(difference).fold(0.0, f64::max);
    Ok(Row::new(format!("{name}: largest difference of a thread's time on CPU"), "%")
        .ours(worst)
        .at_most(MUST)
        .must("switches seen by both", our_count > 0 && our_count == their_count)
        .must("no loss in Perfetto's trace", !theirs.lost)
        .note(format!(
            "{} threads, {:.1} s, {our_count} switches of ours, {their_count} of Perfetto's, {:.1} ms on CPU in ours, {:.1} in Perfetto's",
            tids.len(),
            (to - from) as f64 / 1e9,
            ours.values().sum::<u64>() as f64 / 1e6,
            peers.values().sum::<u64>() as f64 / 1e6,
        )))
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
        let row = compare("test", &ours, &theirs).unwrap();
        assert_eq!(row.ok, expect, "{row:?}");
    }

    #[test]
    fn equal_time_passes_and_other_time_does_not() {
        check(second(1, 0, 500_000), second(1, 0, 500_000), true);
        check(second(1, 0, 500_000), second(1, 100, 500_000), true);
        check(second(1, 0, 500_000), second(1, 0, 501_000), false);
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
