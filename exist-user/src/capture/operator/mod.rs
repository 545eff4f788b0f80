//! The thread that starts and stops tracers. It has real-time priority, since a busy machine is where a trace is wanted,
//! and does nothing that takes long: memory is prepared before, bytes are read by whoever gets the [`Recording`].

mod recording;
mod state;

use std::{
    io::{self, PipeWriter, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
};

use exist_trace::{
    file::model::{ControlKind, ControlOp, Loss},
    units::{Cpu, MonoNs},
};

use super::{Prepared, PtSource, Sightings};
use crate::{
    hook::Notice,
    sys::{clock, rt},
};
pub use recording::Recording;
use state::State;

/// What to do with a CPU's tracer: the controller's commands.
pub enum Request {
    /// From now on, start the tracer of each CPU that the target comes to as soon as it is told, if it is prepared.
    Watch(Box<dyn Sightings>),
    /// No longer; stop what was started so and not asked for since.
    EndWatch,
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
    /// What was taken while watching, after what was done about it.
    Notice(Notice),
    EnableFailed(Cpu),
    BufferFull(Cpu),
    /// The window of a CPU is over.
    Recorded(Recording),
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
        let mut state = State::new(source, prepared, report);
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
mod tests;
