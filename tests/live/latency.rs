//! How long it takes from asking for a CPU's tracer to its running, on a machine that is 95 % busy. Where there is no
//! Intel PT, an event of the kernel's own stands for it: enabling that takes the same way, by an interrupt on the CPU.
//!
//! It asserts nothing about time, which depends on the machine; it prints. `EXIST_WINDOWS` sets the number of windows.

#![allow(clippy::unwrap_used)]

use std::{
    env, io,
    os::fd::BorrowedFd,
    path::Path,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    time::{Duration, Instant},
};

use exist_trace::{
    file::model::{ControlKind, PtSettings},
    session::PtRequest,
    units::Cpu,
};
use exist_user::{
    alloc::{Asked, CpuSets, LEAST_BUFFER_BYTES, Plan},
    capture::{OpenError, Operator, PtSource, Report, Request, Setup, Tracer, prepare, set_up},
    sys::{clock, perf::Event},
};
use perf_event_open_sys::bindings;

/// A dummy event in the place of Intel PT.
struct Dummy;

impl PtSource for Dummy {
    fn settings(&self) -> PtSettings {
        PtSettings::default()
    }

    fn open(&self, cpu: Cpu, buffer_bytes: u64) -> Result<Box<dyn Tracer>, OpenError> {
        let mut attr = bindings::perf_event_attr {
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: u64::from(bindings::PERF_COUNT_SW_DUMMY),
            ..Default::default()
        };
        attr.set_disabled(1);
        match Event::open_on_cpu(&attr, cpu.0) {
            Ok(event) => Ok(Box::new(DummyTracer { event, buffer_bytes })),
            Err(error) => Err(OpenError::Other { cpu, error }),
        }
    }
}

struct DummyTracer {
    event: Event,
    buffer_bytes: u64,
}

impl Tracer for DummyTracer {
    fn enable(&mut self) -> io::Result<()> {
        self.event.enable()
    }

    fn disable(&mut self) -> io::Result<()> {
        self.event.disable()
    }

    fn full_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn drain_records_into(&mut self, _: &mut Vec<u8>) {}

    fn bytes(&self) -> &[u8] {
        &[]
    }

    fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }
}

fn dummy() -> Result<Setup, OpenError> {
    let online = CpuSets::read(Path::new("/sys")).unwrap().online;
    let asked = Asked {
        buffer_bytes: Some(LEAST_BUFFER_BYTES),
        budget_bytes: None,
    };
    let plan = Plan::new(online.into_iter().map(Cpu).collect(), &asked, 1 << 40).unwrap();
    Ok(Setup {
        prepared: prepare(&Dummy, plan)?,
        source: Box::new(Dummy),
    })
}

/// Two threads for each CPU, which want 95 % of it together.
fn load(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let busy = Instant::now();
        while busy.elapsed() < Duration::from_micros(4750) {
            std::hint::black_box(());
        }
        std::thread::sleep(Duration::from_micros(5250));
    }
}

/// Nanoseconds from asking for the tracer of each CPU to its running.
fn window(setup: Setup) -> Vec<u64> {
    let cpus: Vec<_> = setup.prepared.settings.buffers.iter().map(|b| b.cpu).collect();
    let (send, reports) = channel();
    let report = Box::new(move |report| drop(send.send(report)));
    let mut operator = Operator::start(setup.source, setup.prepared, report).unwrap();
    std::thread::sleep(Duration::from_millis(3));
    let mut took = Vec::new();
    for &cpu in &cpus {
        let asked = clock::mono_ns();
        operator.request(Request::Enable { cpu, seen: None });
        let running = loop {
            match reports.recv_timeout(Duration::from_secs(60)).unwrap() {
                Report::Op(op) if op.kind == ControlKind::PtEnable => break op.to.0,
                Report::EnableFailed(cpu) => panic!("CPU {cpu} could not be enabled"),
                _ => {}
            }
        };
        took.push(running.saturating_sub(asked));
    }
    cpus.iter().for_each(|&cpu| operator.request(Request::Disable(cpu)));
    took
}

#[test]
fn enabling_on_a_busy_machine() {
    let windows: usize = env::var("EXIST_WINDOWS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let request = PtRequest {
        buffer_bytes: Some(LEAST_BUFFER_BYTES),
        ..PtRequest::default()
    };
    let next = || match set_up(&request, Path::new("/sys"), Path::new("/proc")).unwrap() {
        Ok(setup) => (Some(setup), "Intel PT"),
        Err(_) => (dummy().ok(), "a dummy event in Intel PT's place"),
    };
    let (Some(first), what) = next() else {
        return println!("skipped: no perf event of a whole CPU can be opened (root or CAP_PERFMON)");
    };
    drop(first);
    let cpus = CpuSets::read(Path::new("/sys")).unwrap().online.len();
    let stop = AtomicBool::new(false);
    let mut took: Vec<u64> = std::thread::scope(|scope| {
        (0..2 * cpus).for_each(|_| drop(scope.spawn(|| load(&stop))));
        let took = (0..windows).flat_map(|_| window(next().0.unwrap())).collect();
        stop.store(true, Ordering::Relaxed);
        took
    });
    took.sort_unstable();
    assert_eq!(took.len(), windows * cpus);
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    println!(
        "{what}, {} enables on {cpus} CPUs 95 % busy: p50 {:.0} µs, p99 {:.0} µs, longest {:.0} µs",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
