//! Neighbours on the machine: a thread for each CPU that spins for a share of every 10 ms.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;

use super::machine::CpuTime;

const PERIOD: Duration = Duration::from_millis(10);
/// Shares are in thousandths.
const WHOLE: u32 = 1000;

/// Spinning threads; they end on drop.
#[derive(Debug)]
pub struct Burner {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    share: AtomicU32,
    stop: AtomicBool,
}

impl Burner {
    /// Starts one thread for each CPU, all idle.
    pub fn start() -> Self {
        let shared = Arc::new(Shared::default());
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cpus)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || spin(&shared))
            })
            .collect();
        Self { shared, threads }
    }

    /// Raises the share until the machine is `busy` (0–1) while `load` runs, again and again; then the share stays.
    /// Gives how busy the machine was in the last turn.
    ///
    /// # Errors
    /// The load fails, or `/proc/stat` cannot be read.
    pub fn fill(&self, busy: f64, mut load: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut reached = 0.0;
        let mut share = 0.0;
        for _ in 0..8 {
            let before = CpuTime::now()?;
            load()?;
            reached = CpuTime::now()?.busy_since(before);
            if (reached - busy).abs() < 0.01 {
                break;
            }
            // What is idle is the burner's to take; it loses some of its share to the others.
            share = (share + (busy - reached) * 1.1).clamp(0.0, 1.0);
            self.shared
                .share
                .store((share * f64::from(WHOLE)) as u32, Ordering::Relaxed);
        }
        Ok(reached)
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A spinning thread has nothing that can panic.
            let _ = thread.join();
        }
    }
}

fn spin(shared: &Shared) {
    let mut n = 0u64;
    while !shared.stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let busy = PERIOD * shared.share.load(Ordering::Relaxed) / WHOLE;
        while start.elapsed() < busy {
            n = black_box(n.wrapping_add(1));
        }
        thread::sleep(PERIOD.saturating_sub(start.elapsed()));
    }
}
