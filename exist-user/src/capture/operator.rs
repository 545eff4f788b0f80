//! The thread that starts and stops tracers. It has real-time priority, since a busy machine is where a trace is wanted,
//! and does nothing that takes long: memory is prepared before, bytes are read by whoever gets the [`Recording`].

use std::{
    collections::BTreeMap,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use exist_trace::{
    file::model::{ControlKind, ControlOp, Loss, LossKind, PtBytes},
    units::{Cpu, MonoNs},
};

use super::{AuxLog, Prepared, PtSource, Tracer, aux_log::Window, prepare::unavailable};
use crate::{
    alloc::DEFAULT_BUFFER_BYTES,
    sys::{
        clock,
        poll::{self, Ready},
        rt,
    },
};

/// What to do with a CPU's tracer: the controller's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Start it; open it first if it is not prepared (a CPU that came online). `seen`: when the target was first switched
    /// in here without it; `None`: started before that.
    Enable { cpu: Cpu, seen: Option<MonoNs> },
    /// Stop it and hand over what it wrote.
    Disable(Cpu),
    /// The CPU is offline, the kernel has stopped it: hand over what it wrote.
    Abandon(Cpu),
}

/// What came of it.
pub enum Report {
    Op(ControlOp),
    Loss(Loss),
    EnableFailed(Cpu),
    BufferFull(Cpu),
    /// The window of a CPU is over.
    Recorded(Recording),
}

/// The window of one CPU, stopped: to be read, written to the file, and closed at once, since until then no other
/// program can use the CPU's tracer.
pub struct Recording {
    window: Window,
    tracer: Box<dyn Tracer>,
    log: AuxLog,
    /// Offset of the buffer's first byte in the CPU's stream.
    base: u64,
}

impl Recording {
    #[must_use]
    pub fn cpu(&self) -> Cpu {
        self.window.cpu
    }

    /// When the tracer stopped: when it was disabled, or before that because its buffer was full or its CPU gone.
    #[must_use]
    pub fn recorded_until(&self) -> MonoNs {
        self.log
            .full_since(self.window.buffer_bytes)
            .unwrap_or(self.window.disabled)
    }

    /// What the tracer wrote, bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tracer.bytes().len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the tracer wrote, in pieces of at most 1 MiB. A second window of the CPU starts at a higher offset than the
    /// first ended: the streams do not join.
    pub fn pieces(&self) -> impl Iterator<Item = PtBytes> + '_ {
        self.log.pieces(self.window.cpu, self.base, self.tracer.bytes())
    }

    /// Gives the tracer and its memory back.
    #[must_use]
    pub fn close(self) -> ControlOp {
        let (cpu, from) = (self.window.cpu, now());
        drop(self);
        op(ControlKind::PtClose, cpu, from, None)
    }
}

/// The real-time thread; it ends, and every tracer with it, when this is dropped.
pub struct Operator {
    requests: Option<Sender<Request>>,
    wake: PipeWriter,
    thread: Option<JoinHandle<()>>,
    real_time: Arc<AtomicBool>,
}

impl Operator {
    /// Starts the thread with what is prepared. `report` is called on the thread: it must not block.
    ///
    /// # Errors
    /// When the system has no thread or no descriptor left.
    pub fn start(
        source: Box<dyn PtSource>,
        prepared: Prepared,
        report: Box<dyn FnMut(Report) + Send>,
    ) -> io::Result<Self> {
        let (requests, received) = channel();
        let (woken, wake) = io::pipe()?;
        let real_time = Arc::new(AtomicBool::new(false));
        let mut state = State {
            source,
            slots: prepared
                .tracers
                .into_iter()
                .map(|(cpu, tracer)| (cpu, Slot::new(tracer)))
                .collect(),
            buffer_bytes: prepared
                .settings
                .buffers
                .first()
                .map_or(DEFAULT_BUFFER_BYTES, |buffer| buffer.bytes),
            bases: BTreeMap::new(),
            report,
        };
        let is_real_time = Arc::clone(&real_time);
        let thread = std::thread::Builder::new()
            .name("exist-tracers".to_owned())
            .spawn(move || {
                is_real_time.store(rt::become_real_time().is_ok(), Ordering::Relaxed);
                state.run(&received, &woken);
            })?;
        Ok(Self {
            requests: Some(requests),
            wake,
            thread: Some(thread),
            real_time,
        })
    }

    /// Asks for an operation; its result comes as [`Report`]s.
    pub fn request(&mut self, request: Request) {
        if let Some(requests) = &self.requests {
            // The thread lives as long as this sender; a full pipe wakes it as well as one more byte.
            let _ = requests.send(request);
            let _ = self.wake.write(&[0]);
        }
    }

    /// Whether the thread got real-time priority. Without it (no CAP_SYS_NICE), enabling on a busy machine is late.
    #[must_use]
    pub fn is_real_time(&self) -> bool {
        self.real_time.load(Ordering::Relaxed)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.wake.write(&[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Slot {
    tracer: Box<dyn Tracer>,
    log: AuxLog,
    /// Since when it runs.
    enabled: Option<MonoNs>,
    /// Whether its descriptor can still say something.
    watched: bool,
}

impl Slot {
    fn new(tracer: Box<dyn Tracer>) -> Self {
        Self {
            tracer,
            log: AuxLog::default(),
            enabled: None,
            watched: true,
        }
    }

    fn is_full(&self) -> bool {
        self.log.full_since(self.tracer.buffer_bytes()).is_some()
    }

    fn read_records(&mut self) {
        let mut bytes = Vec::new();
        self.tracer.drain_records_into(&mut bytes);
        self.log.add(&bytes);
    }
}

struct State {
    source: Box<dyn PtSource>,
    slots: BTreeMap<Cpu, Slot>,
    /// For a CPU that is not prepared.
    buffer_bytes: u64,
    /// Where the next window of a CPU starts in its stream.
    bases: BTreeMap<Cpu, u64>,
    report: Box<dyn FnMut(Report) + Send>,
}

impl State {
    fn run(&mut self, requests: &Receiver<Request>, woken: &PipeReader) {
        loop {
            let (readable, full) = match self.wait(woken) {
                Ok(ready) => ready,
                // No memory for the answer, for example: look at the requests, the buffers stop by themselves.
                Err(_) => (true, Vec::new()),
            };
            full.into_iter().for_each(|cpu| self.full(cpu));
            if readable && matches!((&mut &*woken).read(&mut [0; 64]), Ok(0) | Err(_)) {
                return;
            }
            loop {
                match requests.try_recv() {
                    Ok(request) => self.carry_out(request),
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Waits for requests, and for tracers whose buffer may be full.
    fn wait(&mut self, woken: &PipeReader) -> io::Result<(bool, Vec<Cpu>)> {
        let running: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.enabled.is_some() && slot.watched)
            .filter_map(|(&cpu, slot)| Some((cpu, slot.tracer.full_fd()?)))
            .collect();
        let fds: Vec<_> = std::iter::once(woken.as_fd())
            .chain(running.iter().map(|(_, fd)| *fd))
            .collect();
        let ready = poll::wait(&fds, None)?;
        let (requests, tracers) = ready.split_first().expect("one answer for each descriptor");
        let said: Vec<_> = running
            .iter()
            .zip(tracers)
            .filter(|(_, ready)| **ready != Ready::Nothing)
            .map(|((cpu, _), ready)| (*cpu, *ready))
            .collect();
        for (cpu, ready) in &said {
            if let Some(slot) = self.slots.get_mut(cpu) {
                slot.watched = *ready != Ready::Gone;
            }
        }
        Ok((
            *requests != Ready::Nothing,
            said.into_iter().map(|(cpu, _)| cpu).collect(),
        ))
    }

    fn full(&mut self, cpu: Cpu) {
        let Some(slot) = self.slots.get_mut(&cpu) else {
            return;
        };
        let was_full = slot.is_full();
        slot.read_records();
        if !was_full && slot.is_full() {
            (self.report)(Report::BufferFull(cpu));
        }
    }

    fn carry_out(&mut self, request: Request) {
        match request {
            Request::Enable { cpu, seen } => self.enable(cpu, seen),
            Request::Disable(cpu) => self.disable(cpu),
            Request::Abandon(cpu) => self.abandon(cpu),
        }
    }

    fn enable(&mut self, cpu: Cpu, seen: Option<MonoNs>) {
        if !self.slots.contains_key(&cpu) && !self.open(cpu) {
            return;
        }
        let Some(slot) = self.slots.get_mut(&cpu).filter(|slot| slot.enabled.is_none()) else {
            return;
        };
        let from = now();
        let result = slot.tracer.enable();
        let done = op(ControlKind::PtEnable, cpu, from, result.err());
        match &done.error {
            None => slot.enabled = Some(done.to),
            Some(error) => {
                self.slots.remove(&cpu);
                (self.report)(Report::Loss(unavailable(cpu, done.from, done.to, error)));
                (self.report)(Report::EnableFailed(cpu));
            }
        }
        if let (None, Some(seen)) = (&done.error, seen) {
            let late = done.to.0.saturating_sub(seen.0);
            (self.report)(Report::Loss(Loss {
                from: seen,
                to: done.to,
                cpu: Some(cpu),
                kind: LossKind::PtLate,
                records: 0,
                bytes: 0,
                reason: format!("the target ran here {} µs before the CPU's tracer did", late / 1000),
            }));
        }
        (self.report)(Report::Op(done));
    }

    fn open(&mut self, cpu: Cpu) -> bool {
        let from = now();
        let opened = self.source.open(cpu, self.buffer_bytes);
        let error = match opened {
            Ok(tracer) => {
                self.slots.insert(cpu, Slot::new(tracer));
                None
            }
            Err(error) => Some(error.to_string()),
        };
        let to = now();
        if let Some(error) = &error {
            (self.report)(Report::Loss(unavailable(cpu, from, to, error)));
            (self.report)(Report::EnableFailed(cpu));
        }
        let opened = error.is_none();
        (self.report)(Report::Op(ControlOp {
            from,
            to,
            cpu: Some(cpu),
            kind: ControlKind::PtOpen,
            error,
        }));
        opened
    }

    fn disable(&mut self, cpu: Cpu) {
        let Some(mut slot) = self.slots.remove(&cpu) else {
            return;
        };
        let Some(enabled) = slot.enabled else {
            return;
        };
        let from = now();
        let result = slot.tracer.disable();
        let done = op(ControlKind::PtDisable, cpu, from, result.err());
        let stop = (done.from, done.to);
        (self.report)(Report::Op(done));
        self.hand_over(cpu, slot, enabled, stop);
    }

    fn abandon(&mut self, cpu: Cpu) {
        let Some(mut slot) = self.slots.remove(&cpu) else {
            return;
        };
        let Some(enabled) = slot.enabled else {
            return;
        };
        slot.read_records();
        // On a CPU that is gone this is no operation, but from it on the bytes are ours to read.
        let result = slot.tracer.disable();
        let found = now();
        let stopped = slot.log.stopped().unwrap_or(enabled);
        (self.report)(Report::Loss(Loss {
            from: stopped,
            to: found,
            cpu: Some(cpu),
            kind: LossKind::CpuHotplug,
            records: 0,
            bytes: 0,
            reason: match result {
                Ok(()) => "the CPU went offline: its processor trace ended".to_owned(),
                Err(error) => format!("the CPU went offline, and its processor trace cannot be read: {error}"),
            },
        }));
        self.hand_over(cpu, slot, enabled, (stopped, stopped));
    }

    fn hand_over(&mut self, cpu: Cpu, mut slot: Slot, enabled: MonoNs, (disabling, disabled): (MonoNs, MonoNs)) {
        slot.read_records();
        let window = Window {
            cpu,
            enabled,
            disabling,
            disabled,
            buffer_bytes: slot.tracer.buffer_bytes(),
        };
        for loss in slot.log.losses(&window) {
            (self.report)(Report::Loss(loss));
        }
        let base = self.bases.entry(cpu).or_default();
        let recording = Recording {
            window,
            log: slot.log,
            base: *base,
            tracer: slot.tracer,
        };
        // One beyond the end: no reader may take the next window for a continuation.
        *base += recording.len() as u64 + 1;
        (self.report)(Report::Recorded(recording));
    }
}

fn now() -> MonoNs {
    MonoNs(clock::mono_ns())
}

fn op(kind: ControlKind, cpu: Cpu, from: MonoNs, error: Option<io::Error>) -> ControlOp {
    ControlOp {
        from,
        to: now(),
        cpu: Some(cpu),
        kind,
        error: error.map(|error| error.to_string()),
    }
}

#[cfg(test)]
#[path = "operator_tests.rs"]
mod tests;
