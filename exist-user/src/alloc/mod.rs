//! The memory allocator: which CPUs get a buffer for the processor trace, and how large a one.
//!
//! Takes: what was asked, what the machine has. Gives: a [`Plan`], the same for the same input. Refuses: a budget too
//! small for the CPUs, CPUs that do not exist.
//!
//! ```text
//!  look-back, earlier windows ─▶ usage ─▶ forecast ─▶ objective ─▶ solve ─▶ Plan ─▶ smaller, where the kernel refuses memory
//!        Look, Earlier
//! ```
//! The objective is the expected share of the targets' on-CPU time whose trace fits ([`Objective`]); [`solve()`] makes it
//! greatest, exactly. Where nothing is known, or one size is asked, every CPU gets the same. Several targets share the budget by
//! weight ([`together`]): a CPU that two of them use has one buffer.

mod cpus;
mod forecast;
mod known;
mod locked;
mod plan;
mod solve;
mod usage;

pub use cpus::{CpuSets, choose};
pub use forecast::forecast;
pub use known::{CpuFill, DEFAULT_RATE, Earlier, Look, WindowFill, usage};
pub use locked::LockedMemory;
pub use plan::{AllocError, Asked, Buffer, Expected, Known, Plan, Reserve};
pub use solve::{Bounds, Every, solve};
pub use usage::{CpuUsage, Objective, Sample, Use, together};

/// A CPU's buffer when nothing is asked.
pub const DEFAULT_BUFFER_BYTES: u64 = 16 << 20;
/// All buffers together when nothing is asked: this, or [`DEFAULT_BUDGET_PERCENT`] of memory if that is less.
pub const DEFAULT_BUDGET_BYTES: u64 = 512 << 20;
/// See [`DEFAULT_BUDGET_BYTES`].
pub const DEFAULT_BUDGET_PERCENT: u64 = 5;
/// The smallest buffer: room for two synchronization points (PSB), so that something can be decoded.
pub const LEAST_BUFFER_BYTES: u64 = 32 << 10;
/// The largest: what the driver's `aux_watermark` and the kernel's page count still hold.
pub const MOST_BUFFER_BYTES: u64 = 1 << 31;

/// A size for people: the largest binary unit that divides it, or one decimal of the largest that fits.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} B"),
        Some((shift, unit)) if bytes.trailing_zeros() >= shift => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_for_people() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (3 << 30, "3 GiB"),
        ];
        sizes
            .into_iter()
            .for_each(|(bytes, text)| assert_eq!(size(bytes), text));
    }
}
