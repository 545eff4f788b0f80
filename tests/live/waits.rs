//! Waits against the program's own counters: each kind's number, and the time runnable against the kernel's.
//!
//! `waits.c` says what it does. Its threads end each in a line of what they counted, with the time; what we tell of a
//! thread up to that time must be equal, but for the waits that the trace says are missing.

#![allow(clippy::unwrap_used)]

mod recording;

use std::{collections::HashMap, fs, process::Command};

use exist_trace::file::{
    Trace,
    model::{LossKind, Wait},
};
use recording::{EXIST, cannot};

/// What a thread counted.
struct Line {
    tid: u32,
    kind: String,
    waits: u64,
    run_delay_ns: u64,
    switches: u64,
    time_ns: u64,
}

fn line(text: &str) -> Line {
    let words: Vec<_> = text.split(' ').collect();
    let [tid, kind, waits, delay, switches, time] = words[..] else {
        panic!("waits.c printed {text}")
    };
    Line {
        tid: tid.parse().unwrap(),
        kind: kind.to_owned(),
        waits: waits.parse().unwrap(),
        run_delay_ns: delay.parse().unwrap(),
        switches: switches.parse().unwrap(),
        time_ns: time.parse().unwrap(),
    }
}

#[test]
fn every_kind_of_wait_is_what_the_program_counted() {
    if let Some(why) = cannot() {
        println!("skipped: {why}");
        return;
    }
    // On a disk, not in memory: reads, fsync and page faults must wait.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/live/waits.c");
    let built = Command::new("cc")
        .args(["-O1", "-pthread", source, "-o", &at("waits")])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("skipped: no C compiler (`cc`)");
        return;
    }
    let script = format!("{} {} > {}", at("waits"), at("data"), at("told"));
    let recorded = Command::new(EXIST)
        .args([
            "record",
            "--waits",
            "on",
            "--pt",
            "off",
            "-o",
            &at("trace"),
            "--",
            "sh",
            "-c",
            &script,
        ])
        .output()
        .unwrap();
    assert!(
        recorded.status.success(),
        "{}",
        String::from_utf8_lossy(&recorded.stderr)
    );
    let trace = Trace::read(&fs::read(at("trace")).unwrap()).unwrap();
    let missing: u64 = (trace.losses.iter().filter(|loss| loss.kind == LossKind::WaitsLost))
        .map(|loss| loss.records)
        .sum();
    let mut by_tid: HashMap<u32, Vec<&Wait>> = HashMap::new();
    for wait in &trace.waits {
        by_tid.entry(wait.tid).or_default().push(wait);
    }
    let told = fs::read_to_string(at("told")).unwrap();
    let lines: Vec<_> = told.lines().map(line).collect();
    assert_eq!(lines.len(), 13, "{told}");
    let mut off = 0;
    for line in &lines {
        let waits = by_tid[&line.tid].iter().filter(|wait| wait.run_ns <= line.time_ns);
        let of_kind = waits.clone().filter(|wait| wait.kind().as_str() == line.kind).count() as u64;
        let runnable_ns: u64 = waits
            .filter(|wait| wait.runnable_ns != 0)
            .map(|wait| wait.run_ns - wait.runnable_ns)
            .sum();
        let allowed_ns = line.run_delay_ns / 200 + 20_000 * line.switches;
        let apart_ns = runnable_ns.abs_diff(line.run_delay_ns);
        println!(
            "{}: {of_kind} of {} waits; runnable {runnable_ns} ns, run_delay {} ns, {apart_ns} of {allowed_ns} apart",
            line.kind, line.waits, line.run_delay_ns
        );
        // The kernel counts a switch a moment before or after the thread reads its counters, and a page may have come
        // before the thread that wants it sleeps.
        let slack = match line.kind.as_str() {
            "preempted" | "page_fault" | "disk" => 1,
            _ => 0,
        };
        assert!(line.waits >= 4, "{}: too few to tell", line.kind);
        off += of_kind.abs_diff(line.waits).saturating_sub(slack);
        assert!(missing > 0 || apart_ns <= allowed_ns, "{}", line.kind);
    }
    assert!(
        off <= missing,
        "{off} waits are not as counted, {missing} are said to be missing"
    );
}
