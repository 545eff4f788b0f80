//! Chooses how the processor trace is programmed: each bit of `perf_event_attr.config` checked against what the machine
//! can (`caps/`) and what the kernel knows (`format/`), as `arch/x86/events/intel/pt.c`, `pt_event_valid`, will again.

use exist_trace::file::model::PtSettings;
use perf_event_open_sys::bindings::{self, perf_event_attr};
use thiserror::Error;

use crate::sys::pt::PtDevice;

/// MTC every 2^3 crystal ticks, 0.3 µs at 24 MHz: finer than any pair of switches, and 2 bytes each.
/// (SDM volume 3, "Intel Processor Trace", MTC packet.)
const MTC_PERIOD: u32 = 3;
/// PSB every 2^(3 + 11) bytes: 1,024 places in 16 MiB where decoding can start.
const PSB_PERIOD: u32 = 3;

/// Settings that the machine can take, and what follows from its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// `perf_event_attr.type`.
    pub pmu_type: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// `perf_event_attr.aux_watermark`, bytes.
    pub aux_watermark: u32,
    /// For the user: what this machine cannot do, and what that means.
    pub notes: Vec<String>,
}

/// Why no settings fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    #[error("the kernel's intel_pt has no setting `{0}`: it is older than 4.2, or not the intel_pt that is meant")]
    NoFormat(&'static str),
    #[error("the kernel's intel_pt has no room for {value} in `{name}`")]
    NoRoom { name: &'static str, value: u64 },
    #[error("this processor's trace cannot be written through a table of regions (caps/topa_output is 0)")]
    NoTable,
}

impl Choice {
    /// Branches with time, return compression on, no cycles.
    ///
    /// # Errors
    /// When the kernel lacks a setting without which a trace is of no use, or the processor an output through tables.
    pub fn for_device(device: &PtDevice) -> Result<Self, SettingsError> {
        if device.cap("topa_output") == 0 {
            return Err(SettingsError::NoTable);
        }
        let mut notes = Vec::new();
        let mut config = field(device, "tsc", 1)?;
        // `noretcomp` and `cyc` stay 0. Bit 0 hands `branch` through; kernels without it always trace branches. Broadwell
        // faults when `branch` is 0 (erratum BDM106; pt.c, `branch_en_always_on`), so it is set wherever it exists.
        if device.format.contains_key("pt") && device.format.contains_key("branch") {
            config |= field(device, "pt", 1)? | field(device, "branch", 1)?;
        }
        match nearest(device.cap("mtc_periods"), MTC_PERIOD) {
            Some(period) if device.cap("mtc") == 1 => {
                config |= field(device, "mtc", 1)? | field(device, "mtc_period", period.into())?;
            }
            _ => notes.push(
                "this processor sends no MTC packets (Broadwell): time within the trace is coarse, and more switches \
                 stay ambiguous"
                    .to_owned(),
            ),
        }
        // 0 is valid everywhere: the period of 2 KiB that the processor starts with.
        match nearest(device.cap("psb_periods"), PSB_PERIOD) {
            Some(period) if device.cap("psb_cyc") == 1 => config |= field(device, "psb_period", period.into())?,
            _ => notes.push("this processor has one fixed distance of synchronization points (Broadwell)".to_owned()),
        }
        if device.tsc_art_ratio.0 == 0 {
            notes.push(
                "the processor does not say the ratio of TSC to crystal clock: MTC packets give no time".to_owned(),
            );
        }
        let aux_watermark = if device.cap("topa_multiple_entries") == 1 {
            ONE_INTERRUPT
        } else {
            notes.push(
                "this processor's table has one region at a time (Broadwell): a window takes an interrupt for each region"
                    .to_owned(),
            );
            FEWEST_REGIONS
        };
        Ok(Self {
            pmu_type: device.pmu_type,
            config,
            aux_watermark,
            notes,
        })
    }

    /// The event: user mode of every process on a CPU, not started, its records stamped with CLOCK_MONOTONIC.
    ///
    /// `aux_start_paused` (6.13) is the bit to add, with a second event in the group that resumes at the first matching
    /// switch, when the kernel itself shall start the tracer.
    #[must_use]
    pub fn attr(&self) -> perf_event_attr {
        let mut attr = perf_event_attr {
            type_: self.pmu_type,
            config: self.config,
            sample_type: u64::from(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_CPU),
            aux_watermark: self.aux_watermark,
            clockid: libc::CLOCK_MONOTONIC,
            ..Default::default()
        };
        attr.set_disabled(1);
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
        attr.set_sample_id_all(1);
        attr.set_use_clockid(1);
        // Records shall not wake us, only a full buffer (which wakes whatever this says).
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        attr
    }

    /// The settings in perf's own words, as after `-e intel_pt/…/u`: those that are not 0.
    #[must_use]
    pub fn terms(&self, device: &PtDevice) -> String {
        let terms: Vec<_> = device
            .format
            .iter()
            .filter_map(|(name, field)| match field.decode(self.config) {
                0 => None,
                1 if field.bits == 1 => Some(name.clone()),
                value => Some(format!("{name}={value}")),
            })
            .collect();
        format!("intel_pt/{}/u", terms.join(","))
    }

    /// What the file's header says of it.
    #[must_use]
    pub fn header(&self, device: &PtDevice) -> PtSettings {
        PtSettings {
            config: self.config,
            tsc_art_numerator: device.tsc_art_ratio.0,
            tsc_art_denominator: device.tsc_art_ratio.1,
            max_nonturbo_ratio: device.max_nonturbo_ratio,
            notes: self.notes.clone(),
            caps: device
                .caps
                .iter()
                .map(|(name, text)| (name.clone(), text.clone()))
                .collect(),
            ..PtSettings::default()
        }
    }
}

/// Below one page, the kernel makes regions of one page (`kernel/events/ring_buffer.c`, `rb_alloc_aux`: `get_order` of
/// the watermark), and the driver sets the interrupt's mark before the page of the watermark, page 0: at the last region,
/// where the stop is (pt.c, `pt_buffer_reset_markers`). So the one interrupt of a window is that of a full buffer. With
/// the default, half the buffer, there are two; with larger regions, the last but one of them also interrupts.
const ONE_INTERRUPT: u32 = 1;
/// Regions as large as the kernel can make them.
const FEWEST_REGIONS: u32 = u32::MAX;

fn field(device: &PtDevice, name: &'static str, value: u64) -> Result<u64, SettingsError> {
    let field = device.format.get(name).ok_or(SettingsError::NoFormat(name))?;
    field.encode(value).ok_or(SettingsError::NoRoom { name, value })
}

/// The set bit of `bitmap` that is nearest to `wanted`; of two, the higher one, which costs fewer bytes.
fn nearest(bitmap: u32, wanted: u32) -> Option<u32> {
    (0..u32::BITS)
        .rev()
        .filter(|bit| bitmap >> bit & 1 == 1)
        .min_by_key(|bit| bit.abs_diff(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::pt::tests::skylake;

    const PT: u64 = 1;
    const MTC: u64 = 1 << 9;
    const TSC: u64 = 1 << 10;
    const BRANCH: u64 = 1 << 13;
    const MTC_PERIOD_AT: u32 = 14;
    const PSB_PERIOD_AT: u32 = 24;

    fn check(caps: &[(&str, &str)], config: u64, notes: usize) {
        let choice = Choice::for_device(&skylake(caps)).unwrap();
        assert_eq!(
            choice.config, config,
            "{caps:?}: {:#x} is not {config:#x}",
            choice.config
        );
        assert_eq!(choice.notes.len(), notes, "{caps:?}: {:?}", choice.notes);
    }

    #[test]
    fn each_setting_follows_its_capability() {
        let all = PT | TSC | BRANCH | MTC | 3 << MTC_PERIOD_AT | 3 << PSB_PERIOD_AT;
        check(&[], all, 0);
        // The nearest period that the bitmap has; of two, the longer.
        let mtc = |period: u64| all & !(15 << MTC_PERIOD_AT) | period << MTC_PERIOD_AT;
        check(&[("mtc_periods", "1")], mtc(0), 0);
        check(&[("mtc_periods", "14")], mtc(4), 0);
        check(&[("mtc_periods", "8000")], mtc(15), 0);
        check(&[("psb_periods", "1")], all & !(15 << PSB_PERIOD_AT), 0);
        check(
            &[("psb_periods", "20")],
            all & !(15 << PSB_PERIOD_AT) | 5 << PSB_PERIOD_AT,
            0,
        );
        // Setting the period's bits without MTC faults: neither may be set.
        let no_mtc = PT | TSC | BRANCH | 3 << PSB_PERIOD_AT;
        check(&[("mtc", "0")], no_mtc, 1);
        check(&[("mtc_periods", "0")], no_mtc, 1);
        // Broadwell.
        let broadwell = [("mtc", "0"), ("psb_cyc", "0"), ("topa_multiple_entries", "0")];
        check(&broadwell, PT | TSC | BRANCH, 3);
    }

    #[test]
    fn bits_the_kernel_does_not_know_are_not_set() {
        let mut old = skylake(&[]);
        old.format.remove("pt");
        old.format.remove("branch");
        let choice = Choice::for_device(&old).unwrap();
        assert_eq!(choice.config & (PT | BRANCH), 0);
        old.format.remove("tsc");
        assert_eq!(Choice::for_device(&old), Err(SettingsError::NoFormat("tsc")));
        assert_eq!(
            Choice::for_device(&skylake(&[("topa_output", "0")])),
            Err(SettingsError::NoTable)
        );
    }

    #[test]
    fn the_event_is_per_cpu_user_mode_and_stopped() {
        let choice = Choice::for_device(&skylake(&[])).unwrap();
        let attr = choice.attr();
        assert_eq!((attr.type_, attr.config), (8, choice.config));
        assert_eq!((attr.disabled(), attr.exclude_kernel(), attr.exclude_hv()), (1, 1, 1));
        assert_eq!((attr.exclude_user(), attr.inherit(), attr.enable_on_exec()), (0, 0, 0));
        assert_eq!(attr.aux_watermark, 1);
        assert_eq!(choice.header(&skylake(&[])).tsc_art_numerator, 284);
    }

    #[test]
    fn settings_read_as_perf_writes_them() {
        let said = |caps: &[(&str, &str)]| {
            let device = skylake(caps);
            Choice::for_device(&device).unwrap().terms(&device)
        };
        assert_eq!(said(&[]), "intel_pt/branch,mtc,mtc_period=3,psb_period=3,pt,tsc/u");
        let broadwell = [("mtc", "0"), ("psb_cyc", "0"), ("topa_multiple_entries", "0")];
        assert_eq!(said(&broadwell), "intel_pt/branch,pt,tsc/u");
    }

    #[test]
    fn a_table_of_one_region_gets_the_largest_regions() {
        let choice = Choice::for_device(&skylake(&[("topa_multiple_entries", "0")])).unwrap();
        assert_eq!(choice.attr().aux_watermark, u32::MAX);
    }

    #[test]
    fn the_nearest_bit() {
        assert_eq!(nearest(0, 3), None);
        assert_eq!(nearest(0b1000, 3), Some(3));
        assert_eq!(nearest(0b10100, 3), Some(4));
        assert_eq!(nearest(0b100, 3), Some(2));
    }
}
