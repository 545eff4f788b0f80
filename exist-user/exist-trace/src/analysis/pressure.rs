//! How busy the target's CPUs were and how many threads queued for them, window by window: what an average hides.
//!
//! Takes stays and split stretches of time runnable, gives windows of one width: 10 ms, or where the recording has more
//! than [`MOST`] of these, the least doubling of it that has not. Refuses what lies before the start.

use serde::Serialize;

use super::{
    latency::{Cause, Queued},
    observe::Ran,
};

const NARROWEST_NS: u64 = 10_000_000;
/// Windows that are kept.
const MOST: usize = 4096;

/// One window: thread time in it, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Window {
    /// Threads of the target ran.
    pub running_ns: u64,
    /// They were runnable while the target ran, their CPU was idle, or it is not known why.
    pub queued_ns: u64,
    /// They were runnable while others, or the kernel, ran.
    pub others_ns: u64,
    pub throttled_ns: u64,
}

/// All windows, the first begins at `start_ns`.
#[derive(Clone, Debug)]
pub struct Pressure {
    pub start_ns: u64,
    pub width_ns: u64,
    pub windows: Vec<Window>,
}

impl Pressure {
    #[must_use]
    pub const fn new(start_ns: u64) -> Self {
        Self {
            start_ns,
            width_ns: NARROWEST_NS,
            windows: Vec::new(),
        }
    }

    pub fn ran(&mut self, ran: Ran) {
        self.add(ran.from, ran.to, |window, ns| add(&mut window.running_ns, ns));
    }

    pub fn queued(&mut self, queued: &Queued) {
        // The target's part is put first: where in the stretch it was makes no difference to windows of this width.
        let until = queued.from.saturating_add(queued.target_ns).min(queued.to);
        self.add(queued.from, until, |window, ns| add(&mut window.queued_ns, ns));
        let into = match queued.cause {
            Cause::Other | Cause::Kernel => |window: &mut Window, ns| add(&mut window.others_ns, ns),
            Cause::Throttled => |window: &mut Window, ns| add(&mut window.throttled_ns, ns),
            Cause::Target | Cause::Idle | Cause::Moved | Cause::Unknown => {
                |window: &mut Window, ns| add(&mut window.queued_ns, ns)
            }
        };
        self.add(until, queued.to, into);
    }

    /// When a window begins.
    #[must_use]
    pub const fn begin_ns(&self, window: usize) -> u64 {
        self.start_ns
            .saturating_add(self.width_ns.saturating_mul(window as u64))
    }

    fn add(&mut self, from: u64, to: u64, into: impl Fn(&mut Window, u64)) {
        let (mut at, to) = (from.saturating_sub(self.start_ns), to.saturating_sub(self.start_ns));
        if at >= to {
            return;
        }
        while (to - 1) / self.width_ns >= MOST as u64 {
            self.double();
        }
        let last = ((to - 1) / self.width_ns) as usize;
        if self.windows.len() <= last {
            self.windows.resize(last + 1, Window::default());
        }
        while at < to {
            let window = (at / self.width_ns) as usize;
            let until = ((window as u64 + 1).saturating_mul(self.width_ns)).min(to);
            into(&mut self.windows[window], until - at);
            at = until;
        }
    }

    fn double(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let pairs = self.windows.chunks(2).map(|pair| {
            let mut sum = Window::default();
            for window in pair {
                add(&mut sum.running_ns, window.running_ns);
                add(&mut sum.queued_ns, window.queued_ns);
                add(&mut sum.others_ns, window.others_ns);
                add(&mut sum.throttled_ns, window.throttled_ns);
            }
            sum
        });
        self.windows = pairs.collect();
    }
}

/// A hostile file's sums may not fit.
const fn add(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::observe::Who;

    fn ran(from: u64, to: u64) -> Ran {
        let who = Who { pid: 1, tid: 1 };
        Ran { who, cpu: 0, from, to }
    }

    #[test]
    fn no_time_is_lost_however_long_it_gets() {
        let mut pressure = Pressure::new(1000);
        pressure.ran(ran(0, 1000 + 25_000_000));
        let busy: Vec<_> = pressure.windows.iter().map(|w| w.running_ns).collect();
        assert_eq!(busy, [10_000_000, 10_000_000, 5_000_000]);
        let end = 1000 + 10_000_000 * 10_000;
        pressure.ran(ran(end - 7, end));
        assert_eq!((pressure.width_ns, pressure.windows.len()), (40_000_000, 2500));
        assert_eq!(pressure.windows.iter().map(|w| w.running_ns).sum::<u64>(), 25_000_007);
        pressure.ran(ran(u64::MAX - 1, u64::MAX));
        assert!(pressure.windows.len() <= MOST);
    }
}
