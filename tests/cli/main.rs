//! The command line as a user meets it: exit codes, error texts, the shape of `--json`, completions, the manual page.
//!
//! Everything here runs the program `exist` itself. What has to record needs root and the BPF programs; nothing else does.

#![allow(clippy::unwrap_used)]

mod errors;
mod exit_codes;
mod json;
mod pages;
mod spool;
#[path = "../live/recording/mod.rs"]
mod recording;

use std::{
    ffi::OsStr,
    process::{Command, Stdio},
};

/// A trace that uses every field of the file, with losses; tests/golden/file.rs keeps it up to date.
const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/v1.exist");

/// How a run ended and what it said.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn exist<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    let output = Command::new(recording::EXIST)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}
