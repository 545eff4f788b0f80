//! OVF: where the walk goes on after the processor lost packets, and the errata about it.
//!
//! An OVF binds to a FUP when tracing was enabled at its end, with only timing packets between them,
//! else to the next TIP.PGE (SDM volume 3, "Overflow (OVF) Packet").

use super::{
    header::header_ip,
    step::{Start, WalkError, What},
    walker::{Position, Walker},
};
use crate::{
    image::NoCode,
    pt::{LastIp, Packet, Packets},
};

/// What the next FUP means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterOverflow {
    /// Nothing special.
    No,
    /// It is where the overflow ended.
    EndsAtFup,
    /// It is to be ignored (APL12).
    IgnoreFup,
}

/// How many packets are looked at to tell whether an erratum applies.
pub(super) const LOOK_AHEAD: usize = 4096;

enum Binding {
    /// A FUP follows; the packets behind it.
    Fup,
    /// Tracing was disabled.
    Disabled,
    /// A packet that cannot follow an OVF.
    Wrong,
}

impl<'b, F: FnMut(u64) -> Result<&'b [u8], NoCode>> Walker<'_, '_, F> {
    pub(super) fn overflow(&mut self) -> Result<(), WalkError> {
        self.flush_power();
        self.forget();
        self.last_ip = LastIp::default();
        self.position = Position::Disabled { resume: None };
        self.push(What::Overflow);
        let (errata, packets) = (self.packets.errata(), self.packets.clone());
        match binding(packets.clone()) {
            Binding::Fup if errata.apl12 && disabled_after_fup(packets) => {
                self.after_overflow = AfterOverflow::IgnoreFup;
            }
            Binding::Fup => self.after_overflow = AfterOverflow::EndsAtFup,
            _ if errata.skd010 && self.skd010() => {}
            Binding::Wrong if errata.apl11 && self.apl11() => {}
            Binding::Disabled => {}
            Binding::Wrong => {
                self.position = Position::Lost;
                return Err(WalkError::Unexpected("a packet that cannot follow an OVF"));
            }
        }
        Ok(())
    }

    /// Whether a FUP is the end of an overflow.
    pub(super) fn overflow_ends(&mut self, ip: Option<u64>) -> bool {
        match std::mem::replace(&mut self.after_overflow, AfterOverflow::No) {
            AfterOverflow::No => false,
            AfterOverflow::IgnoreFup => true,
            AfterOverflow::EndsAtFup => {
                if let Some(ip) = ip {
                    self.start(ip, Start::Overflow);
                }
                true
            }
        }
    }

    /// SKD010: the FUP is missing. If a later packet shows that tracing is enabled and where, go on there.
    fn skd010(&mut self) -> bool {
        let mut ahead = self.packets.clone();
        let mut last_ip = LastIp::default();
        for _ in 0..LOOK_AHEAD {
            let before = ahead.clone();
            let Some(Ok(located)) = ahead.next() else { return false };
            let found = match located.packet {
                // The erratum does not apply; or there is no telling how many outcomes belong where.
                Packet::TipPge(_) | Packet::Tnt(_) | Packet::Ovf | Packet::TraceStop | Packet::PsbEnd => return false,
                Packet::TipPgd(_) => None,
                Packet::Fup(payload) | Packet::Tip(payload) => last_ip.expand(payload),
                Packet::Psb => match header_ip(&ahead) {
                    Some(Some(ip)) => Some(ip),
                    _ => return false,
                },
                Packet::Mwait { .. }
                | Packet::ExStop { ip: true }
                | Packet::Ptw { ip: true, .. }
                | Packet::Cfe { ip: true, .. } => return false,
                _ => continue,
            };
            if let Packet::Fup(_) | Packet::Psb = located.packet {
                // They keep their own meaning: they are read again, from the place that they give.
                self.packets = before;
            } else {
                self.last_ip = last_ip;
                self.packets = ahead;
            }
            if let Some(ip) = found {
                self.start(ip, Start::Overflow);
            }
            return true;
        }
        false
    }

    /// APL11: a TIP.PGD may follow. It says no more than that tracing is disabled.
    fn apl11(&mut self) -> bool {
        let mut ahead = self.packets.clone();
        for _ in 0..LOOK_AHEAD {
            match ahead.next() {
                Some(Ok(located)) => match located.packet {
                    Packet::TipPgd(payload) => {
                        self.last_ip.expand(payload);
                        self.packets = ahead;
                        return true;
                    }
                    ref timing if timing.is_timing() => {}
                    _ => return false,
                },
                _ => return false,
            }
        }
        false
    }
}

fn binding(packets: Packets<'_>) -> Binding {
    for located in packets.take(LOOK_AHEAD).map_while(Result::ok) {
        match located.packet {
            Packet::Fup(_) => return Binding::Fup,
            Packet::PsbEnd | Packet::Tip(_) | Packet::TipPgd(_) | Packet::Tnt(_) => return Binding::Wrong,
            ref timing if timing.is_timing() => {}
            _ => return Binding::Disabled,
        }
    }
    Binding::Disabled
}

/// APL12: whether later packets show that tracing was disabled although a FUP follows the OVF.
fn disabled_after_fup(packets: Packets<'_>) -> bool {
    let mut packets = packets
        .take(LOOK_AHEAD)
        .skip_while(|p| !matches!(p, Ok(l) if matches!(l.packet, Packet::Fup(_))))
        .skip(1);
    while let Some(Ok(located)) = packets.next() {
        match located.packet {
            Packet::Tnt(_) | Packet::Tip(_) | Packet::TipPgd(_) | Packet::PsbEnd | Packet::Ovf => return false,
            Packet::TipPge(_) | Packet::TraceStop => return true,
            Packet::Psb => {
                // Tracing is enabled if and only if its status holds a FUP.
                let status = packets.by_ref().map_while(Result::ok).map(|l| l.packet);
                let mut status = status.take_while(|p| !matches!(p, Packet::PsbEnd | Packet::Ovf));
                return !status.any(|p| matches!(p, Packet::Fup(_)));
            }
            _ => {}
        }
    }
    false
}
