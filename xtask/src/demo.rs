//! `cargo xtask demo`: sets up what is missing, records a small service, prints the report, leaves a file to open.
//!
//! With Intel PT here one recording shows all. Without it there are two: of this machine's switches, where that can be
//! recorded, and of a guest with an emulated PT, which needs no privilege.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    build_ebpf, lab, process,
    setup::{self, Need},
};

/// Seconds that are recorded; the service runs a little longer.
const RECORD_S: &str = "2s";
const SERVICE_S: &str = "3";
/// The same in the guest, whose processor is emulated.
const GUEST_S: &str = "1";
/// Runs `cargo xtask demo`.
///
/// # Errors
/// If something cannot be set up or built, or the recording fails.
pub fn run() -> Result<()> {
    setup::ensure(&[Need::Bpf])?;
    build_ebpf::run()?;
    let root = process::workspace();
    let programs = process::build_release(&[("exist-user", "exist"), ("xtask", "demo-service")])?;
    let exist = programs.join("exist");
    let out = root.join("target/demo");
    fs::create_dir_all(&out).with_context(|| format!("failed to create {}", out.display()))?;
    let service = programs.join("demo-service");

    let trace = out.join("demo.exist");
    match record(&exist, &service, &trace) {
        Ok(()) => show(&exist, &trace, None)?,
        // The guest shows more than this machine would have.
        Err(error) if !Path::new(process::INTEL_PT).exists() => {
            eprintln!("this machine's switches are not recorded: {error:#}")
        }
        Err(error) => return Err(error),
    }
    if !Path::new(process::INTEL_PT).exists() {
        println!("\nno Intel PT here: the same in a guest with an emulated one (tests/lab/README.md)");
        let recorded = lab::demo::record(&exist, &service, GUEST_S)?;
        let trace = out.join("demo-pt.exist");
        fs::copy(&recorded.trace, &trace).with_context(|| format!("failed to write {}", trace.display()))?;
        show(&exist, &trace, Some(&recorded.root))?;
    }
    Ok(())
}

/// Prints the report, and leaves a file to open. `root`: where the code that ran is.
fn show(exist: &Path, trace: &Path, root: Option<&Path>) -> Result<()> {
    let perfetto = trace.with_extension("perfetto-trace");
    let with_root = |command: &mut Command| {
        if let Some(root) = root {
            command.arg("--root").arg(root);
        }
    };
    let mut report = Command::new(exist);
    report.arg("report").arg(trace);
    with_root(&mut report);
    process::run(&mut report)?;
    let mut export = Command::new(exist);
    export
        .arg("export")
        .arg(trace)
        .args(["--to", "perfetto", "-o"])
        .arg(&perfetto);
    with_root(&mut export);
    process::run(&mut export)?;
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
