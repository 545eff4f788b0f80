//! `cargo xtask image`: the root file system of the container image, without any registry.
//!
//! Takes the workspace. Gives `target/image/`: a static `exist` at its place, the Containerfile, and `exist.tar` for
//! `docker import`. The binary holds all that it needs, so the image holds nothing else: no shell, no libraries.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::{build_ebpf, process};

/// Static linking with glibc works, since nothing in `exist` resolves names or users.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs `cargo xtask image`.
///
/// # Errors
/// If something does not build; the message names the command.
pub fn run() -> Result<()> {
    let root = process::workspace();
    build_ebpf::run()?;
    process::run(
        Command::new("cargo")
            .args([
                "build",
                "--locked",
                "--release",
                "--package",
                "exist-user",
                "--bin",
                "exist",
                "--target",
                TARGET,
            ])
            .env(
                "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS",
                "-C target-feature=+crt-static",
            )
            .current_dir(&root),
    )?;
    let image = root.join("target/image");
    let tree = image.join("root");
    let binary = tree.join("usr/bin/exist");
    let _ = fs::remove_dir_all(&tree);
    create_dir(&tree.join("usr/bin"))?;
    // Where the host's are mounted, and a place for traces.
    for mount_point in ["host/proc", "host/sys/fs/cgroup", "proc", "sys", "var/lib/exist"] {
        create_dir(&tree.join(mount_point))?;
    }
    let built = root.join("target").join(TARGET).join("release/exist");
    copy(&built, &binary)?;
    let file = process::output(Command::new("ldd").arg(&binary));
    if file.is_ok_and(|libraries| libraries.contains("=>")) {
        bail!("{} is not static: the image would lack its libraries", binary.display());
    }
    copy(&binary, &image.join("exist"))?;
    copy(&root.join("deploy/Containerfile"), &image.join("Containerfile"))?;
    let tar = image.join("exist.tar");
    // The same bytes for the same binary.
    process::run(
        Command::new("tar")
            .args([
                "--sort=name",
                "--mtime=@0",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "-C",
            ])
            .arg(&tree)
            .arg("-cf")
            .arg(&tar)
            .arg("."),
    )?;
    let changes = [
        "ENTRYPOINT [\"/usr/bin/exist\"]",
        "CMD [\"doctor\"]",
        "ENV EXIST_PROC_ROOT=/host/proc EXIST_CGROUP_ROOT=/host/sys/fs/cgroup",
    ];
    let changes: String = changes.iter().map(|c| format!(" --change '{c}'")).collect();
    println!("{}", tar.display());
    println!("docker import{changes} {} exist", tar.display());
    println!("or: docker build -t exist {}", image.display());
    Ok(())
}

fn create_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("failed to create {}", dir.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
