//! What a context switch costs with the hook: prints a JSON object for each window. Run by `cargo xtask bench hook`.
//!
//! Each window runs `perf bench sched pipe` for a fixed number of rounds, outside or inside the target, and reads the
//! kernel's own statistics (`run_time_ns`, `run_cnt`) of the hook's `sched_switch` and of an empty program beside it.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use exist_user::{
    hook::{
        Hook, HookOptions, Role,
        cost::{Empty, Statistics},
    },
    sys::{
        cgroupfs::{Hierarchy, Mounts},
        roots::Roots,
    },
};

/// Where the pipe runs.
struct Place<'a> {
    name: &'a str,
    /// Its cgroup; `None`: where we are, outside the target.
    cgroup: Option<&'a Path>,
    /// CPUs for `taskset`.
    cpus: &'a str,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [windows, rounds] = &args[..] else {
        anyhow::bail!("usage: hook-cost WINDOWS ROUNDS");
    };
    let (windows, rounds): (usize, u64) = (windows.parse()?, rounds.parse()?);
    let mounts = Mounts::find(&Roots::default())?;
    let _statistics = Statistics::enable()?;
    let mut empty = Empty::attach()?;
    for mount in mounts.v2.iter().chain(mounts.v1.first()) {
        let cgroup = Removed::make(&mount.dir)?;
        let mut hook = Hook::load(&HookOptions::new(mount.hierarchy.clone()))?;
        hook.attach()?;
        hook.insert_cgroup(
            std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&cgroup.0)?),
            Role::Root,
        )?;
        hook.begin()?;
        let hierarchy = match mount.hierarchy {
            Hierarchy::V2 => "cgroup 2",
            Hierarchy::V1 { .. } => "cgroup 1",
        };
        let places = [
            Place {
                name: "others",
                cgroup: None,
                cpus: "0",
            },
            Place {
                name: "others, two CPUs",
                cgroup: None,
                cpus: "0,1",
            },
            Place {
                name: "target",
                cgroup: Some(&cgroup.0),
                cpus: "0",
            },
            Place {
                name: "target, two CPUs",
                cgroup: Some(&cgroup.0),
                cpus: "0,1",
            },
        ];
        // Interleaved, so that a drift of the machine meets all.
        for _ in 0..windows {
            for place in &places {
                window(&mut hook, &mut empty, hierarchy, place, rounds)?;
            }
        }
        hook.end()?;
    }
    Ok(())
}

fn window(hook: &mut Hook, empty: &mut Empty, hierarchy: &str, place: &Place<'_>, rounds: u64) -> Result<()> {
    let mut read = || -> Result<[u64; 4]> {
        let ours = hook
            .program_stats()?
            .into_iter()
            .find(|p| p.name == "sched_switch")
            .context("no statistics of sched_switch")?;
        let none = empty.stats()?;
        Ok([ours.run_ns, ours.runs, none.run_ns, none.runs])
    };
    let before = read()?;
    pipe(place, rounds)?;
    let after = read()?;
    let mut records = 0_u64;
    let mut lost = 0_u64;
    hook.drain(|event| match event {
        exist_user::hook::Event::Record(_) => records += 1,
        exist_user::hook::Event::Loss(loss) => lost += loss.records,
    })?;
    let [ns, runs, empty_ns, empty_runs] = [0, 1, 2, 3].map(|i| after[i] - before[i]);
    ensure!(runs > 0 && empty_runs > 0, "the kernel counted no switch");
    println!(
        "{{\"where\":\"{hierarchy}: {}\",\"run_ns\":{ns},\"runs\":{runs},\"empty_ns\":{empty_ns},\"empty_runs\":{empty_runs},\"records\":{records},\"lost\":{lost}}}",
        place.name
    );
    Ok(())
}

/// `perf bench sched pipe`, as a child that moves itself first.
fn pipe(place: &Place<'_>, rounds: u64) -> Result<()> {
    let enter = match place.cgroup {
        Some(cgroup) => format!("echo $$ > {}/cgroup.procs && ", cgroup.display()),
        None => String::new(),
    };
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "{enter}exec taskset -c {} perf bench sched pipe -l {rounds}",
            place.cpus
        ))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("failed to start sh")?;
    ensure!(
        status.success(),
        "`perf bench sched pipe` ended with {status}; is perf installed?"
    );
    Ok(())
}

/// A cgroup that is removed at the end.
struct Removed(PathBuf);

impl Removed {
    fn make(below: &Path) -> Result<Self> {
        let dir = below.join(format!("exist-bench-{}", std::process::id()));
        std::fs::create_dir(&dir).with_context(|| format!("failed to make {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
