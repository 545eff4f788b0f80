//! A command in a cgroup of its own, on this machine's cgroup file system. Needs root.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use exist_trace::session::Target;
use exist_user::{
    sys::{cgroupfs::Mounts, procfs::Process, roots::Roots},
    target::{Presence, TargetError, resolve, sweep},
};

/// Set for the copy of this test that is killed.
const VICTIM: &str = "EXIST_TEST_VICTIM";

fn shell(script: &str) -> Target {
    Target::Command(["sh", "-c", script].map(Into::into).into())
}

/// Directories of the cgroups that the process `pid` has made for commands, on all hierarchies. Other runs have theirs.
fn made_by(pid: u32) -> Vec<PathBuf> {
    let mounts = Mounts::find(&Roots::default()).unwrap();
    let all = mounts
        .iter()
        .flat_map(|m| m.walk().unwrap().into_iter().map(|p| m.directory(&p)));
    let prefix = format!("exist-run-{pid}-");
    all.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix)))
        .collect()
}

fn skipped() -> bool {
    let probe = resolve(&Roots::default(), &shell(":"));
    if let Err(e @ (TargetError::MakeCgroup { .. } | TargetError::NoHierarchy(_))) = &probe {
        println!("skipped: {e}");
        return true;
    }
    false
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn alive(pid: u32) -> bool {
    Process::new(&Roots::default(), pid)
        .stat()
        .is_ok_and(|s| s.state != b'Z')
}

// One test: the parts watch the same machine-wide cgroups.
#[test]
fn a_command_lives_and_dies_in_its_cgroup() {
    if std::env::var_os(VICTIM).is_some() {
        let mut resolved = resolve(&Roots::default(), &shell("sleep 300 & sleep 300")).unwrap();
        resolved.command.as_mut().unwrap().release().unwrap();
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    if skipped() {
        return;
    }
    held_then_released_then_gone();
    a_failed_start_leaves_nothing();
    a_crashed_run_is_swept();
}

fn held_then_released_then_gone() {
    let roots = Roots::default();
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let mut resolved = resolve(
        &roots,
        &shell(&format!("echo > {}; sleep 300 & sleep 300", mark.display())),
    )
    .unwrap();
    let root = resolved.roots[0].path().to_owned();
    let command = resolved.command.as_mut().unwrap();
    let pid = command.pid();
    let stands = |pid| {
        Process::new(&roots, pid)
            .cgroups()
            .unwrap()
            .iter()
            .any(|l| l.path.ends_with(root.file_name().unwrap()))
    };
    assert!(stands(pid), "the child is in the cgroup before it runs");
    assert!(!mark.exists());
    command.release().unwrap();
    until("the mark", || mark.exists());
    until("the second sleep", || resolved.roots[0].processes().unwrap().len() == 3);
    assert_eq!(resolved.presence().unwrap(), Presence::Populated);
    assert_eq!(resolved.command.as_mut().unwrap().child().try_wait().unwrap(), None);

    // A run that lives is not swept.
    let swept = sweep(&Mounts::find(&roots).unwrap()).unwrap();
    assert!(swept.iter().all(|p| p.file_name() != root.file_name()), "{swept:?}");
    let all = resolved.roots[0].processes().unwrap();
    drop(resolved);
    assert!(all.iter().all(|&p| !alive(p)), "all of {all:?} died with us");
    assert_eq!(made_by(std::process::id()), Vec::<PathBuf>::new());
}

fn a_failed_start_leaves_nothing() {
    let target = Target::Command(vec!["/no/such/program".into()]);
    let error = resolve(&Roots::default(), &target).unwrap_err().to_string();
    assert!(error.contains("/no/such/program"), "{error}");
    assert_eq!(made_by(std::process::id()), Vec::<PathBuf>::new());
}

fn a_crashed_run_is_swept() {
    let mut victim: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_command_lives_and_dies_in_its_cgroup"])
        .env(VICTIM, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let made = || made_by(victim.id()).into_iter().next();
    let pids = |dir: &Path| -> Vec<u32> {
        let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().map(|l| l.parse().unwrap()).collect()
    };
    until("the victim's command", || {
        made().is_some_and(|dir| pids(&dir).len() == 3)
    });
    let dir = made().unwrap();
    let all = pids(&dir);
    victim.kill().unwrap();
    victim.wait().unwrap();
    // The command itself dies with its parent; what it started is left, until somebody's next start.
    until("the command's death", || pids(&dir).len() < 3);
    sweep(&Mounts::find(&Roots::default()).unwrap()).unwrap();
    until("the end of the cgroup", || !dir.exists());
    assert!(all.iter().all(|&p| !alive(p)));
}
