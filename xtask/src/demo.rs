//! `cargo xtask demo`: sets up what is missing, records a small service, prints the report, leaves a file to open.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    build_ebpf, process,
    setup::{self, Need},
};

/// Seconds that are recorded; the service runs a little longer.
const RECORD_S: &str = "2s";
const SERVICE_S: &str = "3";

/// Runs `cargo xtask demo`.
///
/// # Errors
/// If something cannot be set up or built, or the recording fails.
pub fn run() -> Result<()> {
    setup::ensure(&[Need::Bpf])?;
    build_ebpf::run()?;
    let root = process::workspace();
    process::run(
        Command::new("cargo")
            .args([
                "build",
                "--release",
                "--locked",
                "--package",
                "exist-user",
                "--bin",
                "exist",
            ])
            .args(["--package", "xtask", "--bin", "demo-service"])
            .current_dir(&root),
    )?;
    let exist = root.join("target/release/exist");
    let out = root.join("target/demo");
    fs::create_dir_all(&out).with_context(|| format!("failed to create {}", out.display()))?;
    let (trace, perfetto) = (out.join("demo.exist"), out.join("demo.perfetto-trace"));

    record(&exist, &root.join("target/release/demo-service"), &trace)?;
    process::run(Command::new(&exist).arg("report").arg(&trace))?;
    process::run(
        Command::new(&exist)
            .arg("export")
            .arg(&trace)
            .args(["--to", "perfetto", "-o"])
            .arg(&perfetto),
    )?;
    println!("\nthe trace: {}", trace.display());
    println!("open in ui.perfetto.dev: {}", perfetto.display());
    Ok(())
}

/// Records the service as a command: it starts when the tracer is ready.
fn record(exist: &Path, service: &Path, trace: &Path) -> Result<()> {
    let mut command = if process::is_root()? {
        Command::new(exist)
    } else if process::on_path("sudo") {
        let mut sudo = Command::new("sudo");
        sudo.arg(exist);
        sudo
    } else {
        bail!("recording needs root, and there is no sudo; run `cargo xtask demo` as root");
    };
    process::run(
        command
            .args(["record", "--for", RECORD_S, "-o"])
            .arg(trace)
            .arg("--")
            .arg(service)
            .arg(SERVICE_S),
    )
}
