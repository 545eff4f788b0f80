//! A simulated CPU for tests: threads that call, branch, do system calls and are interrupted and switched, with the
//! packets that the manual asks for, the hook's records, and the truth about every segment.

use std::sync::Arc;

use crate::{
    file::model::{CpuInfo, Generation, Header, Mapping, Node, PtBytes, PtSettings, Record, ResolvedTarget, SwitchOp},
    pt::text::assemble,
    session::{PtRequest, Session, Target, Waits},
    units::{ClockPair, Cpu, MonoNs, Pid, Tid, Tsc},
};

/// ```text
/// 1000  call 1020       1020  test eax, eax       1030  nop
/// 1005  syscall         1022  je 1025             1031  syscall
/// 1007  call 1030       1024  nop                 1033  ret
/// 100c  syscall         1025  ret
/// 100e  jmp 1000
/// ```
pub const CODE: &[u8] = &[
    0xe8, 0x1b, 0, 0, 0, 0x0f, 0x05, 0xe8, 0x24, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf0, //
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, //
    0x85, 0xc0, 0x74, 0x01, 0x90, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, //
    0x90, 0x0f, 0x05, 0xc3,
];
pub const BASE: u64 = 0x1000;

/// 2.5 ticks a nanosecond, 100 ticks a crystal tick, an MTC every 8 of those.
const MTC_TICKS: u64 = 800;

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

struct Thread {
    pid: u32,
    tid: u32,
    pc: u64,
    calls: Vec<u64>,
}

/// How the threads behave.
pub struct Plan {
    pub seed: u64,
    /// Threads, and how many of them are not the target's.
    pub threads: usize,
    pub foreign: usize,
    /// Stretches of user mode.
    pub rounds: usize,
    /// How often a system call switches, in percent.
    pub switches: u64,
    /// Ticks that a stretch in the kernel takes at most.
    pub kernel_ticks: u64,
}

pub struct Run {
    pub generation: Generation,
    /// Owner of each segment (0: foreign), with its branches.
    pub truth: Vec<(u32, Vec<(u64, u64)>)>,
}

struct Machine {
    random: Random,
    tsc: u64,
    next_mtc: u64,
    text: String,
    tnt: String,
    /// Calls of the segment at hand: only these returns are compressed.
    compressible: usize,
    records: Vec<Record>,
    since_psb: usize,
}

impl Machine {
    fn flush(&mut self) {
        if !self.tnt.is_empty() {
            self.text.push_str(&format!("tnt {}\n", std::mem::take(&mut self.tnt)));
        }
    }

    fn packet(&mut self, text: &str) {
        self.flush();
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Time goes by; MTCs come when they are due, without regard to outcomes that wait.
    fn pass(&mut self, ticks: u64) {
        self.tsc += ticks;
        while self.next_mtc <= self.tsc {
            self.text
                .push_str(&format!("mtc {:x}\n", (self.next_mtc / MTC_TICKS) & 0xff));
            self.next_mtc += MTC_TICKS;
        }
    }

    fn psb(&mut self, ip: Option<u64>) {
        self.flush();
        let (ctc, fast) = ((self.tsc / 100) & 0xffff, self.tsc % 100);
        let fup = ip.map_or(String::new(), |ip| format!("fup 3:{ip:x}, "));
        self.text.push_str(&format!(
            "psb, tsc {:x}, tma {ctc:x} {fast:x}, mode.exec cs.l, {fup}psbend\n",
            self.tsc
        ));
        self.since_psb = 0;
        self.compressible = 0;
    }

    fn record(&mut self, op: SwitchOp, thread: &Thread, time_ns: u64) {
        let seq = self.records.len() as u16;
        self.records.push(Record {
            time_ns,
            ip: thread.pc,
            pid: thread.pid,
            tid: thread.tid,
            cpu: 0,
            op: op as u8,
            flags: 0,
            state: 0,
            seq,
        });
    }

    /// One stretch of user mode; gives the branches that were taken.
    fn user(&mut self, thread: &mut Thread) -> Vec<(u64, u64)> {
        let mut branches = Vec::new();
        self.packet(&format!("tip.pge 3:{:x}", thread.pc));
        self.compressible = 0;
        loop {
            let ticks = self.random.below(60);
            self.pass(ticks);
            if self.random.chance(2) {
                self.packet(&format!("fup 3:{:x}, tip.pgd 0", thread.pc));
                return branches;
            }
            let pc = thread.pc;
            let mut go = |thread: &mut Thread, to: u64| {
                branches.push((pc, to));
                thread.pc = to;
            };
            match pc {
                0x1000 | 0x1007 => {
                    go(thread, if pc == 0x1000 { 0x1020 } else { 0x1030 });
                    thread.calls.push(pc + 5);
                    self.compressible += 1;
                }
                0x1005 | 0x100c | 0x1031 => {
                    thread.pc += 2;
                    self.packet("tip.pgd 0");
                    return branches;
                }
                0x100e => go(thread, 0x1000),
                0x1020 => thread.pc += 2,
                0x1022 if self.random.chance(50) => {
                    self.tnt.push('!');
                    go(thread, 0x1025);
                }
                0x1022 => {
                    self.tnt.push('.');
                    thread.pc += 2;
                }
                0x1025 | 0x1033 => {
                    let to = thread.calls.pop().unwrap();
                    if self.compressible > 0 {
                        self.compressible -= 1;
                        self.tnt.push('!');
                    } else {
                        self.packet(&format!("tip 3:{to:x}"));
                    }
                    go(thread, to);
                }
                _ => thread.pc += 1,
            }
            if self.tnt.len() >= 6 {
                self.flush();
            }
            self.since_psb += 1;
            if self.since_psb > 300 {
                self.psb(Some(thread.pc));
            }
        }
    }
}

/// Nanoseconds of a TSC.
fn ns(tsc: u64) -> u64 {
    tsc * 2 / 5
}

pub fn run(plan: &Plan) -> Run {
    let mut machine = Machine {
        random: Random(plan.seed * 0x9e37_79b9 + 1),
        tsc: 1 << 40,
        next_mtc: ((1 << 40) / MTC_TICKS + 1) * MTC_TICKS,
        text: String::new(),
        tnt: String::new(),
        compressible: 0,
        records: Vec::new(),
        since_psb: 0,
    };
    let is_foreign = |index: usize| index < plan.foreign;
    let mut threads: Vec<Thread> = (0..plan.threads)
        .map(|i| Thread {
            pid: if is_foreign(i) { 900 } else { 100 },
            tid: if is_foreign(i) { 900 } else { 100 } + i as u32,
            pc: BASE,
            calls: Vec::new(),
        })
        .collect();
    let start = machine.tsc;
    machine.psb(None);
    machine.pass(500);
    let mut now = plan.threads - 1;
    let time = ns(machine.tsc);
    machine.record(SwitchOp::In, &threads[now], time);
    machine.pass(500);
    let mut truth = Vec::new();
    for _ in 0..plan.rounds {
        let thread = &mut threads[now];
        let branches = machine.user(thread);
        truth.push((if is_foreign(now) { 0 } else { thread.tid }, branches));
        let ticks = 100 + machine.random.below(plan.kernel_ticks);
        machine.pass(ticks / 2);
        if machine.random.chance(plan.switches) && plan.threads > 1 {
            let next = machine.random.below(plan.threads as u64) as usize;
            if next != now {
                let time = ns(machine.tsc);
                if !is_foreign(now) {
                    machine.record(SwitchOp::Out, &threads[now], time);
                }
                if !is_foreign(next) {
                    machine.record(SwitchOp::In, &threads[next], time);
                }
                now = next;
            }
        }
        machine.pass(ticks - ticks / 2);
    }
    machine.pass(1_000_000);
    if !is_foreign(now) {
        let time = ns(machine.tsc);
        machine.record(SwitchOp::Out, &threads[now], time);
    }
    machine.psb(None);
    let pairs = [start, (start + machine.tsc) / 2, machine.tsc];
    Run {
        generation: generation(machine.records, assemble(&machine.text).unwrap(), &pairs),
        truth,
    }
}

fn generation(records: Vec<Record>, bytes: Vec<u8>, tscs: &[u64]) -> Generation {
    let settings = PtSettings {
        config: 3 << 14,
        tsc_art_numerator: 100,
        tsc_art_denominator: 1,
        max_nonturbo_ratio: 25,
        ..PtSettings::default()
    };
    let node = Node {
        cpus: vec![CpuInfo {
            vendor: "GenuineIntel".into(),
            family: 6,
            model: 0x55,
            ..CpuInfo::default()
        }],
        tsc_khz: 2_500_000,
        ..Node::default()
    };
    let mapping = Mapping {
        time: MonoNs(0),
        pid: Pid(100),
        start: BASE,
        len: 0x1000,
        offset: 0,
        dev_major: 8,
        dev_minor: 1,
        inode: 7,
        path: Arc::from("/app/program"),
        build_id: Arc::from([].as_slice()),
    };
    let pair = |&tsc: &u64| ClockPair {
        mono: MonoNs(ns(tsc)),
        tsc_before: Tsc(tsc - 40),
        tsc_after: Tsc(tsc + 40),
    };
    let header = Header {
        recording_id: 1,
        exist_version: String::new(),
        session: Session {
            target: Target::Pid(100),
            period_ns: None,
            pt: PtRequest::default(),
            waits: Waits::Off,
        },
        target: ResolvedTarget::default(),
        node,
        start: MonoNs(ns(tscs[0])),
        start_realtime_ns: 0,
        holds_foreign_packets: true,
        pt: Ok(settings),
    };
    Generation {
        clock_pairs: tscs.iter().map(pair).collect(),
        mappings: vec![mapping],
        records,
        pt: vec![PtBytes {
            cpu: Cpu(0),
            offset: 0,
            aux_flags: 0,
            bytes,
        }],
        ..Generation::empty(header, 0, MonoNs(0), MonoNs(u64::MAX))
    }
}

/// The tid that an owner names.
pub fn tid(owner: super::Owner) -> Option<Tid> {
    if let super::Owner::Thread { tid, .. } = owner {
        Some(tid)
    } else {
        None
    }
}
