//! Runs other programs. Takes a command, gives its success or an error that names it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// Where the kernel shows that it drives an Intel PT.
pub const INTEL_PT: &str = "/sys/bus/event_source/devices/intel_pt";

/// The workspace's root folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
        .to_path_buf()
}

/// Builds programs of the workspace, each a package and the name of its program, in their release profile. Gives the folder
/// that they are in.
///
/// # Errors
/// One does not build.
pub fn build_release(programs: &[(&str, &str)]) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--locked", "--quiet"]);
    for (package, program) in programs {
        cargo.args(["--package", package, "--bin", program]);
    }
    let root = workspace();
    run(cargo.current_dir(&root))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release"))
}

/// Prints the command, runs it to its end with our own standard streams.
///
/// # Errors
/// If it cannot be started or does not exit with 0.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", line(command));
    let status = command
        .status()
        .with_context(|| format!("failed to start {}", line(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", line(command));
    }
    Ok(())
}

/// Runs the command and gives what it printed on standard output.
///
/// # Errors
/// If it cannot be started or does not exit with 0; the error holds what it printed on standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("failed to start {}", line(command)))?;
    if !out.status.success() {
        bail!(
            "{} ended with {}: {}",
            line(command),
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The Debian archive that this machine's own package lists come from.
///
/// # Errors
/// If there is none: not Debian, or lists that were never fetched.
pub fn debian_archive() -> Result<String> {
    let listed =
        output(Command::new("apt-get").args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]))?;
    match archive_of(&listed) {
        Some(archive) => Ok(archive.to_owned()),
        None => bail!("apt knows no Debian archive; add one to its sources and run `apt-get update`"),
    }
}

fn archive_of(listed: &str) -> Option<&str> {
    listed
        .lines()
        .map(|line| line.trim_end_matches('/'))
        .find(|archive| archive.ends_with("/debian"))
}

/// Whether we are root.
///
/// # Errors
/// If `id` cannot be run.
pub fn is_root() -> Result<bool> {
    Ok(output(Command::new("id").arg("-u"))?.trim() == "0")
}

/// Whether a program of this name is on the PATH.
pub fn on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|paths| std::env::split_paths(&paths).any(|dir| dir.join(program).is_file()))
}

fn line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_not_the_security_one() {
        let listed = "http://a.example/debian-security/\nhttp://a.example/debian/\n";
        assert_eq!(archive_of(listed), Some("http://a.example/debian"));
        assert_eq!(archive_of("http://a.example/ubuntu/\n"), None);
    }
}
