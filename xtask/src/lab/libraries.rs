//! Shared libraries: takes a program of this machine, gives the files that it loads.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// The libraries of a program, each with the name it is asked for; none for a static program.
///
/// # Errors
/// If there is no such program.
pub fn of(program: &Path) -> Result<Vec<(String, PathBuf)>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("failed to start ldd")?;
    // ldd fails on a static program; whether the file is there was the caller's to check.
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// What `ldd` printed: `name => path (address)`, or `path (address)` for the dynamic linker.
pub fn parse(listed: &str) -> Vec<(String, PathBuf)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let path = match words.next() {
            Some("=>") => words.next()?,
            _ => name,
        };
        path.starts_with('/').then(|| (name.to_owned(), PathBuf::from(path)))
    };
    listed.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f1)\n\tlibgone.so => not found\n";
        assert_eq!(
            parse(listed),
            [
                ("libc.so.6".to_owned(), PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6")),
                (
                    "/lib64/ld-linux-x86-64.so.2".to_owned(),
                    PathBuf::from("/lib64/ld-linux-x86-64.so.2")
                ),
            ]
        );
        assert_eq!(parse("\tstatically linked\n"), []);
    }
}
