//! One logical processor's packet generator: takes control flow and time, gives packet bytes. Pure.
//!
//! ```text
//!          enable                      enter
//!   off ───────────▶ on, out of ──────────────▶ on, in context: TNT, TIP, PSB with FUP
//!       ◀─────────── context     ◀──────────────
//!          disable                leave_*
//! ```
//!
//! Rules and their place in SDM vol. 3, "Intel Processor Trace": packet generation under different enable conditions
//! (PGE, PGD, FUP), PSB+ ("Packet Stream Boundary"), RET compression ("Indirect Transfer Compression for Returns"),
//! TSC only in PSB+, at enable and after a sleep (TSC packet definition), MTC whenever the watched bits of the crystal
//! change while TriggerEn is set, in or out of context (MTC packet definition), OVF and what follows it ("Internal
//! Buffer Overflow").

use std::collections::VecDeque;

use crate::clock::Clock;
use crate::packet::{self, IpEncoder, IpForms, IpPacket};

/// Bits of IA32_RTIT_CTL that the emulation looks at.
pub mod ctl {
    pub const TRACE_EN: u64 = 1 << 0;
    pub const CYC_EN: u64 = 1 << 1;
    pub const OS: u64 = 1 << 2;
    pub const USER: u64 = 1 << 3;
    pub const TOPA: u64 = 1 << 8;
    pub const MTC_EN: u64 = 1 << 9;
    pub const TSC_EN: u64 = 1 << 10;
    pub const DIS_RETC: u64 = 1 << 11;
    pub const BRANCH_EN: u64 = 1 << 13;
    pub const MTC_FREQ_SHIFT: u32 = 14;
    pub const PSB_FREQ_SHIFT: u32 = 24;
}

/// Entries of the CALL/RET stack that RET compression keeps.
const CALL_STACK: usize = 64;
/// More missed MTC packets than this (a quarter of a second in the kernel) are taken for a sleep that was not seen.
const MTC_MOST: u64 = 1 << 16;

/// How the generator behaves where the manual leaves a choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub ip_forms: IpForms,
    pub tnt: TntForms,
}

/// When TNT bits are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TntForms {
    /// Six at a time, as Skylake was seen to do.
    #[default]
    Short,
    /// Up to 47 at a time.
    Long,
}

impl TntForms {
    fn capacity(self) -> u8 {
        match self {
            Self::Short => packet::SHORT_TNT_BITS,
            Self::Long => packet::LONG_TNT_BITS,
        }
    }
}

/// An injected overflow that goes on.
#[derive(Clone, Copy, Debug)]
struct Loss {
    left: u64,
    lost: u64,
}

/// The packet generator.
#[derive(Debug)]
pub struct Tracer {
    out: Vec<u8>,
    options: Options,
    clock: Clock,
    ctl: u64,
    on: bool,
    in_context: bool,
    tnt_bits: u64,
    tnt_count: u8,
    calls: VecDeque<u64>,
    ip: IpEncoder,
    since_psb: u64,
    mode_sent: bool,
    mtc_count: u64,
    loss: Option<Loss>,
}

impl Tracer {
    /// A generator that is off.
    pub fn new(clock: Clock, options: Options) -> Self {
        Self {
            out: Vec::new(),
            options,
            clock,
            ctl: 0,
            on: false,
            in_context: false,
            tnt_bits: 0,
            tnt_count: 0,
            calls: VecDeque::with_capacity(CALL_STACK),
            ip: IpEncoder::new(options.ip_forms),
            since_psb: 0,
            mode_sent: false,
            mtc_count: 0,
            loss: None,
        }
    }

    /// Whether packets are generated at all (TriggerEn).
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether user mode is traced and control is in it (PacketEn).
    pub fn in_context(&self) -> bool {
        self.in_context
    }

    /// The bytes that no one took yet.
    pub fn pending(&self) -> &[u8] {
        &self.out
    }

    /// Forgets the pending bytes, once they are written to memory.
    pub fn clear_pending(&mut self) {
        self.out.clear();
    }

    /// PacketByteCnt: bytes since the last PSB.
    pub fn packet_byte_count(&self) -> u64 {
        self.since_psb
    }

    /// TraceEn goes from 0 to 1, out of context. `byte_count` is PacketByteCnt of IA32_RTIT_STATUS.
    pub fn enable(&mut self, ctl: u64, byte_count: u64, now: u64) {
        self.ctl = ctl;
        self.on = true;
        self.in_context = false;
        self.since_psb = byte_count;
        self.tnt_count = 0;
        self.calls.clear();
        self.loss = None;
        self.mtc_count = self.mtc_at(now);
        if byte_count == 0 {
            self.psb(now, None);
        } else {
            self.time(now);
            self.put(&packet::cbr(self.clock.ratio()));
        }
    }

    /// TraceEn goes from 1 to 0, out of context. Gives how many bytes an overflow that went on has lost.
    pub fn disable(&mut self, now: u64) -> Option<u64> {
        let lost = self.resolve();
        self.mtcs(now);
        self.flush_tnt();
        self.on = false;
        self.in_context = false;
        lost
    }

    /// The output stopped: nothing more is generated, what was pending is lost.
    pub fn stop(&mut self) {
        self.out.clear();
        self.on = false;
        self.in_context = false;
    }

    /// Control enters user mode at `ip`.
    pub fn enter(&mut self, ip: u64, now: u64) -> Option<u64> {
        if !self.on || self.in_context || self.ctl & ctl::USER == 0 {
            return None;
        }
        let lost = self.resolve_if_due();
        self.mtcs(now);
        if self.psb_due() {
            self.psb(now, None);
        }
        self.in_context = true;
        // Seen in Skylake captures: a return whose call lies before the last TIP.PGE is never compressed.
        self.calls.clear();
        if self.branches() {
            if !self.mode_sent {
                self.put(&packet::MODE_EXEC_64);
                self.mode_sent = self.loss.is_none();
            }
            self.put_ip(IpPacket::Pge, ip);
        }
        lost
    }

    /// A far branch (SYSCALL) leaves user mode: its source needs no packet.
    pub fn leave_by_branch(&mut self, now: u64) {
        if self.in_context {
            self.mtcs(now);
            self.pgd();
        }
    }

    /// An interrupt or exception leaves user mode at `from`.
    pub fn leave_by_event(&mut self, from: u64, now: u64) {
        if self.in_context {
            self.mtcs(now);
            self.flush_tnt();
            if self.branches() {
                self.put_ip(IpPacket::Fup, from);
            }
            self.pgd();
        }
    }

    /// A conditional branch.
    pub fn conditional(&mut self, taken: bool) {
        if self.in_context && self.branches() {
            self.tnt_bits = self.tnt_bits << 1 | u64::from(taken);
            self.tnt_count += 1;
            if self.tnt_count >= self.options.tnt.capacity() {
                self.flush_tnt();
            }
        }
    }

    /// A near indirect jump or call to `to`.
    pub fn indirect(&mut self, to: u64) {
        if self.in_context && self.branches() {
            self.flush_tnt();
            self.put_ip(IpPacket::Tip, to);
        }
    }

    /// A near call that will return to `ret`. Not for a direct call of displacement zero.
    pub fn call(&mut self, ret: u64) {
        if self.in_context {
            if self.calls.len() == CALL_STACK {
                self.calls.pop_front();
            }
            self.calls.push_back(ret);
        }
    }

    /// A near return to `to`: one TNT bit if its call is known, else a TIP.
    pub fn ret(&mut self, to: u64) {
        if self.in_context && self.branches() {
            let expected = self.calls.pop_back();
            if self.ctl & ctl::DIS_RETC == 0 && expected == Some(to) {
                self.conditional(true);
            } else {
                self.indirect(to);
            }
        }
    }

    /// Time goes by, with user-mode control before the instruction at `ip`: MTC, PSB+ and the end of an overflow.
    /// Gives how many bytes an overflow lost, when it ends here.
    pub fn tick(&mut self, ip: u64, now: u64) -> Option<u64> {
        if !self.on {
            return None;
        }
        let lost = self.resolve_if_due();
        if lost.is_some() && self.in_context && self.branches() {
            self.put_ip(IpPacket::Fup, ip);
        }
        self.mtcs(now);
        if self.psb_due() {
            let at = self.in_context.then_some(ip);
            self.psb(now, at);
        }
        lost
    }

    /// The processor goes to sleep, where its clocks send no MTC.
    pub fn sleep(&mut self, now: u64) {
        self.mtcs(now);
    }

    /// The processor wakes from a sleep in which its clocks did not send MTC.
    pub fn wake(&mut self, now: u64) {
        if self.on {
            self.time(now);
            self.put(&packet::cbr(self.clock.ratio()));
            self.mtc_count = self.mtc_at(now);
        }
    }

    /// From here on, packets are lost until `bytes` of them are.
    pub fn overflow(&mut self, bytes: u64) {
        if self.on && self.loss.is_none() {
            self.loss = Some(Loss { left: bytes, lost: 0 });
        }
    }

    fn branches(&self) -> bool {
        self.ctl & ctl::BRANCH_EN != 0
    }

    fn pgd(&mut self) {
        self.flush_tnt();
        if self.branches() {
            let mut bytes = Vec::with_capacity(1);
            IpEncoder::suppressed(IpPacket::Pgd, &mut bytes);
            self.put(&bytes);
        }
        self.in_context = false;
    }

    fn psb_due(&self) -> bool {
        let period = 1u64 << (11 + (self.ctl >> ctl::PSB_FREQ_SHIFT & 0xf));
        self.since_psb >= period
    }

    fn psb(&mut self, now: u64, at: Option<u64>) {
        self.flush_tnt();
        self.put(&packet::PSB);
        self.since_psb = packet::PSB.len() as u64;
        self.ip.reset();
        self.calls.clear();
        self.mode_sent = false;
        self.time(now);
        self.put(&packet::cbr(self.clock.ratio()));
        if let Some(ip) = at.filter(|_| self.branches()) {
            self.put(&packet::MODE_EXEC_64);
            self.mode_sent = true;
            self.put_ip(IpPacket::Fup, ip);
        }
        self.put(&packet::PSBEND);
    }

    /// TSC, and the TMA that always follows it.
    fn time(&mut self, now: u64) {
        if self.ctl & ctl::TSC_EN == 0 {
            return;
        }
        self.put(&packet::tsc(now));
        if self.ctl & ctl::MTC_EN != 0 {
            let art = Clock::art(now);
            self.put(&packet::tma(art as u16, (now - Clock::tsc(art)) as u16));
        }
    }

    fn mtc_shift(&self) -> u32 {
        (self.ctl >> ctl::MTC_FREQ_SHIFT & 0xf) as u32
    }

    fn mtc_at(&self, now: u64) -> u64 {
        Clock::art(now) >> self.mtc_shift()
    }

    /// The MTC packets that are due: one for every period, in the kernel too.
    fn mtcs(&mut self, now: u64) {
        if !self.on || self.ctl & ctl::MTC_EN == 0 {
            return;
        }
        let count = self.mtc_at(now);
        let missed = count.saturating_sub(self.mtc_count);
        if missed > MTC_MOST {
            self.time(now);
        } else {
            for due in 0..missed {
                let payload = (self.mtc_count + due + 1) as u8;
                self.put(&packet::mtc(payload));
            }
        }
        self.mtc_count = self.mtc_count.max(count);
    }

    fn flush_tnt(&mut self) {
        if self.tnt_count > 0 {
            let mut bytes = Vec::with_capacity(8);
            packet::tnt(self.tnt_bits, self.tnt_count, &mut bytes);
            self.tnt_count = 0;
            self.put(&bytes);
        }
    }

    fn put_ip(&mut self, packet: IpPacket, ip: u64) {
        let mut bytes = Vec::with_capacity(9);
        self.ip.put(packet, ip, &mut bytes);
        self.put(&bytes);
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(loss) = &mut self.loss {
            loss.left = loss.left.saturating_sub(bytes.len() as u64);
            loss.lost += bytes.len() as u64;
        } else if self.on {
            self.out.extend_from_slice(bytes);
            self.since_psb += bytes.len() as u64;
        }
    }

    fn resolve_if_due(&mut self) -> Option<u64> {
        self.loss.filter(|loss| loss.left == 0).and_then(|_| self.resolve())
    }

    /// The overflow ends: what was under way is lost too, and a decoder knows nothing.
    fn resolve(&mut self) -> Option<u64> {
        let loss = self.loss.take()?;
        self.tnt_count = 0;
        self.calls.clear();
        self.ip.reset();
        self.put(&packet::OVF);
        Some(loss.lost)
    }
}

#[cfg(test)]
mod tests;
