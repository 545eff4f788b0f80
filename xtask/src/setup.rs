//! `cargo xtask setup`: installs what is missing, and prints what it installs.
//!
//! Takes needs, gives a machine that has them. Refuses to guess: a distribution that it does
//! not know, or a user who may not install, gets the command to run.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{perfetto_ui, process};

/// Arguments of `cargo xtask setup`.
#[derive(clap::Args)]
pub struct Args {
    /// What to set up; everything when none is named.
    needs: Vec<Need>,
    /// Print what is missing, install nothing; exit with 1 if anything is.
    #[arg(long)]
    check: bool,
}

/// A part of the work that needs programs from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Need {
    /// Compile and link the BPF programs.
    Bpf,
    /// Live tests: perf, container engines, a C compiler, Perfetto's trace processor.
    Live,
    /// Benches: services, load generators, other recorders. Where systemd runs, Debian starts memcached, nginx and
    /// redis when it installs them.
    Bench,
}

/// Release of the BPF linker that is tried with LLVM 22.
pub const BPF_LINKER_VERSION: &str = "0.13.0";
/// LLVM release that the BPF linker is built with; not older than that of the Rust compiler that makes the bitcode.
pub const LLVM_MAJOR: u32 = 22;

impl Need {
    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Bpf => &[
                "build-essential",
                "rustc-web",
                "cargo-web",
                "rust-web-src",
                "llvm-22-dev",
                "libpolly-22-dev",
                "libzstd-dev",
                "zlib1g-dev",
                "libxml2-dev",
            ],
            Self::Live => &[
                "build-essential",
                "busybox-static",
                "conmon",
                "containerd",
                "docker.io",
                "linux-perf",
                "nodejs",
                "podman",
                "python3-pip",
                "runc",
            ],
            Self::Bench => &[
                "bpftrace",
                "linux-perf",
                "memcached",
                "nginx-light",
                "redis-server",
                "wrk",
            ],
        }
    }
}

/// Runs `cargo xtask setup`.
///
/// # Errors
/// If something is missing and cannot be installed, or `--check` found something missing.
pub fn run(args: &Args) -> Result<()> {
    let needs = if args.needs.is_empty() {
        Need::value_variants()
    } else {
        &args.needs
    };
    if !args.check {
        return ensure(needs);
    }
    let missing = missing_packages(needs)?;
    let linker = needs.contains(&Need::Bpf) && bpf_linker().is_none();
    let perfetto = needs.contains(&Need::Live) && !perfetto_ui::is_there();
    if missing.is_empty() && !linker && !perfetto {
        println!("nothing is missing");
        return Ok(());
    }
    if linker {
        println!("missing: bpf-linker {BPF_LINKER_VERSION}");
    }
    if perfetto {
        println!("missing: Perfetto's trace processor");
    }
    for package in missing {
        println!("missing: {package}");
    }
    bail!("something is missing; `cargo xtask setup` installs it")
}

/// Installs what is missing for `needs`.
///
/// # Errors
/// If an installation fails; the message names the command.
pub fn ensure(needs: &[Need]) -> Result<()> {
    install(&missing_packages(needs)?)?;
    if needs.contains(&Need::Bpf) && bpf_linker().is_none() {
        install_bpf_linker()?;
    }
    if needs.contains(&Need::Live) {
        perfetto_ui::ensure()?;
    }
    Ok(())
}

/// Path of the BPF linker, if it is installed.
pub fn bpf_linker() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))?;
    [home.join("bin/bpf-linker"), PathBuf::from("/usr/local/bin/bpf-linker")]
        .into_iter()
        .find(|path| path.is_file())
}

fn install_bpf_linker() -> Result<()> {
    eprintln!("installing: bpf-linker {BPF_LINKER_VERSION} (from crates.io, with LLVM {LLVM_MAJOR})");
    process::run(
        Command::new("cargo")
            .args([
                "install",
                "bpf-linker",
                "--locked",
                "--version",
                BPF_LINKER_VERSION,
                "--no-default-features",
                "--features",
            ])
            .arg(format!("llvm-{LLVM_MAJOR}"))
            .env("LLVM_PREFIX", format!("/usr/lib/llvm-{LLVM_MAJOR}")),
    )
}

fn missing_packages(needs: &[Need]) -> Result<Vec<&'static str>> {
    let mut wanted: Vec<_> = needs.iter().flat_map(|need| need.packages()).copied().collect();
    wanted.sort_unstable();
    wanted.dedup();
    if !process::on_path("dpkg-query") {
        bail!(
            "this machine has no dpkg: setup knows Debian 12, 13 and Ubuntu; install by hand: {}",
            wanted.join(" ")
        );
    }
    let installed = installed_packages()?;
    Ok(wanted
        .into_iter()
        .filter(|name| !installed.iter().any(|have| have == name))
        .collect())
}

fn installed_packages() -> Result<Vec<String>> {
    let listed = process::output(Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status} ${Package}\\n"]))?;
    Ok(parse_installed(&listed))
}

fn parse_installed(listed: &str) -> Vec<String> {
    listed
        .lines()
        .filter_map(|line| line.strip_prefix("installed "))
        .map(str::to_owned)
        .collect()
}

fn install(missing: &[&str]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing: {}", missing.join(" "));
    // The lists of a fresh machine are empty or old; a failed refresh shows in the install.
    if let Err(error) = process::run(apt_get()?.arg("update")) {
        eprintln!("warning: {error:#}");
    }
    process::run(
        apt_get()?
            .args(["install", "-y", "--no-install-recommends"])
            .args(missing),
    )
    .with_context(|| {
        format!(
            "failed to install packages; run as root: apt-get install {}",
            missing.join(" ")
        )
    })
}

fn apt_get() -> Result<Command> {
    let mut command = if process::is_root()? {
        Command::new("apt-get")
    } else if process::on_path("sudo") {
        let mut sudo = Command::new("sudo");
        sudo.args(["DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get"]);
        sudo
    } else {
        bail!("installing packages needs root, and there is no sudo; run `cargo xtask setup` as root");
    };
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Without systemd: services that a package brings are not started (invoke-rc.d).
        .env("RUNLEVEL", "1")
        .args(["-qq", "-o", "DPkg::Lock::Timeout=300"]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_count() {
        let listed = "installed gcc\nconfig-files podman\nnot-installed runc\ninstalled zlib1g-dev\n";
        assert_eq!(parse_installed(listed), ["gcc", "zlib1g-dev"]);
    }
}
