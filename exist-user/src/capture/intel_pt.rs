//! Intel PT through perf: one event of all processes for each logical CPU.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use exist_trace::{file::model::PtSettings, units::Cpu};
use thiserror::Error;

use super::{Choice, OpenError, PtSource, SettingsError, Tracer, holders};
use crate::sys::{
    perf::{AuxEvent, Step},
    pt::{PtDevice, PtDeviceError},
};

/// This machine's Intel PT with its settings.
#[derive(Debug)]
pub struct IntelPt {
    device: PtDevice,
    choice: Choice,
    proc: PathBuf,
}

/// Why this machine has none.
#[derive(Debug, Error)]
pub enum IntelPtError {
    #[error(transparent)]
    Device(#[from] PtDeviceError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl IntelPt {
    /// Looks for it below `sys` and `proc`, where `/sys` and a procfs are mounted, and chooses its settings.
    ///
    /// # Errors
    /// For a machine or a kernel without Intel PT, in words for the user.
    pub fn find(sys: &Path, proc: &Path) -> Result<Self, IntelPtError> {
        let device = PtDevice::read(sys)?;
        let choice = Choice::for_device(&device)?;
        Ok(Self {
            device,
            choice,
            proc: proc.to_owned(),
        })
    }

    /// The settings, and what this machine cannot do.
    #[must_use]
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The settings in perf's own words.
    #[must_use]
    pub fn terms(&self) -> String {
        self.choice.terms(&self.device)
    }
}

impl PtSource for IntelPt {
    fn settings(&self) -> PtSettings {
        self.choice.header(&self.device)
    }

    fn open(&self, cpu: Cpu, buffer_bytes: u64) -> Result<Box<dyn Tracer>, OpenError> {
        let bytes = usize::try_from(buffer_bytes).unwrap_or(usize::MAX);
        match AuxEvent::open(&self.choice.attr(), cpu.0, bytes) {
            Ok(event) => Ok(Box::new(event)),
            Err((step, error)) => Err(self.explain(cpu, buffer_bytes, step, error)),
        }
    }
}

impl IntelPt {
    fn explain(&self, cpu: Cpu, bytes: u64, step: Step, error: io::Error) -> OpenError {
        match (step, error.raw_os_error()) {
            (_, Some(libc::EBUSY)) => OpenError::Busy {
                cpu,
                holders: holders::describe(&self.proc),
            },
            (Step::Open, Some(libc::ENODEV)) => OpenError::Offline(cpu),
            (Step::Open, Some(libc::EACCES | libc::EPERM)) => OpenError::Privilege { cpu, error },
            (Step::Map, Some(libc::ENOMEM | libc::EPERM)) => OpenError::Memory { bytes, error },
            _ => OpenError::Other { cpu, error },
        }
    }
}

impl Tracer for AuxEvent {
    fn enable(&mut self) -> io::Result<()> {
        Self::enable(self)
    }

    fn disable(&mut self) -> io::Result<()> {
        Self::disable(self)
    }

    fn full_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn drain_records_into(&mut self, out: &mut Vec<u8>) {
        Self::drain_records_into(self, out);
    }

    fn bytes(&self) -> &[u8] {
        Self::bytes(self).unwrap_or_default()
    }

    fn buffer_bytes(&self) -> u64 {
        self.area_bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::pt::tests::skylake;

    #[test]
    fn each_refusal_of_the_kernel_has_its_words() {
        let device = skylake(&[]);
        let source = IntelPt {
            choice: Choice::for_device(&device).unwrap(),
            device,
            proc: "/nonexistent".into(),
        };
        let check = |step, errno, expect: &str| {
            let error = source
                .explain(Cpu(2), 16 << 20, step, io::Error::from_raw_os_error(errno))
                .to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(Step::Open, libc::EBUSY, "tracer of CPU 2 is taken: another program");
        check(Step::Open, libc::ENODEV, "CPU 2 is offline");
        check(Step::Open, libc::EACCES, "CAP_PERFMON");
        check(Step::Open, libc::EINVAL, "failed to open the tracer of CPU 2");
        check(Step::Map, libc::ENOMEM, "buffer of 16 MiB");
        check(Step::Map, libc::EPERM, "ulimit -l");
    }

    #[test]
    fn this_machine_says_what_it_has() {
        match IntelPt::find(Path::new("/sys"), Path::new("/proc")) {
            Ok(source) => assert_eq!(source.settings().config, source.choice().config),
            Err(error) => assert!(error.to_string().contains("no Intel PT here"), "{error}"),
        }
    }
}
