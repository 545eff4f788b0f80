//! Time of any point of a stream, as a bracket in TSC ticks (SDM volume 3, "Intel Processor Trace", timing packets).
//!
//! ```text
//!   TSC = a   TMA     MTC = b        CYC        MTC = c
//!  ────┴───────┴───●───┴───────────────┴─────●────┴────▶ offset
//!                [a, b]                   [b + cycles, c]
//! ```
//!
//! What a packet says holds for the place where it stands: what comes before it happened no later,
//! what comes after it no earlier. Nothing is interpolated, so a bracket is true whenever the packets are.

use crate::{
    file::model::PtSettings,
    units::{Tsc, TscBracket},
};

use super::{
    packet::Packet,
    stream::{Located, Packets},
};

/// What the processor's clocks have to do with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSettings {
    /// An MTC comes every `2^mtc_period` ticks of the crystal clock.
    pub mtc_period: u8,
    /// TSC ticks for one tick of the crystal clock, as a ratio; a zero: unknown, and MTC says nothing.
    pub art: (u32, u32),
    /// Bus ratio of the TSC's frequency; 0: unknown, and CYC says nothing.
    pub nonturbo_ratio: u32,
    /// Any full reading of the TSC near the recording: packets hold 56 bits of it.
    pub reference: Tsc,
}

impl TimeSettings {
    /// From what was recorded, with a reading of the TSC during the recording.
    #[must_use]
    pub fn new(settings: &PtSettings, reference: Tsc) -> Self {
        Self {
            // Documentation/ABI: format/mtc_period is config:14-17.
            mtc_period: (settings.config >> 14 & 0xf) as u8,
            art: (settings.tsc_art_numerator, settings.tsc_art_denominator),
            nonturbo_ratio: settings.max_nonturbo_ratio,
            reference,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    offset: u64,
    lo: u64,
    /// `u64::MAX` until a later packet bounds it.
    hi: u64,
}

/// What the timing packets of a stretch of a stream say.
#[derive(Clone, Debug, Default)]
pub struct TimeLine {
    points: Vec<Point>,
}

impl TimeLine {
    /// Reads the timing packets of `packets` that start before `end`; bytes that are no packets are passed over up to the next PSB.
    #[must_use]
    pub fn read(mut packets: Packets<'_>, end: u64, settings: &TimeSettings) -> Self {
        let mut reader = Reader::new(settings);
        while packets.offset() < end {
            match packets.next() {
                Some(Ok(located)) => reader.packet(located),
                Some(Err(error)) => {
                    if !packets.resync(error.offset() + 1) {
                        break;
                    }
                }
                None => break,
            }
        }
        Self {
            points: reader.finish(),
        }
    }

    /// When the packet at `offset` was made.
    #[must_use]
    pub fn at(&self, offset: u64) -> TscBracket {
        self.between(offset, offset)
    }

    /// When something happened that lies after the packet at `from` and no later than the packet at `to`.
    #[must_use]
    pub fn between(&self, from: u64, to: u64) -> TscBracket {
        let after = |offset| self.points.partition_point(|p| p.offset <= offset);
        let lo = after(from).checked_sub(1).map_or(0, |i| self.points[i].lo);
        let hi = self.points.get(after(to)).map_or(u64::MAX, |p| p.hi);
        TscBracket {
            lo: Tsc(lo),
            hi: Tsc(hi.max(lo)),
        }
    }

    /// Whether any time is known at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// First and last known time.
    #[must_use]
    pub fn span(&self) -> Option<TscBracket> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        Some(TscBracket {
            lo: Tsc(first.lo),
            hi: Tsc(last.lo.max(first.lo)),
        })
    }
}

/// A moment at which both clocks are known.
#[derive(Clone, Copy)]
struct Alignment {
    /// The crystal clock's counter; only its low `known_bits` are those of the processor.
    ctc: u64,
    known_bits: u32,
    tsc: u64,
    /// The counter at the last MTC, or at `ctc`.
    last_ctc: u64,
}

struct Reader<'a> {
    settings: &'a TimeSettings,
    points: Vec<Point>,
    reference: u64,
    alignment: Option<Alignment>,
    /// The last exact time, and cycles counted since.
    exact: Option<u64>,
    cycles: u64,
    /// TSC of the packet before, if it was one: a TMA belongs to it.
    tsc: Option<u64>,
    cbr: u8,
}

impl<'a> Reader<'a> {
    fn new(settings: &'a TimeSettings) -> Self {
        Self {
            settings,
            points: Vec::new(),
            reference: settings.reference.0,
            alignment: None,
            exact: None,
            cycles: 0,
            tsc: None,
            cbr: 0,
        }
    }

    fn packet(&mut self, Located { offset, packet }: Located) {
        match packet {
            Packet::Tsc(low) => {
                let tsc = extend(low, self.reference);
                self.reference = tsc;
                self.tsc = Some(tsc);
                self.exact(offset, tsc, tsc);
                self.follow(tsc);
            }
            Packet::Tma { ctc, fast } => {
                if let Some(tsc) = self.tsc {
                    let ctc = u64::from(ctc);
                    let tsc = tsc.saturating_sub(u64::from(fast));
                    self.alignment = Some(Alignment {
                        ctc,
                        known_bits: 16,
                        tsc,
                        last_ctc: ctc,
                    });
                }
            }
            Packet::Mtc(ctc) => self.mtc(offset, ctc),
            Packet::Cbr { ratio } => self.cbr = ratio,
            Packet::Cyc(cycles) => self.cyc(offset, cycles),
            _ => {}
        }
    }

    fn exact(&mut self, offset: u64, lo: u64, hi: u64) {
        self.points.push(Point { offset, lo, hi });
        self.exact = Some(lo);
        self.cycles = 0;
    }

    /// A TSC without MTCs since the last one: the crystal clock went on meanwhile.
    fn follow(&mut self, tsc: u64) {
        let (numerator, denominator) = self.settings.art;
        if let Some(a) = &mut self.alignment
            && numerator > 0
            && let Some(ticks) = tsc.checked_sub(a.tsc)
        {
            let ctc = u128::from(ticks) * u128::from(denominator) / u128::from(numerator);
            // One tick early rather than late: an MTC that is due may not have come yet.
            let ctc = a
                .ctc
                .saturating_add(u64::try_from(ctc).unwrap_or(u64::MAX))
                .saturating_sub(1);
            a.last_ctc = a.last_ctc.max(ctc);
        }
    }

    fn mtc(&mut self, offset: u64, ctc: u8) {
        let (numerator, denominator) = self.settings.art;
        let period = u32::from(self.settings.mtc_period);
        let Some(a) = &mut self.alignment else { return };
        if numerator == 0 || denominator == 0 || period >= a.known_bits {
            return;
        }
        // MTC holds bits [period + 7 : period] of the counter; a TMA gives only 16 of them.
        let mask = (1u64 << (a.known_bits - period).min(8)) - 1;
        let now = a.last_ctc >> period;
        let step = u64::from(ctc).wrapping_sub(now) & mask;
        if step == 0 {
            return;
        }
        let next = (now + step) << period;
        if a.known_bits < 64 {
            // From here on all bits that an MTC holds are known: count in those of the processor.
            let upper = (u64::from(ctc) << period).wrapping_sub(next) & (0xff << period);
            a.ctc = a.ctc.wrapping_add(upper);
            a.last_ctc = next.wrapping_add(upper);
            a.known_bits = 64;
        } else {
            a.last_ctc = next;
        }
        let ticks = u128::from(a.last_ctc - a.ctc) * u128::from(numerator) / u128::from(denominator);
        let tsc = a.tsc.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX));
        self.reference = tsc;
        // The ratio and the TMA's count of ticks are each rounded.
        self.exact(offset, tsc.saturating_sub(1), tsc.saturating_add(1));
    }

    /// Cycles give a lower bound only: none are counted while the core is halted.
    fn cyc(&mut self, offset: u64, cycles: u64) {
        self.cycles = self.cycles.saturating_add(cycles);
        let (Some(exact), true) = (self.exact, self.cbr > 0 && self.settings.nonturbo_ratio > 0) else {
            return;
        };
        // The bus ratio is a whole number: the true frequency is up to half a step higher.
        let ticks =
            u128::from(self.cycles) * 2 * u128::from(self.settings.nonturbo_ratio) / (2 * u128::from(self.cbr) + 1);
        let lo = exact.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX));
        self.points.push(Point {
            offset,
            lo,
            hi: u64::MAX,
        });
    }

    /// Lets every point end no later than the exact one that follows it.
    fn finish(mut self) -> Vec<Point> {
        let mut bound = u64::MAX;
        for point in self.points.iter_mut().rev() {
            if point.hi == u64::MAX {
                point.lo = point.lo.min(bound);
                point.hi = bound;
            }
            bound = point.hi;
        }
        self.points
    }
}

/// The full TSC with these low 56 bits that is nearest to `reference`.
fn extend(low: u64, reference: u64) -> u64 {
    const RANGE: u64 = 1 << 56;
    let base = reference & !(RANGE - 1) | low & (RANGE - 1);
    [base.checked_sub(RANGE), Some(base), base.checked_add(RANGE)]
        .into_iter()
        .flatten()
        .min_by_key(|&candidate| candidate.abs_diff(reference))
        .unwrap_or(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pt::{Errata, psbs, text::assemble};

    const SKYLAKE: TimeSettings = TimeSettings {
        mtc_period: 3,
        art: (100, 1),
        nonturbo_ratio: 24,
        reference: Tsc(0),
    };

    /// Brackets of the packets that are no timing packets.
    fn check(settings: TimeSettings, text: &str, expect: &[(u64, u64)]) {
        let bytes = assemble(text).unwrap();
        let packets = Packets::new(&bytes, 0, Errata::default());
        let line = TimeLine::read(packets.clone(), u64::MAX, &settings);
        let got: Vec<(u64, u64)> = packets
            .map(Result::unwrap)
            .filter(|p| matches!(p.packet, Packet::Tip(_) | Packet::TipPge(_) | Packet::TipPgd(_)))
            .map(|p| line.at(p.offset))
            .map(|b| (b.lo.0, b.hi.0))
            .collect();
        assert_eq!(got, expect, "{text}");
    }

    const OPEN: u64 = u64::MAX;

    #[test]
    fn between_two_time_stamps() {
        check(
            SKYLAKE,
            "psb, tsc 1000, psbend, tip 0, tsc 2000, tip 0",
            &[(0x1000, 0x2000), (0x2000, OPEN)],
        );
        check(SKYLAKE, "tip 0, tsc 5, tip 0", &[(0, 5), (5, OPEN)]);
    }

    #[test]
    fn mtc_counts_from_tma() {
        // The crystal clock stood at 0x102 from 8 ticks before the time stamp; the next multiple of 8 is 0x108.
        check(
            SKYLAKE,
            "psb, tsc 100000, tma 102 8, psbend, tip 0, mtc 21, tip 0, mtc 22, tip 0",
            &[
                (0x10_0000, 0x10_0000 - 8 + 600 + 1),
                (0x10_0000 - 8 + 600 - 1, 0x10_0000 - 8 + 1400 + 1),
                (0x10_0000 - 8 + 1400 - 1, OPEN),
            ],
        );
    }

    #[test]
    fn mtc_wraps_and_may_be_missing() {
        let settings = TimeSettings {
            mtc_period: 0,
            art: (1, 1),
            ..SKYLAKE
        };
        let base = 0x1000 - 1;
        check(
            settings,
            "tsc 1000, tma fffe 1, mtc ff, mtc 0, tip 0, mtc fe, mtc 3, tip 0",
            &[(base + 2 - 1, base + 0x100 + 1), (base + 0x105 - 1, OPEN)],
        );
    }

    #[test]
    fn a_repeated_mtc_and_one_without_tma_say_nothing() {
        check(SKYLAKE, "tsc 1000, mtc 5, tip 0", &[(0x1000, OPEN)]);
        check(SKYLAKE, "tsc 1000, tma 28 0, mtc 5, tip 0", &[(0x1000, OPEN)]);
        let unknown = TimeSettings { art: (0, 0), ..SKYLAKE };
        check(unknown, "tsc 1000, tma 28 0, mtc 6, tip 0", &[(0x1000, OPEN)]);
    }

    #[test]
    fn a_time_stamp_long_after_moves_the_crystal_clock_on() {
        // 0x100000 TSC ticks are 10485 of the crystal's: 1310 MTCs were not sent.
        let after = 10488 * 100;
        check(
            SKYLAKE,
            "tsc 0, tma 0 0, mtc 1, tsc 100000, mtc 1f, tip 0",
            &[(after - 1, OPEN)],
        );
    }

    #[test]
    fn cycles_raise_the_lower_bound_only() {
        // 24 MHz bus steps: at ratio 12 a cycle is two ticks, a little less if the ratio was rounded down.
        let lo = 0x1000 + 100 * 2 * 24 / 25;
        check(
            SKYLAKE,
            "tsc 1000, cbr c, cyc 64, tip 0, cyc 64, tsc 1200, tip 0",
            &[(lo, 0x1200), (0x1200, OPEN)],
        );
        check(SKYLAKE, "tsc 1000, cyc 64, tip 0", &[(0x1000, OPEN)]);
    }

    #[test]
    fn the_upper_bits_of_the_time_stamp_come_from_the_reference() {
        let settings = TimeSettings {
            reference: Tsc(0x12ff_ffff_ffff_ff00),
            ..SKYLAKE
        };
        check(
            settings,
            "tsc fffffffffffff0, tip 0, tsc 10, tip 0",
            &[
                (0x12ff_ffff_ffff_fff0, 0x1300_0000_0000_0010),
                (0x1300_0000_0000_0010, OPEN),
            ],
        );
        check(
            TimeSettings {
                reference: Tsc(5),
                ..SKYLAKE
            },
            "tsc fffffffffffff0, tip 0",
            &[(0xff_ffff_ffff_fff0, OPEN)],
        );
        check(
            TimeSettings {
                reference: Tsc(u64::MAX),
                ..SKYLAKE
            },
            "tsc 5, tip 0",
            &[(0xff00_0000_0000_0005, OPEN)],
        );
    }

    #[test]
    fn a_piece_that_starts_at_a_psb_has_the_time_of_the_whole_within_its_own_bounds() {
        let text = "psb, tsc 1000, tma 10 0, psbend, tip 0, mtc 3, tip 0, mtc 4, tip 0
            psb, tsc 1e00, tma 2c 40, psbend, tip 0, mtc 6, tip 0, mtc 7, tip 0";
        let bytes = assemble(text).unwrap();
        let packets = Packets::new(&bytes, 0, Errata::default());
        let whole = TimeLine::read(packets.clone(), u64::MAX, &SKYLAKE);
        let cut = psbs(&bytes).nth(1).unwrap();
        let piece = TimeLine::read(Packets::new(&bytes, cut, Errata::default()), u64::MAX, &SKYLAKE);
        for p in packets
            .map(Result::unwrap)
            .filter(|p| p.offset > cut && matches!(p.packet, Packet::Tip(_)))
        {
            assert_eq!(whole.at(p.offset), piece.at(p.offset), "{p:?}");
        }
    }
}
