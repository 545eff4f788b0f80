//! Programs as bytes, packets as text, steps as text.

use super::*;
use crate::{
    image::NoCode,
    pt::{Errata, Packets, psbs, text::assemble},
};

/// A small program at 0x1000:
///
/// ```text
/// 1000  call 1010        1010  test eax, eax     1020  jmp rax        1030  syscall
/// 1005  jmp  1030        1012  je   1016         1022  call rax       1032  jmp 1032
/// 1007  call 100c        1014  nop; nop          1024  nop
/// 100c  pop rax          1016  ret               1025  jmp 1020
/// 100d  ret
/// ```
const PROGRAM: [(u64, &[u8]); 4] = [
    (0x1000, &[0xe8, 0x0b, 0, 0, 0, 0xeb, 0x29, 0xe8, 0, 0, 0, 0, 0x58, 0xc3]),
    (0x1010, &[0x85, 0xc0, 0x74, 0x02, 0x90, 0x90, 0xc3]),
    (0x1020, &[0xff, 0xe0, 0xff, 0xd0, 0x90, 0xeb, 0xf9]),
    (0x1030, &[0x0f, 0x05, 0xeb, 0xfe]),
];

fn fetch(ip: u64) -> Result<&'static [u8], NoCode> {
    let inside = |&&(start, bytes): &&(u64, &[u8])| (start..start + bytes.len() as u64).contains(&ip);
    PROGRAM
        .iter()
        .find(inside)
        .map(|&(start, bytes)| &bytes[(ip - start) as usize..])
        .ok_or(NoCode::Unmapped)
}

fn text(step: &Step) -> Option<String> {
    Some(match step.what {
        What::Enabled { ip, why: Start::Enable } => format!("on {ip:x}"),
        What::Enabled { ip, why: Start::Sync } => format!("sync {ip:x}"),
        What::Enabled {
            ip,
            why: Start::Overflow,
        } => format!("over {ip:x}"),
        What::Enabled { ip, why: Start::Resync } => format!("again {ip:x}"),
        What::Branch { from, to, .. } => format!("{from:x}>{to:x}"),
        What::Interrupted { at, to } => format!("{at:x}!{to:x}"),
        What::Disabled(Disabled {
            at,
            asynchronous,
            resume,
            ..
        }) => {
            let resume = resume.map_or(String::new(), |r| format!(":{r:x}"));
            format!("off{} {at:x}{resume}", if asynchronous { "!" } else { "" })
        }
        What::Overflow => "overflow".to_owned(),
        What::Error { ip, error } => format!("error {ip:x} {}", error.name()),
        What::End { ip } => format!("end {ip:x}"),
        What::Event { .. } => return None,
    })
}

const START: &str = "psb, fup 3:1000, mode.exec cs.l, psbend,";

fn walk(packets: &str, errata: Errata) -> Vec<String> {
    let bytes = assemble(packets).unwrap();
    let mut code = Code::new(fetch);
    Walker::new(Packets::new(&bytes, 0, errata), u64::MAX, &mut code)
        .filter_map(|s| text(&s))
        .collect()
}

/// Walks from 0x1000; the steps after the start, separated by blanks and commas.
fn check(packets: &str, expect: &str) {
    let steps = walk(&format!("{START} {packets}"), Errata::default());
    assert_eq!(steps[0], "sync 1000", "{packets}");
    assert_eq!(steps[1..].join(", "), expect, "{packets}");
}

#[test]
fn outcomes_decide_conditional_branches_and_compressed_returns() {
    check("tnt !!", "1000>1010, 1012>1016, 1016>1005, end 1005");
    check("tnt .!", "1000>1010, 1016>1005, end 1005");
    check(
        "tnt .., fup 1:1010, tip.pgd 0",
        "1000>1010, error 1014 mismatch, again 1010, off! 1010:1010",
    );
}

#[test]
fn targets_decide_indirect_branches_and_uncompressed_returns() {
    check(
        "tnt ., tip 1:1020, tip 1:1022",
        "1000>1010, 1016>1020, 1020>1022, end 1022",
    );
    // A return pops its call whether it is compressed or not.
    check(
        "tnt ., tip 1:1022, tip 1:1014, tnt !, tip 1:1000",
        "1000>1010, 1016>1022, 1022>1014, 1016>1024, 1025>1020, 1020>1000, end 1000",
    );
    check("tnt ., tip 1:1014, tnt !", "1000>1010, 1016>1014, error 1014 mismatch");
}

#[test]
fn a_call_to_the_next_instruction_has_no_return() {
    let steps = walk(
        "psb, fup 3:1007, mode.exec cs.l, psbend, tnt !, tip 1:1030",
        Errata::default(),
    );
    assert_eq!(
        steps,
        [
            "sync 1007",
            "1007>100c",
            "error 100c mismatch",
            "again 1030",
            "end 1030"
        ]
    );
}

#[test]
fn a_held_back_target_comes_after_the_outcomes_on_both_sides_of_it() {
    // 1010 je not taken … ret is compressed in a full TNT; jmp rax in between takes the TIP behind it.
    let steps = walk(
        "psb, fup 3:1022, mode.exec cs.l, psbend, tnt .!., mtc 1, tip 1:1010, tnt !",
        Errata::default(),
    );
    assert_eq!(steps[..3], ["sync 1022", "1022>1010", "1016>1024"]);
}

#[test]
fn a_system_call_leaves_and_comes_back() {
    check(
        "tnt .!, tip.pgd 0, tip.pge 1:1032, fup 1:1032, tip.pgd 0",
        "1000>1010, 1016>1005, 1005>1030, off 1030:1032, on 1032, off! 1032:1032",
    );
}

#[test]
fn an_interrupt_ends_in_the_middle_of_a_straight_line() {
    check("tnt ., fup 1:1015, tip.pgd 0", "1000>1010, off! 1015:1015");
    check(
        "tnt ., fup 1:1015, tip 1:1020, tip 1:1024",
        "1000>1010, 1015!1020, 1020>1024, end 1024",
    );
    // Not an instruction: it cannot be reached.
    check(
        "fup 1:1011, tip.pgd 0",
        "1000>1010, error 1010 mismatch, off! 1011:1011",
    );
}

#[test]
fn an_overflow_goes_on_at_its_fup_or_when_tracing_is_enabled_again() {
    check(
        "ovf, mtc 1, fup 3:1020, tip 1:1024",
        "overflow, over 1020, 1020>1024, end 1024",
    );
    check(
        "ovf, cbr 1, tip.pge 3:1020, tip 1:1024",
        "overflow, on 1020, 1020>1024, end 1024",
    );
    check("ovf, tnt !", "overflow, error 0 unexpected_packet");
    let skylake = Errata {
        skd010: true,
        ..Errata::default()
    };
    let steps = walk(&format!("{START} ovf, tip 3:1020, tip 1:1024"), skylake);
    assert_eq!(steps[1..], ["overflow", "over 1020", "1020>1024", "end 1024"]);
}

#[test]
fn code_that_is_missing_or_goes_round_for_ever_is_an_error_and_the_next_address_a_new_start() {
    check(
        "tnt ., tip 3:5000, tnt !, tip 3:1020",
        "1000>1010, 1016>5000, error 5000 unmapped, again 1020, end 1020",
    );
    check(
        "tnt ., tip 3:1032, tnt !, tip.pgd 0",
        "1000>1010, 1016>1032, 1032>1032, 1032>1032, error 1032 endless_loop, off 0",
    );
    check("tip 3:1020", "1000>1010, error 1012 mismatch");
}

#[test]
fn a_psb_confirms_where_the_walk_is_or_starts_it_again() {
    check(
        "tnt ., psb, fup 3:1015, mode.exec cs.l, psbend, tnt !",
        "1000>1010, 1016>1005, end 1005",
    );
    check(
        "psb, fup 3:1020, mode.exec cs.l, psbend",
        "1000>1010, error 1010 mismatch, again 1020, end 1020",
    );
    check(
        "psb, mode.exec cs.l, psbend, tip.pge 3:1020",
        "error 1000 status, on 1020, end 1020",
    );
    check(
        "psb, fup 3:1000, mode.exec cs.d, psbend",
        "error 1000 status, again 1000, end 1000",
    );
}

#[test]
fn bytes_that_are_no_packets_are_passed_over() {
    let mut bytes = assemble(&format!("{START} tnt ., pad")).unwrap();
    bytes.extend([0xc9, 1, 2, 3, 0x99, 0xff]);
    bytes.extend(assemble("psb, fup 3:1020, mode.exec cs.l, psbend, tip 1:1024").unwrap());
    let mut code = Code::new(fetch);
    let steps: Vec<String> = Walker::new(Packets::new(&bytes, 0, Errata::default()), u64::MAX, &mut code)
        .filter_map(|s| text(&s))
        .collect();
    assert_eq!(
        steps[1..],
        ["1000>1010", "error 1014 packet", "again 1020", "1020>1024", "end 1024"]
    );
}

#[test]
fn pieces_cut_at_psbs_are_the_whole() {
    let part = "psb, fup 3:1000, mode.exec cs.l, psbend, tnt .!, tip.pgd 0, tip.pge 1:1020, tip 1:1022, tip 1:1000,";
    let bytes = assemble(&part.repeat(3)).unwrap();
    let mut cuts: Vec<u64> = psbs(&bytes).collect();
    let mut code = Code::new(fetch);
    let branches = |s: &Step| matches!(s.what, What::Branch { .. } | What::Disabled(_));
    let whole: Vec<Step> = Walker::new(Packets::new(&bytes, 0, Errata::default()), u64::MAX, &mut code)
        .filter(branches)
        .collect();
    cuts.push(u64::MAX);
    let pieces: Vec<Step> = cuts
        .windows(2)
        .flat_map(|cut| {
            let packets = Packets::new(&bytes, cut[0], Errata::default());
            Walker::new(packets, cut[1], &mut code)
                .filter(branches)
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(whole, pieces);
    assert_eq!(whole.len(), 3 * 6);
}

/// A deterministic mutation of real-looking streams: whatever the bytes, a walk ends and every step lies within them.
#[test]
fn damaged_streams_end() {
    let bytes = assemble(
        &format!(
            "{START} tnt .!, tip.pgd 0, tip.pge 1:1020, tip 1:1022, fup 1:1022, tip 1:1000, ovf, fup 3:1010, tnt !!,
         mode.tsx intx, fup 1:1010, cyc 5, mtc 3, ptw 4 1 ip, fup 1:1014, pip 1000, tip 1:1030,"
        )
        .repeat(4),
    )
    .unwrap();
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    for _ in 0..3000 {
        let mut damaged = bytes.clone();
        for _ in 0..=random(8) {
            match random(4) {
                0 => damaged.truncate(random(damaged.len()) + 1),
                1 => {
                    let at = random(damaged.len());
                    damaged[at] ^= 1 << random(8);
                }
                2 => {
                    let at = random(damaged.len());
                    damaged[at] = random(256) as u8;
                }
                _ => {
                    damaged.remove(random(damaged.len()));
                    damaged.push(random(256) as u8);
                }
            }
        }
        for errata in [
            Errata::default(),
            Errata::of("GenuineIntel", 6, 0x4e),
            Errata::of("GenuineIntel", 6, 0x5c),
        ] {
            let mut code = Code::new(fetch);
            let mut steps = 0;
            for step in Walker::new(Packets::new(&damaged, 0, errata), u64::MAX, &mut code) {
                assert!(step.offset <= damaged.len() as u64);
                steps += 1;
                assert!(steps < 100_000);
            }
        }
    }
}
