//! CPUID leaves that the emulated PT needs: takes a leaf and sub-leaf, gives the whole answer, or `None` for QEMU's own.

use crate::clock::{DENOMINATOR, NUMERATOR};

/// EAX, EBX, ECX, EDX.
pub type Answer = [u32; 4];

/// Leaves by which a guest program talks to the lab: `BASE + command`, with the argument in ECX.
pub const LAB_BASE: u32 = 0x4c41_4200;

/// Skylake's MTC periods (0, 3, 6, 9) and address ranges (0: no IP filters), SDM vol. 2, CPUID leaf 14H.
const MTC_PERIODS: u32 = 0x0249;
/// PSB periods 0–5 (2 KiB to 64 KiB) and, as on Skylake, cycle thresholds.
const PSB_PERIODS: u32 = 0x003f << 16 | 0x3fff;
const PSB_AND_CYC: u32 = 1 << 1;
const MTC: u32 = 1 << 3;
const TOPA: u32 = 1 << 0;
const TOPA_MULTIPLE: u32 = 1 << 1;
const SINGLE_RANGE: u32 = 1 << 2;
/// Arch perfmon version 2, four 48-bit general counters; the driver's PMI handler needs it.
const PERFMON: Answer = [0x0730_0402, 0, 0, 0x0603];

/// Which periods of MTC packets the processor has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtcPeriods {
    #[default]
    Skylake,
    /// Only 9: the guest is slower than its clock, and a finer period would fill its buffers with time.
    Coarse,
}

impl MtcPeriods {
    const fn bits(self) -> u32 {
        match self {
            Self::Skylake => MTC_PERIODS,
            Self::Coarse => 1 << 9,
        }
    }
}

/// What the guest's kernel is told.
pub fn answer(leaf: u32, subleaf: u32, periods: MtcPeriods) -> Option<Answer> {
    Some(match (leaf, subleaf) {
        (0x0a, _) => PERFMON,
        (0x14, 0) => [1, PSB_AND_CYC | MTC, TOPA | TOPA_MULTIPLE | SINGLE_RANGE, 0],
        (0x14, 1) => [periods.bits() << 16, PSB_PERIODS, 0, 0],
        (0x14, _) => [0; 4],
        // No crystal rate: from one the kernel would take its local APIC timer's (native_calibrate_tsc()), and QEMU's
        // timer does not run at it.
        (0x15, _) => [DENOMINATOR as u32, NUMERATOR as u32, 0, 0],
        _ => return None,
    })
}

/// A guest program's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Is there a lab? Answered with its version.
    Probe,
    /// Record every user-mode block.
    RecordAll,
    /// Record the user-mode blocks that run while PT is on.
    RecordTraced,
    RecordOff,
    /// Where `current` is: its address, or its offset in the per-CPU area, sign-extended from 32 bits.
    CurrentAt(i32),
    /// The offset of `pid` in `task_struct`.
    PidAt(u32),
    /// Lose this many bytes of packets on every vCPU that traces.
    Overflow(u32),
    Mark(u32),
}

impl Request {
    /// The request of a CPUID instruction, if it is one.
    pub fn from_cpuid(leaf: u32, argument: u32) -> Option<Self> {
        Some(match leaf.checked_sub(LAB_BASE)? {
            0 => Self::Probe,
            1 => Self::RecordAll,
            2 => Self::RecordOff,
            3 => Self::CurrentAt(argument as i32),
            4 => Self::PidAt(argument),
            5 => Self::Overflow(argument),
            6 => Self::Mark(argument),
            7 => Self::RecordTraced,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_finds_what_it_asks_for() {
        let answer = |leaf, subleaf| answer(leaf, subleaf, MtcPeriods::Skylake);
        let [sub, ebx, ecx, _] = answer(0x14, 0).unwrap();
        assert_eq!((sub, ebx, ecx & 3), (1, 0b1010, 3));
        assert_eq!(answer(0x15, 0), Some([2, 204, 0, 0]));
        assert_eq!(answer(1, 0), None);
        let coarse = super::answer(0x14, 1, MtcPeriods::Coarse).unwrap();
        assert_eq!(coarse[0] >> 16, 1 << 9);
        assert_eq!(coarse[1..], answer(0x14, 1).unwrap()[1..]);
    }

    #[test]
    fn requests() {
        assert_eq!(
            Request::from_cpuid(LAB_BASE + 3, 0xffff_fff0),
            Some(Request::CurrentAt(-16))
        );
        assert_eq!(Request::from_cpuid(LAB_BASE + 8, 0), None);
        assert_eq!(Request::from_cpuid(1, 0), None);
    }
}
