//! Machines on which something is planted: the diagnosis has to name it, and nothing else; and the same machines without.

use std::collections::BTreeSet;

use super::{
    machine::{Action, FOREIGN, Machine, START},
    *,
};
use crate::{
    analysis::path::History,
    file::{Piece, model::Record},
};
use Action::{Lock, Move, Run, Unlock, Wait as Sleep};

const MS: u64 = 1_000_000;
const SEEDS: u64 = 8;
const NANOSLEEP: u16 = 35;
const FSYNC: u16 = 74;

/// A service at ease: six workers with a common lock, held briefly, and a log that is written now and then; others have
/// some of the CPUs' time.
fn service(seed: u64) -> Machine {
    let mut machine = Machine::new(4, seed);
    for _ in 0..6 {
        machine.thread("worker", |r| {
            vec![
                Run(r.us(200, 1000)),
                Lock(0),
                Run(r.us(5, 30)),
                Unlock(0),
                Sleep(NANOSLEEP, 1, r.us(3000, 9000)),
            ]
        });
    }
    machine.thread("log", |r| {
        vec![
            Run(r.us(20, 200)),
            Sleep(FSYNC, 2, r.us(500, 3000)),
            Sleep(NANOSLEEP, 1, r.us(60_000, 90_000)),
        ]
    });
    machine.foreign(|r| vec![Run(r.us(100, 500)), Sleep(NANOSLEEP, 1, r.us(5000, 20_000))]);
    machine
}

fn check(machine: Machine, expect: &[&str], why: &str) -> Diagnosis {
    let diagnosis = diagnose(&machine.record(2_000 * MS), |id| {
        (id == FOREIGN).then(|| "container 4f1e".into())
    })
    .unwrap();
    let found: BTreeSet<_> = diagnosis.found().map(|answer| answer.question).collect();
    assert_eq!(found, expect.iter().copied().collect(), "{why}: {diagnosis:#?}");
    assert_eq!(diagnosis.answers.len(), checks::ALL.len());
    for answer in diagnosis.found() {
        assert!(!answer.evidence.is_empty() && !answer.places.is_empty(), "{answer:?}");
        let within = |place: &Place| START <= place.from_ns && place.from_ns < place.to_ns;
        assert!(answer.places.iter().all(within), "{answer:?}");
    }
    diagnosis
}

fn says(diagnosis: &Diagnosis, question: &str, words: &[&str]) {
    let answer = diagnosis.found().find(|answer| answer.question == question).unwrap();
    let all = format!("{} {}", answer.says, answer.evidence.join(" "));
    assert!(words.iter().all(|word| all.contains(word)), "{words:?} in {answer:?}");
}

#[test]
fn where_nothing_is_planted_nothing_is_found() {
    for seed in 1..=4 * SEEDS {
        check(service(seed), &[], "nothing planted");
    }
}

#[test]
fn a_lock_holder() {
    for seed in 1..=SEEDS {
        let mut machine = service(seed);
        let tid = machine.thread("compact", |r| {
            vec![
                Lock(0),
                Run(r.us(25_000, 40_000)),
                Unlock(0),
                Sleep(NANOSLEEP, 1, r.us(150_000, 250_000)),
            ]
        });
        let diagnosis = check(machine, &["blocker"], "a thread computes with the lock");
        says(
            &diagnosis,
            "blocker",
            &[&format!("compact ({tid}) blocked"), "it was: running"],
        );
        // The same thread without the lock.
        let mut machine = service(seed);
        machine.thread("compact", |r| {
            vec![Run(r.us(25_000, 40_000)), Sleep(NANOSLEEP, 1, r.us(150_000, 250_000))]
        });
        check(machine, &[], "a thread computes without the lock");
    }
}

#[test]
fn a_noisy_neighbour() {
    for seed in 1..=SEEDS {
        let mut machine = service(seed);
        let noisy: Vec<_> = (0..8)
            .map(|_| machine.foreign(|r| vec![Run(r.us(20_000, 50_000))]))
            .collect();
        let diagnosis = check(machine, &["neighbour"], "others compute all the time");
        says(&diagnosis, "neighbour", &["most of it container 4f1e"]);
        let neighbour = &diagnosis.neighbours[0];
        assert_eq!((diagnosis.neighbours.len(), neighbour.cgroup_id), (1, FOREIGN));
        assert!(noisy.contains(&neighbour.tid), "{neighbour:?}");
    }
}

#[test]
fn a_quota() {
    for seed in 1..=SEEDS {
        let hungry = |seed| {
            let mut machine = service(seed);
            for _ in 0..2 {
                machine.thread("render", |r| {
                    vec![Run(r.us(2000, 5000)), Sleep(NANOSLEEP, 1, r.us(1000, 3000))]
                });
            }
            machine
        };
        let mut machine = hungry(seed);
        machine.quota_ns = 60 * MS;
        let diagnosis = check(machine, &["throttled"], "a quota of 60 ms in 100");
        says(&diagnosis, "throttled", &["render"]);
        check(hungry(seed), &[], "no quota");
    }
}

#[test]
fn a_slow_fsync() {
    for seed in 1..=SEEDS {
        let mut machine = service(seed);
        let tid = machine.thread("store", |r| {
            vec![Run(r.us(50, 200)), Sleep(FSYNC, 2, r.us(20_500, 60_000))]
        });
        let diagnosis = check(machine, &["cpus_idle", "long_calls"], "an fsync of 20 to 60 ms");
        says(
            &diagnosis,
            "long_calls",
            &[&format!("store ({tid}) waited up to"), "fsync (system call 74)"],
        );
        says(&diagnosis, "cpus_idle", &[&format!("store ({tid}) waited"), "fsync"]);
        let mut machine = service(seed);
        machine.thread("store", |r| {
            vec![
                Run(r.us(50, 200)),
                Sleep(FSYNC, 2, r.us(200, 1500)),
                Sleep(NANOSLEEP, 1, r.us(20_000, 60_000)),
            ]
        });
        check(machine, &[], "an fsync of at most 1.5 ms");
    }
}

#[test]
fn bursts_behind_a_low_average() {
    for seed in 1..=SEEDS {
        let bursts = |threads| {
            let mut machine = Machine::new(2, seed);
            for _ in 0..threads {
                // They drift apart by little.
                machine.thread("handler", |r| {
                    vec![Run(r.us(9_900, 10_100)), Sleep(NANOSLEEP, 1, 480 * MS)]
                });
            }
            machine
        };
        let diagnosis = check(bursts(10), &["saturated"], "ten threads for 10 ms, each 0.5 s");
        says(&diagnosis, "saturated", &["all 2 CPUs", "which hides it"]);
        check(bursts(2), &[], "two threads for 10 ms");
    }
}

/// A thread a request, each computes 1 ms; requests come independently of each other.
#[test]
fn a_server_at_50_and_at_110_percent() {
    for seed in 1..=SEEDS {
        let server = |cpus: usize, load: f64| {
            const THREADS: usize = 256;
            let mut machine = Machine::new(cpus, seed);
            for _ in 0..THREADS {
                let pause_ns = THREADS as f64 * 1e6 / (load * cpus as f64) - 1e6;
                machine.thread("request", move |r| {
                    // Exponential, so that all together come as a Poisson process.
                    let share = (r.us(1, 1_000_000) as f64 / 1e9).clamp(1e-6, 1.0);
                    vec![Sleep(NANOSLEEP, 1, (-share.ln() * pause_ns) as u64 + 1), Run(MS)]
                });
            }
            machine
        };
        for cpus in [2, 4] {
            check(server(cpus, 0.5), &[], "half of the CPUs' time");
            let diagnosis = check(server(cpus, 1.1), &["saturated"], "more than the CPUs' time");
            says(&diagnosis, "saturated", &[&format!("all {cpus} CPUs")]);
        }
    }
}

#[test]
fn a_thread_that_migrates_to_death() {
    for seed in 1..=SEEDS {
        let mut machine = service(seed);
        let mut cpu = 0;
        let tid = machine.thread("nomad", move |r| {
            cpu = (cpu + 1) % 4;
            vec![Move(cpu), Run(r.us(200, 600))]
        });
        let diagnosis = check(machine, &["migrations"], "a thread changes its CPU all the time");
        says(
            &diagnosis,
            "migrations",
            &[&format!("nomad ({tid}) came in on another CPU")],
        );
        let mut machine = service(seed);
        machine.thread("nomad", |r| {
            vec![Move(1), Run(r.us(200, 600)), Sleep(NANOSLEEP, 1, r.us(200, 600))]
        });
        check(machine, &[], "a thread stays on its CPU");
    }
}

#[test]
fn page_faults() {
    for seed in 1..=SEEDS {
        let mut machine = service(seed);
        let tid = machine.thread("scan", |r| {
            vec![Run(r.us(50, 300)), Sleep(Wait::NO_SYSCALL, 2, r.us(100, 500))]
        });
        let diagnosis = check(
            machine,
            &["cpus_idle", "page_faults"],
            "a thread reads a file through its pages",
        );
        says(&diagnosis, "page_faults", &[&format!("scan ({tid}) waited")]);
    }
}

/// Files that nobody wrote so: any thread, any times, in any order.
#[test]
fn no_waits_and_no_records_do_harm() {
    let mut random = machine::Random(7);
    for round in 0..300 {
        let times = [
            0,
            1,
            START,
            START + MS,
            START + 50 * MS,
            START + 99 * MS,
            u64::MAX - 1,
            u64::MAX,
        ];
        let mut word = |choice: &[u64]| choice[(random.us(0, 1_000_000) % choice.len() as u64) as usize];
        let mut g = machine::empty();
        let time = |word: &mut dyn FnMut(&[u64]) -> u64| {
            let near = START + word(&[0, 1, 2, 3, 5, 8, 13, 21, 34, 55]) * MS;
            if round % 3 == 0 { word(&times) } else { near }
        };
        for _ in 0..200 {
            let mut wait = Wait::from_bytes(&[0; exist_common::WAIT_BYTES]).unwrap();
            (wait.off_ns, wait.waking_ns) = (time(&mut word), time(&mut word));
            (wait.runnable_ns, wait.run_ns) = (time(&mut word), time(&mut word));
            wait.pid = word(&[0, 1]) as u32;
            wait.tid = word(&[0, 1, 2, 3, 4]) as u32;
            wait.waker = word(&[0, 1, 2, 3, 4]) as u32;
            wait.syscall = word(&[0, 74, 202, 202, 202, 24, 35, 65535]) as u16;
            wait.cpu = word(&[0, 1, 65535]) as u16;
            (wait.holder, wait.flags) = (word(&[0, 1, 2, 3, 255]) as u8, word(&[0, 0, 1, 3, 4, 255]) as u8);
            (wait.file, wait.state) = (word(&[0, 8, 255]) as u8, word(&[0, 1, 1, 2, 255]) as u8);
            g.waits.push(wait);
            g.records.push(Record {
                time_ns: time(&mut word),
                ip: 0,
                pid: 1,
                tid: wait.tid,
                cpu: wait.cpu,
                op: word(&[0, 1, 2, 3, 4, 5, 6]) as u8,
                flags: wait.flags,
                state: wait.state.into(),
                seq: word(&[0, 1, 2, 65535]) as u16,
            });
        }
        g.waits.sort_by_key(|wait| wait.run_ns);
        g.records.sort_by_key(|record| record.time_ns);
        // As pieces, for a writer may refuse them.
        let pieces = || [Piece::Generation(Box::new(g.clone()), Vec::new())];
        let mut gather = Gather::new(START);
        let (threads, seen) = observe(pieces(), |observed| gather.take(observed));
        let blockers = blockers(pieces(), pieces());
        let facts = gather.facts(&threads, seen, blockers, true);
        let answers: Vec<_> = checks::ALL.iter().map(|check| check(&facts)).collect();
        assert_eq!(answers.len(), checks::ALL.len());
        for (from, to) in [(START, START + 60 * MS), (0, u64::MAX), (START, START)] {
            let history = History::read(pieces(), from, to);
            for tid in 0..6 {
                let path = history.path(tid);
                let sum: u64 = path.segments.iter().map(|s| s.to_ns - s.from_ns).sum();
                assert_eq!(sum, to - from, "{path:?}");
                assert!(path.segments.windows(2).all(|s| s[0].to_ns == s[1].from_ns), "{path:?}");
            }
        }
    }
}

#[test]
fn a_file_without_waits_is_refused() {
    assert!(matches!(diagnose(b"", |_| None), Err(DiagnoseError::Read(_))));
}

#[test]
fn kernels_that_mark_throttled_threads() {
    let check = |release, expect| assert_eq!(since_6_18(release), expect, "{release}");
    check("6.18.44-fc", true);
    check("6.18-rc1", true);
    check("7.0.0", true);
    check("6.12.1", false);
    check("5.15", false);
    check("", false);
}
