//! A simulated machine: CPUs with run queues and time slices, threads with programs, locks, a quota. What happens on it is
//! written as a recording of the target's threads.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use exist_common::{Wait, holder, wait_flags};

use crate::{
    file::{
        Writer,
        model::{End, Generation, Header, Node, Record, ResolvedTarget, SwitchOp, ThreadStatus, flags},
    },
    session::{PtRequest, Session, Target, Waits},
    units::{MonoNs, Pid, Tid},
};

pub const START: u64 = 1_000_000_000_000;
const GENERATION_NS: u64 = 100_000_000;
const SLICE_NS: u64 = 3_000_000;
const SWITCH_NS: u64 = 2_000;
const WAKE_NS: u64 = 15_000;
const PID: u32 = 100;
const FUTEX: u16 = 202;
/// The cgroup of foreign threads.
pub const FOREIGN: u64 = 4711;

/// Reproducible numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    /// From `from` to `to` microseconds, in nanoseconds.
    pub fn us(&mut self, from: u64, to: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from * 1000 + self.0 % ((to - from) * 1000 + 1)
    }
}

/// What a thread does next.
pub enum Action {
    Run(u64),
    /// Sleeps in a system call, in a state, for so long.
    Wait(u16, u8, u64),
    Lock(usize),
    Unlock(usize),
    /// May run only there from now on.
    Move(usize),
}

type Program = Box<dyn FnMut(&mut Random) -> Vec<Action>>;

struct Thread {
    name: &'static str,
    is_target: bool,
    program: Program,
    todo: VecDeque<Action>,
    left_ns: u64,
    only_on: Option<usize>,
    last_cpu: usize,
    wait: Wait,
}

#[derive(Default)]
struct Cpu {
    current: Option<usize>,
    since: u64,
    token: u64,
    queue: VecDeque<usize>,
    last: Option<usize>,
    seq: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ready(usize),
    Slice(usize, u64),
    Refill,
}

pub struct Machine {
    cpus: Vec<Cpu>,
    threads: Vec<Thread>,
    locks: Vec<(Option<usize>, VecDeque<usize>)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    /// Time that the target may run in each 100 ms.
    pub quota_ns: u64,
    used_ns: u64,
    parked: Vec<usize>,
    random: Random,
    records: Vec<Record>,
    waits: Vec<Wait>,
}

impl Machine {
    pub fn new(cpus: usize, seed: u64) -> Self {
        Self {
            cpus: (0..cpus).map(|_| Cpu::default()).collect(),
            threads: Vec::new(),
            locks: (0..4).map(|_| (None, VecDeque::new())).collect(),
            events: BinaryHeap::new(),
            made: 0,
            quota_ns: u64::MAX,
            used_ns: 0,
            parked: Vec::new(),
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            records: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// Adds a thread of the target; gives its number.
    pub fn thread(&mut self, name: &'static str, program: impl FnMut(&mut Random) -> Vec<Action> + 'static) -> u32 {
        self.add(name, true, Box::new(program))
    }

    /// Adds somebody else's thread.
    pub fn foreign(&mut self, program: impl FnMut(&mut Random) -> Vec<Action> + 'static) -> u32 {
        self.add("foreign", false, Box::new(program))
    }

    fn add(&mut self, name: &'static str, is_target: bool, program: Program) -> u32 {
        let at = self.threads.len();
        let mut wait = Wait::from_bytes(&[0; exist_common::WAIT_BYTES]).unwrap();
        (wait.pid, wait.tid) = (PID, tid(at));
        self.threads.push(Thread {
            name,
            is_target,
            program,
            todo: VecDeque::new(),
            left_ns: 0,
            only_on: None,
            last_cpu: at % self.cpus.len(),
            wait,
        });
        let begin = self.random.us(0, 5000);
        self.at(START + begin, Event::Ready(at));
        tid(at)
    }

    /// Runs for so long; gives the trace file.
    pub fn record(mut self, ns: u64) -> Vec<u8> {
        self.at(START + 100_000_000, Event::Refill);
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now > START + ns {
                break;
            }
            match event {
                Event::Ready(thread) => self.wakes(thread, None, now),
                Event::Slice(cpu, token) if self.cpus[cpu].token == token => self.slice_ends(cpu, now),
                Event::Slice(..) => {}
                Event::Refill => {
                    self.used_ns = 0;
                    for thread in std::mem::take(&mut self.parked) {
                        self.enqueue(thread, now);
                    }
                    self.at(now + 100_000_000, Event::Refill);
                }
            }
        }
        self.write(START + ns)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((time, self.made, event)));
    }

    fn wakes(&mut self, thread: usize, waker: Option<usize>, now: u64) {
        let wait = &mut self.threads[thread].wait;
        (wait.waking_ns, wait.runnable_ns) = (now, now + 500);
        // Without a waker it is an interrupt: of whoever runs there.
        let stopped = self.cpus[thread % self.cpus.len()].current;
        wait.waker = waker.or(stopped).map_or(0, tid);
        self.enqueue(thread, now);
    }

    fn enqueue(&mut self, thread: usize, now: u64) {
        let t = &self.threads[thread];
        let load = |cpu: usize| self.cpus[cpu].queue.len() + usize::from(self.cpus[cpu].current.is_some());
        let least = || {
            let cpus = (0..self.cpus.len()).map(|cpu| (load(cpu), cpu));
            cpus.min().map(|(_, cpu)| cpu).unwrap()
        };
        let cpu = t
            .only_on
            .unwrap_or_else(|| if load(t.last_cpu) == 0 { t.last_cpu } else { least() });
        self.cpus[cpu].queue.push_back(thread);
        if self.cpus[cpu].current.is_none() {
            self.dispatch(cpu, now + WAKE_NS);
        }
    }

    fn dispatch(&mut self, cpu: usize, now: u64) {
        let c = &mut self.cpus[cpu];
        let last = c.last.take();
        let Some(thread) = c.queue.pop_front() else {
            c.current = None;
            return;
        };
        let now = now + SWITCH_NS;
        (c.current, c.since) = (Some(thread), now);
        let (last_tid, whose) = match last {
            None => (0, holder::IDLE),
            Some(last) if self.threads[last].is_target => (tid(last), holder::TARGET),
            Some(last) => (tid(last), holder::OTHER),
        };
        let t = &mut self.threads[thread];
        t.last_cpu = cpu;
        if t.is_target {
            if t.wait.off_ns > 0 {
                t.wait.holder_cgroup = if whose == holder::OTHER { FOREIGN } else { 0 };
                (t.wait.run_ns, t.wait.cpu) = (now, cpu as u16);
                (t.wait.holder_tid, t.wait.holder) = (last_tid, whose);
                self.waits.push(t.wait);
            }
            self.record_switch(cpu, thread, now, SwitchOp::In, 0, 0);
        }
        self.goes_on(cpu, now);
    }

    /// Does what takes no time, until something does.
    fn goes_on(&mut self, cpu: usize, now: u64) {
        let thread = self.cpus[cpu].current.unwrap();
        loop {
            if self.threads[thread].left_ns > 0 {
                self.cpus[cpu].token += 1;
                let (token, left) = (self.cpus[cpu].token, self.threads[thread].left_ns);
                self.cpus[cpu].since = now;
                return self.at(now + left.min(SLICE_NS), Event::Slice(cpu, token));
            }
            let Some(action) = self.threads[thread].todo.pop_front() else {
                let t = &mut self.threads[thread];
                t.todo = (t.program)(&mut self.random).into();
                continue;
            };
            match action {
                Action::Run(ns) => self.threads[thread].left_ns = ns,
                Action::Wait(syscall, state, ns) => {
                    self.at(now + ns, Event::Ready(thread));
                    return self.leaves(cpu, now, syscall, state, 0);
                }
                Action::Lock(lock) if self.locks[lock].0.is_some() => {
                    self.locks[lock].1.push_back(thread);
                    return self.leaves(cpu, now, FUTEX, 1, 0);
                }
                Action::Lock(lock) => self.locks[lock].0 = Some(thread),
                Action::Unlock(lock) => {
                    self.locks[lock].0 = self.locks[lock].1.pop_front();
                    if let Some(next) = self.locks[lock].0 {
                        self.wakes(next, Some(thread), now);
                    }
                }
                Action::Move(to) => {
                    self.threads[thread].only_on = Some(to);
                    if to != cpu {
                        self.leaves(cpu, now, Wait::NO_SYSCALL, 0, wait_flags::PREEMPT);
                        return self.enqueue(thread, now);
                    }
                }
            }
        }
    }

    fn slice_ends(&mut self, cpu: usize, now: u64) {
        let thread = self.cpus[cpu].current.unwrap();
        let ran = now - self.cpus[cpu].since;
        let t = &mut self.threads[thread];
        t.left_ns -= ran.min(t.left_ns);
        let is_target = t.is_target;
        if is_target {
            self.used_ns += ran;
        }
        if is_target && self.used_ns >= self.quota_ns {
            self.parked.push(thread);
            self.leaves(
                cpu,
                now,
                Wait::NO_SYSCALL,
                0,
                wait_flags::PREEMPT | wait_flags::THROTTLED,
            );
        } else if self.threads[thread].left_ns > 0 && !self.cpus[cpu].queue.is_empty() {
            self.cpus[cpu].queue.push_back(thread);
            self.leaves(cpu, now, Wait::NO_SYSCALL, 0, wait_flags::PREEMPT);
        } else {
            self.goes_on(cpu, now);
        }
    }

    fn leaves(&mut self, cpu: usize, now: u64, syscall: u16, state: u8, bits: u8) {
        let thread = self.cpus[cpu].current.take().unwrap();
        self.cpus[cpu].last = Some(thread);
        self.cpus[cpu].token += 1;
        let t = &mut self.threads[thread];
        let wait = &mut t.wait;
        (wait.off_ns, wait.waking_ns, wait.waker) = (now, 0, 0);
        wait.runnable_ns = if state == 0 { now } else { 0 };
        (wait.syscall, wait.state, wait.flags) = (syscall, state, bits);
        // A regular file, where the call takes one.
        wait.file = 8;
        if t.is_target {
            let preempt = if bits == 0 { 0 } else { flags::PREEMPT };
            self.record_switch(cpu, thread, now, SwitchOp::Out, preempt, state.into());
        }
        self.dispatch(cpu, now);
        if self.cpus[cpu].current.is_none() {
            self.cpus[cpu].last = None;
        }
    }

    fn record_switch(&mut self, cpu: usize, thread: usize, time_ns: u64, op: SwitchOp, bits: u8, state: u16) {
        let seq = self.cpus[cpu].seq;
        self.cpus[cpu].seq = seq.wrapping_add(1);
        self.records.push(Record {
            time_ns,
            ip: 0,
            pid: PID,
            tid: tid(thread),
            cpu: cpu as u16,
            op: op as u8,
            flags: bits,
            state,
            seq,
        });
    }

    fn write(mut self, end: u64) -> Vec<u8> {
        self.records.sort_by_key(|r| r.time_ns);
        self.waits.sort_by_key(|wait| wait.run_ns);
        let mut writer = Writer::new(Vec::new());
        let header = header();
        let (mut records, mut waits) = (self.records.into_iter().peekable(), self.waits.into_iter().peekable());
        let count = (end - START).div_ceil(GENERATION_NS);
        for number in 0..count {
            let start = START + number * GENERATION_NS;
            let until = (start + GENERATION_NS).min(end);
            let mut g = Generation::empty(header.clone(), number, MonoNs(start), MonoNs(until));
            g.threads = (self.threads.iter().enumerate())
                .filter(|(_, t)| t.is_target)
                .map(|(at, t)| ThreadStatus {
                    pid: Pid(PID),
                    tid: Tid(tid(at)),
                    name: t.name.into(),
                    running: None,
                })
                .collect();
            g.records
                .extend(std::iter::from_fn(|| records.next_if(|r| r.time_ns <= until)));
            g.waits
                .extend(std::iter::from_fn(|| waits.next_if(|w| w.run_ns <= until)));
            g.end_of_recording = (number + 1 == count).then(|| End {
                time: MonoNs(end),
                reason: "period".into(),
            });
            writer.write(&g).unwrap();
        }
        writer.into_inner()
    }
}

/// A generation of such a recording in which nothing is.
pub fn empty() -> Generation {
    Generation::empty(header(), 0, MonoNs(START), MonoNs(START + GENERATION_NS))
}

const fn tid(thread: usize) -> u32 {
    PID + thread as u32
}

pub fn header() -> Header {
    Header {
        recording_id: 7,
        exist_version: "0.1.0".into(),
        session: Session {
            target: Target::Pid(PID),
            period_ns: None,
            pt: PtRequest::default(),
            waits: Waits::On,
        },
        target: ResolvedTarget::default(),
        node: Node {
            kernel: "6.18.0".into(),
            machine: "x86_64".into(),
            ..Node::default()
        },
        start: MonoNs(START),
        start_realtime_ns: 1_790_000_000_000_000_000,
        holds_foreign_packets: false,
        pt: Err("not asked for".into()),
    }
}
