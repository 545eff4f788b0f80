//! What the BPF programs warn of, in words: what should not happen, at most one of a kind on a CPU (aya-log).
//!
//! Takes the loaded object. Gives texts, in the order in which they came. Nothing wakes user space for them: they are looked
//! for with the counters.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};

use super::HookError;

/// Room for the warnings: about 256.
pub const BYTES: u32 = 64 << 10;
/// The map's name, as aya-log-ebpf makes it.
pub const MAP: &str = "AYA_LOGS";

/// The reading end.
pub struct Warnings {
    logger: EbpfLogger<Sink>,
    texts: Sink,
}

impl Warnings {
    /// # Errors
    /// [`HookError::Load`] when the object has none, or the ring cannot be mapped.
    pub fn new(ebpf: &mut Ebpf) -> Result<Self, HookError> {
        let texts = Sink::default();
        let logger = EbpfLogger::init_with_logger(ebpf, texts.clone())
            .map_err(|e| HookError::load("map the ring of warnings", &e))?;
        Ok(Self { logger, texts })
    }

    /// Those that have come since the last call.
    pub fn take(&mut self) -> Vec<String> {
        self.logger.flush();
        mem::take(&mut self.texts.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A logger that keeps the texts.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<String>>>);

impl Log for Sink {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        texts.push(record.args().to_string());
    }

    fn flush(&self) {}
}
