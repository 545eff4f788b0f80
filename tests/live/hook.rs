//! The hook on this machine's kernel. Needs root and the BPF programs.

#![allow(clippy::unwrap_used)]

mod bed;
mod steal;

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    time::Duration,
};

use bed::{Bed, Child, alternate, beds, load, spawn, until};
use exist_common::{Op, Record, flags};
use exist_trace::units::Pid;
use exist_user::hook::{Event, Hook, HookOptions, NoticeKind, Role};
use exist_user::sys::clock::mono_ns;
use steal::Steal;

/// include/linux/sched.h: the state of a thread's last switch.
const TASK_DEAD: u16 = 0x80;

/// Everything that a hook has told; each CPU's records in their order.
#[derive(Default)]
struct Told {
    records: Vec<Record>,
    lost: u64,
}

impl Told {
    fn drain(&mut self, hook: &mut Hook) {
        let Self { records, lost } = self;
        let sink = |event| match event {
            Event::Record(record) => records.push(record),
            Event::Wait(wait) => panic!("nobody asked for {wait:?}"),
            Event::Loss(loss) => *lost += loss.records,
        };
        hook.drain(sink).unwrap();
    }

    fn end(mut self, hook: &mut Hook) -> Self {
        hook.end().unwrap();
        self.drain(hook);
        let lost = &mut self.lost;
        let counters = hook
            .counters(|event| {
                if let Event::Loss(loss) = event {
                    *lost += loss.records;
                }
            })
            .unwrap();
        let switches = self.of(&[Op::In, Op::Out]).count() as u64;
        let produced: u64 = counters.iter().map(|c| c.produced).sum();
        assert_eq!(
            switches + self.lost,
            produced,
            "given and lost are all that was produced"
        );
        if self.lost == 0 {
            let on_cpu: u64 = counters.iter().map(|c| c.on_cpu_ns).sum();
            let by_records: u64 = alternate(&self.records).values().map(|t| t.on_cpu_ns).sum();
            assert_eq!(on_cpu, by_records, "the kernel's sum is that of the records");
        }
        self
    }

    fn of<'a>(&'a self, ops: &'a [Op]) -> impl Iterator<Item = &'a Record> {
        self.records.iter().filter(|r| ops.contains(&r.op().unwrap()))
    }

    fn of_thread(&self, tid: u32) -> Vec<&Record> {
        let mut records: Vec<_> = self.records.iter().filter(|r| r.tid == tid).collect();
        records.sort_by_key(|r| r.time_ns);
        records
    }
}

fn start(bed: &Bed) -> Option<Hook> {
    let mut hook = load(&HookOptions::new(bed.hierarchy.clone()))?;
    hook.attach().unwrap();
    hook.insert_cgroup(bed.id(), Role::Root).unwrap();
    hook.begin().unwrap();
    Some(hook)
}

#[test]
fn switches_pair_and_are_all_there() {
    for bed in beds("pair") {
        let mut child = spawn("threads", &bed.dir);
        child.ready();
        let before = child.parked();
        let Some(mut hook) = start(&bed) else { return };
        let steal = Steal::start();
        child.go();
        child.ready();
        let after = child.parked();
        let uncertain_ns = steal.uncertain_ns();
        let told = Told::default().end(&mut hook);
        assert_eq!(told.lost, 0);
        let threads = alternate(&told.records);
        for (tid, after) in &after {
            let before = before[tid];
            let seen = threads.get(tid).copied().unwrap_or_default();
            assert_eq!(
                seen.outs,
                after.switches - before.switches,
                "{}: switch-outs of thread {tid}",
                bed.hierarchy
            );
            let ran = after.on_cpu_ns - before.on_cpu_ns;
            let off = ran.abs_diff(seen.on_cpu_ns).saturating_sub(uncertain_ns);
            // Wide: the kernel's clock of the run queue is read before the switch, and a machine under a hypervisor may stand
            // still in between. `cargo xtask bench` measures it closely.
            assert!(
                off <= ran / 1000 + 100_000 * (seen.outs + 1),
                "thread {tid} ran {ran} ns, recorded {} ns",
                seen.on_cpu_ns
            );
        }
        assert!(
            threads.keys().all(|tid| after.contains_key(tid)),
            "no other thread is told"
        );
        let without_ip = told
            .of(&[Op::In, Op::Out])
            .find(|r| r.ip == 0 && r.flags & flags::MISSED == 0);
        assert_eq!(without_ip, None, "each has the place that it left or resumes at");
    }
}

#[test]
fn forks_execs_and_exits() {
    for bed in beds("life") {
        let Some(mut hook) = start(&bed) else { return };
        let mut child = spawn("exec-from-thread", &bed.dir);
        child.wait();
        let pid = child.pid();
        let mut told = Told::default();
        // The parent is told of the end before the last switch.
        until("the last switch", || {
            told.drain(&mut hook);
            let dead = told.of(&[Op::Out]).filter(|r| r.pid == pid && r.state & TASK_DEAD != 0);
            let exits = told.of(&[Op::Exit]).filter(|r| r.pid == pid);
            exits.count() >= 2 && dead.count() == told.of(&[Op::Exit]).filter(|r| r.pid == pid).count()
        });
        let told = told.end(&mut hook);
        alternate(&told.records);
        // The second thread executes a program, and takes the number of the process with it.
        let execs: Vec<_> = told.of(&[Op::Exec]).filter(|r| r.pid == pid).collect();
        let [exec] = execs[..] else { panic!("{execs:?}") };
        assert_eq!(exec.tid, pid);
        let before = exec.ip as u32;
        assert_ne!(before, pid);
        let fork = told.of(&[Op::Fork]).find(|r| r.tid == before).expect("its fork");
        assert_eq!((fork.pid, fork.parent().0), (pid, pid));
        let ins = told.of(&[Op::In]).filter(|r| r.tid == before);
        let first_in = ins.min_by_key(|r| r.time_ns).unwrap();
        assert!(fork.time_ns <= first_in.time_ns);
        let exits = told.of(&[Op::Exit]).filter(|r| r.tid == pid);
        let exit = exits.max_by_key(|r| r.time_ns).expect("an exit");
        let outs = told.of(&[Op::Out]).filter(|r| r.pid == pid);
        let last = outs.max_by_key(|r| r.time_ns).unwrap();
        assert!(exit.time_ns <= last.time_ns && last.state & TASK_DEAD != 0);
    }
}

#[test]
fn a_running_thread_is_told_at_start_and_end() {
    for bed in beds("start") {
        let mut child = spawn("spin", &bed.dir);
        child.ready();
        let mut hook = match load(&HookOptions::new(bed.hierarchy.clone())) {
            Some(hook) => hook,
            None => return,
        };
        hook.attach().unwrap();
        hook.insert_cgroup(bed.id(), Role::Root).unwrap();
        // It must run, not wait for its turn, at both moments: so try again when it did not.
        let mut seen = false;
        for _ in 0..200 {
            let begin = hook.begin().unwrap().0;
            std::thread::sleep(Duration::from_millis(20));
            let end = hook.end().unwrap().0;
            let mut told = Told::default();
            told.drain(&mut hook);
            alternate(&told.records);
            let Some(spinning) = told.of(&[Op::In]).find(|r| r.flags & flags::START != 0) else {
                continue;
            };
            assert_eq!(spinning.pid, child.pid());
            let of_child = told.of_thread(spinning.tid);
            let (Some(first), Some(last)) = (of_child.first(), of_child.last()) else {
                continue;
            };
            if first.flags & flags::START != 0 && last.flags & flags::END != 0 {
                assert_eq!((first.op(), first.time_ns), (Some(Op::In), begin));
                assert_eq!((last.op(), last.time_ns), (Some(Op::Out), end));
                seen = true;
                break;
            }
        }
        child.kill();
        assert!(seen, "the thread never ran at the beginning and the end");
    }
}

#[test]
fn moves_into_and_out_of_the_target() {
    for bed in beds("move") {
        let mut child = spawn("spin", &bed.outside);
        child.ready();
        let Some(mut hook) = start(&bed) else { return };
        let mut ring = hook.take_notices().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let pid = child.pid();
        let mut told = Told::default();
        let (mut notices, mut within) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let from = mono_ns();
            bed::enter(&bed.dir, pid);
            ring.take(|n| notices.push(n));
            hook.snapshot(exist_user::hook::Cpus::Online).unwrap();
            let ran = child.ran_ns();
            until("it runs", || child.ran_ns() > ran + 10_000_000);
            // Kernels are seen that do not trace each switch from the idle task: then nothing has told yet that it came in,
            // and once it has left the target nothing will.
            hook.snapshot(exist_user::hook::Cpus::Online).unwrap();
            bed::enter(&bed.outside, pid);
            within.push(from..=mono_ns());
            // Out and in again within one stint on a CPU would be no move.
            hook.snapshot(exist_user::hook::Cpus::Online).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        hook.snapshot(exist_user::hook::Cpus::Online).unwrap();
        child.kill();
        told = told.end(&mut hook);
        alternate(&told.records);
        assert!(told.of(&[Op::In, Op::Out]).all(|r| r.pid == pid));
        let entered: Vec<_> = told.of(&[Op::AttachIn]).collect();
        let left: Vec<_> = told.of(&[Op::AttachOut]).filter(|r| r.pid == pid).collect();
        assert_eq!((entered.len(), left.len()), (3, 3));
        assert!(
            entered
                .iter()
                .all(|r| r.pid == pid && r.flags & flags::THREADGROUP != 0)
        );
        // It ran each time that it was in the target, and nothing is told of when it was not.
        let switches: Vec<u64> = told.of(&[Op::In, Op::Out]).map(|r| r.time_ns).collect();
        for stay in &within {
            assert!(switches.iter().filter(|at| stay.contains(at)).count() >= 2, "{stay:?}");
        }
        // But the end of a stint is told late if the kernel did not trace the switch: when its successor began.
        let without: Vec<_> = told
            .of(&[Op::In, Op::Out])
            .filter(|r| r.op() != Some(Op::Out) || r.flags & flags::MISSED == 0)
            .filter(|r| !within.iter().any(|stay| stay.contains(&r.time_ns)))
            .collect();
        assert!(without.is_empty(), "{without:?} but {within:?}");
        let attached = notices
            .iter()
            .filter(|n| n.kind() == Some(NoticeKind::Attached) && n.pid == pid);
        assert_eq!(attached.count(), 3);
    }
}

#[test]
fn cgroups_below_the_target_come_and_go() {
    for bed in beds("below") {
        let Some(mut hook) = start(&bed) else { return };
        let mut ring = hook.take_notices().unwrap();
        let inner = bed.dir.join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let mut child = spawn("exec-from-thread", &inner);
        child.wait();
        for dir in [inner.as_path(), inner.parent().unwrap()] {
            bed::remove(dir);
        }
        let mut notices = Vec::new();
        ring.take(|n| notices.push(n.kind().unwrap()));
        assert!(!notices.contains(&NoticeKind::TargetRemoved));
        let id = bed.id();
        bed::remove(&bed.dir);
        let mut removed = None;
        until("the notice of the target's end", || {
            ring.take(|n| removed = removed.or((n.kind() == Some(NoticeKind::TargetRemoved)).then_some(n.id)));
            removed.is_some()
        });
        assert_eq!(removed, Some(id));
        let told = Told::default().end(&mut hook);
        alternate(&told.records);
        assert!(told.of(&[Op::In]).any(|r| r.pid == child.pid()));
    }
}

#[test]
fn each_cpu_is_noticed_once_in_a_period() {
    for bed in beds("seen") {
        let Some(mut hook) = start(&bed) else { return };
        let mut ring = hook.take_notices().unwrap();
        for period in 1..4 {
            hook.begin_period(period).unwrap();
            let mut child = spawn("exec-from-thread", &bed.dir);
            child.wait();
            let mut cpus = HashMap::new();
            ring.take(|n| {
                if n.kind() == Some(NoticeKind::CpuSeen) && n.id == period {
                    *cpus.entry(n.cpu).or_insert(0) += 1;
                }
            });
            assert!(
                !cpus.is_empty() && cpus.values().all(|&n| n == 1),
                "period {period}: {cpus:?}"
            );
        }
    }
}

#[test]
fn what_finds_no_room_is_counted() {
    for bed in beds("loss") {
        let mut options = HookOptions::new(bed.hierarchy.clone());
        options.ring_bytes = NonZeroU32::MIN;
        let Some(mut hook) = load(&options) else { return };
        hook.attach().unwrap();
        hook.insert_cgroup(bed.id(), Role::Root).unwrap();
        hook.begin().unwrap();
        let mut told = Told::default();
        let mut child = spawn("threads", &bed.dir);
        child.ready();
        child.go();
        child.ready();
        // Gaps between records, then a rest that no record follows.
        told.drain(&mut hook);
        child.kill();
        told = told.end(&mut hook);
        assert!(told.lost > 0);
    }
}

#[test]
fn only_one_process() {
    for bed in beds("only") {
        let mut other = spawn("threads", &bed.dir);
        let mut child = spawn("threads", &bed.dir);
        for c in [&mut other, &mut child] {
            c.ready();
        }
        let mut options = HookOptions::new(bed.hierarchy.clone());
        options.only_pid = Some(Pid(child.pid()));
        let Some(mut hook) = load(&options) else { return };
        hook.attach().unwrap();
        hook.begin().unwrap();
        for c in [&mut other, &mut child] {
            c.go();
            c.ready();
        }
        let told = Told::default().end(&mut hook);
        alternate(&told.records);
        assert!(!told.records.is_empty() && told.records.iter().all(|r| r.pid == child.pid()));
    }
}

#[test]
fn after_sigkill_nothing_is_left_in_the_kernel() {
    let Some(_) = load(&HookOptions::new(exist_user::sys::cgroupfs::Hierarchy::V2)) else {
        return;
    };
    for _ in 0..3 {
        let mut victim: Child = spawn("record", std::path::Path::new(""));
        let ids: Vec<u32> = victim.line().split_whitespace().map(|id| id.parse().unwrap()).collect();
        let left = || {
            let loaded: BTreeMap<u32, ()> = aya::programs::loaded_programs()
                .filter_map(|p| Some((p.ok()?.id(), ())))
                .collect();
            ids.iter().filter(|id| loaded.contains_key(id)).count()
        };
        assert_eq!((left(), ids.len()), (8, 8));
        victim.kill();
        until("the kernel lets go of the programs", || left() == 0);
    }
}

/// What a copy of this test does when it is started as a child.
#[test]
fn child() {
    bed::act();
}
