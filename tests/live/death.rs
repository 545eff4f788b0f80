//! Whatever ends a recording: nothing of it stays in the kernel, what was written is readable, the next one works.
//! Needs root and the BPF programs. `EXIST_KILLS` gives the number of kills (6 without it).

#![allow(clippy::unwrap_used)]

mod recording;

use std::{
    collections::BTreeSet,
    env, fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use exist_trace::file::{
    Piece, Pieces,
    model::{LossKind, SwitchOp},
};
use recording::{Cgroup, EXIST, Recording, Running};

/// A target that switches all the time.
const BUSY: &[&str] = &["sh", "-c", "while :; do sleep 0.002; done"];

fn busy(name: &str) -> Option<(Cgroup, Running)> {
    if let Some(why) = recording::cannot() {
        println!("skipped: {why}");
        return None;
    }
    let cgroup = Cgroup::new(name);
    let running = cgroup.start(BUSY, &[]);
    Some((cgroup, running))
}

/// What a file holds: switch records, kinds of losses, the reason of its end.
#[derive(Debug, Default)]
struct Holds {
    switches: usize,
    losses: Vec<LossKind>,
    end: Option<String>,
}

fn holds(path: &Path) -> Holds {
    let data = fs::read(path).unwrap();
    let mut holds = Holds::default();
    for piece in Pieces::new(&data).unwrap() {
        match piece {
            Piece::Generation(generation, _) => {
                let is_switch = |op| matches!(op, Some(SwitchOp::In | SwitchOp::Out));
                holds.switches += generation
                    .records
                    .iter()
                    .filter(|record| is_switch(record.op()))
                    .count();
                holds.end = generation.end_of_recording.map(|end| end.reason);
            }
            Piece::Loss(loss) | Piece::Unseen(loss) => holds.losses.push(loss.kind),
        }
    }
    holds
}

/// BPF programs, maps and links in the kernel that no living process holds: by the kernel's list of IDs, less those that
/// stand in a descriptor of somebody.
fn orphans() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    all.extend(
        aya::programs::loaded_programs()
            .flatten()
            .map(|program| format!("prog_id:\t{}", program.id())),
    );
    all.extend(
        aya::maps::loaded_maps()
            .flatten()
            .map(|map| format!("map_id:\t{}", map.id())),
    );
    let processes = fs::read_dir("/proc").unwrap().flatten();
    for descriptors in processes.filter_map(|process| fs::read_dir(process.path().join("fdinfo")).ok()) {
        for text in descriptors
            .flatten()
            .filter_map(|fd| fs::read_to_string(fd.path()).ok())
        {
            all.retain(|id: &String| !text.lines().any(|line| line == id));
        }
    }
    all
}

/// Waits until the kernel has let go of what `orphans` did not show before (it frees after a grace period).
fn nothing_remains(before: &BTreeSet<String>) {
    let end = Instant::now() + Duration::from_secs(30);
    let mut remains = BTreeSet::new();
    while Instant::now() < end {
        // A map of programs that others are just loading or freeing is gone at the next look.
        remains = orphans().difference(before).cloned().collect();
        if remains.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("still in the kernel: {remains:?}");
}

#[test]
fn killed_at_random_moments() {
    let Some((cgroup, _target)) = busy("kill") else { return };
    let kills: u32 = env::var("EXIST_KILLS").map_or(6, |kills| kills.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let before = orphans();
    let mut random = u64::from(std::process::id()) | 1;
    let mut readable = 0;
    for kill in 0..kills {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let out = folder.path().join(format!("{kill}.exist"));
        let mut recording = Recording::start(&out, &["--cgroup", &cgroup.name]);
        // One in three while it still starts, the others while they record.
        if kill % 3 != 0 {
            recording.wait_until_recording();
        }
        std::thread::sleep(Duration::from_millis(random % 700));
        let part = recording.part();
        recording.signal("-KILL");
        assert_eq!(recording.wait().0, None, "it was to be killed");
        assert!(!out.exists(), "a killed recording has no whole file");
        if fs::metadata(&part).map_or(0, |metadata| metadata.len()) > 0 {
            let holds = holds(&part);
            assert_eq!(holds.end, None);
            assert!(holds.losses.iter().all(|kind| *kind == LossKind::FileCut), "{holds:?}");
            readable += 1;
        }
    }
    assert!(readable >= kills / 2, "only {readable} of {kills} files hold anything");
    nothing_remains(&before);
    println!("{kills} kills, {readable} files with records, nothing left in the kernel");

    let out = folder.path().join("next.exist");
    let (code, said) = Recording::start(&out, &["--cgroup", &cgroup.name, "--for", "300ms", "--strict"]).wait();
    assert_eq!(code, Some(0), "{said}");
    let holds = holds(&out);
    assert!(
        holds.switches > 20 && holds.end.as_deref() == Some("period"),
        "{holds:?}"
    );
}

#[test]
fn the_target_exits_in_mid_period() {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.exist");
    let (code, said) = Recording::start(&out, &["--for", "60s", "--", "sh", "-c", "sleep 0.1; sleep 0.1"]).wait();
    assert_eq!(code, Some(0), "{said}");
    let holds = holds(&out);
    assert!(
        holds.switches >= 4 && holds.end.as_deref() == Some("target_exited"),
        "{holds:?}"
    );
}

#[test]
fn interrupted_while_it_is_set_up() {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let folder = tempfile::tempdir().unwrap();
    for signal in ["-INT", "-TERM", "-HUP"] {
        let out = folder.path().join(format!("x{signal}.exist"));
        // Who runs the tests may ignore SIGHUP (`nohup`), which then stays ignored.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", EXIST]);
        let recording = Recording::start_with(command, &out, &["--for", "60s", "--", "sleep", "60"]);
        let begun = Instant::now();
        // It listens before it does anything that takes a while.
        while !catches_interrupts(recording.pid()) {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "it does not listen to signals"
            );
        }
        recording.signal(signal);
        let (code, said) = recording.wait();
        assert_eq!(code, Some(0), "{signal}: {said}");
        assert!(said.contains(", interrupted"), "{signal}: {said}");
        assert_eq!(holds(&out).end.as_deref(), Some("interrupted"), "{signal}");
    }
}

fn catches_interrupts(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    // SIGHUP is the last that it begins to listen to, and number 1.
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 != 0
}

#[test]
fn the_cgroup_is_removed() {
    let Some((cgroup, target)) = busy("gone") else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.exist");
    let mut recording = Recording::start(&out, &["--cgroup", &cgroup.name, "--for", "60s"]);
    recording.wait_until_recording();
    cgroup.remove();
    drop(target);
    let (code, said) = recording.wait();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(holds(&out).end.as_deref(), Some("target_exited"));
}

/// Between the end of one process and the start of the next a supervisor's cgroup is empty.
#[test]
fn the_target_is_empty_for_a_moment() {
    let Some((cgroup, first)) = busy("moment") else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.exist");
    let mut recording = Recording::start(&out, &["--cgroup", &cgroup.name, "--for", "60s"]);
    recording.wait_until_recording();
    drop(first);
    std::thread::sleep(Duration::from_millis(400));
    let second = cgroup.start(BUSY, &[]);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(
        recording.part().exists(),
        "it ended while the target was empty for 400 ms"
    );
    recording.signal("-INT");
    let (code, said) = recording.wait();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(holds(&out).end.as_deref(), Some("interrupted"));
    drop(second);
}

#[test]
fn the_target_stays_empty() {
    let Some((cgroup, target)) = busy("empty") else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.exist");
    let mut recording = Recording::start(&out, &["--cgroup", &cgroup.name, "--for", "60s"]);
    recording.wait_until_recording();
    drop(target);
    let emptied = Instant::now();
    let (code, said) = recording.wait();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(holds(&out).end.as_deref(), Some("target_exited"));
    assert!(
        emptied.elapsed() > Duration::from_millis(900),
        "{:?}",
        emptied.elapsed()
    );
}

#[test]
fn the_disk_is_full() {
    let Some((cgroup, _target)) = busy("full") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        Command::new(arguments[0])
            .args(&arguments[1..])
            .arg(folder.path())
            .status()
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=32k", "none"]).is_ok_and(|status| status.success()) {
        return println!("skipped: cannot mount a tmpfs");
    }
    let out = folder.path().join("x.exist");
    let (code, said) = Recording::start(&out, &["--cgroup", &cgroup.name, "--for", "60s"]).wait();
    let holds = holds(&out);
    let unmounted = mount(&["umount"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("no space left"), "{said}");
    assert!(said.contains("1 loss, ") && !said.contains("nothing lost"), "{said}");
    assert!(holds.switches > 20 && !holds.losses.is_empty(), "{holds:?}");
    assert!(unmounted.is_ok_and(|status| status.success()));
}

#[test]
fn the_folder_is_removed() {
    let Some((cgroup, _target)) = busy("folder") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let mut recording = Recording::start(&inner.join("x.exist"), &["--cgroup", &cgroup.name, "--for", "60s"]);
    recording.wait_until_recording();
    fs::remove_dir_all(&inner).unwrap();
    let (code, said) = recording.wait();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("was deleted while it was written"), "{said}");
}

#[test]
fn two_recorders_at_once() {
    let Some((cgroup, _target)) = busy("two") else { return };
    let folder = tempfile::tempdir().unwrap();
    let outs = ["a", "b"].map(|name| folder.path().join(name));
    let mut both = outs
        .clone()
        .map(|out| Recording::start(&out, &["--cgroup", &cgroup.name, "--strict"]));
    both.iter_mut().for_each(Recording::wait_until_recording);
    std::thread::sleep(Duration::from_millis(500));
    for recording in both {
        recording.signal("-INT");
        let (code, said) = recording.wait();
        assert_eq!(code, Some(0), "{said}");
    }
    for out in outs {
        let holds = holds(&out);
        assert!(holds.switches > 40 && holds.losses.is_empty(), "{holds:?}");
        assert_eq!(holds.end.as_deref(), Some("interrupted"));
    }
}

/// A shell has what it starts in the background ignore Ctrl-C: a recording still ends by it. By the terminal's end it does
/// not where that is ignored, as `nohup` has it.
#[test]
fn signals_that_are_ignored_at_the_start() {
    let Some((cgroup, _target)) = busy("ignored") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.exist");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT HUP; exec \"$0\" \"$@\"", EXIST]);
    let mut recording = Recording::start_with(command, &out, &["--cgroup", &cgroup.name]);
    recording.wait_until_recording();
    recording.signal("-HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert!(recording.part().exists(), "it has ended by SIGHUP");
    recording.signal("-INT");
    let (code, said) = recording.wait();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(holds(&out).end.as_deref(), Some("interrupted"));
}

/// Runs through `wrapper`; it must fail, and say each of `words`.
fn refused(name: &str, wrapper: &[&str], words: &[&str]) {
    let Some((cgroup, _target)) = busy(name) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(EXIST);
    let out = folder.path().join("x.exist");
    let (code, said) = Recording::start_with(command, &out, &["--cgroup", &cgroup.name, "--for", "100ms"]).wait();
    assert_eq!(code, Some(1), "{said}");
    words
        .iter()
        .for_each(|word| assert!(said.contains(word), "`{word}` is not in: {said}"));
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn without_permission() {
    refused(
        "caps",
        &["setpriv", "--bounding-set=-all", "--inh-caps=-all"],
        &["run as root, or with CAP_BPF"],
    );
}

#[test]
fn without_the_kernels_types() {
    let hide = "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"";
    refused(
        "btf",
        &["unshare", "--mount", "sh", "-c", hide, "sh"],
        &["/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"],
    );
}
