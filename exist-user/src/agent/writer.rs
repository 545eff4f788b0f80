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
    /// Losses that only the file tells of.
    pub losses: u64,
    /// Records that are not in it.
    pub lost_records: u64,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicU64,
    bytes: AtomicU64,
}

/// The thread, and what is on its way to it. Dropped before anything was handed over, it leaves no file.
#[derive(Debug)]
pub struct FileWriter {
    /// Until it is dropped.
    generations: Option<Sender<Generation>>,
    shared: Arc<Shared>,
    /// Until it is finished.
    thread: Option<JoinHandle<anyhow::Result<Written>>>,
}

impl Drop for FileWriter {
    fn drop(&mut self) {
        self.generations = None;
        if let Some(thread) = self.thread.take() {
            // Nobody waits for what it did; but the process must not end before it has tidied up.
            let _ = thread.join();
        }
    }
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
            losses: 0,
            unwritten: 0,
            unwritten_since: MonoNs(0),
        };
        let thread = std::thread::Builder::new()
            .name("exist-writer".to_owned())
            .spawn(move || state.run(&received))
            .context("failed to start a thread")?;
        Ok(Self {
            generations: Some(generations),
            shared,
            thread: Some(thread),
        })
    }

    /// Hands a generation over.
    pub fn write(&self, generation: Generation) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread lives until the sender is dropped.
        if let Some(to) = &self.generations {
            let _ = to.send(generation);
        }
    }

    /// Whether the disk does not keep up: nothing more should come until it has.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.shared.waiting.load(Ordering::Relaxed) > MOST_WAITING
    }

    /// Whether nothing was written or handed over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.waiting.load(Ordering::Acquire) == 0 && self.shared.bytes.load(Ordering::Acquire) == 0
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Waits until all is written, makes the file durable and gives it its name. Where nothing at all could be written there
    /// is no file, and what stood at its path stays.
    ///
    /// # Errors
    /// When that cannot be done; the message says where the data is, if anywhere.
    pub fn finish(mut self) -> anyhow::Result<Written> {
        self.generations = None;
        let thread = self.thread.take().context("the writing thread has ended")?;
        thread
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
    losses: u64,
    /// Records that came since the failure, and where they begin.
    unwritten: u64,
    unwritten_since: MonoNs,
}

impl State {
    fn run(mut self, generations: &Receiver<Generation>) -> anyhow::Result<Written> {
        // Among hundreds of busy threads its turn would come too seldom, and then the rings would not be drained any more.
        let _ = rt::be_preferred(Niceness::Behind);
        for generation in generations {
            self.take(generation);
            // In this order: it is never both out of the queue and not counted.
            self.shared.bytes.store(self.writer.written_bytes(), Ordering::Release);
            self.shared.waiting.fetch_sub(1, Ordering::Release);
        }
        let bytes = self.writer.written_bytes();
        let file = self.writer.into_inner();
        if !file.is_reachable() {
            anyhow::bail!(
                "{} was deleted while it was written; nothing of it is left",
                file.part().display()
            );
        }
        if bytes == 0 {
            file.discard();
            return Ok(Written {
                bytes,
                failure: self.failure,
                losses: self.losses,
                lost_records: self.unwritten,
            });
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
            losses: self.losses,
            lost_records: self.unwritten,
        })
    }

    fn take(&mut self, generation: Generation) {
        if self.failure.is_none() {
            let Err(reason) = self.write(&generation) else { return };
            self.fail(reason);
            self.unwritten_since = generation.start;
            self.losses += 1;
        }
        // The recording is being ended.
        self.unwritten += (generation.records.len() + generation.waits.len()) as u64;
        if generation.end_of_recording.is_some() {
            self.write_end(generation);
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
            Err(WriteError::TooLarge(error)) => match lighter(generation, &error.to_string()) {
                Some(lighter) => {
                    self.losses += 1;
                    self.write(&lighter)
                }
                None => Err(error.to_string()),
            },
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
            from: self.unwritten_since,
            to: generation.end,
            cpu: None,
            kind: LossKind::Write,
            records: self.unwritten,
            bytes: 0,
            reason,
        });
        generation.records.clear();
        generation.waits.clear();
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

/// A generation that does not fit into a chunk, without what can be done without: first the mappings, then the names. Its
/// loss says so. `None` when it is the records that do not fit.
fn lighter(generation: &Generation, reason: &str) -> Option<Generation> {
    let mut lighter = generation.clone();
    let left_out = if lighter.mappings.is_empty() {
        let (threads, names) = (lighter.threads.len(), lighter.names.len());
        lighter.threads.clear();
        lighter.names.clear();
        (threads + names > 0).then(|| format!("{threads} threads and {names} new names"))
    } else {
        let mappings = std::mem::take(&mut lighter.mappings).len();
        Some(format!("{mappings} mappings"))
    };
    lighter.losses.push(Loss {
        from: generation.start,
        to: generation.end,
        cpu: None,
        kind: LossKind::Write,
        records: 0,
        bytes: 0,
        reason: format!("{} were left out: {reason}", left_out?),
    });
    Some(lighter)
}

fn describe(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("no space left for {}; what was written before is kept", path.display())
        }
        _ => format!("failed to write {}: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use exist_trace::{
        file::{
            Trace,
            model::{End, Header, Mapping, NameChange, Node, ResolvedTarget},
        },
        session::{PtRequest, Session, Target, Waits},
        units::{Pid, Tid},
    };

    use super::*;

    fn generation() -> Generation {
        Generation {
            header: Header {
                recording_id: 1,
                exist_version: "test".into(),
                session: Session {
                    target: Target::Pid(1),
                    period_ns: None,
                    pt: PtRequest::default(),
                    waits: Waits::Off,
                },
                target: ResolvedTarget::default(),
                node: Node::default(),
                start: MonoNs(0),
                start_realtime_ns: 0,
                holds_foreign_packets: false,
                pt: Err("test".into()),
            },
            number: 0,
            start: MonoNs(0),
            end: MonoNs(9),
            clock_pairs: vec![],
            threads: vec![],
            mappings: vec![],
            names: vec![],
            records: vec![],
            waits: vec![],
            counters: vec![],
            losses: vec![],
            ops: vec![],
            pt: vec![],
            images: vec![],
            end_of_recording: Some(End {
                time: MonoNs(9),
                reason: "period".into(),
            }),
        }
    }

    #[test]
    fn what_does_not_fit_into_a_chunk_is_left_out_and_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.exist");
        let mapping = |i: u64| Mapping {
            time: MonoNs(i),
            pid: Pid(1),
            start: i << 40,
            len: 0x1000,
            offset: 0,
            dev_major: 0,
            dev_minor: 0,
            inode: i,
            path: Arc::from(format!("/memfd:{i}")),
            build_id: Arc::from([]),
        };
        let name = |i: u64| NameChange {
            time: MonoNs(i % 9),
            pid: Pid(1),
            tid: Tid(1),
            name: Arc::from(format!("{i:015}")),
        };
        for (mappings, names, expect) in [
            (10, 10, (10, 10, 0, "")),
            (300_000, 10, (0, 10, 1, "300000 mappings were left out")),
            (
                300_000,
                300_000,
                (0, 0, 2, "0 threads and 300000 new names were left out"),
            ),
        ] {
            let writer = FileWriter::start(&path, |reason| panic!("{reason}")).unwrap();
            writer.write(Generation {
                mappings: (0..mappings).map(mapping).collect(),
                names: (0..names).map(name).collect(),
                ..generation()
            });
            let written = writer.finish().unwrap();
            assert_eq!((written.failure, written.losses), (None, expect.2));
            let trace = Trace::read(&fs::read(&path).unwrap()).unwrap();
            let last = trace.losses.last().map(|loss| loss.reason.as_str()).unwrap_or_default();
            assert_eq!(
                (trace.mappings.len(), trace.names.len(), trace.losses.len() as u64),
                (expect.0, expect.1, expect.2)
            );
            assert!(last.contains(expect.3), "{last}");
        }
    }

    #[test]
    fn without_a_generation_there_is_no_file_and_an_old_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.exist");
        fs::write(&path, "old").unwrap();
        for how in ["dropped", "finished"] {
            let writer = FileWriter::start(&path, |_| ()).unwrap();
            assert_eq!(
                fs::read_dir(folder.path()).unwrap().count(),
                2,
                "{how}: the temporary file"
            );
            match how {
                "dropped" => drop(writer),
                _ => assert_eq!(writer.finish().unwrap().bytes, 0),
            }
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{how}");
            assert_eq!(fs::read(&path).unwrap(), b"old", "{how}");
        }
    }
}
