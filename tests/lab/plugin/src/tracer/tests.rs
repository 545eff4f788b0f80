//! The generator's packets for small programs, as text.

use super::*;

const TSC: u64 = 204 * 1_000_000;

fn tracer(extra: u64) -> Tracer {
    let mut tracer = Tracer::new(Clock { tsc_hz: 2_400_000_000 }, Options::default());
    tracer.enable(ctl::TRACE_EN | ctl::USER | ctl::BRANCH_EN | ctl::TOPA | extra, 0, TSC);
    tracer
}

/// Packets by name, a decoder of its own for the tests.
fn names(mut bytes: &[u8]) -> String {
    let mut out = Vec::new();
    while let [first, rest @ ..] = bytes {
        let second = rest.first().copied().unwrap_or(0);
        let ip_bytes = [0, 2, 4, 6, 6, 0, 8, 0][usize::from(first >> 5)];
        let (name, length) = match (first, second) {
            (0x02, 0x82) => ("psb".into(), 16),
            (0x02, 0x23) => ("psbend".into(), 2),
            (0x02, 0xf3) => ("ovf".into(), 2),
            (0x02, 0x03) => ("cbr".into(), 4),
            (0x02, 0x73) => ("tma".into(), 7),
            (0x02, 0xa3) => ("long".into(), 8),
            (0x19, _) => ("tsc".into(), 8),
            (0x59, _) => (format!("mtc{second}"), 2),
            (0x99, _) => ("mode".into(), 2),
            (first, _) if first & 1 == 0 => (format!("{:b}", first >> 1), 1),
            (first, _) => {
                let name = match first & 0x1f {
                    0x0d => "tip",
                    0x11 => "pge",
                    0x01 => "pgd",
                    0x1d => "fup",
                    other => panic!("{other:#x}"),
                };
                (name.to_owned(), 1 + ip_bytes)
            }
        };
        out.push(name);
        bytes = &bytes[length..];
    }
    out.join(" ")
}

fn check(tracer: &mut Tracer, expect: &str) {
    assert_eq!(names(tracer.pending()), expect);
    tracer.clear_pending();
}

#[test]
fn enable_enter_branch_leave() {
    let mut t = tracer(ctl::TSC_EN | ctl::MTC_EN | 3 << ctl::MTC_FREQ_SHIFT);
    check(&mut t, "psb tsc tma cbr psbend");
    t.enter(0x40_1000, TSC);
    check(&mut t, "mode pge");
    for taken in [true, false, true] {
        t.conditional(taken);
    }
    t.indirect(0x40_2000);
    check(&mut t, "1101 tip");
    t.conditional(true);
    t.leave_by_event(0x40_2010, TSC);
    check(&mut t, "11 fup pgd");
    t.enter(0x40_2010, TSC);
    t.leave_by_branch(TSC);
    check(&mut t, "pge pgd");
    assert_eq!(t.disable(TSC), None);
    check(&mut t, "");
}

#[test]
fn returns_are_compressed_when_their_call_is_known() {
    let mut t = tracer(0);
    t.enter(0x1000, TSC);
    t.clear_pending();
    t.ret(0x5000);
    check(&mut t, "tip");
    t.call(0x1005);
    t.call(0x2005);
    t.ret(0x2005);
    t.ret(0x9999);
    check(&mut t, "11 tip");
    for at in 0..65 {
        t.call(at);
    }
    for at in (0..65).rev() {
        t.ret(at);
    }
    t.leave_by_branch(TSC);
    let text = names(t.pending());
    assert_eq!(text.matches("1111111").count(), 10, "{text}");
    assert!(text.ends_with("11111 tip pgd"), "{text}");

    t.enter(0x1000, TSC);
    t.call(0x1005);
    t.leave_by_branch(TSC);
    t.enter(0x3000, TSC);
    t.clear_pending();
    t.ret(0x1005);
    check(&mut t, "tip");

    let mut t = tracer(ctl::DIS_RETC);
    t.enter(0x1000, TSC);
    t.clear_pending();
    t.call(0x1005);
    t.ret(0x1005);
    check(&mut t, "tip");
}

#[test]
fn psb_comes_at_its_period_and_clears_the_calls() {
    let mut t = tracer(0);
    t.enter(0x1000, TSC);
    t.call(0x1005);
    while !t.psb_due() {
        t.indirect(0x7f12_3456_7000 + t.packet_byte_count());
    }
    t.clear_pending();
    t.tick(0x3000, TSC);
    check(&mut t, "psb cbr mode fup psbend");
    t.ret(0x1005);
    check(&mut t, "tip");
}

#[test]
fn mtc_in_and_out_of_context_and_time_after_a_sleep() {
    let period = 204 / 2 * 8;
    let mut t = tracer(ctl::TSC_EN | ctl::MTC_EN | 3 << ctl::MTC_FREQ_SHIFT);
    t.clear_pending();
    t.enter(0x1000, TSC + period * 2);
    let first = (Clock::art(TSC) >> 3) as u8;
    check(&mut t, &format!("mtc{} mtc{} mode pge", first + 1, first + 2));
    t.leave_by_branch(TSC + period * 2);
    t.wake(TSC + period * 1000);
    check(&mut t, "pgd tsc tma cbr");
    t.enter(0x1000, TSC + period * 1300);
    let text = names(t.pending());
    assert_eq!(text.matches("mtc").count(), 300, "one for each period in the kernel");
    assert!(text.ends_with(" pge") && !text.contains("tsc"), "{text}");
    t.clear_pending();
    t.leave_by_branch(TSC + period * 1300);
    t.sleep(TSC + period * 1302);
    let first = (Clock::art(TSC + period * 1300) >> 3) as u8;
    check(
        &mut t,
        &format!("pgd mtc{} mtc{}", first.wrapping_add(1), first.wrapping_add(2)),
    );
}

#[test]
fn an_overflow_ends_with_ovf_and_a_whole_ip() {
    let mut t = tracer(0);
    t.enter(0x1000, TSC);
    t.clear_pending();
    t.conditional(true);
    t.overflow(8);
    t.indirect(0x2000);
    assert_eq!(t.tick(0x2000, TSC), None);
    t.indirect(0x7fff_ffff_3000);
    assert!(t.tick(0x7fff_ffff_3000, TSC).is_some_and(|lost| lost >= 8));
    check(&mut t, "ovf fup");

    t.overflow(1);
    t.leave_by_branch(TSC);
    assert_eq!(t.enter(0x4000, TSC), Some(1));
    check(&mut t, "ovf pge");
    t.overflow(1 << 20);
    assert_eq!(t.disable(TSC), Some(0));
    check(&mut t, "ovf");
}

#[test]
fn enabled_again_within_a_period_sends_the_time_but_no_psb() {
    let mut t = tracer(ctl::TSC_EN);
    t.disable(TSC);
    t.clear_pending();
    t.enable(ctl::TRACE_EN | ctl::USER | ctl::BRANCH_EN | ctl::TSC_EN, 100, TSC);
    check(&mut t, "tsc cbr");
}
