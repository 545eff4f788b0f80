//! PSB+: the status packets between PSB and PSBEND.

use super::{
    code::ExecMode,
    overflow::{AfterOverflow, LOOK_AHEAD},
    step::{Event, Place, Start, WalkError},
    walker::{Position, Walker},
};
use crate::{
    image::NoCode,
    pt::{LastIp, Packet, Packets},
};

/// What the packets of a PSB+ said so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Header {
    /// The address at which tracing is enabled.
    ip: Option<u64>,
    mode: Option<(ExecMode, bool)>,
    events: Vec<Event>,
    /// Whether this is the first one, or the walk has no place of its own.
    first: bool,
}

impl<'b, F: FnMut(u64) -> Result<&'b [u8], NoCode>> Walker<'_, '_, F> {
    pub(super) fn begin_header(&mut self) -> Result<(), WalkError> {
        let waiting = self.source.is_some() || !self.bound.is_empty();
        let lost = self.position == Position::Lost || self.mode.is_none();
        if waiting {
            self.forget();
        }
        self.last_ip = LastIp::default();
        self.header = Some(Header {
            first: lost || waiting,
            ..Header::default()
        });
        if waiting {
            self.position = Position::Lost;
            return Err(WalkError::Unexpected("PSB between a FUP and its TIP"));
        }
        Ok(())
    }

    pub(super) fn header_packet(&mut self, packet: Packet) -> Result<(), WalkError> {
        let Some(header) = &mut self.header else { return Ok(()) };
        match packet {
            Packet::Fup(payload) => {
                header.ip = self.last_ip.expand(payload);
                if self.packets.errata().bdm70 && enables_soon(&self.packets) {
                    // BDM70: tracing is enabled by the TIP.PGE that follows only.
                    header.ip = None;
                    self.last_ip = LastIp::default();
                }
            }
            Packet::ModeExec { cs_l, cs_d, interrupts } => {
                header.mode = Some((ExecMode::new(cs_l, cs_d), interrupts));
            }
            // Not needed: what begins, commits or aborts comes on its own.
            Packet::ModeTsx { .. } => {}
            Packet::Pip { cr3, non_root } => header.events.push(Event::Paging { cr3, non_root }),
            Packet::Vmcs { base } => header.events.push(Event::Vmcs { base }),
            Packet::Cbr { ratio } => header.events.push(Event::Cbr(ratio)),
            Packet::Mnt(payload) => header.events.push(Event::Mnt(payload)),
            Packet::PsbEnd => {
                let header = self.header.take().unwrap_or_default();
                return self.end_header(header);
            }
            Packet::Ovf => {
                // An overflow ends a PSB+ too; a FUP may then be missing for that reason.
                let header = self.header.take().unwrap_or_default();
                if header.ip.is_some() || header.first {
                    self.end_header(header)?;
                }
                return self.overflow();
            }
            ref timing if timing.is_timing() => {}
            _ => {
                self.header = None;
                self.position = Position::Lost;
                return Err(WalkError::Unexpected("a packet that does not belong into a PSB+"));
            }
        }
        Ok(())
    }

    fn end_header(&mut self, header: Header) -> Result<(), WalkError> {
        let known = if header.first { Position::Lost } else { self.position };
        let result = self.check_status(&header, known);
        // A walk that does not agree is the one that went wrong: it starts again from what is said here.
        if header.first || result.is_err() {
            self.forget();
            let why = if self.mode.is_none() {
                Start::Sync
            } else {
                Start::Resync
            };
            if let Err(error) = result {
                let ip = if let Position::At(ip) = self.position { ip } else { 0 };
                self.push(super::step::What::Error { ip, error });
            }
            if let Some((mode, interrupts)) = header.mode {
                self.set_mode(mode);
                self.interrupts = Some(interrupts);
            }
            self.position = Position::Disabled { resume: None };
            if let Some(ip) = header.ip {
                self.start(ip, why);
            }
        }
        let place = header.ip.map_or(Place::Unknown, Place::Before);
        for event in header.events {
            self.event(event, place);
        }
        self.after_overflow = AfterOverflow::No;
        Ok(())
    }

    /// Whether the walk stands where the PSB+ says.
    fn check_status(&mut self, header: &Header, known: Position) -> Result<(), WalkError> {
        match (known, header.ip) {
            (Position::Lost, _) | (Position::Disabled { .. }, None) => return Ok(()),
            (Position::At(_), Some(ip)) => self.seek_ip(ip)?,
            (Position::At(_), None) => return Err(WalkError::Status("tracing is disabled")),
            (Position::Disabled { .. }, Some(_)) => return Err(WalkError::Status("tracing is enabled")),
        }
        match (self.mode, header.mode) {
            (Some(ours), Some((theirs, _))) if ours != theirs => Err(WalkError::Status("another execution mode")),
            (None, Some((theirs, _))) => {
                self.set_mode(theirs);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Whether a TIP.PGE comes next, status and timing packets aside.
fn enables_soon(packets: &Packets<'_>) -> bool {
    for located in packets.clone().take(LOOK_AHEAD).map_while(Result::ok) {
        match located.packet {
            Packet::TipPge(_) => return true,
            Packet::PsbEnd
            | Packet::Pip { .. }
            | Packet::ModeExec { .. }
            | Packet::ModeTsx { .. }
            | Packet::Vmcs { .. } => {}
            ref timing if timing.is_timing() => {}
            _ => return false,
        }
    }
    false
}

/// Whether the PSB+ that `packets` stand in says that tracing is enabled, and where. `None`: cannot be told.
pub(super) fn header_ip(packets: &Packets<'_>) -> Option<Option<u64>> {
    let mut last_ip = LastIp::default();
    for located in packets.clone().take(LOOK_AHEAD) {
        match located.ok()?.packet {
            Packet::Fup(payload) => return Some(last_ip.expand(payload)),
            Packet::PsbEnd | Packet::Ovf => return Some(None),
            _ => {}
        }
    }
    None
}
