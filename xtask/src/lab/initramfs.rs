//! The guest's root as a cpio archive: takes files and folders, gives the bytes that the kernel unpacks.
//!
//! Format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst, "newc".

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CONSOLE: u32 = 0o020_600;

/// The files of a guest, by their path without the leading slash.
#[derive(Debug, Default)]
pub struct Tree {
    entries: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Tree {
    /// A root with the folders and the console that every guest has.
    pub fn new() -> Self {
        let mut tree = Self::default();
        for name in ["bin", "dev", "proc", "sys", "tmp", "root", "etc", "lab/out"] {
            tree.folder(name);
        }
        tree.entries.insert("dev/console".into(), (CONSOLE, Vec::new()));
        tree
    }

    /// Adds a folder and those above it.
    pub fn folder(&mut self, name: &str) {
        let name = name.trim_matches('/');
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
        if !name.is_empty() {
            self.entries.entry(name.to_owned()).or_insert((FOLDER, Vec::new()));
        }
    }

    /// Adds a file that may be executed, and the folders above it.
    pub fn file(&mut self, name: &str, bytes: Vec<u8>) {
        let name = name.trim_start_matches('/');
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
        self.entries.insert(name.to_owned(), (PROGRAM, bytes));
    }

    /// Adds a copy of a host's file.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn copy(&mut self, from: &Path, name: &str) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("failed to read {}", from.display()))?;
        self.file(name, bytes);
        Ok(())
    }

    /// Writes the files below a folder of the host, for programs there that look for the guest's files.
    ///
    /// # Errors
    /// A folder or file that cannot be written.
    pub fn write_below(&self, folder: &Path) -> Result<()> {
        for (name, (mode, bytes)) in &self.entries {
            let path = folder.join(name);
            match *mode {
                FOLDER => fs::create_dir_all(&path),
                PROGRAM => fs::write(&path, bytes),
                _ => Ok(()),
            }
            .with_context(|| format!("failed to write {}", path.display()))?;
        }
        Ok(())
    }

    /// The archive.
    pub fn archive(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (inode, (name, (mode, bytes))) in (1u32..).zip(&self.entries) {
            entry(&mut out, inode, name, *mode, bytes);
        }
        entry(&mut out, 0, "TRAILER!!!", 0, &[]);
        out
    }
}

fn entry(out: &mut Vec<u8>, inode: u32, name: &str, mode: u32, bytes: &[u8]) {
    let (major, minor) = if mode == CONSOLE { (5, 1) } else { (0, 0) };
    let size = u32::try_from(bytes.len()).expect("a guest's file is below 4 GiB");
    out.extend_from_slice(b"070701");
    for field in [
        inode,
        mode,
        0,
        0,
        1,
        0,
        size,
        0,
        0,
        major,
        minor,
        name.len() as u32 + 1,
        0,
    ] {
        out.extend_from_slice(format!("{field:08X}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    pad(out);
    out.extend_from_slice(bytes);
    pad(out);
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_their_files() {
        let mut tree = Tree::new();
        tree.file("/lab/bin/x", b"abc".to_vec());
        let archive = tree.archive();
        let at = |name: &str| {
            let name = [name.as_bytes(), b"\0"].concat();
            archive.windows(name.len()).position(|window| window == name).unwrap()
        };
        assert!(at("lab") < at("lab/bin") && at("lab/bin") < at("lab/bin/x"));
        assert_eq!(archive.len() % 4, 0);
        let data = (at("lab/bin/x") + "lab/bin/x\0".len()).next_multiple_of(4);
        assert_eq!(&archive[data..data + 4], b"abc\0");
    }
}
