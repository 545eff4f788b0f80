//! The service that `cargo xtask demo` looks at: a small key-value store in which `get` is
//! quick, except right after a `flush` on the same thread, when it has to read its page back.
//!
//! It prints what it measured of itself, so that what the tracer says can be held against it.

use std::{
    collections::HashMap,
    fs::File,
    hint::black_box,
    io::{self, Write},
    os::unix::fs::FileExt,
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

const WORKERS: u64 = 4;
const KEYS: u64 = 1024;
const PAGE_BYTES: usize = 4096;

/// What all workers share.
struct Store {
    values: Mutex<HashMap<u64, u64>>,
    log: File,
}

/// What one worker keeps between requests.
struct Worker {
    random: u64,
    page: Option<Vec<u8>>,
    get_latencies: [Vec<Duration>; 2],
}

fn main() -> io::Result<()> {
    let seconds: f64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(3.0);
    let path = std::env::temp_dir().join(format!("exist-demo-{}.log", std::process::id()));
    let log = File::options().read(true).write(true).create_new(true).open(&path)?;
    // The name is not needed any more; the file goes when the process does.
    std::fs::remove_file(&path)?;
    log.set_len(WORKERS * PAGE_BYTES as u64)?;

    let store = Store {
        values: Mutex::new((0..KEYS).map(|key| (key, key)).collect()),
        log,
    };
    let start = Barrier::new(WORKERS as usize);
    let until = Duration::from_secs_f64(seconds);
    let mut quick = Vec::new();
    let mut after_flush = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|id| {
                let (store, start) = (&store, &start);
                thread::Builder::new()
                    .name(format!("worker-{id}"))
                    .spawn_scoped(scope, move || {
                        start.wait();
                        serve(store, id, until)
                    })
            })
            .collect();
        for worker in workers {
            let [a, b] = worker?
                .join()
                .map_err(|_| io::Error::other("a worker panicked"))??
                .get_latencies;
            quick.extend(a);
            after_flush.extend(b);
        }
        io::Result::Ok(())
    })?;

    let mut out = io::stdout().lock();
    for (what, latencies) in [("get", &mut quick), ("get after flush", &mut after_flush)] {
        latencies.sort_unstable();
        writeln!(
            out,
            "{what:>16}: {:>7} calls, p50 {:>9.1?}, p99 {:>9.1?}",
            latencies.len(),
            quantile(latencies, 0.5),
            quantile(latencies, 0.99)
        )?;
    }
    Ok(())
}

fn serve(store: &Store, id: u64, until: Duration) -> io::Result<Worker> {
    let mut worker = Worker {
        random: 0x9e37_79b9_7f4a_7c15 ^ (id + 1),
        page: None,
        get_latencies: [Vec::new(), Vec::new()],
    };
    let started = Instant::now();
    let mut flushed = false;
    while started.elapsed() < until {
        let key = worker.next_random() % KEYS;
        match worker.next_random() % 100 {
            0 => flush(store, &mut worker, id)?,
            1..=20 => {
                put(store, key);
                continue;
            }
            21..=40 => {
                scan(store);
                continue;
            }
            41..=60 => {
                thread::sleep(Duration::from_micros(200));
                continue;
            }
            _ => {
                let before = Instant::now();
                black_box(get(store, &mut worker, id, key)?);
                worker.get_latencies[usize::from(flushed)].push(before.elapsed());
                flushed = false;
                continue;
            }
        }
        flushed = true;
    }
    Ok(worker)
}

#[inline(never)]
fn get(store: &Store, worker: &mut Worker, id: u64, key: u64) -> io::Result<Option<u64>> {
    if worker.page.is_none() {
        worker.page = Some(read_page(store, id)?);
    }
    Ok(lock(&store.values).get(&key).copied())
}

#[inline(never)]
fn put(store: &Store, key: u64) {
    *lock(&store.values).entry(key).or_default() += 1;
}

#[inline(never)]
fn scan(store: &Store) -> u64 {
    lock(&store.values)
        .values()
        .fold(0, |sum, value| black_box(sum ^ value))
}

/// Forgets the worker's page: cheap now, dear for the next `get`.
#[inline(never)]
fn flush(store: &Store, worker: &mut Worker, id: u64) -> io::Result<()> {
    let page = worker.page.take().unwrap_or_else(|| vec![id as u8; PAGE_BYTES]);
    store.log.write_all_at(&page, id * PAGE_BYTES as u64)
}

/// Waits until the page is on the disk, reads it back, and waits for a device that answers in 2 ms.
#[inline(never)]
fn read_page(store: &Store, id: u64) -> io::Result<Vec<u8>> {
    store.log.sync_data()?;
    let mut page = vec![0; PAGE_BYTES];
    store.log.read_exact_at(&mut page, id * PAGE_BYTES as u64)?;
    thread::sleep(Duration::from_millis(2));
    Ok(page)
}

fn lock(values: &Mutex<HashMap<u64, u64>>) -> std::sync::MutexGuard<'_, HashMap<u64, u64>> {
    values.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn quantile(sorted: &[Duration], q: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((last as f64 * q).round() as usize)
        .copied()
        .unwrap_or_default()
}

impl Worker {
    /// xorshift64: the order of requests is the same in each run.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
