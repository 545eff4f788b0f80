//! A program to be recorded: threads that sleep and wake at a fixed rate and run a little each time.
//! The benches start it from this very binary, as the hidden command `bench-target`.

use std::{
    hint::black_box,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{child::Running, group::Group};

/// What the threads do.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Args {
    /// Number of threads
    #[arg(long)]
    pub threads: u32,
    /// Wake-ups a second of each thread
    #[arg(long)]
    pub hz: f64,
    /// Microseconds that a thread runs after each wake-up
    #[arg(long)]
    pub run_us: u64,
    /// Seconds until it ends by itself
    #[arg(long)]
    pub seconds: u64,
}

/// The program.
///
/// # Errors
/// None; the signature is that of every command.
pub fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    let end = start + Duration::from_secs(args.seconds);
    let period = Duration::from_secs_f64(1.0 / args.hz.max(0.001));
    thread::scope(|scope| {
        for index in 0..args.threads {
            // Spread over the period, so that they do not all wake at once.
            let first = start + period * index / args.threads;
            scope.spawn(move || wake(first, period, Duration::from_micros(args.run_us), end));
        }
    });
    Ok(())
}

fn wake(mut due: Instant, period: Duration, run: Duration, end: Instant) {
    let mut n = 0u64;
    while due < end {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let woken = Instant::now();
        while woken.elapsed() < run {
            n = black_box(n.wrapping_add(1));
        }
        due += period;
    }
}

/// Starts it in `group`, on these CPUs or, when there are none, on any, and waits until all its threads are there.
///
/// # Errors
/// It cannot be started.
pub fn start(args: Args, cpus: &[u32], group: &Group, dir: &Path) -> Result<Running> {
    let program = std::env::current_exe().context("failed to find this program")?;
    let mut command = if cpus.is_empty() {
        Command::new(program)
    } else {
        let list: Vec<_> = cpus.iter().map(u32::to_string).collect();
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &list.join(",")]).arg(program);
        command
    };
    command.args([
        "bench-target",
        "--threads",
        &args.threads.to_string(),
        "--hz",
        &args.hz.to_string(),
    ]);
    command.args([
        "--run-us",
        &args.run_us.to_string(),
        "--seconds",
        &args.seconds.to_string(),
    ]);
    let mut running = Running::start("target", &command, group, dir)?;
    let all = args.threads as usize + 1;
    running.wait_until(|_| group.threads().is_ok_and(|threads| threads.len() == all))?;
    Ok(running)
}
