//! `cargo xtask lab check`: takes a workload, records it in the guest with stock perf and the kernel's own driver,
//! decodes it on the host with stock perf, and holds every branch of every CPU against the ground truth. CPU by CPU,
//! since perf itself sometimes gives the user code after a switch to the thread before it.
//!
//! It fails on a decoding error, on a transition that the lab cannot explain, on a difference outside recorded losses,
//! and when the workload prints something else without the plugin.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::{
    GuestArgs, Lab,
    compare::{self, Step},
    guest::Outcome,
    truth, workloads,
};
use crate::process;

/// Arguments of `cargo xtask lab check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// The event that perf records; the default period of MTC would fill the buffer with time
    #[arg(long, default_value = "intel_pt/mtc_period=9/u")]
    event: String,
    /// AUX bytes a CPU, as perf's -m takes them; small ones bring interrupts and stops
    #[arg(long, default_value = "32M")]
    aux: String,
    /// Lose this many bytes of packets in the middle
    #[arg(long)]
    overflow: Option<u32>,
    /// A workload of tests/lab/workloads or the path of a program, and its arguments; without one, every workload
    #[arg(last = true)]
    command: Vec<String>,
}

/// Runs `cargo xtask lab check`.
///
/// # Errors
/// See the module.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let workloads: Vec<&str> = workloads::ALL.iter().map(|workload| workload.name).collect();
    match args.command.as_slice() {
        [] => workloads.into_iter().try_for_each(|name| check(&lab, args, name, &[])),
        [program, arguments @ ..] => check(&lab, args, program, arguments),
    }
}

/// Checks one workload, by its name, or a program by its path.
fn check(lab: &Lab, args: &Args, program: &str, arguments: &[String]) -> Result<()> {
    let (program, arguments) = if program.contains('/') {
        (PathBuf::from(program), arguments.to_vec())
    } else {
        let (path, workload) = workloads::build(program)?;
        let own = workload
            .arguments
            .iter()
            .map(|argument| (*argument).to_owned())
            .collect();
        (path, if arguments.is_empty() { own } else { arguments.to_vec() })
    };
    let name = program
        .file_name()
        .context("the workload is not a file")?
        .to_string_lossy()
        .into_owned();
    let workload = [&format!("/lab/bin/{name}"), &arguments.join(" ")]
        .map(String::as_str)
        .join(" ");
    let mut guest = args.guest.clone();
    guest.copy.push(program.clone());

    let plain = format!("{workload} > plain");
    let mut without = guest.clone();
    without.without_plugin = true;
    let plain = lab.run(&without.plan(plain, false), &format!("{}-plain", guest.name))?;

    // Asked until it is told that it happened while the workload ran.
    let overflow = args.overflow.map_or(String::new(), |bytes| {
        format!("(for n in 1 2 3 4 5 6 7 8 9; do sleep 0.3; labctl ovf {bytes}; done) &\n")
    });
    let script = format!(
        "{overflow}perf record -q -a -m ,{} -e {} -o perf.data labctl run {workload} > plain || exit\n\
         cp -r /root/.debug debug 2> /dev/null || true\n",
        args.aux, args.event
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
    let mut truth = Vec::new();
    for (cpu, bytes) in traced.truths(guest.cpus)?.iter().enumerate() {
        let cpu_truth = compare::of_truth(bytes).with_context(|| format!("CPU {cpu}"))?;
        println!("{name}, {}", truth::line(cpu, &truth::summary(bytes)?));
        truth.push(cpu_truth);
    }
    let losses = truth.iter().map(compare::Truth::losses).sum();
    let decoded = of_perf(lab, &traced, losses)?;
    print!("{}", compare::compare(&truth, &decoded)?);
    Ok(())
}

/// The same as stock perf decodes it.
fn of_perf(lab: &Lab, outcome: &Outcome, losses: usize) -> Result<Vec<Vec<Step>>> {
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
    // perf tells each loss as one error.
    if let Some(first) = errors.lines().nth(losses) {
        bail!(
            "stock perf cannot decode the lab's packets: {} errors for {losses} losses, the last: {}",
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
}
