//! A small recording that uses every field of the model.

use std::sync::Arc;

use exist_trace::{
    file::model::{
        ClockPair, ControlKind, ControlOp, CpuCounters, CpuInfo, End, Generation, Header, ImageBytes, Loss, LossKind,
        Mapping, NameChange, Node, PtBytes, PtSettings, Record, ResolvedTarget, SwitchOp, ThreadStatus, flags,
    },
    session::{PtRequest, Session, Target, Waits},
    units::{Cpu, MonoNs, Pid, Tid, Tsc},
};

pub const START: u64 = 1_000_000_000_000;
pub const RECORDING: u64 = 0x1122_3344_5566_7788;
const STEP: u64 = 100_000_000;

/// Three generations of a process with two threads on two CPUs.
pub fn recording() -> Vec<Generation> {
    (0..3).map(generation).collect()
}

fn header() -> Header {
    let cpu = |cpu, kind: &str| CpuInfo {
        cpu: Cpu(cpu),
        vendor: "GenuineIntel".into(),
        family: 6,
        model: 0xb7,
        stepping: 1,
        microcode: 0x12f,
        kind: kind.into(),
    };
    Header {
        recording_id: RECORDING,
        exist_version: "0.1.0".into(),
        session: Session {
            target: Target::Container("4f1e".into()),
            period_ns: Some(3 * STEP),
            pt: PtRequest::default(),
            waits: Waits::Off,
        },
        target: ResolvedTarget {
            container: Some("4f1e".repeat(16)),
            hierarchy: "memory".into(),
            cgroups: vec![("/docker/4f1e".into(), 4711)],
        },
        node: Node {
            kernel: "6.18.0".into(),
            machine: "x86_64".into(),
            cpus: vec![cpu(0, "core"), cpu(1, "core"), cpu(2, "atom")],
            tsc_khz: 2_500_000,
        },
        start: MonoNs(START),
        start_realtime_ns: 1_790_000_000_000_000_000,
        holds_foreign_packets: true,
        pt: Ok(PtSettings {
            config: 0x300e601,
            tsc_art_numerator: 104,
            tsc_art_denominator: 2,
            max_nonturbo_ratio: 25,
            caps: vec![("psb_cyc".into(), "1".into())],
            ..PtSettings::default()
        }),
    }
}

fn generation(number: u64) -> Generation {
    let start = START + number * STEP;
    let main: Arc<str> = "worker-main".into();
    let record = |after, op: SwitchOp, tid, cpu, seq| Record {
        time_ns: start + after,
        ip: 0x5555_5555_0000 + after,
        pid: 100,
        tid,
        cpu,
        op: op as u8,
        flags: 0,
        state: u16::from(op == SwitchOp::Out),
        seq,
    };
    let seq = number as u16 * 4;
    let mut records = vec![
        record(1_000, SwitchOp::In, 100, 0, seq),
        record(30_000, SwitchOp::In, 101, 1, seq),
        Record {
            flags: flags::PREEMPT,
            state: 0,
            ..record(50_000, SwitchOp::Out, 100, 0, seq + 1)
        },
        record(70_000, SwitchOp::Out, 101, 1, seq + 1),
        record(80_000, SwitchOp::In, 100, 1, seq + 2),
        record(90_000, SwitchOp::Out, 100, 1, seq + 3),
        record(91_000, SwitchOp::In, 101, 0, seq + 2),
        record(99_000, SwitchOp::Out, 101, 0, seq + 3),
    ];
    if number == 0 {
        let fork = Record {
            ip: 100 << 32 | 100,
            ..record(20_000, SwitchOp::Fork, 101, 0, 0)
        };
        records.insert(
            1,
            Record {
                flags: flags::START,
                ..fork
            },
        );
    }
    Generation {
        header: header(),
        number,
        start: MonoNs(start),
        end: MonoNs(start + STEP),
        clock_pairs: vec![ClockPair {
            mono: MonoNs(start),
            tsc_before: Tsc(start * 5 / 2),
            tsc_after: Tsc(start * 5 / 2 + 60),
        }],
        threads: vec![ThreadStatus {
            pid: Pid(100),
            tid: Tid(100),
            name: main.clone(),
            running: None,
        }],
        mappings: vec![
            mapping(0x5555_5555_0000, 0x1000, "/usr/bin/worker", &[0xab; 20]),
            mapping(0x7fff_f7fc_0000, 0, "[vdso]", &[]),
        ],
        names: vec![NameChange {
            time: MonoNs(start + 21_000),
            pid: Pid(100),
            tid: Tid(101),
            name: "wörker-1".into(),
        }],
        waits: Vec::new(),
        records,
        counters: vec![
            CpuCounters {
                cpu: Cpu(0),
                on_cpu_ns: 57_000 * (number + 1),
                produced: seq as u64 + 4,
                dropped: 0,
            },
            CpuCounters {
                cpu: Cpu(1),
                on_cpu_ns: 50_000 * (number + 1),
                produced: seq as u64 + 4,
                dropped: 0,
            },
        ],
        losses: vec![Loss {
            from: MonoNs(start + 95_000),
            to: MonoNs(start + 96_000),
            cpu: Some(Cpu(1)),
            kind: LossKind::AuxTruncated,
            records: 0,
            bytes: 4096,
            reason: "the AUX buffer was full: give more memory".into(),
        }],
        ops: vec![
            ControlOp {
                from: MonoNs(start + 500),
                to: MonoNs(start + 900),
                cpu: None,
                kind: ControlKind::HookAttach,
                error: None,
            },
            ControlOp {
                from: MonoNs(start + 1_500),
                to: MonoNs(start + 1_900),
                cpu: Some(Cpu(2)),
                kind: ControlKind::PtEnable,
                error: Some("busy".into()),
            },
        ],
        pt: vec![PtBytes {
            cpu: Cpu(0),
            offset: number * 16,
            aux_flags: 1,
            bytes: (0..16).collect(),
        }],
        images: vec![ImageBytes {
            pid: Pid(100),
            start: 0x7fff_f7fc_0000,
            path: "[vdso]".into(),
            bytes: b"\x7fELF".to_vec(),
        }],
        end_of_recording: (number == 2).then(|| End {
            time: MonoNs(start + STEP),
            reason: "period".into(),
        }),
    }
}

fn mapping(start: u64, offset: u64, path: &str, build_id: &[u8]) -> Mapping {
    Mapping {
        time: MonoNs(START),
        pid: Pid(100),
        start,
        len: 0x2000,
        offset,
        dev_major: 8,
        dev_minor: 1,
        inode: if offset == 0 { 0 } else { 131_077 },
        path: path.into(),
        build_id: build_id.into(),
    }
}
