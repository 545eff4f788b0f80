//! A made-up machine: threads that come and go on CPUs, and the truth about where they ran.

#![allow(dead_code, reason = "each test target uses a part")]

use std::collections::BTreeMap;

use exist_trace::{
    file::model::{End, Generation, Header, Loss, LossKind, Node, Record, ResolvedTarget, SwitchOp, flags},
    session::{PtRequest, Session, Target, Waits},
    units::{Cpu, MonoNs},
};

pub const START: u64 = 5_000_000_000_000;
const PID: u32 = 1000;

/// What to make up.
pub struct Plan {
    pub seed: u64,
    pub cpus: u16,
    pub threads: u32,
    pub records: usize,
    /// Of so many records, one run of them is dropped; 0: none.
    pub drop_one_in: u64,
    pub records_a_generation: usize,
}

/// A thread's true on-CPU time and switches out, by thread number in the order of birth.
#[derive(Default)]
pub struct Truth {
    pub on_cpu_ns: BTreeMap<u32, u64>,
    pub switches: BTreeMap<u32, u64>,
    pub dropped: u64,
}

/// A xorshift generator: the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn header() -> Header {
    Header {
        recording_id: 7,
        exist_version: "0.1.0".into(),
        session: Session {
            target: Target::Pid(PID),
            period_ns: None,
            pt: PtRequest::default(),
            waits: Waits::Off,
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

struct Machine {
    random: Random,
    now: u64,
    /// Who runs, since when.
    running: Vec<Option<(u32, u64)>>,
    waiting: Vec<u32>,
    sequence: Vec<u16>,
    records: Vec<Record>,
    losses: Vec<Loss>,
    /// Records that are still to be dropped.
    dropping: u64,
    truth: Truth,
}

impl Machine {
    fn emit(&mut self, op: SwitchOp, tid: u32, cpu: u16, more: (u8, u16), drop_one_in: u64) {
        let seq = self.sequence[usize::from(cpu)];
        self.sequence[usize::from(cpu)] = seq.wrapping_add(1);
        if drop_one_in > 0 && self.random.below(drop_one_in) == 0 {
            self.dropping = 1 + self.random.below(5);
        }
        if self.dropping > 0 {
            self.dropping -= 1;
            self.truth.dropped += 1;
            self.losses.push(Loss {
                from: MonoNs(self.now - 1),
                to: MonoNs(self.now + 1),
                cpu: Some(Cpu(cpu.into())),
                kind: LossKind::RingFull,
                records: 1,
                bytes: 0,
                reason: "the ring was full".into(),
            });
            return;
        }
        let (flags, state) = more;
        let record = Record {
            time_ns: self.now,
            ip: 0x40_0000,
            pid: PID,
            tid,
            cpu,
            op: op as u8,
            flags,
            state,
            seq,
        };
        self.records.push(record);
    }

    fn step(&mut self, drop_one_in: u64) {
        self.now += 1 + self.random.below(20_000);
        let cpu = self.random.below(self.running.len() as u64) as u16;
        if let Some((tid, since)) = self.running[usize::from(cpu)].take() {
            *self.truth.on_cpu_ns.entry(tid).or_default() += self.now - since;
            *self.truth.switches.entry(tid).or_default() += 1;
            let preempted = self.random.below(3) == 0;
            let more = if preempted { (flags::PREEMPT, 0) } else { (0, 1) };
            self.emit(SwitchOp::Out, tid, cpu, more, drop_one_in);
            self.waiting.push(tid);
        }
        if !self.waiting.is_empty() && self.random.below(4) > 0 {
            let tid = self
                .waiting
                .swap_remove(self.random.below(self.waiting.len() as u64) as usize);
            self.running[usize::from(cpu)] = Some((tid, self.now));
            self.emit(SwitchOp::In, tid, cpu, (0, 0), drop_one_in);
        }
    }
}

/// Makes it up.
pub fn simulate(plan: &Plan) -> (Vec<Generation>, Truth) {
    let mut m = Machine {
        random: Random(plan.seed),
        now: START,
        running: vec![None; plan.cpus.into()],
        waiting: (PID..PID + plan.threads).collect(),
        sequence: vec![0; plan.cpus.into()],
        records: Vec::new(),
        losses: Vec::new(),
        dropping: 0,
        truth: Truth::default(),
    };
    let mut out = Vec::new();
    let (mut made, mut start) = (0, START);
    while made < plan.records {
        m.step(plan.drop_one_in);
        let is_last = made + m.records.len() >= plan.records;
        if m.records.len() < plan.records_a_generation && !is_last {
            continue;
        }
        if is_last {
            m.now += 1;
            for cpu in 0..plan.cpus {
                if let Some((tid, since)) = m.running[usize::from(cpu)].take() {
                    *m.truth.on_cpu_ns.entry(tid).or_default() += m.now - since;
                    m.emit(SwitchOp::Out, tid, cpu, (flags::END, 0), 0);
                }
            }
        }
        made += m.records.len();
        out.push(Generation {
            records: std::mem::take(&mut m.records),
            losses: std::mem::take(&mut m.losses),
            end_of_recording: is_last.then(|| End {
                time: MonoNs(m.now),
                reason: "period".into(),
            }),
            ..Generation::empty(header(), out.len() as u64, MonoNs(start), MonoNs(m.now))
        });
        start = m.now;
    }
    (out, m.truth)
}
