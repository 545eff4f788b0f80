//! `cargo xtask lab`: a guest with Intel PT, emulated. Takes a command, runs it in the guest, gives its output, its
//! files and the ground truth. `tests/lab/README.md` says what is faithful.
//!
//! ```text
//! packages ─ QEMU, perf, kernel ─▶ guest ◀─ initramfs ◀─ libraries, programs of this machine
//!                                    └─▶ out/, truth.N ─▶ check (stock perf against the truth), ops
//! ```

mod accuracy;
mod aux;
mod capture;
mod check;
mod culprit;
mod death;
mod decoded;
pub mod demo;
mod diff;
mod explain;
mod guest;
mod initramfs;
mod kernels;
mod latency;
mod libraries;
mod ops;
mod packages;
mod plan;
mod truth;
mod workloads;

#[path = "../../../tests/lab/decode/by_truth.rs"]
mod by_truth;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use self::{
    guest::{Outcome, Plan, Plugin},
    packages::{Kernel, KernelFiles, Packages, Tools},
};
use crate::{bench::Report, process};

/// Arguments of `cargo xtask lab`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    guest: GuestArgs,
    /// Run this in the guest: a program of this machine (a path) or of the guest (a name)
    #[arg(last = true)]
    command: Vec<String>,
}

/// What the guest is.
#[derive(clap::Args, Clone)]
pub struct GuestArgs {
    /// Debian's cloud kernel
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Kernel,
    /// Logical CPUs
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Seconds after which the guest is stopped
    #[arg(long, default_value_t = 180)]
    time_limit: u64,
    /// Another file of this machine to copy to the guest's /lab/bin; programs come with their libraries
    #[arg(long, value_name = "PATH")]
    copy: Vec<PathBuf>,
    /// Without the plugin: no PT, no ground truth
    #[arg(long)]
    without_plugin: bool,
    /// Use every valid form of IP compression in turn, not only those that hardware was seen to use
    #[arg(long)]
    all_ip_forms: bool,
    /// Send TNT packets of up to 47 bits
    #[arg(long)]
    long_tnt: bool,
    /// Offer only MTC period 9, so that time does not fill the buffers of a guest that is slower than its clock
    #[arg(long)]
    coarse_mtc: bool,
    /// Name of the run's folder in target/lab/run
    #[arg(long, default_value = "last")]
    name: String,
}

/// What is run in the guest, and how the rows are shown.
#[derive(clap::Args, Clone)]
pub struct RunArgs {
    /// This exist, instead of building one
    #[arg(long, value_name = "PATH")]
    exist: Option<PathBuf>,
    /// Print one JSON object a row instead of a table
    #[arg(long)]
    json: bool,
}

impl RunArgs {
    /// The `exist` that is given, or one that is built the way it is released.
    ///
    /// # Errors
    /// If it does not build.
    fn exist(&self) -> Result<PathBuf> {
        match &self.exist {
            Some(given) => Ok(given.clone()),
            None => Ok(process::build_release(&[("exist-user", "exist")])?.join("exist")),
        }
    }

    fn report(&self) -> Report {
        Report::new(self.json)
    }
}

#[derive(clap::Subcommand)]
enum What {
    /// Record a workload with stock perf, decode it with stock perf, compare every branch with the truth
    Check(check::Args),
    /// Record every workload with exist, decode it, and compare each thread's branches with the truth
    Accuracy(accuracy::Args),
    /// Make a small sample for tests of a workload: PT bytes and ground truth
    Capture(capture::Args),
    /// Count the writes of the tracer's control register, by way of recording
    Ops(ops::Args),
    /// On each kernel: whether the hook loads and records, and the live tests of the processor trace
    Kernels(kernels::Args),
    /// How late a CPU's tracer is after the target's first switch-in there; what a look-back loses
    Latency(latency::Args),
    /// What ends or limits a recording: kills, budget, locked memory, a CPU that goes, a binary that is replaced
    Death(death::Args),
    /// A service with a planted reason for slow calls: whether `exist culprit` names it
    Culprit(culprit::Args),
    /// Tiny buffers by where the target runs, against equal ones
    Plan(plan::Args),
    /// Print the ground truth of a run in numbers
    Truth {
        /// The run's name in target/lab/run
        #[arg(default_value = "last")]
        name: String,
    },
}

/// The lab on this machine: everything it needs, fetched and built.
pub struct Lab {
    root: PathBuf,
    packages: Packages,
    pub tools: Tools,
}

impl Lab {
    /// Fetches the tools and builds the plugin and labctl.
    ///
    /// # Errors
    /// Whatever keeps a part from being fetched or built.
    pub fn open() -> Result<Self> {
        let root = process::workspace().join("target/lab");
        let packages = Packages::open(&root.join("debian"))?;
        let tools = packages.tools()?;
        let mut build = Command::new("cargo");
        build.args([
            "build",
            "--quiet",
            "--release",
            "-p",
            "exist-lab-plugin",
            "-p",
            "exist-lab-guest",
        ]);
        process::output(build.current_dir(process::workspace()))?;
        Ok(Self { root, packages, tools })
    }

    /// What a run of this name left.
    ///
    /// # Errors
    /// If there was none.
    pub fn last(&self, name: &str) -> Result<Outcome> {
        guest::left(&self.root.join("run").join(name))
    }

    /// Runs a guest.
    ///
    /// # Errors
    /// See `guest::run`.
    pub fn run(&self, plan: &Plan, name: &str) -> Result<Outcome> {
        let kernel: KernelFiles = self.packages.kernel(plan.kernel)?;
        guest::run(plan, &self.tools, &kernel, &self.root.join("run").join(name))
    }
}

impl GuestArgs {
    /// The guest that these arguments mean, with a script.
    fn plan(&self, script: String, perf: bool) -> Plan {
        let built = |name: &str| process::workspace().join("target/release").join(name);
        let options = [
            (self.all_ip_forms, "ip=all"),
            (self.long_tnt, "tnt=long"),
            (self.coarse_mtc, "mtc=coarse"),
        ];
        let plugin = Plugin {
            library: built("libexist_lab_plugin.so"),
            labctl: built("labctl"),
            options: options
                .iter()
                .filter(|(on, _)| *on)
                .map(|(_, option)| (*option).to_owned())
                .collect(),
        };
        Plan {
            kernel: self.kernel,
            cpus: self.cpus,
            memory_mib: 1536,
            time_limit: Duration::from_secs(self.time_limit),
            plugin: (!self.without_plugin).then_some(plugin),
            script,
            copies: self.copy.clone(),
            perf,
        }
    }
}

/// Runs `cargo xtask lab`.
///
/// # Errors
/// A guest that gives no result; a command that fails in it.
pub fn run(args: &Args) -> Result<()> {
    match &args.what {
        Some(What::Check(args)) => check::run(args),
        Some(What::Accuracy(args)) => accuracy::run(args),
        Some(What::Capture(args)) => capture::run(args),
        Some(What::Ops(args)) => ops::run(args),
        Some(What::Kernels(args)) => kernels::run(args),
        Some(What::Latency(args)) => latency::run(args),
        Some(What::Death(args)) => death::run(args),
        Some(What::Culprit(args)) => culprit::run(args),
        Some(What::Plan(args)) => plan::run(args),
        Some(What::Truth { name }) => print_truth(name),
        None => run_command(args),
    }
}

fn print_truth(name: &str) -> Result<()> {
    let folder = process::workspace().join("target/lab/run").join(name);
    for cpu in 0.. {
        let path = folder.join(format!("truth.{cpu}"));
        match std::fs::read(&path) {
            Ok(bytes) => print!("{}", truth::text(cpu, &truth::summary(&bytes)?)),
            Err(_) if cpu > 0 => break,
            Err(error) => return Err(error).with_context(|| format!("failed to read {}", path.display())),
        }
    }
    Ok(())
}

fn run_command(args: &Args) -> Result<()> {
    let [program, rest @ ..] = args.command.as_slice() else {
        bail!("what shall run in the guest? cargo xtask lab -- COMMAND…, or a command of `cargo xtask lab --help`");
    };
    let lab = Lab::open()?;
    let mut guest = args.guest.clone();
    let mut words = vec![program.clone()];
    words.extend_from_slice(rest);
    // A path that is here goes there.
    for word in &mut words {
        let path = Path::new(word.as_str());
        if word.contains('/') && path.is_file() && !word.starts_with("/lab/") {
            guest.copy.push(path.to_path_buf());
            *word = format!(
                "/lab/bin/{}",
                path.file_name().context("a file has a name")?.to_string_lossy()
            );
        }
    }
    let perf = words
        .iter()
        .any(|word| word.split_whitespace().any(|word| word == "perf"));
    let script = words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    let outcome = lab.run(&guest.plan(script, perf), &guest.name)?;
    print!("{}", outcome.text("stdout")?);
    eprint!("{}", outcome.text("stderr")?);
    eprintln!("lab: results in {}", outcome.folder.display());
    if outcome.code != 0 {
        bail!("the command ended with {} in the guest", outcome.code);
    }
    Ok(())
}

/// A word as the shell reads it back.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quote("it's $HOME"), "'it'\\''s $HOME'");
    }
}
