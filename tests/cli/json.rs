//! The shape of `--json`: fields and their types as they are promised. More fields are welcome.

use serde_json::Value;

use super::{TRACE, exist};

/// `fields` is `name:type …`; a type of `n` is a whole number from 0, `s` a string, `b` true or false, `a` an array, `o` an
/// object; `?` after it allows `null`.
fn check(value: &Value, fields: &str) {
    for field in fields.split(' ') {
        let (name, kind) = field.split_once(':').unwrap();
        let Some(value) = value.get(name) else {
            panic!("no {name} in {value}");
        };
        let is = match kind.trim_end_matches('?') {
            "n" => value.is_u64(),
            "s" => value.is_string(),
            "b" => value.is_boolean(),
            "a" => value.is_array(),
            "o" => value.is_object(),
            other => panic!("no type {other}"),
        };
        assert!(
            is || kind.ends_with('?') && value.is_null(),
            "{name} is {value}, not {kind}"
        );
    }
}

fn report() -> Value {
    let ran = exist(&["report", TRACE, "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    serde_json::from_str(&ran.out).unwrap()
}

/// The objects of `exist dump … --json`, one a line.
fn dump(what: &str) -> Vec<Value> {
    let ran = exist(&["dump", TRACE, what, "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let rows: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(!rows.is_empty(), "the golden trace has {what}");
    rows
}

fn rows<'a>(report: &'a Value, of: &str) -> &'a [Value] {
    let rows = report[of].as_array().unwrap();
    assert!(!rows.is_empty(), "the golden trace has {of}");
    rows
}

fn sum(rows: &[Value], field: &str) -> u64 {
    rows.iter().map(|row| row[field].as_u64().unwrap()).sum()
}

#[test]
fn a_report() {
    let report = report();
    check(
        &report,
        "target:s period_ns:n start_ns:n threads:a cpus:a utilization:a losses:a ended:s? kernel:s",
    );
    for thread in rows(&report, "threads") {
        check(thread, "pid:n tid:n name:s on_cpu_ns:n switches:n migrations:n cpus:a");
        assert!(thread["cpus"].as_array().unwrap().iter().all(Value::is_u64), "{thread}");
    }
    rows(&report, "cpus")
        .iter()
        .for_each(|cpu| check(cpu, "cpu:n on_cpu_ns:n lost:n"));
    for row in rows(&report, "utilization") {
        check(row, "window_ns:n worst:a");
        rows(row, "worst")
            .iter()
            .for_each(|window| check(window, "start_ns:n on_cpu_ns:n"));
    }
    for loss in rows(&report, "losses") {
        check(loss, "t_ns:n cpu:n? kind:s bytes:n reason:s");
    }
}

#[test]
fn the_parts_of_a_report_agree_with_each_other_and_with_the_rows() {
    let report = report();
    let (threads, cpus) = (rows(&report, "threads"), rows(&report, "cpus"));
    assert_eq!(sum(threads, "on_cpu_ns"), sum(cpus, "on_cpu_ns"));
    assert_eq!(sum(threads, "on_cpu_ns"), 321_000);
    let switches = dump("switches");
    let outs = switches
        .iter()
        .filter(|row| row["op"] == "out" && row["why"] == "switch")
        .count();
    assert_eq!(sum(threads, "switches"), outs as u64);
    assert_eq!(report["losses"], Value::Array(dump("losses")));
}

#[test]
fn switches() {
    let rows = dump("switches");
    for row in &rows {
        check(row, "t_ns:n cpu:n pid:n tid:n op:s why:s");
        assert!(row["op"] == "in" || row["op"] == "out", "{row}");
        if row["op"] == "out" && row["why"] == "switch" {
            check(row, "state:s preempt:b");
        }
        // 64 bits are more than many readers of JSON keep in a number.
        check(row, "ip:s");
    }
    let first = r#"{"t_ns":1000000001000,"cpu":0,"pid":100,"tid":100,"op":"in","why":"switch","ip":"0x5555555503e8"}"#;
    assert_eq!(rows[0], serde_json::from_str::<Value>(first).unwrap());
}

#[test]
fn mappings_losses_operations_and_life() {
    for row in dump("mappings") {
        check(&row, "t_ns:n pid:n start:s len:n offset:n path:s build_id:s");
    }
    for row in dump("losses") {
        check(&row, "t_ns:n to_ns:n cpu:n? kind:s records:n bytes:n reason:s");
    }
    for row in dump("ops") {
        check(&row, "t_ns:n to_ns:n cpu:n? kind:s error:s?");
    }
    for row in dump("life") {
        check(&row, "t_ns:n cpu:n pid:n tid:n op:s");
    }
}

#[test]
fn a_diagnosis_needs_waits() {
    let ran = exist(&["diagnose", TRACE, "--json"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert!(ran.err.contains("--waits on"), "{}", ran.err);
    let ran = exist(&["report", TRACE, "--critical-path", "last"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert!(ran.err.contains("--waits on"), "{}", ran.err);
}

#[test]
fn a_doctor_needs_no_root() {
    let ran = exist(&["doctor", "--json"]);
    assert!(matches!(ran.code, 0 | 1), "{ran:?}");
    let doctor: Value = serde_json::from_str(&ran.out).unwrap();
    check(
        &doctor,
        "exist_version:s can_record_switches:b can_record_processor_trace:b checks:a",
    );
    for row in rows(&doctor, "checks") {
        check(row, "name:s state:s needed_for:s found:s");
        if row["state"] != "ok" {
            check(row, "remedy:s");
        }
    }
}
