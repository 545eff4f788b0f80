//! The programs of tests/lab/workloads: takes a name, gives the program, built with the machine's compilers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::process;

/// A program whose output depends on its arguments alone.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub name: &'static str,
    source: &'static str,
    compile: &'static [&'static str],
    /// Arguments of a run that takes about a second in the guest.
    pub arguments: &'static [&'static str],
}

const C: &[&str] = &["cc", "-O1", "-g", "-pthread"];

/// The workloads of every command.
pub const ALL: &[Workload] = &[
    Workload {
        name: "single",
        source: "single.c",
        compile: &["cc", "-O1", "-g", "-static", "-fno-optimize-sibling-calls"],
        arguments: &["50"],
    },
    Workload {
        name: "threads",
        source: "threads.c",
        compile: C,
        arguments: &["4", "30"],
    },
    Workload {
        name: "objects",
        source: "objects.cpp",
        compile: &["c++", "-O1", "-g"],
        arguments: &["24"],
    },
    Workload {
        name: "channels",
        source: "channels.rs",
        compile: &["rustc", "--edition=2024", "-O", "-g"],
        arguments: &["40"],
    },
    Workload {
        name: "libraries",
        source: "libraries.c",
        compile: &["cc", "-O1", "-g"],
        arguments: &["20"],
    },
    Workload {
        name: "family",
        source: "family.c",
        compile: C,
        arguments: &["3"],
    },
    Workload {
        name: "wakers",
        source: "wakers.c",
        compile: C,
        arguments: &["20", "20"],
    },
];

/// Those of one command each: what they do depends on time.
const OTHERS: &[Workload] = &[
    Workload {
        name: "stories",
        source: "stories.c",
        compile: C,
        arguments: &["flush", "1", "20"],
    },
    Workload {
        name: "skew",
        source: "skew.c",
        compile: C,
        arguments: &["1", "90", "10"],
    },
];

/// Builds a workload, if its source is newer than what was built.
///
/// # Errors
/// An unknown name, with those that are known; a missing compiler; a source that does not compile.
pub fn build(name: &str) -> Result<(PathBuf, Workload)> {
    let Some(workload) = ALL.iter().chain(OTHERS).find(|workload| workload.name == name) else {
        let known: Vec<_> = ALL.iter().map(|workload| workload.name).collect();
        bail!("no workload is called {name}; there are: {}", known.join(", "));
    };
    let root = process::workspace();
    let source = root.join("tests/lab/workloads").join(workload.source);
    let folder = root.join("target/lab/workloads");
    fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let program = folder.join(name);
    if newer(&source, &program) {
        let [compiler, options @ ..] = workload.compile else {
            bail!("{name} has no compiler")
        };
        let mut command = Command::new(compiler);
        command.args(options).arg("-o").arg(&program).arg(&source);
        if workload.source.ends_with(".c") {
            command.args(["-lm", "-ldl"]);
        }
        process::output(&mut command).with_context(|| format!("failed to build the workload {name}"))?;
    }
    Ok((program, *workload))
}

fn newer(source: &Path, program: &Path) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    time(program).is_none_or(|built| time(source).is_none_or(|written| written > built))
}
