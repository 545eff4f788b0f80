//! `cargo xtask lab check`: takes a workload, records it in the guest with stock perf and the kernel's own driver,
//! decodes it on the host with stock perf, and holds every branch of every CPU against the ground truth. CPU by CPU,
//! since perf itself sometimes gives the user code after a switch to the thread before it.
//!
//! It fails on a decoding error, on a transition that the lab cannot explain, on a difference outside recorded losses,
//! and when the workload prints something else without the plugin.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use exist_lab_truth::{Branches, Reader};

use super::{GuestArgs, Lab, guest::Outcome, truth};
use crate::process;

/// Arguments of `cargo xtask lab check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// The event that perf records
    #[arg(long, default_value = "intel_pt//u")]
    event: String,
    /// The workload, a program of this machine, and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// A change of control flow as both sides tell it: from, to; 0 where user mode was entered or left.
type Step = (u64, u64);

/// Runs `cargo xtask lab check`.
///
/// # Errors
/// See the module.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let program = Path::new(&args.command[0]);
    let name = program
        .file_name()
        .context("the workload is not a file")?
        .to_string_lossy()
        .into_owned();
    let workload = [&format!("/lab/bin/{name}"), &args.command[1..].join(" ")]
        .map(String::as_str)
        .join(" ");
    let mut guest = args.guest.clone();
    guest.copy.push(program.to_path_buf());

    let plain = format!("{workload} > plain");
    let mut without = guest.clone();
    without.without_plugin = true;
    let plain = lab.run(&without.plan(plain, false), &format!("{}-plain", guest.name))?;

    let script = format!(
        "perf record -q -a -m ,16M -e {} -o perf.data labctl run {workload} > plain || exit\n\
         cp -r /root/.debug debug 2> /dev/null || true\n",
        args.event
    );
    let traced = lab.run(&guest.plan(script, true), &guest.name)?;
    if traced.code != 0 {
        bail!(
            "recording ended with {} in the guest: {}",
            traced.code,
            traced.text("stderr")?.trim()
        );
    }
    if plain.file("plain")? != traced.file("plain")? {
        bail!(
            "the workload prints something else with the plugin: the emulation changes what it does; see {} and {}",
            plain.folder.display(),
            traced.folder.display()
        );
    }
    let truth = of_truth(&traced, guest.cpus)?;
    let decoded = of_perf(&lab, &traced)?;
    println!("{}", compare(&truth, &decoded)?);
    Ok(())
}

/// The steps of each CPU's user mode while the truth was recorded.
fn of_truth(outcome: &Outcome, cpus: u32) -> Result<Vec<Vec<Step>>> {
    let mut all = Vec::new();
    for (cpu, bytes) in outcome.truths(cpus)?.iter().enumerate() {
        let summary = truth::summary(bytes)?;
        if let Some((from, to)) = summary.unexplained.first() {
            bail!(
                "the lab cannot explain {} transitions on CPU {cpu}, the first from {from:#x} to {to:#x}: the run proves nothing",
                summary.unexplained.len()
            );
        }
        let mut steps = Vec::new();
        Branches::new(Reader::new(bytes)?).for_each(|branch| steps.push((branch.from, branch.to)))?;
        // Where the recording began, no one entered user mode.
        all.push(steps.split_off(steps.len().min(1)));
    }
    Ok(all)
}

/// The same as stock perf decodes it.
fn of_perf(lab: &Lab, outcome: &Outcome) -> Result<Vec<Vec<Step>>> {
    let root: PathBuf = outcome.folder.join("root");
    let data = outcome.folder.join("out/perf.data");
    let script = |itrace: &str, fields: &str| {
        let mut command = lab.tools.command("perf");
        command.arg("--buildid-dir").arg(outcome.folder.join("out/debug"));
        command
            .arg("script")
            .arg("-i")
            .arg(&data)
            .arg("--symfs")
            .arg(&root)
            .args([itrace, "-F", fields]);
        process::output(&mut command)
    };
    let errors = script("--itrace=e", "tid,time,event")?;
    if let Some(first) = errors.lines().next() {
        bail!(
            "stock perf cannot decode the lab's packets: {} errors, the first: {}",
            errors.lines().count(),
            first.trim()
        );
    }
    let mut cpus: Vec<Vec<Step>> = Vec::new();
    for line in script("--itrace=b", "cpu,ip,addr")?.lines() {
        let (cpu, step) = parse(line).with_context(|| format!("perf script printed {line:?}"))?;
        cpus.resize_with(cpus.len().max(cpu + 1), Vec::new);
        cpus[cpu].push(step);
    }
    Ok(cpus)
}

/// `[CPU] FROM => TO`, the addresses in hex.
fn parse(line: &str) -> Option<(usize, Step)> {
    let mut words = line.split_whitespace();
    let cpu = words.next()?.trim_matches(['[', ']']).parse().ok()?;
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let from = hex(words.next()?)?;
    (words.next()? == "=>").then_some(())?;
    Some((cpu, (from, hex(words.next()?)?)))
}

/// Both sides, CPU by CPU: the truth is a part of what was decoded.
///
/// # Errors
/// The first difference; a truth without steps.
fn compare(truth: &[Vec<Step>], decoded: &[Vec<Step>]) -> Result<String> {
    let mut out = String::new();
    for (cpu, truth) in truth.iter().enumerate() {
        let decoded = decoded.get(cpu).map(Vec::as_slice).unwrap_or_default();
        let same = longest(truth, decoded);
        if let Some(ran) = truth.get(same) {
            bail!(
                "CPU {cpu}: after {same} of {} steps the program went from {:#x} to {:#x}, which perf does not decode there",
                truth.len(),
                ran.0,
                ran.1
            );
        }
        out += &format!(
            "cpu {cpu}: {} branches, exits to and returns from the kernel: 0 differences\n",
            truth.len()
        );
    }
    if truth.iter().all(Vec::is_empty) {
        bail!("the ground truth is empty");
    }
    Ok(out)
}

/// How many steps of the truth were decoded in a row, from its first on.
fn longest(truth: &[Step], decoded: &[Step]) -> usize {
    let same = |at: usize| {
        truth
            .iter()
            .zip(&decoded[at..])
            .take_while(|(truth, decoded)| truth == decoded)
            .count()
    };
    (0..decoded.len()).map(same).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_perf_lines() {
        assert_eq!(
            parse("[001]     7f3bfda15b73 =>     7f3bfda16770"),
            Some((1, (0x7f3b_fda1_5b73, 0x7f3b_fda1_6770)))
        );
        assert_eq!(
            parse(" [000]                0 =>               1a"),
            Some((0, (0, 0x1a)))
        );
        assert_eq!(parse("[000] 0"), None);
    }

    #[test]
    fn a_difference_and_a_missing_step_are_found() {
        let truth = [(0, 1), (1, 2), (2, 3), (3, 0)];
        let check = |decoded: &[Step]| compare(&[truth.to_vec()], &[decoded.to_vec()]);
        assert!(
            check(&[(0, 1), (1, 2), (9, 9), (0, 1), (1, 2), (2, 3), (3, 0), (0, 7)])
                .unwrap()
                .contains("4 branches")
        );
        assert!(
            check(&[(0, 1), (1, 2), (2, 4), (3, 0)])
                .unwrap_err()
                .to_string()
                .contains("after 2 of 4")
        );
        assert!(check(&[(0, 1), (1, 2)]).is_err());
        assert!(compare(&[vec![]], &[vec![]]).is_err());
    }
}
