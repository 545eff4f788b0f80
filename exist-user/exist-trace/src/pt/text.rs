//! Packets as text, one way for people and both ways for tests: `psb, psbend, tip.pge 3:401000, tnt !..!`.
//!
//! Numbers are hexadecimal without a prefix, but for counts of an address' compression and C-states.
//! [`assemble`] gives the bytes of a text, [`Packet`]'s `Display` the text of a packet.

use std::fmt;

use thiserror::Error;

use super::{
    decode::PSB,
    packet::{IpCompression, IpPayload, Packet, Tnt},
};

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = |set: bool, name: &'static str| if set { name } else { "" };
        match *self {
            Self::Pad => f.write_str("pad"),
            Self::Psb => f.write_str("psb"),
            Self::PsbEnd => f.write_str("psbend"),
            Self::Ovf => f.write_str("ovf"),
            Self::TraceStop => f.write_str("stop"),
            Self::Tnt(mut tnt) => {
                f.write_str("tnt ")?;
                while let Some(taken) = tnt.pop() {
                    f.write_str(if taken { "!" } else { "." })?;
                }
                Ok(())
            }
            Self::Tip(ip) => write!(f, "tip {ip}"),
            Self::TipPge(ip) => write!(f, "tip.pge {ip}"),
            Self::TipPgd(ip) => write!(f, "tip.pgd {ip}"),
            Self::Fup(ip) => write!(f, "fup {ip}"),
            Self::ModeExec { cs_l, cs_d, interrupts } => {
                let (l, d, i) = (flag(cs_l, " cs.l"), flag(cs_d, " cs.d"), flag(interrupts, " if"));
                write!(f, "mode.exec{l}{d}{i}")
            }
            Self::ModeTsx { in_tx, abort } => {
                write!(f, "mode.tsx{}{}", flag(in_tx, " intx"), flag(abort, " abrt"))
            }
            Self::Pip { cr3, non_root } => write!(f, "pip {cr3:x}{}", flag(non_root, " nr")),
            Self::Vmcs { base } => write!(f, "vmcs {base:x}"),
            Self::Cbr { ratio } => write!(f, "cbr {ratio:x}"),
            Self::Tsc(tsc) => write!(f, "tsc {tsc:x}"),
            Self::Tma { ctc, fast } => write!(f, "tma {ctc:x} {fast:x}"),
            Self::Mtc(ctc) => write!(f, "mtc {ctc:x}"),
            Self::Cyc(cycles) => write!(f, "cyc {cycles:x}"),
            Self::Mnt(payload) => write!(f, "mnt {payload:x}"),
            Self::ExStop { ip } => write!(f, "exstop{}", flag(ip, " ip")),
            Self::Mwait { hints, extensions } => write!(f, "mwait {hints:x} {extensions:x}"),
            Self::Pwre {
                hardware,
                state,
                sub_state,
            } => {
                write!(f, "pwre {state:x} {sub_state:x}{}", flag(hardware, " hw"))
            }
            Self::Pwrx { last, deepest, wake } => write!(f, "pwrx {last:x} {deepest:x} {wake:x}"),
            Self::Ptw { ip, wide, payload } => {
                write!(f, "ptw {} {payload:x}{}", if wide { "8" } else { "4" }, flag(ip, " ip"))
            }
            Self::Bbp { short_items, kind } => write!(f, "bbp {} {kind:x}", if short_items { "4" } else { "8" }),
            Self::Bip { id, payload } => write!(f, "bip {id:x} {payload:x}"),
            Self::Bep { ip } => write!(f, "bep{}", flag(ip, " ip")),
            Self::Cfe { ip, kind, vector } => write!(f, "cfe {kind:x} {vector:x}{}", flag(ip, " ip")),
            Self::Evd { kind, payload } => write!(f, "evd {kind:x} {payload:x}"),
            Self::Trig {
                ip,
                multiple,
                kind,
                instructions,
            } => {
                write!(f, "trig {kind:x}")?;
                if let Some(n) = instructions {
                    write!(f, " {n:x}")?;
                }
                write!(f, "{}{}", flag(ip, " ip"), flag(multiple, " mult"))
            }
        }
    }
}

impl fmt::Display for IpPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.compression {
            IpCompression::Suppressed => f.write_str("0"),
            compression => write!(f, "{}:{:x}", compression.to_bits(), self.bits),
        }
    }
}

/// A text that is no packet.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a packet: {0:?}")]
pub struct TextError(pub String);

/// The bytes of packets written as text, separated by commas or line ends; what follows a `#` is a remark.
///
/// # Errors
/// [`TextError`] with the first text that is no packet.
pub fn assemble(text: &str) -> Result<Vec<u8>, TextError> {
    let mut out = Vec::new();
    let mut short_items = false;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        for word in line.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let packet = parse(word).ok_or_else(|| TextError(word.to_owned()))?;
            if let Packet::Bbp { short_items: short, .. } = packet {
                short_items = short;
            }
            encode(&packet, short_items, &mut out);
        }
    }
    Ok(out)
}

fn parse(text: &str) -> Option<Packet> {
    let mut words = text.split_whitespace();
    let name = words.next()?;
    let mut numbers = Vec::new();
    let mut flags = Vec::new();
    if name == "tnt" {
        let outcomes = words.next()?;
        let mut tnt = Tnt::default();
        for c in outcomes.chars() {
            tnt.bits = tnt.bits << 1
                | match c {
                    '!' | '1' => 1,
                    '.' | '0' => 0,
                    _ => return None,
                };
            tnt.len += 1;
        }
        return (1..=47).contains(&tnt.len).then_some(Packet::Tnt(tnt));
    }
    if let "tip" | "tip.pge" | "tip.pgd" | "fup" = name {
        let make = match name {
            "tip" => Packet::Tip,
            "tip.pge" => Packet::TipPge,
            "tip.pgd" => Packet::TipPgd,
            _ => Packet::Fup,
        };
        let word = words.next()?;
        let (compression, bits) = word.split_once(':').unwrap_or((word, "0"));
        let compression = IpCompression::from_bits(compression.parse().ok()?)?;
        return Some(make(IpPayload {
            compression,
            bits: u64::from_str_radix(bits, 16).ok()?,
        }));
    }
    for word in words {
        match u64::from_str_radix(word, 16) {
            Ok(number) => numbers.push(number),
            Err(_) => flags.push(word),
        }
    }
    let n = |i: usize| numbers.get(i).copied();
    let has = |flag: &str| flags.contains(&flag);
    let (ip, n8) = (has("ip"), |i: usize| n(i).and_then(|v| u8::try_from(v).ok()));
    Some(match name {
        "pad" => Packet::Pad,
        "psb" => Packet::Psb,
        "psbend" => Packet::PsbEnd,
        "ovf" => Packet::Ovf,
        "stop" => Packet::TraceStop,
        "mode.exec" => Packet::ModeExec {
            cs_l: has("cs.l"),
            cs_d: has("cs.d"),
            interrupts: has("if"),
        },
        "mode.tsx" => Packet::ModeTsx {
            in_tx: has("intx"),
            abort: has("abrt"),
        },
        "pip" => Packet::Pip {
            cr3: n(0)?,
            non_root: has("nr"),
        },
        "vmcs" => Packet::Vmcs { base: n(0)? },
        "cbr" => Packet::Cbr { ratio: n8(0)? },
        "tsc" => Packet::Tsc(n(0)?),
        "tma" => Packet::Tma {
            ctc: u16::try_from(n(0)?).ok()?,
            fast: u16::try_from(n(1)?).ok()?,
        },
        "mtc" => Packet::Mtc(n8(0)?),
        "cyc" => Packet::Cyc(n(0)?),
        "mnt" => Packet::Mnt(n(0)?),
        "exstop" => Packet::ExStop { ip },
        "mwait" => Packet::Mwait {
            hints: u32::try_from(n(0)?).ok()?,
            extensions: u32::try_from(n(1)?).ok()?,
        },
        "pwre" => Packet::Pwre {
            hardware: has("hw"),
            state: n8(0)?,
            sub_state: n8(1)?,
        },
        "pwrx" => Packet::Pwrx {
            last: n8(0)?,
            deepest: n8(1)?,
            wake: n8(2)?,
        },
        "ptw" => Packet::Ptw {
            ip,
            wide: n(0)? == 8,
            payload: n(1)?,
        },
        "bbp" => Packet::Bbp {
            short_items: n(0)? == 4,
            kind: n8(1)?,
        },
        "bip" => Packet::Bip {
            id: n8(0)?,
            payload: n(1)?,
        },
        "bep" => Packet::Bep { ip },
        "cfe" => Packet::Cfe {
            ip,
            kind: n8(0)?,
            vector: n8(1)?,
        },
        "evd" => Packet::Evd {
            kind: n8(0)?,
            payload: n(1)?,
        },
        "trig" => Packet::Trig {
            ip,
            multiple: has("mult"),
            kind: n8(0)?,
            instructions: match n(1) {
                Some(count) => Some(u16::try_from(count).ok()?),
                None => None,
            },
        },
        _ => return None,
    })
}

/// Appends the bytes of `packet`. Bits beyond a field's width are cut off.
fn encode(packet: &Packet, short_items: bool, out: &mut Vec<u8>) {
    let put = |out: &mut Vec<u8>, head: &[u8], value: u64, bytes: usize| {
        out.extend_from_slice(head);
        out.extend_from_slice(&value.to_le_bytes()[..bytes]);
    };
    let ip_bit = |ip: bool| if ip { 0x80 } else { 0 };
    match *packet {
        Packet::Pad => out.push(0),
        Packet::Psb => out.extend_from_slice(&PSB),
        Packet::PsbEnd => out.extend_from_slice(&[2, 0x23]),
        Packet::Ovf => out.extend_from_slice(&[2, 0xf3]),
        Packet::TraceStop => out.extend_from_slice(&[2, 0x83]),
        Packet::Tnt(tnt) if tnt.len <= 6 => out.push(((1 << tnt.len | tnt.bits) << 1) as u8),
        Packet::Tnt(tnt) => put(out, &[2, 0xa3], 1 << tnt.len | tnt.bits, 6),
        Packet::Tip(ip) => encode_ip(0x0d, ip, out),
        Packet::TipPge(ip) => encode_ip(0x11, ip, out),
        Packet::TipPgd(ip) => encode_ip(0x01, ip, out),
        Packet::Fup(ip) => encode_ip(0x1d, ip, out),
        Packet::ModeExec { cs_l, cs_d, interrupts } => {
            out.extend_from_slice(&[0x99, u8::from(cs_l) | u8::from(cs_d) << 1 | u8::from(interrupts) << 2]);
        }
        Packet::ModeTsx { in_tx, abort } => {
            out.extend_from_slice(&[0x99, 0x20 | u8::from(in_tx) | u8::from(abort) << 1]);
        }
        Packet::Pip { cr3, non_root } => put(out, &[2, 0x43], cr3 >> 5 << 1 | u64::from(non_root), 6),
        Packet::Vmcs { base } => put(out, &[2, 0xc8], base >> 12, 5),
        Packet::Cbr { ratio } => out.extend_from_slice(&[2, 3, ratio, 0]),
        Packet::Tsc(tsc) => put(out, &[0x19], tsc, 7),
        Packet::Tma { ctc, fast } => {
            put(out, &[2, 0x73], u64::from(ctc) | u64::from(fast & 0x1ff) << 24, 5);
        }
        Packet::Mtc(ctc) => out.extend_from_slice(&[0x59, ctc]),
        Packet::Cyc(cycles) => encode_cyc(cycles, out),
        Packet::Mnt(payload) => put(out, &[2, 0xc3, 0x88], payload, 8),
        Packet::ExStop { ip } => out.extend_from_slice(&[2, 0x62 | ip_bit(ip)]),
        Packet::Mwait { hints, extensions } => {
            put(out, &[2, 0xc2], u64::from(hints) | u64::from(extensions) << 32, 8);
        }
        Packet::Pwre {
            hardware,
            state,
            sub_state,
        } => {
            out.extend_from_slice(&[2, 0x22, ip_bit(hardware), state << 4 | sub_state & 0xf]);
        }
        Packet::Pwrx { last, deepest, wake } => {
            out.extend_from_slice(&[2, 0xa2, last << 4 | deepest & 0xf, wake & 0xf, 0, 0, 0]);
        }
        Packet::Ptw { ip, wide, payload } => {
            let head = [2, 0x12 | u8::from(wide) << 5 | ip_bit(ip)];
            put(out, &head, payload, if wide { 8 } else { 4 });
        }
        Packet::Bbp { short_items, kind } => {
            out.extend_from_slice(&[2, 0x63, ip_bit(short_items) | kind & 0x1f]);
        }
        Packet::Bip { id, payload } => put(out, &[id << 3 | 4], payload, if short_items { 4 } else { 8 }),
        Packet::Bep { ip } => out.extend_from_slice(&[2, 0x33 | ip_bit(ip)]),
        Packet::Cfe { ip, kind, vector } => out.extend_from_slice(&[2, 0x13, kind & 0x1f | ip_bit(ip), vector]),
        Packet::Evd { kind, payload } => put(out, &[2, 0x53, kind & 0x3f], payload, 8),
        Packet::Trig {
            ip,
            multiple,
            kind,
            instructions,
        } => {
            let counted = u8::from(instructions.is_some()) << 6;
            out.extend_from_slice(&[0xd9, ip_bit(ip) | counted | u8::from(multiple) << 5, kind]);
            out.extend(instructions.into_iter().flat_map(u16::to_le_bytes));
        }
    }
}

fn encode_ip(opcode: u8, ip: IpPayload, out: &mut Vec<u8>) {
    out.push(ip.compression.to_bits() << 5 | opcode);
    out.extend_from_slice(&ip.bits.to_le_bytes()[..ip.compression.payload_bytes()]);
}

fn encode_cyc(cycles: u64, out: &mut Vec<u8>) {
    let mut rest = cycles >> 5;
    out.push((cycles as u8 & 0x1f) << 3 | u8::from(rest > 0) << 2 | 3);
    while rest > 0 {
        let bits = rest as u8 & 0x7f;
        rest >>= 7;
        out.push(bits << 1 | u8::from(rest > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pt::{Errata, PacketError, Packets};

    const EVERY: &str = "psb, pad, tsc 12345, tma 102 8, cbr 24, mode.exec cs.l if, mode.exec, mode.tsx intx abrt
        pip afafa0 nr, vmcs cdcdc000, fup 3:ffff12345678, psbend, tnt !..!, tnt !, tnt ......!
        tnt !!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!., tip 1:5, tip.pge 2:12345678, tip.pgd 0, tip 4:123456789abc
        fup 6:123456789abcdef0, mtc 94, cyc 1f, cyc 20, cyc 7fffffff, cyc ffffffffffffffff, mnt 8877665544332211
        exstop, exstop ip, mwait b 1, pwre 1 2 hw, pwrx 6 3 4, ptw 4 90abcdef ip, ptw 8 1234567890abcdef, ovf, stop
        bbp 4 1, bip 1f 12345678, mtc 1, bip 0 1, bep ip, tnt ., bbp 8 2, bip 3 1234567890abcdef, bep
        cfe 1 e ip, evd 2 f00baa, trig a1 mult, trig a1 17 ip mult";

    fn packets(bytes: &[u8]) -> Vec<Result<Packet, PacketError>> {
        Packets::new(bytes, 0, Errata::default())
            .map(|p| p.map(|l| l.packet))
            .collect()
    }

    #[test]
    fn every_packet_survives_bytes_and_text() {
        let bytes = assemble(EVERY).unwrap();
        let decoded: Vec<Packet> = packets(&bytes).into_iter().map(Result::unwrap).collect();
        let written: Vec<String> = EVERY.split([',', '\n']).map(|w| w.trim().to_owned()).collect();
        let read: Vec<String> = decoded.iter().map(Packet::to_string).collect();
        assert_eq!(read, written);
        assert_eq!(assemble(&read.join(", ")).unwrap(), bytes);
    }

    #[test]
    fn a_stream_cut_anywhere_gives_its_whole_packets_and_then_the_cut() {
        let bytes = assemble(EVERY).unwrap();
        let all: Vec<_> = Packets::new(&bytes, 0, Errata::default()).map(Result::unwrap).collect();
        for cut in 0..bytes.len() {
            let whole = all.iter().take_while(|p| p.offset < cut as u64).count();
            let starts_at_cut = all.iter().any(|p| p.offset == cut as u64);
            let got: Vec<_> = Packets::new(&bytes[..cut], 0, Errata::default()).collect();
            if starts_at_cut {
                assert_eq!(got.len(), whole, "cut at {cut}");
                assert!(got.iter().all(Result::is_ok));
            } else {
                let offset = all[whole - 1].offset;
                assert_eq!(got.last(), Some(&Err(PacketError::CutOff { offset })), "cut at {cut}");
                assert_eq!(got.len(), whole);
            }
        }
    }

    #[test]
    fn reserved_and_unknown_bytes_are_errors_with_an_offset() {
        for (bytes, expect) in [
            (&[0xad, 0, 0][..], "IP packet with reserved bits at offset 0x0"),
            (&[0, 0x99, 0xff], "MODE packet with reserved bits at offset 0x1"),
            (&[0, 0xc9, 7], "unknown packet [c9, 07] at offset 0x1"),
            (&[2, 4], "unknown packet [02, 04] at offset 0x0"),
            (
                &[2, 0x82, 2, 0x83, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
                "PSB packet with reserved bits at offset 0x0",
            ),
            (
                &[2, 0xa3, 1, 0, 0, 0, 0, 0],
                "long TNT packet with reserved bits at offset 0x0",
            ),
            (&[2, 0x73, 1, 1, 1, 1, 0], "TMA packet with reserved bits at offset 0x0"),
            (
                &[7, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2],
                "CYC packet with reserved bits at offset 0x0",
            ),
        ] {
            let last = packets(bytes).pop().unwrap().unwrap_err();
            assert_eq!(last.to_string(), expect);
        }
    }

    #[test]
    fn texts_that_are_no_packets_are_named() {
        for text in ["psb, foo", "tnt", "tnt !x", "tip 5:1", "tip", "cbr 1234", "tma 1"] {
            assert!(assemble(text).is_err(), "{text}");
        }
    }

    #[test]
    fn skd007_gives_the_overflow_in_place_of_the_count() {
        let errata = Errata {
            skd007: true,
            ..Errata::default()
        };
        let read = |errata| {
            Packets::new(&[0x07, 2, 0xf3, 0], 0, errata)
                .map(|p| p.map(|l| l.packet))
                .collect::<Vec<_>>()
        };
        assert_eq!(read(errata), [Ok(Packet::Pad), Ok(Packet::Ovf), Ok(Packet::Pad)]);
        assert_ne!(read(Errata::default())[1], Ok(Packet::Ovf));
    }
}
