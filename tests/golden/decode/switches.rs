//! Attribution on a real recording: whose instructions are those of each core?

use std::{collections::BTreeMap, fs};

use exist_trace::{
    file::model::{Record, SwitchOp},
    flow::{CpuFlow, Owner, cpu::Context},
    image::Image,
    pt::{Errata, TimeSettings},
    units::{ClockMap, ClockPair, Cpu, MonoNs, Tid, Tsc},
    walk::Code,
};

use super::{
    captures::folder,
    real::{count, fetch},
};

const PROCESS: u32 = 3_497_234;

/// `tscPerfZeroConversion` of the recording's trace.json.
const ZERO: u64 = 18_433_473_881_008_870_804;
const MULT: u64 = 1_076_264_588;
const SHIFT: u32 = 31;

/// perf time of a TSC reading, as linux/perf_event.h says (the arithmetic wraps).
fn time(tsc: u64) -> u64 {
    let (quot, rem) = (tsc >> SHIFT, tsc & ((1 << SHIFT) - 1));
    ZERO.wrapping_add(quot.wrapping_mul(MULT))
        .wrapping_add(rem.wrapping_mul(MULT) >> SHIFT)
}

/// PERF_RECORD_SWITCH_CPU_WIDE of the process' threads, as records without addresses.
fn records(bytes: &[u8], cpu: u16) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    let mut at = 0;
    while at + 32 <= bytes.len() {
        let u32_at = |i: usize| u32::from_le_bytes(bytes[at + i..at + i + 4].try_into().unwrap());
        let out = u32_at(4) as u16 & 0x2000 != 0;
        // sample_id: pid, tid, time: the thread that is switched out or in.
        let (pid, tid) = (u32_at(16), u32_at(20));
        if pid == PROCESS {
            let time_ns = u64::from_le_bytes(bytes[at + 24..at + 32].try_into().unwrap());
            let op = if out { SwitchOp::Out } else { SwitchOp::In };
            let seq = records.len() as u16;
            records.push(Record {
                time_ns,
                ip: 0,
                pid,
                tid,
                cpu,
                op: op as u8,
                flags: 0,
                state: 0,
                seq,
            });
        }
        at += usize::from(u16::from_le_bytes([bytes[at + 6], bytes[at + 7]]));
    }
    records
}

#[test]
fn each_core_s_instructions_belong_to_one_thread() {
    let Some(folder) = folder("lldb-multi-core") else {
        return;
    };
    let read = |name: String| fs::read(folder.join(name)).unwrap();
    let elf = read("modules/m.out".to_owned());
    let tsc = 0x008f_b521_0000_0000_u64;
    let pairs = [tsc - (1 << 40), tsc + (1 << 40)].map(|tsc| ClockPair {
        mono: MonoNs(time(tsc)),
        tsc_before: Tsc(tsc),
        tsc_after: Tsc(tsc),
    });
    let clock = ClockMap::new(&pairs, 0).unwrap();
    let image = Image::default();
    for (cpu, thread, expect) in [(45, 3_497_497, 61_825), (51, 3_497_496, 50_003)] {
        let stream = read(format!("cores/{cpu}.intelpt_trace"));
        let stream = stream.strip_suffix(b"\n").unwrap_or(&stream).to_vec();
        let records = records(&read(format!("cores/{cpu}.perf_context_switch_trace")), cpu as u16);
        let time = TimeSettings {
            reference: Tsc(tsc),
            ..TimeSettings::default()
        };
        let context = Context {
            image: &image,
            clock: &clock,
            time,
        };
        let flow = CpuFlow::new(Cpu(cpu), stream, Errata::of("GenuineIntel", 6, 85), &records, &context);
        let mut instructions: BTreeMap<Tid, u64> = BTreeMap::new();
        let mut others = 0;
        for (segment, owner) in flow.segments.segments.iter().zip(&flow.owners) {
            let mut code = Code::new(fetch(&elf, 0x40_0000, 0x1f82));
            let (n, _) = count(flow.walk(segment, &mut code), &elf);
            match *owner {
                Owner::Thread { tid, .. } => *instructions.entry(tid).or_default() += n,
                _ => others += n,
            }
        }
        println!(
            "cpu {cpu}: {} segments, {:?}, {instructions:?}, {others} of no thread",
            flow.owners.len(),
            flow.counts
        );
        assert_eq!(instructions, BTreeMap::from([(Tid(thread), expect)]), "cpu {cpu}");
        assert_eq!(others, 0, "cpu {cpu}");
    }
}
