//! A CPU's stream → stretches of traced execution and the gaps between them, without any code.
//!
//! With user mode only, the CPU generates packets from a TIP.PGE (it enters user mode) to a TIP.PGD (it leaves it).
//! A segment needs nothing of another one to be walked: the processor compresses no return across a gap.

use crate::{
    pt::{LastIp, Located, Packet, Packets, TimeLine},
    units::TscBracket,
    walk::{ExecMode, Resume},
};

/// A stretch during which the CPU generated packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the packet that it starts with: TIP.PGE, OVF or PSB.
    pub start: u64,
    /// Offset behind its last packet.
    pub end: u64,
    pub entry: Entry,
    /// State of the stream before `start`.
    pub resume: Resume,
    /// Address of the asynchronous event that ended it, if one did.
    pub source: Option<u64>,
    /// How it ended.
    pub exit: Exit,
    pub entered: TscBracket,
    pub left: TscBracket,
}

/// How a segment starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// User mode was entered at this address.
    Enable(u64),
    /// The bytes begin, or can be read again, in the middle of execution.
    Sync,
    /// An overflow ended in the middle of execution.
    Overflow,
}

/// How a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// User mode was left.
    Disable,
    /// Packets were lost.
    Overflow,
    /// Bytes that are no packets.
    Error,
    /// The bytes end.
    End,
}

/// The segments of a stream, in order.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    pub segments: Vec<Segment>,
    /// Offsets of overflows.
    pub overflows: Vec<u64>,
    /// Offsets of bytes that are no packets.
    pub errors: Vec<u64>,
}

struct Open {
    start: u64,
    entry: Entry,
    resume: Resume,
    /// Whether a packet of execution was seen yet.
    ran: bool,
}

struct Scan<'l> {
    line: &'l TimeLine,
    out: Segments,
    open: Option<Open>,
    last_ip: LastIp,
    mode: ExecMode,
    source: Option<u64>,
    /// In a PSB+ that started here.
    header: Option<u64>,
    /// State of the stream at that PSB, or at the last OVF.
    before: Resume,
    after_overflow: Option<u64>,
}

impl Segments {
    /// Reads the packets from the first PSB to the end.
    #[must_use]
    pub fn read(mut packets: Packets<'_>, line: &TimeLine) -> Self {
        packets.resync(packets.offset());
        let mut scan = Scan {
            line,
            out: Self::default(),
            open: None,
            last_ip: LastIp::default(),
            mode: ExecMode::default(),
            source: None,
            header: None,
            before: Resume::default(),
            after_overflow: None,
        };
        while let Some(next) = packets.next() {
            match next {
                Ok(located) => scan.packet(located, packets.offset()),
                Err(error) => {
                    scan.close(error.offset(), Exit::Error);
                    scan.out.errors.push(error.offset());
                    (scan.header, scan.after_overflow, scan.source) = (None, None, None);
                    if !packets.resync(error.offset() + 1) {
                        break;
                    }
                }
            }
        }
        scan.close(packets.offset(), Exit::End);
        scan.out
    }
}

impl Scan<'_> {
    fn state(&self) -> Resume {
        Resume {
            last_ip: self.last_ip,
            mode: self.mode,
        }
    }

    fn packet(&mut self, Located { offset, packet }: Located, end: u64) {
        let state = self.state();
        match packet {
            Packet::Psb => {
                self.last_ip = LastIp::default();
                self.before = state;
                self.header = Some(offset);
            }
            Packet::PsbEnd => self.header = None,
            Packet::ModeExec { cs_l, cs_d, .. } => self.mode = ExecMode::new(cs_l, cs_d),
            Packet::Fup(payload) => {
                let ip = self.last_ip.expand(payload);
                match (self.header, self.after_overflow.take(), &mut self.open) {
                    (Some(psb), _, None) => {
                        let resume = self.before;
                        self.open = Some(Open {
                            start: psb,
                            entry: Entry::Sync,
                            resume,
                            ran: false,
                        });
                    }
                    (Some(_), _, Some(_)) => {}
                    (None, Some(ovf), None) => {
                        let resume = self.before;
                        self.open = Some(Open {
                            start: ovf,
                            entry: Entry::Overflow,
                            resume,
                            ran: true,
                        });
                    }
                    (None, _, Some(open)) => {
                        open.ran = true;
                        self.source = ip;
                    }
                    (None, None, None) => {}
                }
            }
            Packet::Tnt(_) => {
                self.source = None;
                if let Some(open) = &mut self.open {
                    open.ran = true;
                }
            }
            Packet::Tip(payload) => {
                self.last_ip.expand(payload);
                self.source = None;
                if let Some(open) = &mut self.open {
                    open.ran = true;
                }
            }
            Packet::TipPge(payload) => {
                let ip = self.last_ip.expand(payload);
                // BDM70: a PSB+ just before a TIP.PGE may claim that tracing was enabled already.
                if self.open.as_ref().is_some_and(|o| !o.ran) {
                    self.open = None;
                }
                self.close(offset, Exit::Error);
                self.after_overflow = None;
                let entry = ip.map_or(Entry::Sync, Entry::Enable);
                self.open = Some(Open {
                    start: offset,
                    entry,
                    resume: state,
                    ran: true,
                });
            }
            Packet::TipPgd(payload) => {
                self.last_ip.expand(payload);
                self.close_at(offset, end, Exit::Disable);
            }
            Packet::Ovf => {
                self.header = None;
                self.out.overflows.push(offset);
                self.close(offset, Exit::Overflow);
                self.before = state;
                self.after_overflow = Some(offset);
                self.last_ip = LastIp::default();
            }
            _ => {}
        }
    }

    fn close(&mut self, offset: u64, exit: Exit) {
        self.close_at(offset, offset, exit);
    }

    fn close_at(&mut self, offset: u64, end: u64, exit: Exit) {
        let source = self.source.take();
        if let Some(open) = self.open.take() {
            let segment = Segment {
                start: open.start,
                end,
                entry: open.entry,
                resume: open.resume,
                source: source.filter(|_| exit == Exit::Disable),
                exit,
                entered: self.line.at(open.start),
                left: self.line.at(offset),
            };
            self.out.segments.push(segment);
        }
    }
}
