//! What a context switch costs with the hook; run by `cargo xtask bench hook`, prints a JSON object a line.
//!
//! `hook-cost switch WINDOWS ROUNDS`: each window passes a byte to and fro between two processes on one CPU and reads the
//! kernel's own statistics (`run_time_ns`, `run_cnt`) of the hook's `sched_switch` and of an empty program beside it.
//! `hook-cost pipe PAIRS ROUNDS`: microseconds an operation of `perf bench sched pipe`, without and with the hook.

use std::{
    io::{Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use exist_user::{
    hook::{
        Event, Hook, HookOptions, Role,
        cost::{Empty, Statistics},
    },
    sys::{
        cgroupfs::{Hierarchy, Mount, Mounts},
        roots::Roots,
    },
};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["switch", windows, rounds] => switch(windows.parse()?, rounds),
        ["pipe", pairs, rounds] => pipe(pairs.parse()?, rounds),
        ["side", cgroup, rounds] => side(cgroup, rounds.parse()?),
        _ => bail!("usage: hook-cost switch WINDOWS ROUNDS | pipe PAIRS ROUNDS"),
    }
}

/// Which of the two processes are the target's.
#[derive(Clone, Copy)]
enum Sides {
    None,
    One,
    Both,
}

impl Sides {
    const fn name(self) -> &'static str {
        match self {
            Self::None => "others",
            Self::One => "target",
            Self::Both => "target to target",
        }
    }
}

fn switch(windows: usize, rounds: &str) -> Result<()> {
    let mounts = Mounts::find(&Roots::default())?;
    let _statistics = Statistics::enable()?;
    let mut empty = Empty::attach()?;
    for mount in mounts.v2.iter().chain(mounts.v1.first()) {
        let target = Removed::make(mount, "target")?;
        let other = Removed::make(mount, "other")?;
        let mut hook = begin(mount, &target)?;
        // Interleaved, so that a drift of the machine meets all.
        for _ in 0..windows {
            for sides in [Sides::None, Sides::One, Sides::Both] {
                let name = match mount.hierarchy {
                    Hierarchy::V2 => "cgroup 2",
                    Hierarchy::V1 { .. } => "cgroup 1",
                };
                let cgroups = match sides {
                    Sides::None => [&other, &other],
                    Sides::One => [&target, &other],
                    Sides::Both => [&target, &target],
                };
                window(&mut hook, &mut empty, &format!("{}, {name}", sides.name()), || {
                    to_and_fro(cgroups.map(|c| c.0.as_path()), rounds)
                })?;
            }
        }
        hook.end()?;
    }
    Ok(())
}

fn begin(mount: &Mount, target: &Removed) -> Result<Hook> {
    let mut options = HookOptions::new(mount.hierarchy.clone());
    options.ring_bytes = std::num::NonZeroU32::new(16 << 20).context("not 0")?;
    let mut hook = Hook::load(&options)?;
    hook.attach()?;
    hook.insert_cgroup(std::fs::metadata(&target.0)?.ino(), Role::Root)?;
    hook.begin()?;
    Ok(hook)
}

fn window(hook: &mut Hook, empty: &mut Empty, what: &str, load: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut read = |hook: &mut Hook| -> Result<[u64; 4]> {
        let ours = hook
            .program_stats()?
            .into_iter()
            .find(|p| p.name == "sched_switch")
            .context("no statistics of sched_switch")?;
        let none = empty.stats()?;
        Ok([ours.run_ns, ours.runs, none.run_ns, none.runs])
    };
    let before = read(hook)?;
    load()?;
    let after = read(hook)?;
    let (mut records, mut lost) = (0_u64, 0_u64);
    hook.drain(|event| match event {
        Event::Record(_) => records += 1,
        Event::Wait(_) => {}
        Event::Loss(loss) => lost += loss.records,
    })?;
    let [ns, runs, empty_ns, empty_runs] = [0, 1, 2, 3].map(|i| after[i] - before[i]);
    ensure!(runs > 0 && empty_runs > 0, "the kernel counted no switch");
    println!(
        "{{\"what\":\"{what}\",\"run_ns\":{ns},\"runs\":{runs},\"empty_ns\":{empty_ns},\"empty_runs\":{empty_runs},\
         \"records\":{records},\"lost\":{lost}}}"
    );
    Ok(())
}

/// Two copies of this program on CPU 0, each in its cgroup, with a pipe in each direction.
fn to_and_fro(cgroups: [&Path; 2], rounds: &str) -> Result<()> {
    let there = std::io::pipe()?;
    let back = std::io::pipe()?;
    (&back.1).write_all(b"x")?;
    let start = |cgroup: &Path, from: std::io::PipeReader, to: std::io::PipeWriter| -> Result<Child> {
        Command::new("taskset")
            .args(["-c", "0"])
            .arg(std::env::current_exe()?)
            .args([Path::new("side"), cgroup, Path::new(rounds)])
            .stdin(from)
            .stdout(to)
            .spawn()
            .context("failed to start taskset")
    };
    let mut sides = [start(cgroups[0], back.0, there.1)?, start(cgroups[1], there.0, back.1)?];
    for side in &mut sides {
        let status = side.wait()?;
        ensure!(status.success(), "a side ended with {status}");
    }
    Ok(())
}

fn side(cgroup: &str, rounds: u64) -> Result<()> {
    std::fs::write(Path::new(cgroup).join("cgroup.procs"), std::process::id().to_string())?;
    let (mut from, mut to) = (
        std::io::stdin().lock(),
        std::fs::File::from(std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned()?),
    );
    let mut byte = [0];
    for _ in 0..rounds {
        from.read_exact(&mut byte)?;
        // The last byte has no reader any more.
        if to.write_all(&byte).is_err() {
            break;
        }
    }
    Ok(())
}

fn pipe(pairs: usize, rounds: &str) -> Result<()> {
    let mounts = Mounts::find(&Roots::default())?;
    let mount = mounts
        .v2
        .iter()
        .chain(mounts.v1.first())
        .next()
        .context("no cgroups are mounted")?;
    let target = Removed::make(mount, "target")?;
    let other = Removed::make(mount, "other")?;
    for (what, cgroup) in [("others", &other), ("target", &target)] {
        for pair in 0..pairs {
            let with = || -> Result<f64> {
                let mut hook = begin(mount, &target)?;
                let with = perf_bench(&cgroup.0, rounds)?;
                hook.end()?;
                Ok(with)
            };
            // Either first in turn, so that a drift falls on both.
            let (without, with) = if pair % 2 == 0 {
                (perf_bench(&cgroup.0, rounds)?, with()?)
            } else {
                let with = with()?;
                (perf_bench(&cgroup.0, rounds)?, with)
            };
            println!("{{\"what\":\"{what}\",\"without_us\":{without},\"with_us\":{with}}}");
        }
    }
    Ok(())
}

/// Microseconds an operation.
fn perf_bench(cgroup: &Path, rounds: &str) -> Result<f64> {
    let out = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "echo $$ > {}/cgroup.procs && exec taskset -c 0 perf bench sched pipe -l {rounds}",
            cgroup.display()
        ))
        .stderr(Stdio::null())
        .output()
        .context("failed to start sh")?;
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines()
        .find_map(|line| line.trim().strip_suffix("usecs/op")?.trim().parse().ok())
        .context("`perf bench sched pipe` told no time; is perf installed?")
}

/// A cgroup that is removed at the end.
struct Removed(PathBuf);

impl Removed {
    fn make(mount: &Mount, name: &str) -> Result<Self> {
        let dir = mount.dir.join(format!("exist-bench-{}-{name}", std::process::id()));
        std::fs::create_dir(&dir).with_context(|| format!("failed to make {}; run as root", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        // A process that has ended may keep it busy for a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
