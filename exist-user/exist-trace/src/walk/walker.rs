//! The state machine: one packet in, steps out.

use std::collections::VecDeque;

use super::{
    code::{Code, ExecMode},
    header::Header,
    overflow::AfterOverflow,
    stack::ReturnStack,
    step::{BranchKind, Event, Place, Start, Step, WalkError, What},
};
use crate::{
    image::NoCode,
    pt::{LastIp, Located, Packet, Packets, Tnt},
};

/// Where execution is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// No packets are generated. `resume`: where they are expected to start again.
    Disabled { resume: Option<u64> },
    /// The instruction at this address is next.
    At(u64),
    /// Tracing is on, but the walk lost its place.
    Lost,
}

/// State of a stream before a packet, to start a walk elsewhere than at a PSB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    pub last_ip: LastIp,
    pub mode: ExecMode,
}

/// Walks a stream. An iterator of [`Step`]s.
pub struct Walker<'p, 'c, F> {
    pub(super) packets: Packets<'p>,
    end: u64,
    pub(super) code: &'c mut Code<F>,
    pub(super) steps: VecDeque<Step>,
    /// Offset of the packet at hand.
    pub(super) offset: u64,
    pub(super) position: Position,
    pub(super) last_ip: LastIp,
    pub(super) mode: Option<ExecMode>,
    pub(super) interrupts: Option<bool>,
    pub(super) calls: ReturnStack,
    pub(super) tnt: Tnt,
    /// Packets of a PSB+ seen so far.
    pub(super) header: Option<Header>,
    /// A FUP that waits for its TIP.
    pub(super) source: Option<u64>,
    /// Events that wait for the FUP that gives their address; then what else that FUP means.
    pub(super) bound: Vec<Event>,
    pub(super) also_source: bool,
    /// Takes effect at the target of the next TIP.
    pub(super) next_mode: Option<(ExecMode, bool)>,
    pub(super) at_target: Vec<Event>,
    pub(super) mwait: Option<Event>,
    pub(super) pwre: Option<Event>,
    /// Data packets (EVD) for the next control flow event: CR2, exit qualification, exit reason.
    pub(super) event_data: [Option<u64>; 3],
    pub(super) after_overflow: AfterOverflow,
    done: bool,
}

impl<'p, 'c, 'b, F: FnMut(u64) -> Result<&'b [u8], NoCode>> Walker<'p, 'c, F> {
    /// Walks `packets` from their next PSB up to those that start at `end`.
    pub fn new(mut packets: Packets<'p>, end: u64, code: &'c mut Code<F>) -> Self {
        packets.resync(packets.offset());
        Self::with(packets, end, code, Resume::default(), None)
    }

    /// Walks `packets`, which stand at a TIP.PGE (or any packet while tracing is disabled), in the state `resume`.
    pub fn resume(packets: Packets<'p>, end: u64, code: &'c mut Code<F>, resume: Resume) -> Self {
        Self::with(packets, end, code, resume, Some(resume.mode))
    }

    fn with(packets: Packets<'p>, end: u64, code: &'c mut Code<F>, resume: Resume, mode: Option<ExecMode>) -> Self {
        code.set_mode(resume.mode);
        Self {
            offset: packets.offset(),
            packets,
            end,
            code,
            steps: VecDeque::new(),
            position: Position::Disabled { resume: None },
            last_ip: resume.last_ip,
            mode,
            interrupts: None,
            calls: ReturnStack::new(),
            tnt: Tnt::default(),
            header: None,
            source: None,
            bound: Vec::new(),
            also_source: false,
            next_mode: None,
            at_target: Vec::new(),
            mwait: None,
            pwre: None,
            event_data: [None; 3],
            after_overflow: AfterOverflow::No,
            done: false,
        }
    }

    /// The execution mode of the code at the walk's place.
    #[must_use]
    pub fn mode(&self) -> ExecMode {
        self.mode.unwrap_or_default()
    }

    pub(super) fn push(&mut self, what: What) {
        self.steps.push_back(Step {
            offset: self.offset,
            what,
        });
    }

    pub(super) fn event(&mut self, event: Event, at: Place) {
        self.push(What::Event { event, at });
    }

    pub(super) fn branch(&mut self, from: u64, to: u64, kind: BranchKind) {
        self.push(What::Branch { from, to, kind });
        self.position = Position::At(to);
    }

    /// Starts (again) at `ip`.
    pub(super) fn start(&mut self, ip: u64, why: Start) {
        self.position = Position::At(ip);
        self.push(What::Enabled { ip, why });
    }

    /// Reads and handles one packet.
    fn advance(&mut self) {
        if self.packets.offset() >= self.end {
            return self.finish();
        }
        match self.packets.next() {
            None => self.finish(),
            Some(Ok(Located { offset, packet })) => {
                self.offset = offset;
                if let Err(error) = self.packet(packet) {
                    self.fail(error);
                }
            }
            Some(Err(error)) => {
                self.offset = error.offset();
                self.fail(error.into());
                self.position = Position::Lost;
                self.header = None;
                if !self.packets.resync(error.offset() + 1) || self.packets.offset() >= self.end {
                    self.done = true;
                }
            }
        }
    }

    fn finish(&mut self) {
        self.flush_power();
        if let Position::At(ip) = self.position {
            self.push(What::End { ip });
        }
        self.done = true;
    }

    pub(super) fn fail(&mut self, error: WalkError) {
        let ip = if let Position::At(ip) = self.position { ip } else { 0 };
        self.push(What::Error { ip, error });
        if !matches!(self.position, Position::Disabled { .. }) {
            self.position = Position::Lost;
        }
        self.forget();
    }

    /// Drops all that waits for another packet.
    pub(super) fn forget(&mut self) {
        self.tnt = Tnt::default();
        self.calls.clear();
        self.source = None;
        self.also_source = false;
        self.bound.clear();
        self.at_target.clear();
        self.next_mode = None;
        self.event_data = [None; 3];
        self.after_overflow = AfterOverflow::No;
    }

    fn packet(&mut self, packet: Packet) -> Result<(), WalkError> {
        if self.header.is_some() {
            return self.header_packet(packet);
        }
        match packet {
            Packet::Tnt(tnt) => self.outcomes(tnt),
            Packet::Tip(payload) => {
                let ip = self.last_ip.expand(payload);
                self.target(ip)
            }
            Packet::Fup(payload) => {
                let ip = self.last_ip.expand(payload);
                self.fup(ip)
            }
            Packet::TipPgd(payload) => {
                let to = self.last_ip.expand(payload);
                self.disable(to)
            }
            Packet::TipPge(payload) => {
                let ip = self
                    .last_ip
                    .expand(payload)
                    .ok_or(WalkError::Unexpected("TIP.PGE without an address"))?;
                self.enable(ip)
            }
            Packet::Psb => self.begin_header(),
            Packet::Ovf => self.overflow(),
            other => self.side(other),
        }
    }

    pub(super) fn change_mode(&mut self, mode: ExecMode, interrupts: bool, place: Place) {
        if self.mode != Some(mode) {
            self.event(Event::ExecMode(mode), place);
        }
        self.set_mode(mode);
        if self.interrupts != Some(interrupts) {
            self.interrupts = Some(interrupts);
            self.event(Event::Interrupts(interrupts), place);
        }
    }

    pub(super) fn set_mode(&mut self, mode: ExecMode) {
        self.mode = Some(mode);
        self.code.set_mode(mode);
    }

    /// Goes on to `ip`; a walk that was lost starts again there.
    pub(super) fn reach(&mut self, ip: u64) -> Result<(), WalkError> {
        match self.position {
            Position::At(at) if at == ip => Ok(()),
            Position::At(_) => self.seek_ip(ip),
            Position::Lost => {
                self.start(ip, Start::Resync);
                Ok(())
            }
            Position::Disabled { .. } => Ok(()),
        }
    }

    pub(super) fn enabled(&self) -> bool {
        !matches!(self.position, Position::Disabled { .. })
    }
}

impl<'b, F: FnMut(u64) -> Result<&'b [u8], NoCode>> Iterator for Walker<'_, '_, F> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Some(step);
            }
            if self.done {
                return None;
            }
            self.advance();
        }
    }
}
