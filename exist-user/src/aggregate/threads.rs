//! Who belongs to the target and where each thread is, as the records tell it.

use std::{collections::BTreeMap, sync::Arc};

use exist_trace::{
    file::model::{Record, SwitchOp, ThreadStatus, flags},
    units::{Cpu, MonoNs, Pid, Tid},
};
use rustc_hash::{FxHashMap, FxHashSet};

/// `include/linux/sched.h`: the state of a task at its last switch.
const TASK_DEAD: u16 = 0x80;

#[derive(Debug)]
struct Thread {
    pid: Pid,
    name: Arc<str>,
    running: Option<(Cpu, MonoNs)>,
    ran: bool,
    exiting: bool,
}

/// What a record means for others than its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    /// The thread is new and has this name.
    Named {
        name: Arc<str>,
    },
    /// The thread is new, and nothing is known of it; it was not there at the start, and its creation was not seen.
    Stranger,
    /// A process was moved into the target, or a thread of it.
    Joined,
    /// The last thread of the process is gone.
    ProcessGone(Pid),
}

/// The target's threads.
#[derive(Debug, Default)]
pub struct Threads {
    /// Looked into for every record. The kernel chooses the numbers, so nobody can make them collide.
    by_tid: FxHashMap<Tid, Thread>,
    /// Number of threads of each process.
    processes: BTreeMap<Pid, u32>,
    ran: u64,
    /// Those that ran and were moved out of the target: when they come back they are not counted again.
    ran_and_left: FxHashSet<Tid>,
}

impl Threads {
    /// Whether a process has a thread in the target.
    pub fn has_process(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Whether this thread is in the target.
    pub fn has(&self, pid: Pid, tid: Tid) -> bool {
        self.by_tid.get(&tid).is_some_and(|thread| thread.pid == pid)
    }

    pub fn processes(&self) -> impl Iterator<Item = Pid> {
        self.processes.keys().copied()
    }

    /// How many threads have run, those that are gone included.
    pub fn ran(&self) -> u64 {
        self.ran
    }

    /// Every live thread.
    pub fn statuses(&self) -> Vec<ThreadStatus> {
        let status = |(&tid, thread): (&Tid, &Thread)| ThreadStatus {
            pid: thread.pid,
            tid,
            name: thread.name.clone(),
            running: thread.running,
        };
        let mut all: Vec<_> = self.by_tid.iter().map(status).collect();
        all.sort_unstable_by_key(|status| (status.pid, status.tid));
        all
    }

    /// Adds a thread, or renames it when it is known.
    pub fn name(&mut self, pid: Pid, tid: Tid, name: Arc<str>) {
        if let Some(thread) = self.by_tid.get_mut(&tid).filter(|thread| thread.pid == pid) {
            thread.name = name;
            return;
        }
        self.remove(tid); // the number was used by a thread whose end was not seen
        self.by_tid.insert(
            tid,
            Thread {
                pid,
                name,
                running: None,
                ran: self.ran_and_left.remove(&tid),
                exiting: false,
            },
        );
        *self.processes.entry(pid).or_default() += 1;
    }

    /// Takes the next record.
    pub fn apply(&mut self, record: &Record) -> Change {
        let (pid, tid) = (Pid(record.pid), Tid(record.tid));
        match record.op() {
            Some(SwitchOp::In) => self.switched_in(pid, tid, record),
            Some(SwitchOp::Out) => self.switched_out(tid, record),
            Some(SwitchOp::Fork) => self.forked(pid, tid, Tid(record.parent().1)),
            Some(SwitchOp::Exec) => self.executed(pid, tid, record.ip),
            Some(SwitchOp::Exit) => {
                if let Some(thread) = self.by_tid.get_mut(&tid) {
                    thread.exiting = true;
                    // One that runs here has one more switch-out; one that does not was moved out before.
                    if thread.running.is_none() {
                        return self.remove(tid);
                    }
                }
                Change::None
            }
            Some(SwitchOp::AttachIn) => Change::Joined,
            Some(SwitchOp::AttachOut) => self.left(pid, tid, record.flags),
            None => Change::None,
        }
    }

    fn switched_in(&mut self, pid: Pid, tid: Tid, record: &Record) -> Change {
        let running = Some((Cpu(record.cpu.into()), MonoNs(record.time_ns)));
        if let Some(thread) = self.by_tid.get_mut(&tid).filter(|thread| thread.pid == pid) {
            thread.running = running;
            self.ran += u64::from(!std::mem::replace(&mut thread.ran, true));
            return Change::None;
        }
        self.name(pid, tid, Arc::from(""));
        self.switched_in(pid, tid, record);
        Change::Stranger
    }

    fn switched_out(&mut self, tid: Tid, record: &Record) -> Change {
        // Whoever has executed a program since goes out with the number that it came in with.
        let tid = match self.by_tid.contains_key(&tid) {
            true => tid,
            false => self.renamed(record).unwrap_or(tid),
        };
        let Some(thread) = self.by_tid.get_mut(&tid) else {
            return Change::None;
        };
        thread.running = None;
        let left = (thread.exiting || record.state & TASK_DEAD != 0) && record.flags & (flags::MOVED | flags::END) == 0;
        if left { self.remove(tid) } else { Change::None }
    }

    fn forked(&mut self, pid: Pid, tid: Tid, parent: Tid) -> Change {
        self.ran_and_left.remove(&tid); // the number is another thread's now
        // `copy_process` copies the name of the thread that forks.
        let Some(name) = self.by_tid.get(&parent).map(|parent| parent.name.clone()) else {
            self.name(pid, tid, Arc::from(""));
            return Change::Stranger;
        };
        self.name(pid, tid, name.clone());
        Change::Named { name }
    }

    /// `de_thread` in `fs/exec.c`: the thread that executes takes the number of its process's first thread.
    fn executed(&mut self, pid: Pid, tid: Tid, before: u64) -> Change {
        let before = u32::try_from(before).map_or(tid, Tid);
        if before != tid
            && self.has(pid, before)
            && let Some(mut thread) = self.by_tid.remove(&before)
        {
            thread.exiting = false;
            // Who has the number already is the old first thread, or, with the name of the new program, this one.
            if let Some(first) = self.by_tid.get(&tid) {
                thread.name = first.name.clone();
            }
            if self.by_tid.insert(tid, thread).is_some() {
                self.forget(pid);
            }
        }
        Change::None
    }

    /// The first thread of the record's process, if it runs on the record's CPU.
    fn renamed(&self, record: &Record) -> Option<Tid> {
        let first = Tid(record.pid);
        let (cpu, _) = self.by_tid.get(&first)?.running?;
        (cpu == Cpu(record.cpu.into())).then_some(first)
    }

    fn left(&mut self, pid: Pid, tid: Tid, bits: u8) -> Change {
        if bits & flags::THREADGROUP == 0 {
            if self.by_tid.get(&tid).is_some_and(|thread| thread.ran) {
                self.ran_and_left.insert(tid);
            }
            return self.remove(tid);
        }
        let gone = self.processes.contains_key(&pid);
        let left = self.by_tid.extract_if(|_, thread| thread.pid == pid);
        self.ran_and_left
            .extend(left.filter(|(_, thread)| thread.ran).map(|(tid, _)| tid));
        self.processes.remove(&pid);
        if gone { Change::ProcessGone(pid) } else { Change::None }
    }

    fn remove(&mut self, tid: Tid) -> Change {
        match self.by_tid.remove(&tid) {
            Some(thread) => self.forget(thread.pid),
            None => Change::None,
        }
    }

    /// Counts one thread of a process less.
    fn forget(&mut self, pid: Pid) -> Change {
        let Some(count) = self.processes.get_mut(&pid) else {
            return Change::None;
        };
        *count -= 1;
        if *count > 0 {
            return Change::None;
        }
        self.processes.remove(&pid);
        Change::ProcessGone(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies records written as `op pid tid [cpu]` and compares the threads after them: `pid/tid name[@cpu]`.
    fn check(program: &str, expect: &str) {
        let mut threads = Threads::default();
        threads.name(Pid(1), Tid(1), Arc::from("main"));
        for (time, line) in (10..).zip(program.split(';').filter(|line| !line.trim().is_empty())) {
            threads.apply(&parse(time, line));
        }
        let show = |s: &ThreadStatus| {
            let at = s
                .running
                .map(|(cpu, since)| format!("@{cpu}:{since}"))
                .unwrap_or_default();
            format!("{}/{} {}{at}", s.pid, s.tid, s.name)
        };
        assert_eq!(
            threads.statuses().iter().map(show).collect::<Vec<_>>().join(", "),
            expect,
            "{program}"
        );
        let mut pids: Vec<_> = threads.statuses().iter().map(|s| s.pid).collect();
        pids.dedup();
        assert_eq!(threads.processes().collect::<Vec<_>>(), pids, "{program}: processes");
    }

    fn parse(time_ns: u64, line: &str) -> Record {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |i: usize| words.get(i).map_or(0, |w| w.parse().unwrap());
        let (pid, tid, last) = (number(1), number(2), number(3));
        let (op, ip, bits) = match words[0] {
            "in" => (SwitchOp::In, 0, 0),
            "out" | "out-dead" => (SwitchOp::Out, 0, 0),
            "moved-out" => (SwitchOp::Out, 0, flags::MOVED),
            "fork" => (SwitchOp::Fork, u64::from(last) << 32 | u64::from(last), 0),
            "exec" => (SwitchOp::Exec, u64::from(last), 0),
            "exit" => (SwitchOp::Exit, 0, 0),
            "attach-out" => (SwitchOp::AttachOut, 0, 0),
            "attach-out-all" => (SwitchOp::AttachOut, 0, flags::THREADGROUP),
            other => panic!("{other}"),
        };
        let cpu = if matches!(op, SwitchOp::In | SwitchOp::Out) {
            u16::try_from(last).unwrap()
        } else {
            0
        };
        let state = if words[0] == "out-dead" { TASK_DEAD } else { 1 };
        Record {
            time_ns,
            ip,
            pid,
            tid,
            cpu,
            op: op as u8,
            flags: bits,
            state,
            seq: 0,
        }
    }

    #[test]
    fn threads_run_and_wait() {
        check("", "1/1 main");
        check("in 1 1 3", "1/1 main@3:10");
        check("in 1 1 3; out 1 1", "1/1 main");
        check("in 1 1 3; out 1 1; in 1 1 4", "1/1 main@4:12");
    }

    #[test]
    fn threads_come_and_go() {
        check("fork 1 2 1; in 1 2 0", "1/1 main, 1/2 main@0:11");
        check("fork 1 2 1; in 1 2 0; exit 1 2", "1/1 main, 1/2 main@0:11");
        check("fork 1 2 1; in 1 2 0; exit 1 2; out 1 2", "1/1 main");
        check("fork 5 5 1; in 1 1 0; exit 1 1; out 1 1", "5/5 main");
        check("in 1 1 0; exit 1 1; out 1 1", "");
        // The record of its exit was lost.
        check("in 1 1 0; out-dead 1 1", "");
    }

    #[test]
    fn strangers_are_taken_in() {
        check("in 7 8 0", "1/1 main, 7/8 @0:10");
        check("out 7 8", "1/1 main");
        // The number comes back in another process: the end of the first was not seen.
        check("in 7 1 0", "7/1 @0:10");
    }

    #[test]
    fn an_exec_by_another_thread_takes_the_first_number() {
        check("fork 1 2 1; in 1 2 3; exec 1 1 2", "1/1 main@3:11");
        check("in 1 1 3; exec 1 1 1", "1/1 main@3:10");
        // It goes out with the number that it came in with.
        check("fork 1 2 1; in 1 2 3; exec 1 1 2; out 1 2 3", "1/1 main");
        check("fork 1 2 1; in 1 2 3; exec 1 1 2; out 1 2 3; in 1 1 4", "1/1 main@4:14");
        check("fork 1 2 1; in 1 2 3; exec 1 1 2; out 1 9 4", "1/1 main@3:11");
        // The old first thread was already seen to exit.
        check(
            "fork 1 2 1; in 1 1 0; exit 1 1; out 1 1; in 1 2 3; exec 1 1 2",
            "1/1 main@3:14",
        );
    }

    #[test]
    fn threads_and_processes_are_moved_out() {
        check("fork 1 2 1; attach-out 1 2", "1/1 main");
        check("fork 1 2 1; fork 5 5 1; attach-out-all 1 1", "5/5 main");
        check("fork 1 2 1; in 1 2 0; moved-out 1 2", "1/1 main, 1/2 main");
    }

    #[test]
    fn a_thread_that_comes_back_is_counted_once() {
        let ran = |program: &str| {
            let mut threads = Threads::default();
            program
                .split(';')
                .for_each(|line| drop(threads.apply(&parse(10, line))));
            threads.ran()
        };
        assert_eq!(
            ran("in 1 1 0; out 1 1; attach-out-all 1 1; in 1 1 0; out 1 1; attach-out-all 1 1; in 1 1 0"),
            1
        );
        assert_eq!(ran("in 1 1 0; in 1 2 1; out 1 2; attach-out 1 2; in 1 2 0"), 2);
        // The number came back as another thread's.
        assert_eq!(
            ran("in 1 1 0; in 1 2 1; out 1 2; attach-out 1 2; fork 1 2 1; in 1 2 0"),
            3
        );
    }

    #[test]
    fn the_last_thread_takes_its_process_along() {
        let mut threads = Threads::default();
        threads.name(Pid(1), Tid(1), Arc::from("main"));
        assert_eq!(threads.apply(&parse(0, "in 1 1 0")), Change::None);
        assert_eq!(threads.apply(&parse(0, "exit 1 1")), Change::None);
        assert_eq!(threads.apply(&parse(0, "out 1 1")), Change::ProcessGone(Pid(1)));
        assert_eq!(threads.apply(&parse(0, "in 2 2 0")), Change::Stranger);
        assert_eq!(
            threads.apply(&parse(0, "fork 3 3 2")),
            Change::Named { name: Arc::from("") }
        );
        assert_eq!(threads.apply(&parse(0, "fork 4 4 9")), Change::Stranger);
    }
}
