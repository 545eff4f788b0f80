//! What the kernel says about this machine's Intel PT: `/sys/bus/event_source/devices/intel_pt` (the root can be elsewhere).

use std::{collections::BTreeMap, fs, io, path::Path};

use thiserror::Error;

/// The `intel_pt` PMU as the kernel offers it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PtDevice {
    /// `perf_event_attr.type`.
    pub pmu_type: u32,
    /// `caps/*`: fields of CPUID leaf 14H by the kernel's names, as the kernel prints them (hexadecimal).
    pub caps: BTreeMap<String, String>,
    /// `format/*`: where in `perf_event_attr.config` each setting lies.
    pub format: BTreeMap<String, Field>,
    /// Ratio of the maximum non-turbo frequency to the bus clock; 0 when unknown.
    pub max_nonturbo_ratio: u32,
    /// TSC ticks and crystal ticks (CPUID 15H, EBX and EAX); 0 when the processor does not say.
    pub tsc_art_ratio: (u32, u32),
}

/// Bits of `perf_event_attr.config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub first_bit: u32,
    pub bits: u32,
}

/// Why there is no device to use.
#[derive(Debug, Error)]
pub enum PtDeviceError {
    #[error(
        "this kernel offers no Intel PT here (no {0}): the processor has none, the firmware or the hypervisor hides it, \
         or the kernel is built without it"
    )]
    Absent(String),
    #[error("failed to read {path}: {error}")]
    Read { path: String, error: io::Error },
    #[error("{path} says `{text}`, which is not {expected}")]
    Text {
        path: String,
        text: String,
        expected: &'static str,
    },
}

impl PtDevice {
    /// Reads it below `sys`, where `/sys` is mounted.
    ///
    /// # Errors
    /// [`PtDeviceError::Absent`] where there is no Intel PT; the others for files that say what no kernel says.
    pub fn read(sys: &Path) -> Result<Self, PtDeviceError> {
        let dir = sys.join("bus/event_source/devices/intel_pt");
        if !dir.exists() {
            return Err(PtDeviceError::Absent(dir.display().to_string()));
        }
        let format = texts(&dir.join("format"))?
            .into_iter()
            .map(|(name, text)| match Field::parse(&text) {
                Some(field) => Ok((name, field)),
                None => Err(unexpected(&dir.join("format").join(name), text, "bits of `config`")),
            })
            .collect::<Result<_, _>>()?;
        let path = dir.join("type");
        let text = text(&path)?;
        let pmu_type = text
            .parse()
            .map_err(|_| unexpected(&path, text, "the number of a PMU"))?;
        // Both came with 4.4; an older kernel, or a processor that does not say, leaves time coarser.
        let ratio = fs::read_to_string(dir.join("tsc_art_ratio")).unwrap_or_default();
        let (numerator, denominator) = ratio.trim().split_once(':').unwrap_or_default();
        let nonturbo = fs::read_to_string(dir.join("max_nonturbo_ratio")).unwrap_or_default();
        Ok(Self {
            pmu_type,
            caps: texts(&dir.join("caps"))?.into_iter().collect(),
            format,
            max_nonturbo_ratio: nonturbo.trim().parse().unwrap_or(0),
            tsc_art_ratio: (numerator.parse().unwrap_or(0), denominator.parse().unwrap_or(0)),
        })
    }

    /// A capability as a number or bitmap; 0 when this kernel does not name it.
    #[must_use]
    pub fn cap(&self, name: &str) -> u32 {
        self.caps
            .get(name)
            .and_then(|text| u32::from_str_radix(text, 16).ok())
            .unwrap_or(0)
    }
}

impl Field {
    /// `config:9` or `config:14-17`.
    fn parse(text: &str) -> Option<Self> {
        let bits = text.strip_prefix("config:")?;
        let (first, last) = bits.split_once('-').unwrap_or((bits, bits));
        let (first_bit, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (first_bit <= last && last < 64).then(|| Self {
            first_bit,
            bits: last - first_bit + 1,
        })
    }

    /// `value` at its place in `config`; `None` when it does not fit.
    #[must_use]
    pub fn encode(self, value: u64) -> Option<u64> {
        (u64::BITS - value.leading_zeros() <= self.bits).then(|| value << self.first_bit)
    }

    /// The value that stands at its place in `config`.
    #[must_use]
    pub fn decode(self, config: u64) -> u64 {
        let above = u64::BITS.saturating_sub(self.bits);
        config.checked_shr(self.first_bit).unwrap_or(0) << above >> above
    }
}

/// The files of a folder with what they say, trimmed.
fn texts(dir: &Path) -> Result<Vec<(String, String)>, PtDeviceError> {
    let read = |error| PtDeviceError::Read {
        path: dir.display().to_string(),
        error,
    };
    fs::read_dir(dir)
        .map_err(read)?
        .map(|entry| {
            let entry = entry.map_err(read)?;
            Ok((entry.file_name().to_string_lossy().into_owned(), text(&entry.path())?))
        })
        .collect()
}

fn text(path: &Path) -> Result<String, PtDeviceError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(PtDeviceError::Read {
            path: path.display().to_string(),
            error,
        }),
    }
}

fn unexpected(path: &Path, text: String, expected: &'static str) -> PtDeviceError {
    PtDeviceError::Text {
        path: path.display().to_string(),
        text,
        expected,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A device as Skylake's kernel shows it, with `caps` on top.
    pub(crate) fn skylake(caps: &[(&str, &str)]) -> PtDevice {
        let known = [
            ("max_subleaf", "1"),
            ("cr3_filtering", "1"),
            ("psb_cyc", "1"),
            ("ip_filtering", "1"),
            ("mtc", "1"),
            ("ptwrite", "0"),
            ("topa_output", "1"),
            ("topa_multiple_entries", "1"),
            ("single_range_output", "1"),
            ("payloads_lip", "0"),
            ("num_address_ranges", "2"),
            ("mtc_periods", "249"),
            ("cycle_thresholds", "3fff"),
            ("psb_periods", "3f"),
        ];
        let format = [
            ("pt", 0, 1),
            ("cyc", 1, 1),
            ("pwr_evt", 4, 1),
            ("fup_on_ptw", 5, 1),
            ("mtc", 9, 1),
            ("tsc", 10, 1),
            ("noretcomp", 11, 1),
            ("ptw", 12, 1),
            ("branch", 13, 1),
            ("mtc_period", 14, 4),
            ("cyc_thresh", 19, 4),
            ("psb_period", 24, 4),
        ];
        PtDevice {
            pmu_type: 8,
            caps: known
                .iter()
                .chain(caps)
                .map(|&(name, text)| (name.to_owned(), text.to_owned()))
                .collect(),
            format: format
                .into_iter()
                .map(|(name, first_bit, bits)| (name.to_owned(), Field { first_bit, bits }))
                .collect(),
            max_nonturbo_ratio: 34,
            tsc_art_ratio: (284, 2),
        }
    }

    /// The same device written as files below a fresh root, which goes with the guard.
    struct Root(std::path::PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("exist-pt-{name}-{}", std::process::id()));
            let device = root.join("bus/event_source/devices/intel_pt");
            let write = |path: &str, text: String| {
                let path = device.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            };
            for (name, cap) in &skylake(&[]).caps {
                write(&format!("caps/{name}"), format!("{cap}\n"));
            }
            for (name, Field { first_bit, bits }) in &skylake(&[]).format {
                let last = first_bit + bits - 1;
                let text = if *bits == 1 {
                    format!("config:{first_bit}\n")
                } else {
                    format!("config:{first_bit}-{last}\n")
                };
                write(&format!("format/{name}"), text);
            }
            write("type", "8\n".to_owned());
            write("max_nonturbo_ratio", "34\n".to_owned());
            write("tsc_art_ratio", "284:2\n".to_owned());
            for (path, text) in files {
                write(path, (*text).to_owned());
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_device_is_read_whole() {
        let root = Root::new("whole", &[]);
        assert_eq!(PtDevice::read(&root.0).unwrap(), skylake(&[]));
        assert_eq!(skylake(&[]).cap("mtc_periods"), 0x249);
        assert_eq!(
            skylake(&[]).cap("tnt_disable"),
            0,
            "a name that this kernel does not have"
        );
    }

    #[test]
    fn a_machine_without_pt_is_named_so() {
        let error = PtDevice::read(Path::new("/nonexistent")).unwrap_err();
        assert!(matches!(error, PtDeviceError::Absent(_)), "{error}");
    }

    #[test]
    fn files_that_no_kernel_writes_are_refused_by_name() {
        let check = |name: &str, file: &str, text: &str| {
            let root = Root::new(name, &[(file, text)]);
            let error = PtDevice::read(&root.0).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains(text), "{error}");
        };
        check("type", "type", "minus one");
        check("order", "format/mtc_period", "config:17-14");
        check("register", "format/tsc", "config1:10");
        check("range", "format/event", "config:64");
    }

    #[test]
    fn ratios_that_are_missing_leave_zero() {
        let root = Root::new("ratios", &[("tsc_art_ratio", "many"), ("max_nonturbo_ratio", "")]);
        let device = PtDevice::read(&root.0).unwrap();
        assert_eq!((device.tsc_art_ratio, device.max_nonturbo_ratio), ((0, 0), 0));
    }

    #[test]
    fn fields_hold_what_fits() {
        let field = Field { first_bit: 14, bits: 4 };
        assert_eq!(field.encode(0), Some(0));
        assert_eq!(field.encode(15), Some(15 << 14));
        assert_eq!(field.encode(16), None);
    }
}
