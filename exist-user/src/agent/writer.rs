//! The thread that writes the trace file, so that a slow disk does not keep the rings from being drained.
//!
//! A write that fails ends the recording: the file is cut back to its last whole chunk, and the last generation, freed of
//! what is in it, is tried once more, so that the file itself says what happened where the disk allows that.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use anyhow::Context as _;
use exist_trace::{
    file::{
        WriteError, Writer,
        model::{Generation, Loss, LossKind},
    },
    units::MonoNs,
};

use crate::{
    spool::PartFile,
    sys::rt::{self, Niceness},
};

/// More generations than this waiting: the disk is behind.
const MOST_WAITING: u64 = 64;

/// What became of the file.
#[derive(Debug, Default)]
pub struct Written {
    pub bytes: u64,
    /// What could not be written, and why.
    pub failure: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicU64,
    bytes: AtomicU64,
}

/// The thread, and what is on its way to it.
#[derive(Debug)]
pub struct FileWriter {
    generations: Sender<Generation>,
    shared: Arc<Shared>,
    thread: JoinHandle<anyhow::Result<Written>>,
}

impl FileWriter {
    /// Creates the file and starts the thread. `failed` is called once, on the thread, when a write fails.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn start(path: &Path, failed: impl FnOnce(String) + Send + 'static) -> anyhow::Result<Self> {
        let file = PartFile::create(path).with_context(|| {
            format!(
                "failed to create {} (its folder must be there and writable)",
                path.display()
            )
        })?;
        let (generations, received) = channel();
        let shared = Arc::new(Shared::default());
        let state = State {
            writer: Writer::new(file),
            path: path.to_owned(),
            shared: Arc::clone(&shared),
            failed: Some(Box::new(failed)),
            failure: None,
        };
        let thread = std::thread::Builder::new()
            .name("exist-writer".to_owned())
            .spawn(move || state.run(&received))
            .context("failed to start a thread")?;
        Ok(Self {
            generations,
            shared,
            thread,
        })
    }

    /// Hands a generation over.
    pub fn write(&self, generation: Generation) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread lives until the sender is dropped.
        let _ = self.generations.send(generation);
    }

    /// Whether the disk does not keep up: nothing more should come until it has.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) > MOST_WAITING
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Waits until all is written, makes the file durable and gives it its name.
    ///
    /// # Errors
    /// When that cannot be done; the message says where the data is, if anywhere.
    pub fn finish(self) -> anyhow::Result<Written> {
        drop(self.generations);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the writing thread has panicked"))?
    }
}

struct State {
    writer: Writer<PartFile>,
    path: PathBuf,
    shared: Arc<Shared>,
    failed: Option<Box<dyn FnOnce(String) + Send>>,
    failure: Option<String>,
}

impl State {
    fn run(mut self, generations: &Receiver<Generation>) -> anyhow::Result<Written> {
        // Among hundreds of busy threads its turn would come too seldom, and then the rings would not be drained any more.
        let _ = rt::be_preferred(Niceness::Behind);
        for generation in generations {
            self.take(generation);
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.shared.bytes.store(self.writer.written_bytes(), Ordering::Relaxed);
        }
        let bytes = self.writer.written_bytes();
        let file = self.writer.into_inner();
        if !file.is_reachable() {
            anyhow::bail!(
                "{} was deleted while it was written; nothing of it is left",
                file.part().display()
            );
        }
        let part = file.part().to_owned();
        file.finish().with_context(|| {
            format!(
                "failed to give {} its name {}; it holds what was recorded",
                part.display(),
                self.path.display()
            )
        })?;
        Ok(Written {
            bytes,
            failure: self.failure,
        })
    }

    fn take(&mut self, generation: Generation) {
        match &self.failure {
            None => {
                if let Err(reason) = self.write(&generation) {
                    self.fail(reason);
                    if generation.end_of_recording.is_some() {
                        self.write_end(generation);
                    }
                }
            }
            Some(_) if generation.end_of_recording.is_some() => self.write_end(generation),
            Some(_) => {} // the recording is being ended
        }
    }

    fn write(&mut self, generation: &Generation) -> Result<(), String> {
        match self.writer.write(generation) {
            Ok(_) if self.writer.get_ref().is_reachable() => Ok(()),
            Ok(_) => Err(format!(
                "{} was deleted while it was written",
                self.writer.get_ref().part().display()
            )),
            Err(WriteError::Sink(error)) => {
                let cut = self.writer.get_mut().cut();
                Err(describe(&self.path, &error)
                    + &cut.err().map(|e| format!("; cutting it back: {e}")).unwrap_or_default())
            }
            Err(error @ WriteError::TooLarge(_)) => Err(error.to_string()),
        }
    }

    fn fail(&mut self, reason: String) {
        if let Some(failed) = self.failed.take() {
            failed(reason.clone());
        }
        self.failure = Some(reason);
    }

    /// The end without what came before it: there is room for some hundred bytes on most full disks.
    fn write_end(&mut self, mut generation: Generation) {
        let reason = self.failure.clone().unwrap_or_default();
        generation.losses.push(Loss {
            from: generation.start,
            to: generation.end,
            cpu: None,
            kind: LossKind::Write,
            records: generation.records.len() as u64,
            bytes: 0,
            reason,
        });
        generation.records.clear();
        generation.mappings.clear();
        generation.threads.clear();
        generation.names.clear();
        generation.pt.clear();
        generation.images.clear();
        generation.end = generation.end.max(MonoNs(generation.start.0));
        // If it does not fit either, a reader says that the end is missing.
        let _ = self.write(&generation);
    }
}

fn describe(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("no space left for {}; what fitted is kept", path.display())
        }
        _ => format!("failed to write {}: {error}", path.display()),
    }
}
