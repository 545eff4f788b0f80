//! Every error names the thing, the reason and the remedy.

use std::{fs, process::Command};

use super::{TRACE, exist, recording};

/// The command fails, in one line that begins with the program's name and holds all of `parts`.
fn check(arguments: &[&str], parts: &[&str]) {
    let ran = exist(arguments);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{arguments:?}: {ran:?}");
    assert!(ran.err.starts_with("exist: "), "{arguments:?}: {ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{arguments:?}: {ran:?}");
    for part in parts {
        assert!(ran.err.contains(part), "{arguments:?}: no {part:?} in {}", ran.err);
    }
}

#[test]
fn files_to_read() {
    let missing = ["/no/such.exist", "No such file", "`exist record` writes traces"];
    check(&["report", "/no/such.exist"], &missing);
    check(&["dump", "/no/such.exist", "ops"], &missing);
    check(
        &["report", "/dev/zero"],
        &["/dev/zero", "a device", "`exist record` writes traces"],
    );
    let folder = tempfile::tempdir().unwrap();
    let (empty, other) = (folder.path().join("empty"), folder.path().join("other"));
    fs::write(&empty, "").unwrap();
    fs::write(&other, "perf.data\n".repeat(100)).unwrap();
    for file in [empty, other] {
        let file = file.to_str().unwrap();
        check(
            &["report", file],
            &[file, "not a trace of exist", "`exist record` writes traces"],
        );
        check(
            &["export", file, "--to", "perfetto", "-o", "x"],
            &[file, "not a trace of exist"],
        );
    }
}

#[test]
fn files_to_write() {
    let gone = ["/no/folder/x", "No such file", "its folder must be there and writable"];
    check(&["export", TRACE, "--to", "perfetto", "-o", "/no/folder/x"], &gone);
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let own = std::process::id().to_string();
    check(
        &["record", "--only-pid", &own, "--for", "1s", "-o", "/no/folder/x"],
        &gone,
    );
}

#[test]
fn targets() {
    let (o, x) = ("-o", "x");
    check(
        &["record", o, x, "--container", "4f"],
        &["\"4f\"", "too short", "at least 4 characters"],
    );
    check(
        &["record", o, x, "--container", "00000000feed"],
        &["\"00000000feed\"", "no container", "searched", "`ps` shows"],
    );
    check(
        &["record", o, x, "--cgroup", "no/such/cgroup"],
        &["\"no/such/cgroup\"", "no cgroup", "/proc/PID/cgroup shows"],
    );
    // Above the kernel's highest (PID_MAX_LIMIT).
    check(
        &["record", o, x, "--pid", "4194305"],
        &["no process 4194305", "the host's", "--proc-root"],
    );
    check(
        &["record", o, x, "--only-pid"],
        &["--only-pid needs a process", "--only-pid PID"],
    );
    check(
        &["record", o, x, "--pid", "7", "--only-pid", "8"],
        &["--pid 7", "--only-pid 8", "two processes"],
    );
    check(
        &["record", o, x, "--pid", "7", "--ring-bytes", "100"],
        &["--ring-bytes 100", "out of range", "4K to 1G"],
    );
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().to_str().unwrap();
    check(
        &["record", o, x, "--container", "00000000feed", "--cgroup-root", nothing],
        &[nothing, "no cgroup hierarchy", "--cgroup-root"],
    );
}

#[test]
fn commands() {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    check(
        &["record", "-o", "x", "--", "/no/such/program"],
        &["\"/no/such/program\"", "No such file", "on the PATH"],
    );
}

#[test]
fn nothing_is_left_where_a_recording_fails() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("x.exist");
    let out = out.to_str().unwrap();
    check(&["record", "-o", out, "--pid", "4194305"], &["no process"]);
    check(&["record", "-o", out, "--container", "00000000feed"], &["no container"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn standard_output_that_is_full() {
    for arguments in [
        &["report", TRACE, "--json"] as &[_],
        &["dump", TRACE, "switches"],
        &["man"],
    ] {
        let output = Command::new(recording::EXIST)
            .args(arguments)
            .stdout(fs::File::create("/dev/full").unwrap())
            .output()
            .unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {err}");
        assert!(
            err.starts_with("exist: failed to write to standard output: No space left"),
            "{arguments:?}: {err}"
        );
    }
}

#[test]
fn names_that_would_steer_a_terminal() {
    let ran = exist(&["report", "/no/\u{1b}[31m\u{202e}x"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("/no/\u{fffd}[31m\u{fffd}x"), "{ran:?}");
}
