//! The packets of Intel Processor Trace, as plain data (SDM volume 3, "Intel Processor Trace", packet definitions).

/// One packet. Addresses are as transmitted: see [`IpPayload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Filler.
    Pad,
    /// Packet stream boundary: a place where decoding can start.
    Psb,
    /// End of the status packets that follow a PSB.
    PsbEnd,
    /// The processor's internal buffer overflowed: packets are missing here.
    Ovf,
    /// Tracing was stopped by a TraceStop region.
    TraceStop,
    /// Outcomes of conditional branches and compressed returns.
    Tnt(Tnt),
    /// Target of an indirect branch, a far transfer or an asynchronous event.
    Tip(IpPayload),
    /// Packets are generated again, from this address.
    TipPge(IpPayload),
    /// Packets are no longer generated.
    TipPgd(IpPayload),
    /// Address of an asynchronous event, or of the packets that bind to it.
    Fup(IpPayload),
    /// Execution mode.
    ModeExec { cs_l: bool, cs_d: bool, interrupts: bool },
    /// Transactional state.
    ModeTsx { in_tx: bool, abort: bool },
    /// CR3 changed.
    Pip { cr3: u64, non_root: bool },
    /// VMCS pointer changed.
    Vmcs { base: u64 },
    /// Core to bus frequency ratio.
    Cbr { ratio: u8 },
    /// Time stamp counter: its low 56 bits.
    Tsc(u64),
    /// Ties the crystal clock to the preceding TSC: low 16 bits of the crystal clock counter, and TSC ticks since its last tick.
    Tma { ctc: u16, fast: u16 },
    /// Eight bits of the crystal clock counter.
    Mtc(u8),
    /// Core cycles since the last CYC.
    Cyc(u64),
    /// Maintenance: specific to a model.
    Mnt(u64),
    /// The core's clock stopped; with `ip`, a FUP follows.
    ExStop { ip: bool },
    /// MWAIT that led to an optimized state.
    Mwait { hints: u32, extensions: u32 },
    /// Entry to a C-state deeper than C0.0.
    Pwre { hardware: bool, state: u8, sub_state: u8 },
    /// Exit from it to C0.
    Pwrx { last: u8, deepest: u8, wake: u8 },
    /// PTWRITE's operand, of 4 or 8 bytes; with `ip`, a FUP follows.
    Ptw { ip: bool, wide: bool, payload: u64 },
    /// Begin of a block of items.
    Bbp { short_items: bool, kind: u8 },
    /// An item of the block.
    Bip { id: u8, payload: u64 },
    /// End of the block; with `ip`, a FUP follows.
    Bep { ip: bool },
    /// Control flow event; with `ip`, a FUP follows.
    Cfe { ip: bool, kind: u8, vector: u8 },
    /// Data of the control flow event that follows.
    Evd { kind: u8, payload: u64 },
    /// Trigger; with `ip`, a FUP follows.
    Trig {
        ip: bool,
        multiple: bool,
        kind: u8,
        instructions: Option<u16>,
    },
}

impl Packet {
    /// Whether it may come between any two others: filler, time, and what is no part of control flow.
    #[must_use]
    pub const fn is_timing(&self) -> bool {
        matches!(
            self,
            Self::Pad | Self::Tsc(_) | Self::Tma { .. } | Self::Mtc(_) | Self::Cyc(_) | Self::Cbr { .. } | Self::Mnt(_)
        )
    }
}

/// Outcomes of branches, oldest in the most significant of the `len` low bits of `bits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tnt {
    pub bits: u64,
    /// 1 to 47; 6 at most in the short packet.
    pub len: u8,
}

impl Tnt {
    /// Takes the oldest outcome.
    pub fn pop(&mut self) -> Option<bool> {
        self.len = self.len.checked_sub(1)?;
        Some(self.bits >> self.len & 1 == 1)
    }
}

/// An address as transmitted: only the bytes that differ from the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPayload {
    pub compression: IpCompression,
    /// The transmitted bytes, zero-extended.
    pub bits: u64,
}

/// How the upper bytes of an address are filled (the `IPBytes` field).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpCompression {
    /// Out of context: there is no address.
    Suppressed,
    /// The low 2 bytes; the rest from the last IP.
    Update16,
    /// The low 4 bytes; the rest from the last IP.
    Update32,
    /// The low 6 bytes, sign-extended.
    SignExtend48,
    /// The low 6 bytes; the rest from the last IP.
    Update48,
    /// All 8 bytes.
    Full,
}

impl IpCompression {
    /// From the three bits of the packet's header; two values are reserved.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Suppressed,
            1 => Self::Update16,
            2 => Self::Update32,
            3 => Self::SignExtend48,
            4 => Self::Update48,
            6 => Self::Full,
            _ => return None,
        })
    }

    /// The three bits of the packet's header.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::Suppressed => 0,
            Self::Update16 => 1,
            Self::Update32 => 2,
            Self::SignExtend48 => 3,
            Self::Update48 => 4,
            Self::Full => 6,
        }
    }

    /// Bytes of address in the packet.
    #[must_use]
    pub const fn payload_bytes(self) -> usize {
        match self {
            Self::Suppressed => 0,
            Self::Update16 => 2,
            Self::Update32 => 4,
            Self::SignExtend48 | Self::Update48 => 6,
            Self::Full => 8,
        }
    }
}

/// The last transmitted address, against which the next one is compressed. Zero after a PSB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastIp(u64);

impl LastIp {
    /// The full address of `payload`, which becomes the last one; `None` when it is suppressed.
    pub fn expand(&mut self, payload: IpPayload) -> Option<u64> {
        let keep = |mask: u64| self.0 & !mask | payload.bits & mask;
        self.0 = match payload.compression {
            IpCompression::Suppressed => return None,
            IpCompression::Update16 => keep(0xffff),
            IpCompression::Update32 => keep(0xffff_ffff),
            IpCompression::Update48 => keep(0xffff_ffff_ffff),
            IpCompression::SignExtend48 => (payload.bits << 16).cast_signed().wrapping_shr(16).cast_unsigned(),
            IpCompression::Full => payload.bits,
        };
        Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_ip_follows_the_table_of_ip_compression() {
        let mut last = LastIp::default();
        let mut expand = |compression, bits| last.expand(IpPayload { compression, bits });
        assert_eq!(expand(IpCompression::Update16, 0x1234), Some(0x1234));
        assert_eq!(
            expand(IpCompression::SignExtend48, 0xffff_ffff_1000),
            Some(0xffff_ffff_ffff_1000)
        );
        assert_eq!(
            expand(IpCompression::Update32, 0x2000_0000),
            Some(0xffff_ffff_2000_0000)
        );
        assert_eq!(expand(IpCompression::Suppressed, 0), None);
        assert_eq!(
            expand(IpCompression::Update48, 0x7fff_0000_1000),
            Some(0xffff_7fff_0000_1000)
        );
        assert_eq!(
            expand(IpCompression::Full, 0x00cc_cccc_cccc_4000),
            Some(0x00cc_cccc_cccc_4000)
        );
        assert_eq!(expand(IpCompression::Update16, 0xffff), Some(0x00cc_cccc_cccc_ffff));
        assert_eq!(
            expand(IpCompression::SignExtend48, 0x7fff_ffff_1000),
            Some(0x7fff_ffff_1000)
        );
    }

    #[test]
    fn outcomes_come_oldest_first() {
        let mut tnt = Tnt { bits: 0b1011, len: 4 };
        let all: Vec<bool> = std::iter::from_fn(|| tnt.pop()).collect();
        assert_eq!(all, [true, false, true, true]);
    }
}
