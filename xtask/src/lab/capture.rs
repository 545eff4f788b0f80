//! `cargo xtask lab capture`: takes a workload, leaves a small sample for tests: each CPU's PT bytes as the driver wrote
//! them, and the ground truth of what ran meanwhile, which holds the code bytes.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use super::{GuestArgs, Lab, aux, truth, workloads};

/// Arguments of `cargo xtask lab capture`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    guest: GuestArgs,
    /// The event that perf records
    #[arg(long, default_value = "intel_pt//u")]
    event: String,
    /// Lose this many bytes of packets in the middle
    #[arg(long)]
    overflow: Option<u32>,
    /// Where the files go: cpuN.pt and cpuN.truth
    #[arg(long)]
    into: PathBuf,
    /// A workload of tests/lab/workloads and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs `cargo xtask lab capture`.
///
/// # Errors
/// A recording that fails, loses data without being asked to, or that the lab cannot explain.
pub fn run(args: &Args) -> Result<()> {
    let lab = Lab::open()?;
    let (program, _) = workloads::build(&args.command[0])?;
    let mut guest = args.guest.clone();
    guest.copy.push(program);
    let overflow = args
        .overflow
        .map_or(String::new(), |bytes| format!("(sleep 0.1; labctl ovf {bytes}) & "));
    let script = format!(
        "labctl traced; {overflow}perf record -q -m ,4M -e {} -o perf.data /lab/bin/{}; code=$?; labctl off; exit $code\n",
        args.event,
        args.command.join(" ")
    );
    let outcome = lab.run(&guest.plan(script, true), &guest.name)?;
    if outcome.code != 0 {
        bail!(
            "recording ended with {} in the guest: {}",
            outcome.code,
            outcome.text("stderr")?.trim()
        );
    }
    fs::create_dir_all(&args.into).with_context(|| format!("failed to make {}", args.into.display()))?;
    let pt = aux::of(&outcome.file("perf.data")?)?;
    for (cpu, bytes) in (0u32..).zip(outcome.truths(guest.cpus)?) {
        let Some(pt) = pt.get(&cpu) else { continue };
        let summary = truth::summary(&bytes)?;
        if !summary.unexplained.is_empty() || (summary.overflows == 0) != args.overflow.is_none() {
            bail!("this run is no sample:\n{}", truth::text(cpu as usize, &summary));
        }
        for (kind, bytes) in [("pt", pt), ("truth", &bytes)] {
            let path = args.into.join(format!("cpu{cpu}.{kind}"));
            fs::write(&path, bytes).with_context(|| format!("failed to write {}", path.display()))?;
            println!("{} bytes in {}", bytes.len(), path.display());
        }
        print!("{}", truth::text(cpu as usize, &summary));
    }
    Ok(())
}
