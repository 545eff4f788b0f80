use std::fmt::Write as _;

use super::{Sched, Step, Threads};
use crate::{
    file::{
        Gap, Generation, Piece,
        model::{Header, Loss, LossKind, NameChange, Node, Record, ResolvedTarget, SwitchOp, ThreadStatus, flags},
    },
    session::{PtRequest, Session, Target, Waits},
    units::{Cpu, MonoNs, Pid, Tid},
};

fn header() -> Header {
    Header {
        recording_id: 1,
        exist_version: String::new(),
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
        pt: Err("not asked for".into()),
    }
}

fn generation(number: u64, start: u64, end: u64) -> Generation {
    Generation::empty(header(), number, MonoNs(start), MonoNs(end))
}

/// A program is words: `gen START END`, `run TID CPU SINCE` (a status), `name TIME TID NAME`, `damage FROM TO`,
/// `gap CPU FROM TO`, and records `in|out|out+|dead TIME TID CPU`, `start`, `end`, `moved-in`, `moved-out`, `exit`, `exec` alike,
/// `fork TIME TID PARENT`. All are of process 1.
fn run(program: &str) -> (Vec<Step>, Threads, super::Seen) {
    let mut pieces: Vec<Piece> = Vec::new();
    for line in program.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let n = |i: usize| words[i].parse::<u64>().unwrap();
        if words[0] == "gen" {
            pieces.push(Piece::Generation(
                Box::new(generation(pieces.len() as u64, n(1), n(2))),
                Vec::new(),
            ));
            continue;
        }
        if words[0] == "damage" {
            pieces.push(Piece::Loss(Loss {
                from: MonoNs(n(1)),
                to: MonoNs(n(2)),
                cpu: None,
                kind: LossKind::FileDamaged,
                records: 0,
                bytes: 1,
                reason: String::new(),
            }));
            continue;
        }
        let Some(Piece::Generation(g, gaps)) = pieces.last_mut() else {
            panic!("gen first")
        };
        let (op, flag) = match words[0] {
            "run" => {
                let running = Some((Cpu(n(2) as u32), MonoNs(n(3))));
                g.threads.push(ThreadStatus {
                    pid: Pid(1),
                    tid: Tid(n(1) as u32),
                    name: "".into(),
                    running,
                });
                continue;
            }
            "name" => {
                g.names.push(NameChange {
                    time: MonoNs(n(1)),
                    pid: Pid(1),
                    tid: Tid(n(2) as u32),
                    name: words[3].into(),
                });
                continue;
            }
            "gap" => {
                let (from, to) = (MonoNs(n(2)), MonoNs(n(3)));
                gaps.push(Gap {
                    cpu: Cpu(n(1) as u32),
                    before: g.records.len(),
                    from,
                    to,
                    records: 1,
                });
                continue;
            }
            "in" => (SwitchOp::In, 0),
            "out" => (SwitchOp::Out, 0),
            "dead" => (SwitchOp::Out, 0),
            "out+" => (SwitchOp::Out, flags::PREEMPT),
            "start" => (SwitchOp::In, flags::START),
            "end" => (SwitchOp::Out, flags::END),
            "moved-in" => (SwitchOp::In, flags::MOVED),
            "moved-out" => (SwitchOp::Out, flags::MOVED),
            "exit" => (SwitchOp::Exit, 0),
            "exec" => (SwitchOp::Exec, 0),
            "fork" => (SwitchOp::Fork, 0),
            other => panic!("{other}"),
        };
        let is_fork = op == SwitchOp::Fork;
        g.records.push(Record {
            time_ns: n(1),
            ip: if is_fork { 1 << 32 | n(3) } else { 0 },
            pid: 1,
            tid: n(2) as u32,
            cpu: if is_fork { 0 } else { n(3) as u16 },
            op: op as u8,
            flags: flag,
            state: match words[0] {
                "out" => 1,
                "dead" => 0x80,
                _ => 0,
            },
            seq: 0,
        });
    }
    let mut steps = Vec::new();
    let mut sched = Sched::default();
    for piece in &pieces {
        sched.piece(piece, &mut |step| steps.push(step));
    }
    let (threads, seen) = sched.finish(&mut |step| steps.push(step));
    (steps, threads, seen)
}

/// `ran TID CPU FROM TO` and `unknown …`, then what was seen besides.
fn check(program: &str, expect: &str) {
    let (steps, threads, seen) = run(program);
    let mut got = String::new();
    let tid = |t| threads.get(t).tid;
    for step in steps {
        let _ = match step {
            Step::Ran {
                thread, cpu, from, to, ..
            } => writeln!(got, "ran {} {cpu} {from} {to}", tid(thread)),
            Step::Unknown {
                thread, cpu, from, to, ..
            } => writeln!(got, "unknown {} {cpu} {from} {to}", tid(thread)),
            Step::In { .. } | Step::Out { .. } => Ok(()),
        };
    }
    if seen.unpaired > 0 {
        let _ = writeln!(got, "unpaired {}", seen.unpaired);
    }
    if seen.skewed > 0 {
        let _ = writeln!(got, "skewed {} {}", seen.skewed, seen.skew_max_ns);
    }
    for (from, to) in seen.blind {
        let _ = writeln!(got, "blind {from} {to}");
    }
    let expect: String = expect
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .flat_map(|l| [l, "\n"])
        .collect();
    assert_eq!(got, expect, "{program}");
}

#[test]
fn pairs_are_exact_also_at_the_ends_of_the_recording() {
    check(
        "gen 0 100 \n start 0 1 0 \n out 10 1 0 \n in 20 1 1 \n end 90 1 1",
        "ran 1 0 0 10 \n ran 1 1 20 90",
    );
    // A file that begins later than its recording, and ends before it.
    check(
        "gen 50 100 \n run 1 0 20 \n out 60 1 0 \n in 70 1 0",
        "ran 1 0 50 60 \n ran 1 0 70 100",
    );
    // The status and the record say the same.
    check("gen 0 100 \n run 1 0 0 \n start 0 1 0 \n out 10 1 0", "ran 1 0 0 10");
}

#[test]
fn moved_while_running_is_a_pair() {
    check(
        "gen 0 100 \n in 5 1 0 \n moved-out 30 1 0 \n moved-in 60 1 0 \n out 70 1 0",
        "ran 1 0 5 30 \n ran 1 0 60 70",
    );
}

#[test]
fn clocks_of_cpus_may_differ() {
    // In on CPU 1 is stamped before out on CPU 0.
    check(
        "gen 0 100 \n in 5 1 0 \n in 29 1 1 \n out 30 1 0 \n out 40 1 1",
        "ran 1 0 5 30 \n ran 1 1 29 40 \n skewed 1 1",
    );
}

#[test]
fn a_gap_makes_what_it_touches_unknown_and_no_more() {
    check(
        "gen 0 100 \n in 5 1 0 \n out 10 1 0 \n in 20 2 0 \n gap 0 20 60 \n out 60 3 0 \n in 70 2 1 \n out 80 2 1",
        "ran 1 0 5 10 \n unknown 2 0 20 60 \n unknown 3 0 20 60 \n ran 2 1 70 80 \n blind 20 60",
    );
    // The same thread before and after: out and in are hidden between.
    check(
        "gen 0 100 \n in 5 1 0 \n gap 0 5 60 \n out 60 1 0",
        "unknown 1 0 5 60 \n blind 5 60",
    );
    check(
        "gen 0 100 \n in 5 1 0 \n out 6 1 0 \n gap 0 6 60 \n in 60 1 0 \n out 61 1 0",
        "ran 1 0 5 6 \n ran 1 0 60 61 \n blind 6 60",
    );
}

#[test]
fn halves_without_a_gap_are_counted() {
    check(
        "gen 0 100 \n in 5 1 0 \n in 20 2 0 \n out 30 2 0",
        "unknown 1 0 5 20 \n ran 2 0 20 30 \n unpaired 1",
    );
    check("gen 0 100 \n out 30 2 0", "unknown 2 0 0 30 \n unpaired 1");
    check(
        "gen 0 100 \n in 5 1 0 \n out 30 2 0",
        "unknown 1 0 5 30 \n unknown 2 0 5 30 \n unpaired 2",
    );
}

#[test]
fn over_damage_only_what_the_next_generation_confirms_goes_on() {
    check(
        "gen 0 100 \n in 50 1 0 \n in 60 2 1 \n damage 100 200 \n gen 200 300 \n run 1 0 50 \n out 250 1 0",
        "ran 2 1 60 100 \n unknown 2 1 100 200 \n ran 1 0 50 250 \n blind 100 200",
    );
    // It runs there again, but since a time within the damage.
    check(
        "gen 0 100 \n in 50 1 0 \n damage 100 200 \n gen 200 300 \n run 1 0 150 \n out 250 1 0",
        "ran 1 0 50 100 \n unknown 1 0 100 200 \n ran 1 0 150 250 \n blind 100 200",
    );
    // A damaged tail.
    check("gen 0 100 \n in 50 1 0 \n damage 100 200", "ran 1 0 50 100");
}

#[test]
fn a_number_that_is_used_again_is_another_thread() {
    let (_, threads, _) = run(
        "gen 0 100 \n fork 1 7 1 \n name 2 7 first \n in 3 7 0 \n exit 4 7 0 \n out+ 4 7 0 \n in 4 7 0 \n dead 5 7 0
         fork 10 7 1 \n in 11 7 0 \n out 12 7 0 \n exit 13 7 0",
    );
    let rows: Vec<_> = threads
        .iter()
        .map(|(_, t)| (t.tid.0, &*t.name, t.born.map(|t| t.0), t.exited.map(|t| t.0)))
        .collect();
    assert_eq!(rows, [(7, "first", Some(1), Some(5)), (7, "", Some(10), None)]);
    // The record of the fork is missing, or comes late.
    let (_, threads, _) = run("gen 0 100 \n in 3 7 0 \n exit 4 7 0 \n dead 5 7 0 \n in 11 7 0 \n out 12 7 0");
    assert_eq!(threads.iter().count(), 2);
    let (_, threads, _) = run("gen 0 100 \n in 3 7 0 \n fork 2 7 1 \n out 5 7 0");
    assert_eq!(
        threads.iter().map(|(_, t)| t.born.map(|t| t.0)).collect::<Vec<_>>(),
        [Some(2)]
    );
}

#[test]
fn a_thread_that_executes_takes_the_number_of_its_process() {
    // 7 executes; the leader exits; 7's stay ends under the old number.
    let (_, threads, seen) = run(
        "gen 0 100 \n in 1 1 0 \n exit 2 1 0 \n dead 3 1 0 \n in 4 7 0 \n exec 5 1 0 \n out 6 7 0 \n in 8 1 0 \n out 9 1 0",
    );
    let rows: Vec<_> = threads.iter().map(|(_, t)| (t.tid.0, t.exited.map(|t| t.0))).collect();
    assert_eq!((rows, seen.unpaired), (vec![(1, None), (7, Some(6))], 0));
}
