//! The clocks of the node: CLOCK_MONOTONIC, CLOCK_REALTIME, the TSC, and both at one moment.

use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};

use exist_trace::{
    file::model::ClockPair,
    units::{MonoNs, Tsc},
};

/// Readings for one pair: the tightest wins, so an interrupt or a preemption in some of them does no harm.
const TRIES: usize = 16;

/// CLOCK_MONOTONIC, nanoseconds: the clock of `bpf_ktime_get_ns()`.
#[must_use]
pub fn mono_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME, nanoseconds since 1970.
#[must_use]
pub fn realtime_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// CPU time that the calling process has used, all its threads together, nanoseconds.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Both clocks at one moment: the tightest bracket of 16.
#[must_use]
pub fn pair() -> ClockPair {
    (0..TRIES)
        .map(|_| {
            let tsc_before = tsc();
            let mono = mono_ns();
            let tsc_after = tsc();
            ClockPair {
                mono: MonoNs(mono),
                tsc_before: Tsc(tsc_before),
                tsc_after: Tsc(tsc_after),
            }
        })
        .min_by_key(|pair| pair.tsc_after.0.wrapping_sub(pair.tsc_before.0))
        .expect("16 readings have a tightest")
}

/// Nominal TSC frequency in kHz as the processor or the hypervisor says; 0 when neither does.
///
/// CPUID leaf 15H: crystal × numerator ÷ denominator (SDM volume 3, 20.7.3 "Determining the Processor Base
/// Frequency"); hypervisors: leaf 4000_0010H, EAX in kHz.
#[must_use]
pub fn tsc_khz() -> u64 {
    let max = __cpuid(0).eax;
    if max >= 0x15 {
        let leaf = __cpuid(0x15);
        if let Some(hz) = (u64::from(leaf.ecx) * u64::from(leaf.ebx)).checked_div(u64::from(leaf.eax))
            && hz != 0
        {
            return hz / 1000;
        }
    }
    let under_hypervisor = __cpuid(1).ecx & 1 << 31 != 0;
    if under_hypervisor && (0x4000_0010..0x4001_0000).contains(&__cpuid(0x4000_0000).eax) {
        return u64::from(__cpuid(0x4000_0010).eax);
    }
    0
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer, and the clocks asked for exist on every Linux.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    debug_assert_eq!(done, 0);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// The TSC, read neither before what stands above it nor after what stands below (SDM volume 2, RDTSC).
fn tsc() -> u64 {
    // SAFETY: LFENCE (SSE2) and RDTSC exist on every x86-64 processor; Linux leaves CR4.TSD clear unless a process
    // asks for it with `prctl(PR_SET_TSC)`, which we do not.
    unsafe {
        _mm_lfence();
        let tsc = _rdtsc();
        _mm_lfence();
        tsc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_go_forward_and_are_tight() {
        let first = pair();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let second = pair();
        assert!(second.mono.0 - first.mono.0 >= 20_000_000);
        assert!(first.tsc_before < first.tsc_after && first.tsc_after < second.tsc_before);
        // A bracket of 100 µs would be no bracket; a quiet machine gives some tens of nanoseconds.
        let ticks_per_ns = (second.tsc_before.0 - first.tsc_before.0) as f64 / (second.mono.0 - first.mono.0) as f64;
        let wide_ns = (first.tsc_after.0 - first.tsc_before.0) as f64 / ticks_per_ns;
        assert!(wide_ns < 100_000.0, "bracket of {wide_ns} ns");
    }

    #[test]
    fn the_nominal_frequency_agrees_with_the_clock() {
        let khz = tsc_khz();
        if khz == 0 {
            return println!("skipped: neither the processor nor the hypervisor says the TSC's frequency");
        }
        let first = pair();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let second = pair();
        let measured = (second.tsc_before.0 - first.tsc_before.0) as f64 * 1e6 / (second.mono.0 - first.mono.0) as f64;
        assert!(
            (measured / khz as f64 - 1.0).abs() < 0.01,
            "measured {measured} kHz, nominal {khz} kHz"
        );
    }

    #[test]
    fn the_clocks_are_those_that_they_say() {
        assert!(realtime_ns() > 1_700_000_000_000_000_000);
        let before = process_cpu_ns();
        let mut sum = 0_u64;
        (0..5_000_000_u64).for_each(|i| sum = std::hint::black_box(sum.wrapping_add(i)));
        assert!(process_cpu_ns() > before);
    }
}
