//! `cargo xtask fuzz`: runs the fuzz targets of exist-trace, one after the other.
//!
//! Refuses when there is no nightly compiler or no cargo-fuzz, and says what installs them.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process;

const NIGHTLY: &str = "rustup toolchain install nightly --profile minimal";
const CARGO_FUZZ: &str = "cargo install cargo-fuzz --locked";

/// Arguments of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// Which targets; all when none is named.
    targets: Vec<String>,
    /// How long each runs.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// The short form for CI: seconds for each target. Without a nightly compiler it cannot run, and says so.
///
/// # Errors
/// As [`run`], and if cargo-fuzz cannot be installed.
pub fn short() -> Result<()> {
    if needs("a nightly compiler", &["--version"], NIGHTLY).is_err() {
        eprintln!("skipped: fuzzing: there is no nightly compiler: {NIGHTLY}");
        return Ok(());
    }
    if needs("cargo-fuzz", &["fuzz", "--version"], CARGO_FUZZ).is_err() {
        eprintln!("installing: cargo-fuzz (from crates.io)");
        process::run(Command::new("cargo").args(["install", "cargo-fuzz", "--locked"]))?;
    }
    run(&Args {
        targets: Vec::new(),
        seconds: 10,
    })
}

/// Runs `cargo xtask fuzz`.
///
/// # Errors
/// If a tool is missing, or an input was found that breaks a target: it is kept, and its path printed.
pub fn run(args: &Args) -> Result<()> {
    needs("a nightly compiler", &["--version"], NIGHTLY)?;
    needs("cargo-fuzz", &["fuzz", "--version"], CARGO_FUZZ)?;
    let package = process::workspace().join("exist-user/exist-trace");
    let list = cargo(&["fuzz", "list"])
        .current_dir(&package)
        .output()
        .context("failed to run cargo fuzz list")?;
    ensure!(
        list.status.success(),
        "cargo fuzz list failed: {}",
        String::from_utf8_lossy(&list.stderr)
    );
    let known = String::from_utf8(list.stdout).context("cargo fuzz list is not UTF-8")?;
    let known: Vec<&str> = known.lines().collect();
    if let Some(unknown) = args.targets.iter().find(|t| !known.contains(&t.as_str())) {
        bail!("no fuzz target {unknown}; there are: {}", known.join(", "));
    }
    // From a whole trace, mutations reach every section; from nothing, none.
    let corpus = package.join("fuzz/corpus/file");
    std::fs::create_dir_all(&corpus).context("failed to make the corpus")?;
    std::fs::copy(
        process::workspace().join("tests/golden/v1.exist"),
        corpus.join("v1.exist"),
    )
    .context("failed to copy the golden file into the corpus")?;
    for target in known
        .iter()
        .filter(|t| args.targets.is_empty() || args.targets.iter().any(|a| a == *t))
    {
        let seconds = format!("-max_total_time={}", args.seconds);
        let limits = [
            "--",
            &seconds,
            "-rss_limit_mb=1024",
            "-timeout=5",
            "-print_final_stats=1",
        ];
        process::run(cargo(&["fuzz", "run", target]).args(limits).current_dir(&package))?;
    }
    Ok(())
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    // Under `cargo xtask` the variables of the stable tool chain are set: they would win over `+nightly`.
    command
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("CARGO")
        .arg("+nightly")
        .args(args);
    command
}

fn needs(what: &str, args: &[&str], remedy: &str) -> Result<()> {
    let status = cargo(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    ensure!(status.is_ok_and(|s| s.success()), "{what} is missing: {remedy}");
    Ok(())
}
