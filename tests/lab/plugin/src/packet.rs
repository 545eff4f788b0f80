//! Intel PT packets as bytes: pure, no state but the last IP. SDM vol. 3, "Intel Processor Trace", packet definitions.

/// The four packets that carry an IP; the value is the low five bits of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpPacket {
    Tip = 0x0d,
    Pge = 0x11,
    Pgd = 0x01,
    Fup = 0x1d,
}

/// Which forms of a compressed IP are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpForms {
    /// What Skylake was seen to do: 16 or 32 bits against the last IP, else 48 sign-extended; a FUP always whole.
    #[default]
    Hardware,
    /// Every form that is valid for the IP, in turn.
    All,
}

/// Most bits that a long TNT packet holds.
pub const LONG_TNT_BITS: u8 = 47;
/// Most bits that a short TNT packet holds.
pub const SHORT_TNT_BITS: u8 = 6;

pub const PSB: [u8; 16] = [
    0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82, 0x02, 0x82,
];
pub const PSBEND: [u8; 2] = [0x02, 0x23];
pub const OVF: [u8; 2] = [0x02, 0xf3];
/// MODE.Exec for 64-bit code.
pub const MODE_EXEC_64: [u8; 2] = [0x99, 0x01];

/// A TSC packet: the low 56 bits.
pub fn tsc(tsc: u64) -> [u8; 8] {
    let mut packet = (tsc << 8).to_le_bytes();
    packet[0] = 0x19;
    packet
}

/// A TMA packet: the crystal's count and the TSC ticks since it changed (9 bits).
pub fn tma(ctc: u16, fast: u16) -> [u8; 7] {
    let [c0, c1] = ctc.to_le_bytes();
    let [f0, f1] = fast.to_le_bytes();
    [0x02, 0x73, c0, c1, 0, f0, f1 & 1]
}

/// An MTC packet.
pub fn mtc(payload: u8) -> [u8; 2] {
    [0x59, payload]
}

/// A CBR packet.
pub fn cbr(ratio: u8) -> [u8; 4] {
    [0x02, 0x03, ratio, 0]
}

/// A TNT packet of the low `count` bits, the oldest outcome in the highest of them; short when they fit.
pub fn tnt(bits: u64, count: u8, out: &mut Vec<u8>) {
    let payload = 1u64 << count | bits & ((1 << count) - 1);
    if count <= SHORT_TNT_BITS {
        out.push((payload << 1) as u8);
    } else {
        out.extend_from_slice(&[0x02, 0xa3]);
        out.extend_from_slice(&payload.to_le_bytes()[..6]);
    }
}

/// The last IP and the choice of forms.
#[derive(Clone, Debug, Default)]
pub struct IpEncoder {
    last: u64,
    forms: IpForms,
    turn: usize,
}

impl IpEncoder {
    /// An encoder whose last IP is 0.
    pub fn new(forms: IpForms) -> Self {
        Self {
            forms,
            ..Self::default()
        }
    }

    /// Forgets the last IP: at each PSB and overflow.
    pub fn reset(&mut self) {
        self.last = 0;
    }

    /// Appends a packet whose IP is suppressed.
    pub fn suppressed(packet: IpPacket, out: &mut Vec<u8>) {
        out.push(packet as u8);
    }

    /// Appends a packet with its IP.
    pub fn put(&mut self, packet: IpPacket, ip: u64, out: &mut Vec<u8>) {
        let form = match self.forms {
            IpForms::Hardware => self.hardware_form(packet, ip),
            IpForms::All => self.next_form(ip),
        };
        self.last = ip;
        let bytes = match form {
            1 => 2,
            2 => 4,
            3 | 4 => 6,
            _ => 8,
        };
        out.push(form << 5 | packet as u8);
        out.extend_from_slice(&ip.to_le_bytes()[..bytes]);
    }

    fn hardware_form(&self, packet: IpPacket, ip: u64) -> u8 {
        let whole = if valid(3, self.last, ip) { 3 } else { 6 };
        // Seen in Skylake captures: a FUP, and the first IP after a PSB, are never compressed.
        if packet == IpPacket::Fup || self.last == 0 {
            return whole;
        }
        [1, 2]
            .into_iter()
            .find(|form| valid(*form, self.last, ip))
            .unwrap_or(whole)
    }

    fn next_form(&mut self, ip: u64) -> u8 {
        let forms = [1, 2, 3, 4, 6];
        loop {
            self.turn = (self.turn + 1) % forms.len();
            if valid(forms[self.turn], self.last, ip) {
                return forms[self.turn];
            }
        }
    }
}

/// Whether a decoder that knows `last` gets `ip` back from this form.
fn valid(form: u8, last: u64, ip: u64) -> bool {
    match form {
        1 => last >> 16 == ip >> 16,
        2 => last >> 32 == ip >> 32,
        3 => ((ip << 16) as i64 >> 16) as u64 == ip,
        4 => last >> 48 == ip >> 48,
        _ => form == 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(forms: IpForms, ips: &[(IpPacket, u64)], expect: &[&[u8]]) {
        let mut encoder = IpEncoder::new(forms);
        for ((packet, ip), expect) in ips.iter().zip(expect) {
            let mut out = Vec::new();
            encoder.put(*packet, *ip, &mut out);
            assert_eq!(out, *expect, "{packet:?} {ip:#x}");
        }
    }

    #[test]
    fn hardware_forms_as_in_a_skylake_capture() {
        use IpPacket::{Fup, Pge, Tip};
        check(
            IpForms::Hardware,
            &[
                (Pge, 0x40_0202),
                (Fup, 0x40_0202),
                (Pge, 0x40_0202),
                (Tip, 0x41_0a49),
                (Tip, 0x7f00_0000_1000),
                (Tip, u64::MAX << 47),
            ],
            &[
                &[0x71, 0x02, 0x02, 0x40, 0, 0, 0],
                &[0x7d, 0x02, 0x02, 0x40, 0, 0, 0],
                &[0x31, 0x02, 0x02],
                &[0x4d, 0x49, 0x0a, 0x41, 0],
                &[0x6d, 0x00, 0x10, 0, 0, 0, 0x7f],
                &[0x6d, 0, 0, 0, 0, 0, 0x80],
            ],
        );
    }

    /// The SDM's table for an IP payload, as a decoder applies it.
    fn decode(bytes: &[u8], last: u64) -> u64 {
        let mut payload = [0; 8];
        payload[..bytes.len() - 1].copy_from_slice(&bytes[1..]);
        let value = u64::from_le_bytes(payload);
        match bytes[0] >> 5 {
            1 => last & !0xffff | value,
            2 => last & !0xffff_ffff | value,
            3 => ((value << 16) as i64 >> 16) as u64,
            4 => last & !0xffff_ffff_ffff | value,
            6 => value,
            form => panic!("form {form}"),
        }
    }

    #[test]
    fn every_form_is_used_and_decodes() {
        let mut encoder = IpEncoder::new(IpForms::All);
        let (mut last, mut seen) = (0, [0; 8]);
        for at in 0..200u64 {
            let ip = [
                0x40_1000,
                0x40_2000,
                0x7fff_f000_0000,
                0x7fff_0000_1234,
                0xffff_ffff_8100_0000,
                0x0080_0000_0000_0000,
            ][at as usize / 3 % 6]
                + at;
            let mut out = Vec::new();
            encoder.put(IpPacket::Tip, ip, &mut out);
            assert_eq!(decode(&out, last), ip);
            seen[usize::from(out[0] >> 5)] += 1;
            last = ip;
        }
        assert!([1, 2, 3, 4, 6].into_iter().all(|form| seen[form] > 0), "{seen:?}");
    }

    #[test]
    fn tnt_short_and_long() {
        for (bits, count, expect) in [
            (0b1, 1, &[0x06][..]),
            (0b110, 3, &[0x1c]),
            (0b111111, 6, &[0xfe]),
            (0b1, 7, &[0x02, 0xa3, 0x81, 0, 0, 0, 0, 0]),
            ((1 << 47) - 1, 47, &[0x02, 0xa3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ] {
            let mut out = Vec::new();
            tnt(bits, count, &mut out);
            assert_eq!(out, expect);
        }
    }

    #[test]
    fn timing_packets() {
        assert_eq!(
            tsc(0x0a_fe46_6b73_3150),
            [0x19, 0x50, 0x31, 0x73, 0x6b, 0x46, 0xfe, 0x0a]
        );
        assert_eq!(tma(0x8ece, 0x14a), [0x02, 0x73, 0xce, 0x8e, 0, 0x4a, 1]);
        assert_eq!((mtc(0xda), cbr(0x21)), ([0x59, 0xda], [2, 3, 0x21, 0]));
    }
}
