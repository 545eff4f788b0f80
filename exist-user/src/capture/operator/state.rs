//! What the thread does.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, PipeReader, Read},
    os::fd::AsFd,
    sync::mpsc::{Receiver, TryRecvError},
};

use exist_trace::{
    file::model::{ControlKind, ControlOp, Loss, LossKind},
    units::{Cpu, MonoNs},
};

use super::{Recording, Report, Request, now, op};
use crate::{
    alloc::Reserve,
    capture::{AuxLog, Prepared, PtSource, Sightings, Tracer, aux_log::Window, prepare::unavailable},
    hook::NoticeKind,
    sys::poll::{self, Ready},
};

struct Slot {
    tracer: Box<dyn Tracer>,
    log: AuxLog,
    /// Since when it runs.
    enabled: Option<MonoNs>,
    /// Whether the controller has asked for it.
    asked: bool,
    /// Whether its descriptor can still say something.
    watched: bool,
}

impl Slot {
    fn new(tracer: Box<dyn Tracer>) -> Self {
        Self {
            tracer,
            log: AuxLog::default(),
            enabled: None,
            asked: false,
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

pub struct State {
    source: Box<dyn PtSource>,
    slots: BTreeMap<Cpu, Slot>,
    /// For CPUs that are not prepared; what is left of it.
    reserve: Reserve,
    left_out: BTreeSet<Cpu>,
    /// Where the next window of a CPU starts in its stream.
    bases: BTreeMap<Cpu, u64>,
    /// While watching.
    sightings: Option<Box<dyn Sightings>>,
    report: Box<dyn FnMut(Report) + Send>,
}

/// What was waited for.
struct Woken {
    /// There are requests.
    requests: bool,
    /// The target may have come to a CPU.
    sightings: bool,
    /// Tracers whose buffer may be full.
    full: Vec<Cpu>,
}

impl State {
    pub fn new(source: Box<dyn PtSource>, prepared: Prepared, report: Box<dyn FnMut(Report) + Send>) -> Self {
        Self {
            source,
            slots: prepared
                .tracers
                .into_iter()
                .map(|(cpu, tracer)| (cpu, Slot::new(tracer)))
                .collect(),
            reserve: prepared.reserve,
            left_out: prepared.left_out,
            bases: BTreeMap::new(),
            sightings: None,
            report,
        }
    }

    pub fn run(&mut self, requests: &Receiver<Request>, woken: &PipeReader) {
        loop {
            let Woken {
                requests: readable,
                sightings,
                full,
            } = self.wait(woken).unwrap_or(Woken {
                // No memory for the answer, for example: look at the others, the buffers stop by themselves.
                requests: true,
                sightings: true,
                full: Vec::new(),
            });
            // First of all: each microsecond is one of which there is no trace.
            if sightings {
                self.look();
            }
            full.into_iter().for_each(|cpu| self.full(cpu));
            if readable && matches!((&mut &*woken).read(&mut [0; 64]), Ok(0) | Err(_)) {
                return;
            }
            loop {
                match requests.try_recv() {
                    Ok(request) => self.carry_out(request),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

    /// Waits for requests, for the target to come to a CPU, and for tracers whose buffer may be full.
    fn wait(&mut self, woken: &PipeReader) -> io::Result<Woken> {
        let running: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.enabled.is_some() && slot.watched)
            .filter_map(|(&cpu, slot)| Some((cpu, slot.tracer.full_fd()?)))
            .collect();
        let fds: Vec<_> = std::iter::once(woken.as_fd())
            .chain(self.sightings.as_ref().map(|sightings| sightings.fd()))
            .chain(running.iter().map(|(_, fd)| *fd))
            .collect();
        let ready = poll::wait(&fds, None)?;
        let (of_us, tracers) = ready.split_at(fds.len() - running.len());
        let woken = Woken {
            requests: of_us.first().is_some_and(|ready| *ready != Ready::Nothing),
            sightings: of_us.get(1).is_some_and(|ready| *ready != Ready::Nothing),
            full: Vec::new(),
        };
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
        Ok(Woken {
            full: said.into_iter().map(|(cpu, _)| cpu).collect(),
            ..woken
        })
    }

    /// Starts the tracers of CPUs that the target has come to, and passes on what was told.
    fn look(&mut self) {
        let Some(mut sightings) = self.sightings.take() else {
            return;
        };
        sightings.take(&mut |notice| {
            let cpu = Cpu(notice.cpu);
            if notice.kind() == Some(NoticeKind::CpuSeen) && self.slots.contains_key(&cpu) {
                self.start(cpu, Some(MonoNs(notice.time_ns)));
            }
            (self.report)(Report::Notice(notice));
        });
        self.sightings = Some(sightings);
    }

    /// Takes what waits for the last time, and stops what was started and not asked for.
    fn end_watch(&mut self) {
        self.look();
        self.sightings = None;
        let unasked = |(&cpu, slot): (&Cpu, &Slot)| (slot.enabled.is_some() && !slot.asked).then_some(cpu);
        let unasked: Vec<_> = self.slots.iter().filter_map(unasked).collect();
        for cpu in unasked {
            if let Some(mut slot) = self.slots.remove(&cpu) {
                let from = now();
                let result = slot.tracer.disable();
                (self.report)(Report::Op(op(ControlKind::PtDisable, cpu, from, result.err())));
            }
        }
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
            Request::Watch(sightings) => {
                self.sightings = Some(sightings);
                self.look(); // what came before shows in no descriptor
            }
            Request::EndWatch => self.end_watch(),
            Request::Enable { cpu, seen } => self.enable(cpu, seen),
            Request::Disable(cpu) => self.disable(cpu),
            Request::Abandon(cpu) => self.abandon(cpu),
        }
    }

    fn enable(&mut self, cpu: Cpu, seen: Option<MonoNs>) {
        if !self.slots.contains_key(&cpu) && !self.open(cpu) {
            return;
        }
        self.start(cpu, seen);
        if let Some(slot) = self.slots.get_mut(&cpu) {
            slot.asked = true;
        }
    }

    /// Starts a tracer that is there and does not run.
    fn start(&mut self, cpu: Cpu, seen: Option<MonoNs>) {
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
        let bytes = self.reserve.buffer_bytes;
        let opened = match (
            self.left_out.contains(&cpu),
            bytes == 0 || self.reserve.total_bytes < bytes,
        ) {
            (true, _) => Err("it is not to be recorded (isolated, nohz_full, or not of --cpus)".to_owned()),
            (_, true) => Err("no buffer was planned for it, and the reserve is used up; raise --budget".to_owned()),
            _ => self.source.open(cpu, bytes).map_err(|error| error.to_string()),
        };
        let error = match opened {
            Ok(tracer) => {
                self.reserve.total_bytes -= tracer.buffer_bytes().min(self.reserve.total_bytes);
                self.slots.insert(cpu, Slot::new(tracer));
                None
            }
            Err(error) => Some(error),
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
