//! `cargo xtask tidy`: the rules of the structure that the compiler does not check.
//!
//! Takes the files that git knows, gives every breach with its place.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

use crate::process;

/// Names that may stand at the top level, beside dot files.
const TOP_LEVEL: &[&str] = &[
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "README.md",
    "deploy",
    "exist-common",
    "exist-ebpf",
    "exist-user",
    "tests",
    "xtask",
];

/// Where `unsafe` may stand: the kernel's and QEMU's borders.
const UNSAFE_ALLOWED: &[&str] = &["exist-ebpf/", "exist-user/src/sys/", "tests/lab/plugin/"];

/// A file this long tells more than one thing.
const MAX_LINES: usize = 800;

/// Runs `cargo xtask tidy`.
///
/// # Errors
/// If there is a breach; all of them have been printed by then.
pub fn run() -> Result<()> {
    let root = process::workspace();
    let listed = process::output(Command::new("git").args(["ls-files"]).current_dir(&root))?;
    let mut breaches = Vec::new();
    for path in listed.lines() {
        breaches.extend(top_level(path));
        if !path.ends_with(".rs") {
            continue;
        }
        // A file that git lists and that was just deleted is no breach.
        let Ok(text) = fs::read_to_string(root.join(path)) else {
            continue;
        };
        breaches.extend(source(path, &text));
    }
    breaches.extend(room_order(&root, "exist-user/src")?);
    breaches.extend(room_order(&root, "exist-user/exist-trace/src")?);
    for breach in &breaches {
        println!("{breach}");
    }
    if !breaches.is_empty() {
        bail!("{} breaches of the structure's rules", breaches.len());
    }
    Ok(())
}

fn top_level(path: &str) -> Option<String> {
    let name = path.split('/').next().unwrap_or(path);
    (!name.starts_with('.') && !TOP_LEVEL.contains(&name))
        .then(|| format!("{path}: {name} may not stand at the top level"))
}

fn source(path: &str, text: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        breaches.push(format!("{path}: {lines} lines, at most {MAX_LINES}"));
    }
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let code = line.split("//").next().unwrap_or("");
        let unsafe_code = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
            .iter()
            .any(|word| code.contains(word));
        if unsafe_code && path != "xtask/src/tidy.rs" && !UNSAFE_ALLOWED.iter().any(|allowed| path.starts_with(allowed))
        {
            breaches.push(format!("{path}:{number}: unsafe outside {}", UNSAFE_ALLOWED.join(", ")));
        }
        if code.contains("aya::") && path.starts_with("exist-user/src/") && !path.starts_with("exist-user/src/hook/") {
            breaches.push(format!("{path}:{number}: only hook/ imports aya"));
        }
    }
    breaches
}

/// A room uses only rooms that stand above it in `lib.rs`.
fn room_order(root: &Path, package: &str) -> Result<Vec<String>> {
    let lib = root.join(package).join("lib.rs");
    let text = fs::read_to_string(&lib).with_context(|| format!("failed to read {}", lib.display()))?;
    let rooms = rooms(&text);
    let listed = process::output(Command::new("git").args(["ls-files", package]).current_dir(root))?;
    let mut breaches = Vec::new();
    for path in listed.lines().filter(|path| path.ends_with(".rs")) {
        let Some(place) = room_of(path, package, &rooms) else {
            continue;
        };
        let Ok(text) = fs::read_to_string(root.join(path)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            for used in line.match_indices("crate::").filter_map(|(at, word)| {
                let rest = &line[at + word.len()..];
                let end = rest
                    .find(|c: char| !c.is_alphanumeric() && c != '_')
                    .unwrap_or(rest.len());
                rooms.iter().position(|room| *room == &rest[..end])
            }) {
                if used > place {
                    breaches.push(format!(
                        "{path}:{}: {} may not use {}, which stands below it",
                        number + 1,
                        rooms[place],
                        rooms[used]
                    ));
                }
            }
        }
    }
    Ok(breaches)
}

fn rooms(lib: &str) -> Vec<&str> {
    lib.lines()
        .filter_map(|line| line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod ")))
        .filter_map(|rest| rest.strip_suffix(';'))
        .collect()
}

fn room_of(path: &str, package: &str, rooms: &[&str]) -> Option<usize> {
    let rest = path.strip_prefix(package)?.strip_prefix('/')?;
    let name = rest.split('/').next()?.trim_end_matches(".rs");
    rooms.iter().position(|room| *room == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_at_the_top_level_is_a_breach() {
        assert!(top_level("notes/todo.md").is_some());
        assert!(top_level("exist-user/src/lib.rs").is_none());
        assert!(top_level(".ci/run").is_none());
    }

    #[test]
    fn unsafe_and_aya_have_their_rooms() {
        assert_eq!(
            source("exist-user/src/agent/mod.rs", "unsafe { f() }\nuse aya::Ebpf;\n").len(),
            2
        );
        assert_eq!(source("exist-user/src/hook/mod.rs", "use aya::Ebpf;\n").len(), 0);
        assert_eq!(
            source("exist-user/src/sys/perf.rs", "unsafe { f() }\n// aya::\n").len(),
            0
        );
    }

    #[test]
    fn rooms_stand_in_the_order_of_the_mod_lines() {
        let rooms = rooms("//! text\npub mod units;\nmod file;\nuse x;\n");
        assert_eq!(rooms, ["units", "file"]);
        assert_eq!(room_of("p/src/file/mod.rs", "p/src", &rooms), Some(1));
        assert_eq!(room_of("p/src/units.rs", "p/src", &rooms), Some(0));
        assert_eq!(room_of("p/src/main.rs", "p/src", &rooms), None);
    }
}
