//! Blocks and events in, packets and truth out.

use exist_lab_truth::{Branches, Reader};

use super::*;
use crate::clock::Clock;
use crate::tracer::{Options, ctl};

const NOW: u64 = 1 << 40;
const THREAD: Thread = Thread {
    tid: 7,
    cr3: 1,
    fs_base: 2,
};

fn flow() -> Flow {
    let clock = Clock { tsc_hz: 2_400_000_000 };
    let mut flow = Flow::new(
        Header {
            cpu: 0,
            tsc_hz: clock.tsc_hz,
        },
        Tracer::new(clock, Options::default()),
    );
    flow.tracer.enable(ctl::TRACE_EN | ctl::USER | ctl::BRANCH_EN, 0, NOW);
    flow.tracer.clear_pending();
    flow.record(true, NOW);
    flow
}

fn block(code: &[u8], last: u32) -> &'static Block {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let index = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Box::leak(Box::new(Block::new(index, code.to_vec(), last)))
}

fn run(flow: &mut Flow, block: &'static Block, ip: u64) {
    flow.block(block, ip, true, NOW, || THREAD);
}

fn event(flow: &mut Flow, event: Event, from: u64) {
    flow.event(event, from, true, NOW, || THREAD);
}

fn check(flow: &Flow, packets: &[u8], branches: &[(u64, u64)]) {
    assert_eq!(flow.tracer.pending(), packets);
    let mut found = Vec::new();
    let reader = Reader::new(flow.truth.bytes()).unwrap();
    let each = |b: exist_lab_truth::Branch| {
        assert_eq!(b.tid, THREAD.tid);
        found.push((b.from, b.to));
    };
    Branches::new(reader).for_each(each).unwrap();
    assert_eq!(found, branches);
    assert_eq!(flow.unexplained, 0);
}

#[test]
fn a_loop_a_call_and_a_system_call() {
    let mut flow = flow();
    let jcc = block(&[0x90, 0x75, 0xfd], 1);
    let call = block(&[0xe8, 0xf8, 0x0f, 0, 0], 0);
    let ret = block(&[0xc3], 0);
    let syscall = block(&[0x0f, 0x05], 0);
    run(&mut flow, jcc, 0x40_1000);
    run(&mut flow, jcc, 0x40_1000);
    run(&mut flow, call, 0x40_1003);
    run(&mut flow, ret, 0x40_2000);
    run(&mut flow, syscall, 0x40_1008);
    flow.syscall(0x40_1008, NOW);
    check(
        &flow,
        &[0x99, 0x01, 0x71, 0x00, 0x10, 0x40, 0, 0, 0, 0b1101 << 1, 0x01],
        &[
            (0, 0x40_1000),
            (0x40_1001, 0x40_1000),
            (0x40_1003, 0x40_2000),
            (0x40_2000, 0x40_1008),
            (0x40_1008, 0),
        ],
    );
}

#[test]
fn a_fault_in_the_last_instruction_is_no_branch() {
    let mut flow = flow();
    let ret = block(&[0x90, 0xc3], 1);
    run(&mut flow, ret, 0x40_1000);
    event(&mut flow, Event::Exception, 0x40_1001);
    run(&mut flow, ret, 0x40_1000);
    // The target's page is not there: the return was carried out.
    event(&mut flow, Event::Exception, 0x40_5000);
    check(
        &flow,
        &[
            0x99, 0x01, 0x71, 0x00, 0x10, 0x40, 0, 0, 0, 0x7d, 0x01, 0x10, 0x40, 0, 0, 0, 0x01, 0x31, 0x00, 0x10, 0x2d,
            0x00, 0x50, 0x7d, 0x00, 0x50, 0x40, 0, 0, 0, 0x01,
        ],
        &[
            (0, 0x40_1000),
            (0x40_1001, 0),
            (0, 0x40_1000),
            (0x40_1001, 0x40_5000),
            (0x40_5000, 0),
        ],
    );
}

#[test]
fn an_interrupt_before_the_first_instruction() {
    let mut flow = flow();
    event(&mut flow, Event::Interrupt, 0x40_1000);
    check(
        &flow,
        &[
            0x99, 0x01, 0x71, 0x00, 0x10, 0x40, 0, 0, 0, 0x7d, 0x00, 0x10, 0x40, 0, 0, 0, 0x01,
        ],
        &[(0, 0x40_1000), (0x40_1000, 0)],
    );
}

#[test]
fn skipped_repeated_and_restarted_instructions_are_no_branches() {
    let mut flow = flow();
    let rdtsc = block(&[0x0f, 0x31, 0x90, 0xc3], 3);
    let after = block(&[0x90], 0);
    let repeat = block(&[0xf3, 0xa4], 0);
    run(&mut flow, rdtsc, 0x40_1000);
    flow.skipped(0x40_1002, NOW);
    run(&mut flow, after, 0x40_1002);
    run(&mut flow, repeat, 0x40_1003);
    run(&mut flow, repeat, 0x40_1003);
    run(&mut flow, after, 0x40_1005);
    flow.block(after, 0x40_1006, true, NOW, Thread::default);
    flow.syscall(0x40_1007, NOW);
    assert_eq!(
        flow.tracer.pending(),
        [0x99, 0x01, 0x71, 0x00, 0x10, 0x40, 0, 0, 0, 0x01]
    );
    assert_eq!(flow.unexplained, 0);
}
