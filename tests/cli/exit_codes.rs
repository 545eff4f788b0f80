//! 0 done, 1 failed, 2 usage, 3 something was lost and `--strict` was given.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    thread,
};

use exist_trace::file::{Generation, Reader, Writer, model::PtSettings};

use super::{TRACE, exist, recording};

/// The code; an answer goes to standard output, everything else to standard error.
fn check(arguments: &[&str], code: i32) {
    let ran = exist(arguments);
    assert_eq!(ran.code, code, "{arguments:?}: {ran:?}");
    let answers = matches!(code, 0 | 3);
    assert_eq!(ran.out.is_empty(), !answers, "{arguments:?}: {ran:?}");
    assert_eq!(ran.err.is_empty(), answers, "{arguments:?}: {ran:?}");
}

#[test]
fn done() {
    check(&["--help"], 0);
    check(&["--version"], 0);
    check(&["record", "--help"], 0);
    check(&["report", TRACE], 0);
    check(&["dump", TRACE, "losses"], 0);
}

#[test]
fn failed() {
    check(&["report", "/no/such.exist"], 1);
    check(&["dump", "/no/such.exist", "switches"], 1);
    check(&["record", "--container", "4f", "-o", "x"], 1);
    check(&["record", "--only-pid", "-o", "x"], 1);
    check(&["plan", "--", "true"], 1);
    // It holds no processor trace, so there are no calls.
    check(&["culprit", TRACE, "--function", "main"], 1);
    check(&["culprit", "/no/such.exist", "--function", "main"], 1);
}

#[test]
fn usage() {
    for line in [
        "",
        "no-such-command",
        "report",
        "report a b",
        "dump a no-such-rows",
        "dump a",
        "record -o x",
        "record --pid 1",
        "record --pid 1 --cgroup a -o x",
        "record --pid one -o x",
        "record --pid 1 -o x --for 10",
        "record --pid 1 -o x --buffer 1M --buffers 1M-2M",
        "plan",
        "plan --pid 1 --cgroup a",
        "plan --pid 1 --buffers 2M-1M",
        "culprit a",
        "culprit a --function f --slower-than 5",
        "export a -o x",
        "export a --to no-such-format -o x",
        "completions no-such-shell",
    ] {
        check(&line.split_whitespace().collect::<Vec<_>>(), 2);
    }
}

#[test]
fn losses_in_a_trace_are_3_only_when_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.exist");
    fs::write(&whole, without_losses()).unwrap();
    let whole = whole.to_str().unwrap();
    for what in [&["report"] as &[_], &["dump"]] {
        let rows = if what == ["dump"] { &["switches"] as &[_] } else { &[] };
        check(&[what, &[TRACE], rows].concat(), 0);
        check(&[what, &[TRACE], rows, &["--strict"]].concat(), 3);
        check(&[what, &[whole], rows, &["--strict"]].concat(), 0);
    }
}

#[test]
fn a_reader_that_has_what_it_wants_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let many = folder.path().join("many.exist");
    let mut writer = Writer::new(Vec::new());
    for generation in Reader::new(&fs::read(TRACE).unwrap()) {
        let mut generation = generation.unwrap();
        let thread = generation.threads.first().cloned();
        generation.threads.extend((0..5000).filter_map(|i| {
            let mut thread = thread.clone()?;
            thread.tid.0 = 100_000 + i;
            Some(thread)
        }));
        writer.write(&generation).unwrap();
    }
    fs::write(&many, writer.into_inner()).unwrap();
    for arguments in [&["report"] as &[_], &["report", "--json"]] {
        let mut child = Command::new(recording::EXIST)
            .args(arguments)
            .arg(&many)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut answer = child.stdout.take().unwrap();
        answer.read_exact(&mut [0]).unwrap();
        drop(answer);
        let output = child.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), &*err), (Some(0), ""), "{arguments:?}");
    }
}

/// The golden trace as it would be if nothing had been lost.
fn without_losses() -> Vec<u8> {
    golden(|generation| generation.losses.clear())
}

/// The golden trace with a change.
fn golden(change: impl Fn(&mut Generation)) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for generation in Reader::new(&fs::read(TRACE).unwrap()) {
        let mut generation = generation.unwrap();
        change(&mut generation);
        writer.write(&generation).unwrap();
    }
    writer.into_inner()
}

/// Packets cannot be placed in time then; the switches can.
#[test]
fn processor_trace_without_clocks_leaves_the_switches() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.exist");
    let file = path.to_str().unwrap();
    let pt = PtSettings::default();
    fs::write(
        &path,
        golden(|generation| {
            generation.header.pt = Ok(pt.clone());
            generation.clock_pairs.clear();
        }),
    )
    .unwrap();
    let report = exist(&["report", file]);
    assert_eq!(report.code, 0, "{report:?}");
    assert!(
        report
            .out
            .contains("functions: the trace holds no readings of both clocks"),
        "{report:?}"
    );
    let threads = |out: &str| serde_json::from_str::<serde_json::Value>(out).unwrap()["threads"].clone();
    assert_eq!(
        threads(&exist(&["report", "--json", file]).out),
        threads(&exist(&["report", "--json", TRACE]).out)
    );

    let out = folder.path().join("out");
    let export = exist(&["export", file, "--to", "perfetto", "-o", out.to_str().unwrap()]);
    assert_eq!(export.code, 0, "{export:?}");
    assert!(export.err.contains("calls are left out: "), "{export:?}");
    assert!(fs::metadata(&out).unwrap().len() > 0);

    // What is asked for here is all that is missing.
    let spans = exist(&["dump", file, "spans"]);
    assert!(
        spans.code == 1 && spans.err.contains("no readings of both clocks"),
        "{spans:?}"
    );
}

/// Set for the copy of this test that is recorded.
const PING_PONG: &str = "EXIST_TEST_PING_PONG";
/// A ring of one page holds a hundred records; so many switches between two drains are lost for the most part.
const ROUNDS: u32 = 50_000;

#[test]
fn losses_while_recording_are_3_only_when_that_is_asked_for() {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let folder = tempfile::tempdir().unwrap();
    let own = env::current_exe().unwrap();
    for (strict, code) in [(&["--strict"] as &[_], 3), (&[], 0)] {
        let out = folder.path().join(format!("{code}.exist"));
        let out = out.to_str().unwrap();
        let options = ["record", "--ring-bytes", "4K", "--pt", "off", "-o", out];
        let variable = format!("{PING_PONG}=1");
        let command = [
            "--",
            "env",
            &variable,
            own.to_str().unwrap(),
            "--exact",
            "exit_codes::ping_pong",
        ];
        let ran = exist(&[&options, strict, &command].concat());
        assert_eq!(ran.code, code, "{ran:?}");
        // It says so, and where more is to be read.
        assert!(ran.err.contains(" missing: see `exist dump "), "{ran:?}");

        check(&["report", out], 0);
        check(&["report", out, "--strict"], 3);
        let losses = exist(&["dump", out, "losses", "--json"]);
        let rows = losses
            .out
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let full: Vec<_> = rows.filter(|row| row["kind"] == "ring_full").collect();
        let records: u64 = full.iter().map(|row| row["records"].as_u64().unwrap()).sum();
        assert!(records > 1000, "{records} of the records of {ROUNDS} rounds are lost");
        assert!(
            full.iter()
                .all(|row| row["reason"].as_str().unwrap().contains("larger rings")),
            "{full:?}"
        );
        // What the command line said is what the file says.
        assert!(
            ran.err.replace(',', "").contains(&format!("{records} records missing")),
            "{ran:?}"
        );
    }
}

/// The program that is recorded: two threads on one CPU that wake each other.
#[test]
fn ping_pong() {
    if env::var_os(PING_PONG).is_none() {
        return;
    }
    let ((mut here, mut to_here), (mut there, mut to_there)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let other = thread::spawn(move || {
        let mut byte = [0];
        while there.read_exact(&mut byte).is_ok() {
            to_here.write_all(&byte).unwrap();
        }
    });
    for _ in 0..ROUNDS {
        to_there.write_all(&[0]).unwrap();
        here.read_exact(&mut [0]).unwrap();
    }
    drop(to_there);
    other.join().unwrap();
}
