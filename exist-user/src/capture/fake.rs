//! Tracers for tests, on a machine without any: they write what they are told, and everything done to them is noted.

use std::{
    collections::BTreeMap,
    io::{self, PipeReader, PipeWriter, Write},
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard},
};

use exist_trace::{file::model::PtSettings, units::Cpu};
use perf_event_open_sys::bindings;

use super::{OpenError, PtSource, Tracer};

/// A machine of tracers; clones are the same machine.
#[derive(Clone, Default)]
pub struct FakePt(Arc<Mutex<Machine>>);

#[derive(Default)]
struct Machine {
    /// Everything that was done, in order.
    said: Vec<String>,
    /// What a CPU refuses with.
    refused: BTreeMap<Cpu, i32>,
    /// All buffers together; `None`: no limit.
    memory: Option<u64>,
    used: u64,
    cpus: BTreeMap<Cpu, FakeState>,
}

#[derive(Default)]
struct FakeState {
    area: Vec<u8>,
    records: Vec<u8>,
    enabled: bool,
    buffer_bytes: u64,
    full: Option<PipeWriter>,
}

impl FakePt {
    /// Opening fails with EPERM when all buffers together would exceed this.
    #[must_use]
    pub fn with_memory(bytes: u64) -> Self {
        let fake = Self::default();
        fake.lock().memory = Some(bytes);
        fake
    }

    /// From now on this CPU's tracer is refused: when it is opened, or when it is enabled if it is open.
    pub fn refuse(&self, cpu: Cpu, errno: i32) {
        self.lock().refused.insert(cpu, errno);
    }

    /// The tracer writes these bytes; what does not fit stops it, as the hardware would.
    pub fn write(&self, cpu: Cpu, bytes: &[u8]) {
        let mut machine = self.lock();
        let state = machine.cpus.get_mut(&cpu).expect("the test opened it");
        assert!(state.enabled, "CPU {cpu} writes while its tracer is off");
        let room = usize::try_from(state.buffer_bytes).unwrap() - state.area.len();
        let fits = bytes.len().min(room);
        state.area.extend_from_slice(&bytes[..fits]);
        if fits < bytes.len() || fits == room {
            state.stop(1);
            if let Some(mut full) = state.full.take() {
                full.write_all(&[0]).unwrap();
            }
        }
    }

    /// The CPU goes offline: the kernel stops the tracer.
    pub fn take_offline(&self, cpu: Cpu) {
        self.lock().cpus.get_mut(&cpu).expect("the test opened it").stop(0);
    }

    /// Everything that was done: `open0 enable0 disable0 close0`.
    #[must_use]
    pub fn said(&self) -> String {
        self.lock().said.join(" ")
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().expect("no test panics while it holds this")
    }
}

impl FakeState {
    /// Ends the transaction: one AUX record for what is new.
    fn stop(&mut self, flags: u64) {
        if std::mem::take(&mut self.enabled) {
            let size = self.area.len() as u64;
            self.records
                .extend(aux_record(crate::sys::clock::mono_ns(), 0, size, flags));
        }
    }
}

impl PtSource for FakePt {
    fn settings(&self) -> PtSettings {
        PtSettings {
            config: 0x2601,
            ..PtSettings::default()
        }
    }

    fn open(&self, cpu: Cpu, buffer_bytes: u64) -> Result<Box<dyn Tracer>, OpenError> {
        let mut machine = self.lock();
        match machine.refused.get(&cpu) {
            Some(&libc::ENODEV) => return Err(OpenError::Offline(cpu)),
            Some(_) => {
                return Err(OpenError::Busy {
                    cpu,
                    holders: "these may hold it: a test".to_owned(),
                });
            }
            None => {}
        }
        if machine
            .memory
            .is_some_and(|memory| machine.used + buffer_bytes > memory)
        {
            return Err(OpenError::Memory {
                bytes: buffer_bytes,
                error: io::Error::from_raw_os_error(libc::EPERM),
            });
        }
        machine.used += buffer_bytes;
        machine.said.push(format!("open{cpu}"));
        let (reader, writer) = io::pipe().expect("a test has descriptors");
        machine.cpus.insert(
            cpu,
            FakeState {
                buffer_bytes,
                full: Some(writer),
                ..FakeState::default()
            },
        );
        Ok(Box::new(FakeTracer {
            machine: self.clone(),
            cpu,
            buffer_bytes,
            full: reader,
            stopped: Vec::new(),
        }))
    }
}

struct FakeTracer {
    machine: FakePt,
    cpu: Cpu,
    buffer_bytes: u64,
    full: PipeReader,
    stopped: Vec<u8>,
}

impl FakeTracer {
    fn change<T>(&self, change: impl FnOnce(&mut FakeState) -> T) -> T {
        let mut machine = self.machine.lock();
        change(machine.cpus.get_mut(&self.cpu).expect("it is there from open to close"))
    }
}

impl Tracer for FakeTracer {
    fn enable(&mut self) -> io::Result<()> {
        let mut machine = self.machine.lock();
        if let Some(&errno) = machine.refused.get(&self.cpu) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        machine.said.push(format!("enable{}", self.cpu));
        drop(machine);
        self.change(|state| state.enabled = true);
        Ok(())
    }

    fn disable(&mut self) -> io::Result<()> {
        self.machine.lock().said.push(format!("disable{}", self.cpu));
        self.stopped = self.change(|state| {
            state.stop(0);
            state.area.clone()
        });
        Ok(())
    }

    fn full_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.full.as_fd())
    }

    fn drain_records_into(&mut self, out: &mut Vec<u8>) {
        self.change(|state| out.append(&mut state.records));
    }

    fn bytes(&self) -> &[u8] {
        &self.stopped
    }

    fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }
}

impl Drop for FakeTracer {
    fn drop(&mut self) {
        let mut machine = self.machine.lock();
        machine.used -= self.buffer_bytes;
        machine.said.push(format!("close{}", self.cpu));
    }
}

/// A `PERF_RECORD_AUX` as the kernel writes it.
pub fn aux_record(time_ns: u64, offset: u64, size: u64, flags: u64) -> Vec<u8> {
    record(bindings::PERF_RECORD_AUX, time_ns, &[offset, size, flags])
}

/// A `PERF_RECORD_LOST` as the kernel writes it.
pub fn lost_record(count: u64) -> Vec<u8> {
    record(bindings::PERF_RECORD_LOST, 0, &[0, count])
}

fn record(kind: u32, time_ns: u64, body: &[u64]) -> Vec<u8> {
    let size = 8 + 8 * body.len() + 24;
    let header = u64::from(kind) | (size as u64) << 48;
    let stamp = [7 | 8 << 32, time_ns, 3];
    let words = [&[header], body, &stamp].concat();
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}
