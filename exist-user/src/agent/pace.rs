//! How long to wait until the rings are drained again.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);

/// Adapts the time between two drains to how full the fullest ring was: half full at the next drain is the aim's upper end,
/// so that twice the rate still fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    interval: Duration,
}

impl Default for Pace {
    /// Carefully: nothing is known of the target yet.
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(10),
        }
    }
}

impl Pace {
    #[must_use]
    pub fn interval(self) -> Duration {
        self.interval
    }

    /// Takes how full (0 to 1) the fullest ring was at a drain.
    pub fn drained(&mut self, fill: f32) {
        self.interval = match fill {
            f if f > 0.5 => self.interval / 4,
            f if f > 0.25 => self.interval / 2,
            f if f < 0.125 => self.interval * 2,
            _ => self.interval,
        }
        .clamp(SHORTEST, LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drains a ring that fills at `rate` a millisecond, 100 times; gives the last interval and the fullest of the last 50.
    fn settle(rate: f32) -> (Duration, f32) {
        let mut pace = Pace::default();
        let fills: Vec<_> = (0..100)
            .map(|_| {
                let fill = (rate * pace.interval().as_secs_f32() * 1000.0).min(1.0);
                pace.drained(fill);
                fill
            })
            .collect();
        (pace.interval(), fills[50..].iter().copied().fold(0.0, f32::max))
    }

    #[test]
    fn idle_is_slow_and_busy_is_fast_enough() {
        assert_eq!(settle(0.0).0, LONGEST);
        assert_eq!(settle(0.001).0, LONGEST);
        for rate in [0.005, 0.01, 0.05, 0.1, 0.2, 0.4] {
            let (interval, fullest) = settle(rate);
            assert!(
                interval < LONGEST && fullest <= 0.5,
                "{rate} a ms: {interval:?}, {fullest}"
            );
        }
        assert_eq!(settle(2.0).0, SHORTEST);
    }
}
