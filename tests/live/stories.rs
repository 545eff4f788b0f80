//! Real programs with something planted: the diagnosis of their recordings names it; of the same programs without it, not.
//!
//! `stories.c` says what they do. Needs root, the BPF programs and a C compiler. But for the quota and the neighbour,
//! the programs run before all that is scheduled fairly, so that what else this machine does is not found.

#![allow(clippy::unwrap_used)]

mod recording;

use std::{fs, path::PathBuf, process::Command, time::Duration};

use exist_trace::analysis::diagnose::{Diagnosis, diagnose};
use recording::{Cgroup, EXIST, cannot};

/// The programs, and where they are.
struct Stage {
    folder: tempfile::TempDir,
}

/// What a story's thread told of itself.
struct Told {
    tid: u32,
    number: u64,
}

impl Stage {
    fn set() -> Option<Self> {
        if let Some(why) = cannot() {
            println!("skipped: {why}");
            return None;
        }
        // On a disk, not in memory: fsync must wait.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/live/stories.c");
        let mut cc = Command::new("cc");
        let built = cc
            .args(["-O1", "-pthread", source, "-o"])
            .arg(folder.path().join("stories"))
            .status();
        if !built.is_ok_and(|status| status.success()) {
            println!("skipped: no C compiler (`cc`)");
            return None;
        }
        Some(Self { folder })
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    /// Records a story; `first` is what its shell does before.
    fn play(&self, story: &str, first: &str) -> (Diagnosis, Vec<Told>) {
        let (program, data, told, trace) = (self.at("stories"), self.at("data"), self.at("told"), self.at("trace"));
        let script = format!("{first} exec {program} {story} {data} > {told}");
        let recorded = Command::new(EXIST)
            .args([
                "record", "--waits", "on", "--pt", "off", "-o", &trace, "--", "sh", "-c", &script,
            ])
            .output()
            .unwrap();
        assert!(
            recorded.status.success(),
            "{}",
            String::from_utf8_lossy(&recorded.stderr)
        );
        let told = fs::read_to_string(told).unwrap();
        let told = told.lines().map(|line| {
            let (tid, number) = line.split_once(' ').unwrap();
            Told {
                tid: tid.parse().unwrap(),
                number: number.parse().unwrap(),
            }
        });
        (diagnose(&fs::read(trace).unwrap(), |_| None).unwrap(), told.collect())
    }
}

/// What is found, in words; `None`: nothing.
fn found(diagnosis: &Diagnosis, question: &str) -> Option<String> {
    let answer = diagnosis.found().find(|answer| answer.question == question)?;
    let says = format!("{}; {}", answer.says, answer.evidence.join("; "));
    println!("{question}: {says}");
    assert!(!answer.places.is_empty(), "{answer:?}");
    Some(says)
}

/// Whatever else this machine does can only be a neighbour, or make a disk slow.
fn nothing_else(diagnosis: &Diagnosis, but: &[&str]) {
    let other = diagnosis.found().find(|answer| {
        let shared = ["neighbour", "long_calls", "cpus_idle", "page_faults"];
        !shared.contains(&answer.question) && !but.contains(&answer.question)
    });
    assert_eq!(other, None);
}

#[test]
fn a_service_at_ease() {
    let Some(stage) = Stage::set() else { return };
    let (diagnosis, _) = stage.play("ease", "");
    nothing_else(&diagnosis, &[]);
    // What the command line promises of it.
    let json = |arguments: &[&str]| -> serde_json::Value {
        let ran = Command::new(EXIST).args(arguments).arg("--json").output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let trace = stage.at("trace");
    let told = json(&["diagnose", &trace]);
    let outcomes: Vec<_> = told["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes.len(), 8);
    assert!(
        outcomes.iter().all(|o| ["found", "nothing", "unknown"].contains(o)),
        "{outcomes:?}"
    );
    let report = json(&["report", &trace, "--critical-path", "last"]);
    let groups = report["groups"].as_array().unwrap();
    let worker = groups.iter().find(|group| group["group"] == "worker").unwrap();
    assert_eq!(worker["threads"], 4);
    for part in [&worker["running"], &worker["runnable"], &worker["kinds"][0]] {
        for field in ["count", "total_ns", "min_ns", "max_ns", "p50_ns", "p99_ns"] {
            assert!(part[field].is_u64(), "{field} of {part}");
        }
        assert!(part["worst"][0]["t_ns"].is_u64(), "{part}");
    }
    let sums = report["critical_path"]["sums"].as_array().unwrap();
    let whole: u64 = sums.iter().map(|sum| sum["ns"].as_u64().unwrap()).sum();
    assert_eq!(whole, report["period_ns"].as_u64().unwrap());
    assert!(report["latency"]["all"]["causes"].is_array() && report["blockers"]["worst"].is_array());
}

#[test]
fn a_lock_holder() {
    let Some(stage) = Stage::set() else { return };
    let (diagnosis, told) = stage.play("lock", "");
    let says = found(&diagnosis, "blocker").unwrap();
    assert!(
        says.starts_with(&format!("compact ({}) blocked", told[0].tid)),
        "{says}"
    );
    assert!(says.contains("it was: running"), "{says}");
    nothing_else(&diagnosis, &["blocker"]);
    let (diagnosis, _) = stage.play("lock-control", "");
    nothing_else(&diagnosis, &[]);
}

#[test]
fn a_slow_fsync() {
    let Some(stage) = Stage::set() else { return };
    let (diagnosis, told) = stage.play("fsync", "");
    let longest = told[0].number;
    let says = found(&diagnosis, "long_calls");
    // It waits several times in a call, for 20 ms at once in one of 60.
    if longest < 60_000_000 {
        return println!("skipped: no fsync of this disk took 60 ms, the longest {longest} ns");
    }
    let says = says.unwrap();
    assert!(
        says.starts_with(&format!("store ({}) waited up to", told[0].tid)),
        "{says}"
    );
    assert!(says.contains("fsync"), "{says}");
    nothing_else(&diagnosis, &[]);
    let (diagnosis, told) = stage.play("fsync-control", "");
    if told[0].number < 20_000_000 {
        assert_eq!(found(&diagnosis, "long_calls"), None);
    }
    nothing_else(&diagnosis, &[]);
}

#[test]
fn bursts_behind_a_low_average() {
    let Some(stage) = Stage::set() else { return };
    let (diagnosis, _) = stage.play("bursts", "");
    let says = found(&diagnosis, "saturated").unwrap();
    assert!(says.contains("which hides it"), "{says}");
    nothing_else(&diagnosis, &["saturated"]);
    let (diagnosis, _) = stage.play("bursts-control", "");
    nothing_else(&diagnosis, &[]);
}

#[test]
fn a_thread_that_migrates_to_death() {
    let Some(stage) = Stage::set() else { return };
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return println!("skipped: one CPU");
    }
    let (diagnosis, told) = stage.play("nomad", "");
    let says = found(&diagnosis, "migrations").unwrap();
    assert!(says.starts_with(&format!("nomad ({}) came in", told[0].tid)), "{says}");
    nothing_else(&diagnosis, &["migrations"]);
    let (diagnosis, _) = stage.play("nomad-control", "");
    nothing_else(&diagnosis, &[]);
}

/// A cgroup with a quota; removed once it is empty.
struct Quota(PathBuf);

impl Quota {
    /// 20 ms in each 100 ms.
    fn new() -> Option<Self> {
        let name = format!("exist-test-quota-{}", std::process::id());
        let v1 = PathBuf::from("/sys/fs/cgroup/cpu");
        if !v1.join("cpu.cfs_quota_us").exists() && !v1.join("cpu.shares").exists() {
            println!("skipped: no version 1 hierarchy of the cpu controller");
            return None;
        }
        let dir = v1.join(name);
        fs::create_dir(&dir).unwrap();
        if let Err(e) = fs::write(dir.join("cpu.cfs_quota_us"), "20000") {
            println!("skipped: no quota: {e}");
            let _ = fs::remove_dir(dir);
            return None;
        }
        Some(Self(dir))
    }

    fn throttled(&self) -> u64 {
        let stat = fs::read_to_string(self.0.join("cpu.stat")).unwrap();
        let line = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        line.unwrap().parse().unwrap()
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_quota() {
    let Some(stage) = Stage::set() else { return };
    let Some(quota) = Quota::new() else { return };
    let (diagnosis, _) = stage.play("hungry", &format!("echo $$ > {}/cgroup.procs;", quota.0.display()));
    let throttled = quota.throttled();
    let is_told = diagnosis
        .answers
        .iter()
        .any(|a| a.question == "throttled" && a.says.contains("6.18"));
    if is_told {
        return println!("skipped: this kernel does not mark throttled threads");
    }
    assert!(throttled > 5, "{throttled}");
    let says = found(&diagnosis, "throttled").unwrap();
    assert!(says.contains("render"), "{says}");
    nothing_else(&diagnosis, &["throttled"]);
    let (diagnosis, _) = stage.play("hungry", "");
    nothing_else(&diagnosis, &[]);
}

#[test]
fn a_noisy_neighbour() {
    let Some(stage) = Stage::set() else { return };
    let cpus = std::thread::available_parallelism().unwrap().get();
    let cgroup = Cgroup::new("noise");
    let spin = || cgroup.start(&["sh", "-c", "while :; do :; done"], &[]);
    let noise: Vec<_> = (0..4 * cpus).map(|_| spin()).collect();
    let (diagnosis, _) = stage.play("hungry", "");
    let says = found(&diagnosis, "neighbour").unwrap();
    // By name, as the command line gives it on the machine of the recording, and by number, as the file holds it.
    let told = Command::new(EXIST)
        .args(["diagnose", &stage.at("trace")])
        .output()
        .unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains(&format!("most of it cgroup /{}", cgroup.name)), "{told}");
    assert!(
        says.contains(&format!("most of it cgroup {}", diagnosis.neighbours[0].cgroup_id)),
        "{says}"
    );
    nothing_else(&diagnosis, &["neighbour"]);
    drop(noise);
    cgroup.remove();
    let (diagnosis, _) = stage.play("hungry", "");
    if let Some(says) = found(&diagnosis, "neighbour") {
        println!("not judged: this machine is not idle: {says}");
    }
    nothing_else(&diagnosis, &[]);
}
