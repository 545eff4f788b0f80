//! The spool: windows that `record` leaves in it, and requests.

use std::fs;

use serde_json::Value;

use super::{exist, recording};

/// `kind name` of each row of `exist spool DIR --json`.
fn listed(dir: &str) -> Vec<String> {
    let ran = exist(&["spool", dir, "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.out
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).unwrap();
            format!("{} {}", row["kind"].as_str().unwrap(), row["name"].as_str().unwrap())
        })
        .collect()
}

#[test]
fn what_cannot_be_carried_out_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    assert!(listed(dir).is_empty());
    let bad = [
        ("nothing", "", "not a session"),
        (
            "program",
            r#"{"target":{"command":["touch","/x"]},"period_ns":1}"#,
            "cannot start a command",
        ),
        ("gone", r#"{"target":{"pid":4000000},"period_ns":1000}"#, "4000000"),
    ];
    for (name, text, _) in bad {
        fs::write(folder.path().join(format!("requests/{name}.json")), text).unwrap();
    }
    let ran = exist(&["spool", dir, "--work", "once"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for (name, text, reason) in bad {
        let said = fs::read_to_string(folder.path().join(format!("done/{name}.error"))).unwrap();
        assert!(said.contains(reason), "{said}");
        assert_eq!(
            fs::read_to_string(folder.path().join(format!("done/{name}.json"))).unwrap(),
            text
        );
    }
    assert_eq!(listed(dir), ["done gone", "done nothing", "done program"]);
    // Whoever asked has read it.
    fs::remove_file(folder.path().join("done/gone.json")).unwrap();
    fs::write(folder.path().join("requests/other.json"), "").unwrap();
    assert_eq!(exist(&["spool", dir, "--work", "once"]).code, 0);
    assert!(folder.path().join("done/other.error").exists());
}

#[test]
fn windows_are_kept_as_long_as_there_is_room() {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let cgroup = recording::Cgroup::new("spool");
    let _running = cgroup.start(&["sh", "-c", "while :; do :; done"], &[]);
    fs::create_dir_all(folder.path().join("requests")).unwrap();
    let request = format!(r#"{{"target":{{"cgroup":"{}"}},"period_ns":50000000}}"#, cgroup.name);
    fs::write(folder.path().join("requests/asked.json"), request).unwrap();
    let ran = exist(&["spool", dir, "--work", "once"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(listed(dir), ["held asked", "done asked"]);
    let window = folder.path().join("windows/asked.exist");
    let report = exist(&["report", window.to_str().unwrap(), "--json"]);
    let report: Value = serde_json::from_str(&report.out).unwrap();
    assert!(
        report["cpus"].as_array().is_some_and(|cpus| !cpus.is_empty()),
        "{report}"
    );

    // Less room than two windows take: the older one goes, but not what is held.
    let record = |bytes: &str| {
        let line = [
            "record",
            "--cgroup",
            &cgroup.name,
            "--for",
            "50ms",
            "--pt",
            "off",
            "--spool",
            dir,
            "--spool-bytes",
            bytes,
        ];
        exist(&line)
    };
    let held = fs::metadata(&window).unwrap().len();
    let room = (held + 1000).to_string();
    for _ in 0..2 {
        let ran = record(&room);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    let kinds: Vec<_> = listed(dir)
        .iter()
        .map(|row| row.split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["window", "held", "done"]);
    let ran = record("100");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(
        ran.err.contains("is full") && ran.err.contains("raise the quota"),
        "{ran:?}"
    );
}
