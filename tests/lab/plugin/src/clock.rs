//! The clocks of the emulated CPU: takes a TSC, gives the crystal's count (ART) that MTC and TMA carry.
//!
//! ART = TSC × denominator / numerator, the ratio that CPUID leaf 0x15 reports (SDM vol. 3, "Intel Processor Trace",
//! tracking time with MTC). The TSC is the host's own, so packets, RDTSC and ground truth share one clock.

/// TSC ticks for each `DENOMINATOR` crystal ticks.
pub const NUMERATOR: u64 = 204;
/// See `NUMERATOR`.
pub const DENOMINATOR: u64 = 2;

/// The rate of the TSC.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub tsc_hz: u64,
}

impl Clock {
    /// The crystal's count at this TSC.
    pub fn art(tsc: u64) -> u64 {
        (u128::from(tsc) * u128::from(DENOMINATOR) / u128::from(NUMERATOR)) as u64
    }

    /// The first TSC at which the crystal's count is `art`.
    pub fn tsc(art: u64) -> u64 {
        (u128::from(art) * u128::from(NUMERATOR)).div_ceil(u128::from(DENOMINATOR)) as u64
    }

    /// The core:bus ratio, in units of 100 MHz: also the maximum non-turbo ratio of MSR_PLATFORM_INFO.
    pub fn ratio(self) -> u8 {
        u8::try_from(self.tsc_hz / 100_000_000).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn art_steps_where_tsc_says() {
        for art in [0, 1, 1000, 1 << 40, (1 << 48) + 7] {
            let tsc = Clock::tsc(art);
            assert_eq!(Clock::art(tsc), art);
            if tsc > 0 {
                assert_eq!(Clock::art(tsc - 1), art - 1);
            }
        }
    }
}
