//! Every packet of Intel's assembled tests, against what Intel's `ptdump` says of it.

use exist_trace::pt::{IpCompression, IpPayload, Packet, Packets, find_psb};

use super::captures::{Case, libipt};

/// A line of ours in ptdump's words.
fn line(packet: &Packet, len: u64) -> String {
    let list = |words: &[(bool, &str)]| words.iter().filter(|w| w.0).map(|w| w.1).collect::<Vec<_>>().join(", ");
    let and = |set: bool, word: &str| if set { format!(", {word}") } else { String::new() };
    let ip = |name: &str, ip: &IpPayload| {
        let hex = match ip.compression {
            IpCompression::Suppressed => "?".repeat(16),
            IpCompression::Update16 => format!("????????????{:04x}", ip.bits),
            IpCompression::Update32 => format!("????????{:08x}", ip.bits),
            IpCompression::Update48 => format!("????{:012x}", ip.bits),
            IpCompression::SignExtend48 => format!("{:016x}", ((ip.bits << 16) as i64 >> 16)),
            IpCompression::Full => format!("{:016x}", ip.bits),
        };
        format!("{name} {}: {hex}", ip.compression.to_bits())
    };
    let text = match *packet {
        Packet::Tnt(mut tnt) => {
            let bits: String = std::iter::from_fn(|| tnt.pop())
                .map(|t| if t { '!' } else { '.' })
                .collect();
            format!("tnt.{} {bits}", len * 8)
        }
        Packet::Tip(ref p) => ip("tip", p),
        Packet::TipPge(ref p) => ip("tip.pge", p),
        Packet::TipPgd(ref p) => ip("tip.pgd", p),
        Packet::Fup(ref p) => ip("fup", p),
        Packet::ModeExec { cs_l, cs_d, interrupts } => {
            format!(
                "mode.exec {}",
                list(&[(cs_l, "cs.l"), (cs_d, "cs.d"), (interrupts, "if")])
            )
        }
        Packet::ModeTsx { in_tx, abort } => format!("mode.tsx {}", list(&[(in_tx, "intx"), (abort, "abrt")])),
        Packet::Pip { cr3, non_root } => format!("pip {cr3:x}{}", and(non_root, "nr")),
        Packet::Tma { ctc, fast } => format!("tma {ctc:x}, {fast:x}"),
        Packet::ExStop { ip } => format!("exstop {}", list(&[(ip, "ip")])),
        Packet::Mwait { hints, extensions } => format!("mwait {hints:08x}, {extensions:08x}"),
        // C-states are counted from C1 in the packet.
        Packet::Pwre {
            hardware,
            state,
            sub_state,
        } => {
            format!(
                "pwre c{}.{}{}",
                (state + 1) & 15,
                (sub_state + 1) & 15,
                and(hardware, "hw")
            )
        }
        Packet::Pwrx { last, deepest, wake } => {
            let wake = match wake {
                1 => "int: ",
                4 => "st: ",
                8 => "hw: ",
                _ => "",
            };
            format!("pwrx {wake}c{}, c{}", (last + 1) & 15, (deepest + 1) & 15)
        }
        Packet::Ptw { ip, wide, payload } => format!("ptw {}: {payload:x}{}", u8::from(wide), and(ip, "ip")),
        Packet::Cfe { ip, kind, vector } => {
            let text = match kind {
                5 => format!("{kind}: {vector:x}"),
                1 | 9 | 12 | 14 => format!("{kind}: {vector}"),
                _ => format!("{kind}"),
            };
            format!("cfe {text}{}", and(ip, "ip"))
        }
        Packet::Evd { kind, payload } => format!("evd {kind}: {payload:x}"),
        Packet::Trig {
            ip,
            multiple,
            kind,
            instructions,
        } => {
            let count = instructions.map_or(String::new(), |n| format!(", icnt: {n}"));
            format!("trig {kind:x}{}{}{count}", and(ip, "ip"), and(multiple, "mult"))
        }
        // Erratum SKZ84: a packet of filler.
        Packet::Pad if len > 1 => "<invalid>".to_owned(),
        ref other => other.to_string(),
    };
    text.trim().to_owned()
}

/// What ptdump adds behind a packet.
fn is_extra(rest: &str) -> bool {
    let known = ["tsc ", "fcr ", "cr3 ", "vmcs ", "em ", "type "];
    rest.is_empty()
        || known
            .iter()
            .any(|k| rest.strip_prefix(' ').is_some_and(|r| r.starts_with(k)))
}

fn check(case: &Case) -> usize {
    let name = &case.name;
    let mut expect = Vec::new();
    for text in case.packets.as_ref().unwrap().lines() {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // Remarks on ptdump's own notion of time; only packets that cannot be read matter here.
        if text.starts_with('[') && !text.contains("error decoding packet") || text.is_empty() {
            continue;
        }
        expect.push(text);
    }
    // ptdump starts at the first PSB, but in the one test that asks it not to.
    let start = if name == "dump-all-packets" {
        0
    } else {
        find_psb(&case.pt, 0).unwrap_or(0)
    };
    let mut packets = Packets::new(&case.pt, start, case.errata);
    let mut got = Vec::new();
    loop {
        match packets.next() {
            None => break,
            Some(Ok(p)) => got.push((p.offset, line(&p.packet, packets.offset() - p.offset))),
            Some(Err(error)) => {
                got.push((
                    error.offset(),
                    format!("[{:x}: error decoding packet: unknown packet]", error.offset()),
                ));
                if !packets.resync(error.offset() + 1) {
                    break;
                }
            }
        }
    }
    // ptdump can be told to leave padding out.
    if !expect.iter().any(|text| text.ends_with("pad")) {
        got.retain(|(_, text)| text != "pad");
    }
    if name == "skd007" {
        // The first byte of a CYC: ptdump gives its offset to the OVF that follows.
        got.retain(|(offset, _)| *offset != 0x19);
        got.iter_mut().filter(|g| g.1 == "ovf").for_each(|g| g.0 -= 1);
    }
    let texts: Vec<&String> = got.iter().map(|g| &g.1).collect();
    assert_eq!(got.len(), expect.len(), "{name}: {texts:#?}\n{expect:#?}");
    for ((offset, ours), theirs) in got.iter().zip(&expect) {
        let theirs = match theirs.split_once(' ') {
            Some((first, rest)) if first.len() == 16 && first.bytes().all(|b| b.is_ascii_hexdigit()) => {
                assert_eq!(u64::from_str_radix(first, 16).unwrap(), *offset, "{name}: {theirs}");
                rest
            }
            // ptdump --raw: the packet's bytes.
            Some((_, rest)) if name.ends_with("-raw") => rest,
            _ => theirs,
        };
        let extra = theirs.strip_prefix(ours.as_str());
        assert!(
            extra.is_some_and(is_extra),
            "{name} at {offset:#x}: ours {ours:?}, theirs {theirs:?}"
        );
    }
    got.len()
}

#[test]
fn packets_are_those_of_ptdump() {
    let Some(cases) = libipt() else { return };
    let cases: Vec<&Case> = cases.iter().filter(|c| c.packets.is_some()).collect();
    let packets: usize = cases.iter().map(|c| check(c)).sum();
    assert!(cases.len() >= 115, "{} cases", cases.len());
    println!("{} cases, {packets} packets", cases.len());
}
