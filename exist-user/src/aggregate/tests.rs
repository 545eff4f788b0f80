use std::collections::BTreeMap;

use exist_trace::{
    file::model::{Node, ResolvedTarget},
    session::{PtRequest, Session, Target, Waits},
    units::Tsc,
};

use super::*;
use crate::sys::roots::Roots;

const MS: u64 = 1_000_000;

/// The target: process 1 with thread 1, "main", and one mapping of `/bin/main`.
fn aggregator() -> Aggregator {
    let header = Header {
        recording_id: 1,
        exist_version: "test".into(),
        session: Session {
            target: Target::Pid(1),
            period_ns: None,
            pt: PtRequest::default(),
            waits: Waits::Off,
        },
        target: ResolvedTarget::default(),
        node: Node::default(),
        start: MonoNs(0),
        start_realtime_ns: 0,
        holds_foreign_packets: false,
        pt: Err("test".into()),
    };
    let nowhere = Roots {
        proc: "/nonexistent".into(),
        cgroup: "/nonexistent".into(),
    };
    let mut aggregator = Aggregator::new(header, Live::new(nowhere));
    aggregator.threads.name(Pid(1), Tid(1), Arc::from("main"));
    let mapping = aggregator.mapping(mmap(1, "/bin/main", 0x1000), MonoNs(0));
    aggregator.spaces.map(mapping, MonoNs(0));
    aggregator
}

fn mmap(pid: u32, path: &str, start: u64) -> Mmap {
    Mmap {
        pid,
        tid: pid,
        start,
        len: 0x1000,
        path: path.into(),
        ..Mmap::default()
    }
}

fn stamped(time_ms: u64, body: Body) -> SideBandRecord {
    let stamp = crate::sys::perf::record::Stamp {
        time_ns: time_ms * MS,
        ..Default::default()
    };
    SideBandRecord { stamp, body }
}

/// Runs a program, a line a step, times in milliseconds, and compares the generations it makes.
///
/// ```text
/// TIME in|out|exit PID TID [CPU]      TIME map PID PATH      TIME advance
/// TIME fork PID TID PARENT            TIME name|exec PID TID NAME
/// ```
fn check(program: &str, expect: &str) {
    let generations = run(program);
    let shown: Vec<_> = generations.iter().map(|g| show(g).trim_end().to_owned()).collect();
    assert_eq!(
        shown.join("\n"),
        expect.trim().lines().map(str::trim).collect::<Vec<_>>().join("\n"),
        "{program}"
    );
    assert!(generations.iter().enumerate().all(|(i, g)| g.number == i as u64));
    assert!(
        generations.windows(2).all(|pair| pair[0].end >= pair[1].start),
        "{generations:?}"
    );
    for generation in &generations {
        assert!(generation.records.is_sorted_by_key(|r| r.time_ns));
        assert!(generation.start <= generation.end);
        let within = |r: &Record| (generation.start.0..=generation.end.0).contains(&r.time_ns) || r.flags != 0;
        assert!(generation.records.iter().all(within), "{generation:?}");
    }
}

fn run(program: &str) -> Vec<Generation> {
    let mut aggregator = aggregator();
    let mut seqs = BTreeMap::<u16, u16>::new();
    let mut out = Vec::new();
    let mut last = 0;
    for line in program.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<_> = line.split_whitespace().collect();
        let time: u64 = words[0].parse().unwrap();
        last = last.max(time);
        let number = |i: usize| words.get(i).map_or(0, |w| w.parse::<u32>().unwrap());
        let mut record = |op: SwitchOp, ip: u64, flags: u8| {
            let cpu = if matches!(op, SwitchOp::In | SwitchOp::Out) {
                u16::try_from(number(4)).unwrap()
            } else {
                0
            };
            let seq = match op {
                SwitchOp::In | SwitchOp::Out => {
                    let seq = seqs.entry(cpu).or_default();
                    *seq += 1;
                    *seq
                }
                _ => 0,
            };
            let (pid, tid) = (number(2), number(3));
            aggregator.records([Record {
                time_ns: time * MS,
                ip,
                pid,
                tid,
                cpu,
                op: op as u8,
                flags,
                state: 1,
                seq,
            }]);
        };
        match words[1] {
            "in" => record(SwitchOp::In, 0, 0),
            "start-in" => record(SwitchOp::In, 0, flags::START),
            "out" => record(SwitchOp::Out, 0, 0),
            "exit" => record(SwitchOp::Exit, 0, 0),
            "executed" => record(SwitchOp::Exec, number(4).into(), 0),
            "leave" => record(SwitchOp::AttachOut, 0, flags::THREADGROUP),
            "fork" => record(SwitchOp::Fork, u64::from(number(4)) << 32 | u64::from(number(4)), 0),
            "map" => aggregator
                .side_band
                .push(stamped(time, Body::Mmap(mmap(number(2), words[3], 0x5000)))),
            "name" | "exec" => aggregator.side_band.push(stamped(
                time,
                Body::Comm(crate::sys::perf::record::Comm {
                    pid: number(2),
                    tid: number(3),
                    exec: words[1] == "exec",
                    name: words[4].into(),
                }),
            )),
            "advance" => aggregator.advance(MonoNs(time * MS), &mut out),
            other => panic!("{other}"),
        }
    }
    let end = End {
        time: MonoNs(last * MS),
        reason: "period".into(),
    };
    aggregator.finish(end, &mut out);
    out
}

/// A generation as `start-end | threads | records | mappings | names | losses`.
fn show(g: &Generation) -> String {
    let ms = |t: MonoNs| t.0 / MS;
    let join = |words: Vec<String>| words.join(" ");
    let op = |r: &Record| format!("{:?}", r.op().unwrap()).to_lowercase();
    format!(
        "{}-{} | {} | {} | {} | {} | {}",
        ms(g.start),
        ms(g.end),
        join(
            g.threads
                .iter()
                .map(|t| format!("{}{}", t.tid, if t.running.is_some() { "*" } else { "" }))
                .collect()
        ),
        join(
            g.records
                .iter()
                .map(|r| format!("{}{}@{}", op(r), r.tid, r.time_ns / MS))
                .collect()
        ),
        join(
            g.mappings
                .iter()
                .map(|m| format!("{}:{}@{}", m.pid, m.path, ms(m.time)))
                .collect()
        ),
        join(g.names.iter().map(|n| format!("{}={}", n.tid, n.name)).collect()),
        join(
            g.losses
                .iter()
                .map(|l| format!("{}@{}-{}", l.records, ms(l.from), ms(l.to)))
                .collect()
        ),
    )
}

#[test]
fn generations_close_by_time_and_carry_the_state_over() {
    check(
        "10 in 1 1 0
         50 out 1 1 0
         90 in 1 1 0
         95 advance
         150 out 1 1 0
         160 advance
         170 advance",
        "0-150 | 1 | in1@10 out1@50 in1@90 | 1:/bin/main@0 |  |
         150-170 | 1* | out1@150 | 1:/bin/main@0 |  |",
    );
}

#[test]
fn what_is_not_settled_waits() {
    // At 55 what is older than 45 is certain; the in at 48 is drained, but an earlier one may still come.
    check(
        "48 in 1 1 1
         55 advance
         47 in 2 2 0
         200 advance",
        "0-190 | 1 | in2@47 in1@48 | 1:/bin/main@0 |  |
         190-200 | 1* 2* |  |  |  |",
    );
}

#[test]
fn a_record_that_comes_too_late_is_kept() {
    check(
        "10 in 1 1 0
         120 advance
         90 out 1 1 0
         130 advance",
        "0-110 | 1 | in1@10 | 1:/bin/main@0 |  |
         90-130 | 1* | out1@90 | 1:/bin/main@0 |  |",
    );
    // One that tells of the start of the recording does not stretch the generation.
    check(
        "150 advance
         1150 advance
         0 start-in 1 1 0
         1151 out 1 1 0
         1170 advance",
        "0-1140 | 1 |  |  |  |
         1140-1170 | 1 | in1@0 out1@1151 | 1:/bin/main@0 |  |",
    );
}

#[test]
fn a_quiet_target_makes_one_generation_a_second() {
    check(
        "500 advance
         1009 advance
         1011 advance
         1500 advance",
        "0-1001 | 1 |  |  |  |
         1001-1500 | 1 |  |  |  |",
    );
}

#[test]
fn mappings_and_names_of_others_are_dropped() {
    check(
        "10 in 1 1 0
         11 map 1 /lib/ours
         12 map 2 /lib/theirs
         13 name 1 1 ours
         14 name 2 2 theirs
         15 name 1 9 theirs
         16 exec 2 2 theirs
         50 advance",
        "0-50 | 1 | in1@10 | 1:/bin/main@0 1:/lib/ours@11 | 1=ours |",
    );
}

#[test]
fn a_child_is_known_from_its_fork_on() {
    check(
        "9 map 5 /lib/not-yet
         10 fork 5 5 1
         11 exec 5 5 sh
         12 map 5 /bin/sh
         13 in 5 5 0
         20 exit 5 5
         20 out 5 5 0
         25 map 5 /lib/reused-number
         100 advance
         111 advance
         112 in 1 1 0",
        "0-101 | 1 | fork5@10 in5@13 exit5@20 out5@20 | 5:/bin/main@10 5:/bin/sh@12 | 5=main 5=sh |
         101-112 | 1 | in1@112 | 1:/bin/main@0 |  |",
    );
}

#[test]
fn an_exec_drops_the_old_mappings_from_the_next_generation_on() {
    check(
        "10 in 1 1 0
         20 exec 1 1 sh
         21 map 1 /bin/sh
         130 advance
         131 out 1 1 0",
        "0-120 | 1 | in1@10 | 1:/bin/main@0 1:/bin/sh@21 | 1=sh |
         120-131 | 1* | out1@131 | 1:/bin/sh@21 |  |",
    );
}

#[test]
fn the_look_back_leaves_only_its_state() {
    let mut aggregator = aggregator();
    aggregator.starts_at(MonoNs(100 * MS));
    let record = |time, op: SwitchOp, tid| Record {
        time_ns: time * MS,
        ip: if op == SwitchOp::Fork { 1 << 32 | 1 } else { 0 },
        pid: 1,
        tid,
        cpu: 2,
        op: op as u8,
        flags: 0,
        state: 1,
        seq: 0,
    };
    aggregator.records([
        record(50, SwitchOp::In, 1),
        record(60, SwitchOp::Fork, 7),
        record(90, SwitchOp::Out, 1),
        record(95, SwitchOp::In, 7),
        record(110, SwitchOp::Out, 7),
    ]);
    let mut out = Vec::new();
    let totals = aggregator.finish(
        End {
            time: MonoNs(120 * MS),
            reason: "period".into(),
        },
        &mut out,
    );
    let shown: Vec<_> = out.iter().map(|g| show(g).trim_end().to_owned()).collect();
    assert_eq!(shown, ["100-120 | 1 7* | out7@110 | 1:/bin/main@0 |  |"]);
    assert_eq!((totals.records, totals.switches), (1, 1));
}

#[test]
fn generations_close_by_size() {
    let mut aggregator = aggregator();
    let record = |i: u32| Record {
        time_ns: u64::from(i),
        ip: 0,
        pid: 1,
        tid: 1,
        cpu: 0,
        op: if i % 2 == 1 { SwitchOp::In } else { SwitchOp::Out } as u8,
        flags: 0,
        state: 1,
        seq: (i & 0xffff) as u16,
    };
    aggregator.records((1..=100_000).map(record));
    let mut out = Vec::new();
    aggregator.advance(MonoNs(SETTLE_NS * 2), &mut out);
    let totals = aggregator.finish(
        End {
            time: MonoNs(SETTLE_NS * 2),
            reason: "period".into(),
        },
        &mut out,
    );
    let sizes: Vec<_> = out.iter().map(|g| g.records.len()).collect();
    assert_eq!(sizes, [32_768, 32_768, 32_768, 1696]);
    assert_eq!(
        (totals.switches, totals.records, totals.threads, totals.losses),
        (50_000, 100_000, 1, 0)
    );
    assert_eq!(totals.cpus, [Cpu(0)]);
}

#[test]
fn losses_stand_where_they_happened_and_the_side_band_is_read_again() {
    let mut aggregator = aggregator();
    let mut out = Vec::new();
    aggregator.counters(vec![
        CpuCounters {
            cpu: Cpu(0),
            ..CpuCounters::default()
        },
        CpuCounters {
            cpu: Cpu(3),
            on_cpu_ns: 5,
            produced: 9,
            dropped: 9,
        },
    ]);
    let lost = side_band_loss(Some(Cpu(3)), MonoNs(10), MonoNs(20), 9);
    aggregator.loss(Loss {
        kind: LossKind::RingFull,
        ..lost
    });
    aggregator.side_band_lost(Cpu(1), 4, MonoNs(30));
    aggregator.side_band_lost(Cpu(1), 4, MonoNs(40));
    aggregator.side_band_lost(Cpu(1), 6, MonoNs(50));
    aggregator.advance(MonoNs(60), &mut out);
    aggregator.side_band(Cpu(1), &[1, 2, 3], MonoNs(70));
    let totals = aggregator.finish(
        End {
            time: MonoNs(99),
            reason: "period".into(),
        },
        &mut out,
    );
    assert_eq!(out.len(), 1);
    let shown: Vec<_> = out[0]
        .losses
        .iter()
        .map(|l| format!("{} {} {}-{}", l.kind.as_str(), l.records, l.from, l.to))
        .collect();
    assert_eq!(
        shown,
        [
            "ring_full 9 10-20",
            "side_band_full 4 0-30",
            "side_band_full 2 0-50",
            "side_band_full 1 60-70"
        ]
    );
    assert_eq!((totals.losses, totals.lost_records), (4, 9));
    assert_eq!(out[0].counters.len(), 1);
}

#[test]
fn each_generation_has_the_clock_reading_before_it() {
    let mut aggregator = aggregator();
    let mut out = Vec::new();
    let pair = |t| ClockPair {
        mono: MonoNs(t * MS),
        tsc_before: Tsc(t),
        tsc_after: Tsc(t + 1),
    };
    aggregator.clock_pair(pair(0));
    aggregator.clock_pair(pair(1000));
    aggregator.advance(MonoNs(1011 * MS), &mut out);
    aggregator.clock_pair(pair(1100));
    aggregator.finish(
        End {
            time: MonoNs(1100 * MS),
            reason: "period".into(),
        },
        &mut out,
    );
    let times: Vec<Vec<_>> = out
        .iter()
        .map(|g| g.clock_pairs.iter().map(|p| p.mono.0 / MS).collect())
        .collect();
    assert_eq!(times, [vec![0, 1000], vec![1000, 1100]]);
}

#[test]
fn moves_of_strangers_are_not_recorded() {
    check(
        "10 in 1 1 0
         20 leave 7 7
         30 leave 1 1
         40 advance",
        "0-40 | 1 | in1@10 attachout1@30 | 1:/bin/main@0 |  | ",
    );
}

#[test]
fn a_name_that_changes_all_the_time_closes_generations() {
    let mut aggregator = aggregator();
    let mut out = Vec::new();
    aggregator.records([Record {
        time_ns: 1,
        ip: 0,
        pid: 1,
        tid: 1,
        cpu: 0,
        op: SwitchOp::In as u8,
        flags: 0,
        state: 0,
        seq: 1,
    }]);
    let names = 500_000;
    for i in 0..names {
        aggregator.side_band.push(stamped(
            2,
            Body::Comm(crate::sys::perf::record::Comm {
                pid: 1,
                tid: 1,
                exec: false,
                name: format!("{i:015}").into(),
            }),
        ));
    }
    aggregator.advance(MonoNs(50 * MS), &mut out);
    let end = End {
        time: MonoNs(60 * MS),
        reason: "period".into(),
    };
    aggregator.finish(end, &mut out);
    let mut file = exist_trace::file::Writer::new(Vec::new());
    for generation in &out {
        file.write(generation).unwrap();
    }
    assert!(out.len() > 10, "{} generations", out.len());
    assert_eq!(out.iter().map(|g| g.names.len()).sum::<usize>(), names);
}

#[test]
fn a_program_that_another_thread_executes_has_its_name() {
    let program = "10 in 1 1 0
         20 fork 1 2 1
         30 in 1 2 1
         35 exit 1 1
         36 out 1 1 0
         40 exec 1 1 new
         41 map 1 /bin/new
         42 executed 1 1 2
         50 out 1 2 1
         60 advance
         150 in 1 1 1
         200 advance";
    let generations = run(program);
    let last = generations.last().unwrap();
    let threads: Vec<_> = last.threads.iter().map(|t| (t.tid.0, &*t.name, t.running)).collect();
    assert_eq!(threads, [(1, "new", None)], "{generations:?}");
    let mappings: Vec<_> = last.mappings.iter().map(|m| &*m.path).collect();
    assert_eq!(mappings, ["/bin/new"], "{generations:?}");
}

#[test]
fn more_mappings_than_a_chunk_holds_are_left_out_and_said() {
    let mut aggregator = aggregator();
    let mut out = Vec::new();
    for pid in [1, 2] {
        aggregator.threads.name(Pid(pid), Tid(pid), Arc::from("x"));
        for i in 0..u64::from(pid) * 40_000 {
            let mapping = aggregator.mapping(mmap(pid, "/bin/x", (i + 9) << 13), MonoNs(0));
            aggregator.spaces.keep(mapping);
        }
        aggregator.records([Record {
            time_ns: u64::from(pid),
            ip: 0,
            pid,
            tid: pid,
            cpu: 0,
            op: SwitchOp::In as u8,
            flags: 0,
            state: 0,
            seq: 1,
        }]);
    }
    let end = End {
        time: MonoNs(60 * MS),
        reason: "period".into(),
    };
    let totals = aggregator.finish(end, &mut out);
    let mappings: Vec<_> = out.iter().map(|g| g.mappings.len()).collect();
    assert_eq!((mappings, totals.losses), (vec![40_001], 1));
    let lost: Vec<_> = out[0].losses.iter().map(|loss| (loss.kind, loss.records)).collect();
    assert_eq!(lost, [(LossKind::SideBandFull, 80_000)]);
}
