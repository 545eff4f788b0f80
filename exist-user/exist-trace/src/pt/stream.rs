//! Bytes → packets with their offsets, and the places where decoding can start.

use super::{
    decode::{self, BlockItems, PSB, PacketError},
    errata::Errata,
    packet::Packet,
};

/// A packet and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Of its first byte, counted from the start of the stream.
    pub offset: u64,
    pub packet: Packet,
}

/// Packets of one CPU's stream, in order.
///
/// After an error the iterator stands still and ends; [`Packets::resync`] goes on at the next PSB.
#[derive(Clone, Debug)]
pub struct Packets<'a> {
    bytes: &'a [u8],
    at: usize,
    items: BlockItems,
    errata: Errata,
    failed: bool,
    /// End of the last PSB that was read.
    psb_end: usize,
}

impl<'a> Packets<'a> {
    /// Starts at `offset`, which must be the start of a packet (a PSB, usually: see [`find_psb`]).
    #[must_use]
    pub fn new(bytes: &'a [u8], offset: u64, errata: Errata) -> Self {
        let at = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        Self {
            bytes,
            at,
            items: BlockItems::None,
            errata,
            failed: false,
            psb_end: 0,
        }
    }

    /// Offset of the next packet, or of the packet that could not be read.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Which work-arounds apply.
    #[must_use]
    pub fn errata(&self) -> Errata {
        self.errata
    }

    /// Goes to the next PSB that ends after `from`; `false` and the end of the stream when there is none.
    ///
    /// Such a PSB may start before `from`: when a packet was cut off and a PSB written over its rest,
    /// the error shows only behind the bytes that were taken for that packet.
    pub fn resync(&mut self, from: u64) -> bool {
        let from = from.saturating_sub(PSB.len() as u64 - 1).max(self.psb_end as u64);
        let found = find_psb(self.bytes, from);
        self.at = found.map_or(self.bytes.len(), |offset| offset as usize);
        self.items = BlockItems::None;
        self.failed = false;
        found.is_some()
    }
}

impl Iterator for Packets<'_> {
    type Item = Result<Located, PacketError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.at >= self.bytes.len() {
            return None;
        }
        match decode::packet_at(self.bytes, self.at, self.items, self.errata) {
            Ok((packet, len)) => {
                let offset = self.at as u64;
                self.at += len;
                if packet == Packet::Psb {
                    self.psb_end = self.at;
                }
                self.items = match packet {
                    Packet::Bbp { short_items: true, .. } => BlockItems::Four,
                    Packet::Bbp { short_items: false, .. } => BlockItems::Eight,
                    _ if self.items == BlockItems::None || may_interrupt_block(&packet) => self.items,
                    _ => BlockItems::None,
                };
                Some(Ok(Located { offset, packet }))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}

/// Packets that may come between the items of a block; every other one ends it.
fn may_interrupt_block(packet: &Packet) -> bool {
    packet.is_timing()
        || matches!(
            packet,
            Packet::Fup(_) | Packet::ExStop { .. } | Packet::Pwre { .. } | Packet::Pwrx { .. } | Packet::Bip { .. }
        )
}

/// Offset of the first PSB at `from` or later.
///
/// A pattern of `02 82` that goes on for longer than a PSB (payload bytes can look like it) is entered
/// at its last possible place, since the true PSB is what packets follow.
#[must_use]
pub fn find_psb(bytes: &[u8], from: u64) -> Option<u64> {
    let from = usize::try_from(from).ok()?;
    let at = from + memchr::memmem::find(bytes.get(from..)?, &PSB)?;
    let rest = &bytes[at + PSB.len()..];
    let more = rest.chunks_exact(2).take_while(|pair| *pair == [2, 0x82]).count();
    Some((at + 2 * more) as u64)
}

/// Offsets of all PSBs: at each of them a stream can be cut into pieces that are decoded on their own.
pub fn psbs(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let found = find_psb(bytes, from)?;
        from = found + PSB.len() as u64;
        Some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_psb_anywhere_and_nowhere() {
        for lead in [
            &b""[..],
            &[2],
            &[0x82],
            &[2, 0x82],
            &[2, 0x82, 2],
            &[2, 0x82, 2, 0x82, 0, 2],
            &[2, 2],
        ] {
            let mut bytes = lead.to_vec();
            assert_eq!(find_psb(&bytes, 0), None, "{lead:x?}");
            bytes.extend_from_slice(&PSB);
            let expect = lead.len() as u64;
            assert_eq!(find_psb(&bytes, 0), Some(expect), "{lead:x?}");
            assert_eq!(find_psb(&bytes, expect), Some(expect));
            assert_eq!(find_psb(&bytes, expect + 1), None);
            // Cut short, the repeated pattern before it may itself be long enough.
            let whole = if lead == [2, 0x82] { PSB.len() } else { bytes.len() };
            for cut in 0..whole {
                assert_eq!(find_psb(&bytes[..cut], 0), None, "{lead:x?} cut at {cut}");
            }
        }
    }

    #[test]
    fn every_psb_is_a_place_to_cut() {
        let bytes = [&PSB[..], &[2, 0x23, 0, 0], &PSB, &[2, 0x23], &PSB[..7]].concat();
        assert_eq!(psbs(&bytes).collect::<Vec<_>>(), [0, 20]);
    }
}
