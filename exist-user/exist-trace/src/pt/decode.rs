//! Bytes → one packet (SDM volume 3, "Intel Processor Trace", packet definitions).

use thiserror::Error;

use super::{
    errata::Errata,
    packet::{IpCompression, IpPayload, Packet, Tnt},
};

/// A PSB: `02 82`, eight times.
pub const PSB: [u8; 16] = [2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82];

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// The bytes end inside a packet: normal at the end of a buffer.
    #[error("packet cut off at offset {offset:#x}")]
    CutOff { offset: u64 },
    /// No packet starts like this.
    #[error("unknown packet {bytes:02x?} at offset {offset:#x}")]
    Unknown { offset: u64, bytes: [u8; 2] },
    /// A packet whose fields hold reserved values.
    #[error("{packet} packet with reserved bits at offset {offset:#x}")]
    Reserved { offset: u64, packet: &'static str },
}

impl PacketError {
    /// Where the packet starts.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        match *self {
            Self::CutOff { offset } | Self::Unknown { offset, .. } | Self::Reserved { offset, .. } => offset,
        }
    }
}

/// Inside a block of items (BBP … BEP) a byte that ends in `100` starts a BIP, elsewhere a TNT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BlockItems {
    #[default]
    None,
    Four,
    Eight,
}

enum Fail {
    CutOff,
    Unknown,
    Reserved(&'static str),
}

/// Little-endian value of the `N` bytes at `at`.
fn le<const N: usize>(b: &[u8], at: usize) -> Result<u64, Fail> {
    const { assert!(N <= 8) };
    let bytes: &[u8; N] = b.get(at..).and_then(<[u8]>::first_chunk).ok_or(Fail::CutOff)?;
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(bytes);
    Ok(u64::from_le_bytes(wide))
}

fn byte(b: &[u8], at: usize) -> Result<u8, Fail> {
    b.get(at).copied().ok_or(Fail::CutOff)
}

/// The packet at `offset` of `bytes` and its length in bytes; `offset` must lie within `bytes`.
pub(super) fn packet_at(
    bytes: &[u8],
    offset: usize,
    items: BlockItems,
    errata: Errata,
) -> Result<(Packet, usize), PacketError> {
    let b = bytes.get(offset..).unwrap_or_default();
    decode(b, items, errata).map_err(|fail| {
        let offset = offset as u64;
        match fail {
            Fail::CutOff => PacketError::CutOff { offset },
            Fail::Unknown => {
                let at = |i: usize| b.get(i).copied().unwrap_or(0);
                PacketError::Unknown {
                    offset,
                    bytes: [at(0), at(1)],
                }
            }
            Fail::Reserved(packet) => PacketError::Reserved { offset, packet },
        }
    })
}

#[inline]
fn decode(b: &[u8], items: BlockItems, errata: Errata) -> Result<(Packet, usize), Fail> {
    let first = byte(b, 0)?;
    if first & 7 == 4 && items != BlockItems::None {
        let id = first >> 3;
        return Ok(match items {
            BlockItems::Eight => (
                Packet::Bip {
                    id,
                    payload: le::<8>(b, 1)?,
                },
                9,
            ),
            _ => (
                Packet::Bip {
                    id,
                    payload: le::<4>(b, 1)?,
                },
                5,
            ),
        });
    }
    match first {
        0 => Ok((Packet::Pad, 1)),
        2 => extended(b, errata),
        _ if first & 1 == 0 => Ok((Packet::Tnt(tnt(u64::from(first >> 1), "TNT")?), 1)),
        _ if first & 3 == 3 => cyc(b, errata),
        0x99 => mode(byte(b, 1)?),
        0x19 => Ok((Packet::Tsc(le::<7>(b, 1)?), 8)),
        0x59 => Ok((Packet::Mtc(byte(b, 1)?), 2)),
        0xd9 => trig(b),
        _ => {
            let make = match first & 0x1f {
                0x0d => Packet::Tip,
                0x11 => Packet::TipPge,
                0x01 => Packet::TipPgd,
                0x1d => Packet::Fup,
                _ => return Err(Fail::Unknown),
            };
            let compression = IpCompression::from_bits(first >> 5).ok_or(Fail::Reserved("IP"))?;
            let bits = match compression.payload_bytes() {
                0 => 0,
                2 => le::<2>(b, 1)?,
                4 => le::<4>(b, 1)?,
                6 => le::<6>(b, 1)?,
                _ => le::<8>(b, 1)?,
            };
            Ok((make(IpPayload { compression, bits }), 1 + compression.payload_bytes()))
        }
    }
}

/// `payload` has a stop bit above the newest outcome.
fn tnt(payload: u64, name: &'static str) -> Result<Tnt, Fail> {
    let stop = payload.checked_ilog2().filter(|&n| n > 0).ok_or(Fail::Reserved(name))?;
    Ok(Tnt {
        bits: payload ^ 1 << stop,
        len: stop as u8,
    })
}

fn cyc(b: &[u8], errata: Errata) -> Result<(Packet, usize), Fail> {
    let first = byte(b, 0)?;
    let mut value = u64::from(first >> 3);
    let (mut shift, mut len, mut more) = (5u32, 1, first & 4 != 0);
    if more && errata.skd007 && b.get(1..3) == Some(&[2, 0xf3]) {
        // An OVF in place of the other bytes: the count is lost.
        return Ok((Packet::Pad, 1));
    }
    while more {
        let next = byte(b, len)?;
        let bits = u64::from(next >> 1);
        if shift > 63 || bits << shift >> shift != bits {
            return Err(Fail::Reserved("CYC"));
        }
        value |= bits << shift;
        shift += 7;
        len += 1;
        more = next & 1 != 0;
    }
    Ok((Packet::Cyc(value), len))
}

fn mode(payload: u8) -> Result<(Packet, usize), Fail> {
    let packet = match payload >> 5 {
        0 => Packet::ModeExec {
            cs_l: payload & 1 != 0,
            cs_d: payload & 2 != 0,
            interrupts: payload & 4 != 0,
        },
        1 => Packet::ModeTsx {
            in_tx: payload & 1 != 0,
            abort: payload & 2 != 0,
        },
        _ => return Err(Fail::Reserved("MODE")),
    };
    Ok((packet, 2))
}

fn trig(b: &[u8]) -> Result<(Packet, usize), Fail> {
    let (bits, kind) = (byte(b, 1)?, byte(b, 2)?);
    let counted = bits & 0x40 != 0;
    let instructions = if counted { Some(le::<2>(b, 3)? as u16) } else { None };
    let packet = Packet::Trig {
        ip: bits & 0x80 != 0,
        multiple: bits & 0x20 != 0,
        kind,
        instructions,
    };
    Ok((packet, if counted { 5 } else { 3 }))
}

/// Packets that start with `02`.
fn extended(b: &[u8], errata: Errata) -> Result<(Packet, usize), Fail> {
    let second = byte(b, 1)?;
    Ok(match second {
        0x82 => {
            let whole = b.len().min(PSB.len());
            if b[..whole] != PSB[..whole] {
                return Err(Fail::Reserved("PSB"));
            } else if whole < PSB.len() {
                return Err(Fail::CutOff);
            }
            (Packet::Psb, PSB.len())
        }
        0x23 => (Packet::PsbEnd, 2),
        0xf3 => (Packet::Ovf, 2),
        0x83 => (Packet::TraceStop, 2),
        0xa3 => (Packet::Tnt(tnt(le::<6>(b, 2)?, "long TNT")?), 8),
        0x43 => {
            let payload = le::<6>(b, 2)?;
            (
                Packet::Pip {
                    cr3: payload >> 1 << 5,
                    non_root: payload & 1 != 0,
                },
                8,
            )
        }
        0xc8 => (
            Packet::Vmcs {
                base: le::<5>(b, 2)? << 12,
            },
            7,
        ),
        0x03 => {
            le::<2>(b, 2)?;
            (Packet::Cbr { ratio: byte(b, 2)? }, 4)
        }
        0x73 => tma(b, errata)?,
        0xc3 => {
            if byte(b, 2)? != 0x88 {
                return Err(Fail::Unknown);
            }
            (Packet::Mnt(le::<8>(b, 3)?), 11)
        }
        0x62 | 0xe2 => (Packet::ExStop { ip: second & 0x80 != 0 }, 2),
        0xc2 => {
            let (hints, extensions) = (le::<4>(b, 2)? as u32, le::<4>(b, 6)? as u32);
            (Packet::Mwait { hints, extensions }, 10)
        }
        0x22 => {
            let payload = le::<2>(b, 2)?;
            let packet = Packet::Pwre {
                // Bit 7 in the manual's table, bit 3 in Intel's decoder library; the other one is reserved.
                hardware: payload & 0x88 != 0,
                state: (payload >> 12 & 0xf) as u8,
                sub_state: (payload >> 8 & 0xf) as u8,
            };
            (packet, 4)
        }
        0xa2 => {
            let payload = le::<5>(b, 2)?;
            let packet = Packet::Pwrx {
                last: (payload >> 4 & 0xf) as u8,
                deepest: (payload & 0xf) as u8,
                wake: (payload >> 8 & 0xf) as u8,
            };
            (packet, 7)
        }
        0x63 => {
            let payload = byte(b, 2)?;
            (
                Packet::Bbp {
                    short_items: payload & 0x80 != 0,
                    kind: payload & 0x1f,
                },
                3,
            )
        }
        0x33 | 0xb3 => (Packet::Bep { ip: second & 0x80 != 0 }, 2),
        0x13 => {
            let (kind, vector) = (byte(b, 2)?, byte(b, 3)?);
            (
                Packet::Cfe {
                    ip: kind & 0x80 != 0,
                    kind: kind & 0x1f,
                    vector,
                },
                4,
            )
        }
        0x53 => (
            Packet::Evd {
                kind: byte(b, 2)? & 0x3f,
                payload: le::<8>(b, 3)?,
            },
            11,
        ),
        _ if second & 0x1f == 0x12 => {
            let ip = second & 0x80 != 0;
            match second >> 5 & 3 {
                0 => (
                    Packet::Ptw {
                        ip,
                        wide: false,
                        payload: le::<4>(b, 2)?,
                    },
                    6,
                ),
                1 => (
                    Packet::Ptw {
                        ip,
                        wide: true,
                        payload: le::<8>(b, 2)?,
                    },
                    10,
                ),
                _ => return Err(Fail::Reserved("PTW")),
            }
        }
        _ => return Err(Fail::Unknown),
    })
}

fn tma(b: &[u8], errata: Errata) -> Result<(Packet, usize), Fail> {
    let (ctc, reserved, fast) = (le::<2>(b, 2)? as u16, byte(b, 4)?, le::<2>(b, 5)? as u16);
    if reserved == 0 && fast <= 0x1ff {
        return Ok((Packet::Tma { ctc, fast }, 7));
    }
    if errata.skz84 {
        // SKZ84: nonsense, and one stray byte behind it. It says nothing: filler.
        byte(b, 7)?;
        return Ok((Packet::Pad, 8));
    }
    Err(Fail::Reserved("TMA"))
}
