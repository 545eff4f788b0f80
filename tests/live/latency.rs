//! How long it takes from asking for a CPU's tracer to its running, and from the target's first switch-in on a CPU to
//! that CPU's tracer running, on a machine that is 95 % busy. Where there is no Intel PT, an event of the kernel's own
//! stands for it: enabling that takes the same way, by an interrupt on the CPU.
//!
//! It asserts nothing about time, which depends on the machine; it prints. `EXIST_WINDOWS` sets the number of windows.

#![allow(clippy::unwrap_used)]

mod recording;

use std::{
    collections::BTreeSet,
    env, fs, io,
    os::fd::BorrowedFd,
    path::Path,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    time::{Duration, Instant},
};

use exist_trace::{
    file::{
        Trace,
        model::{ControlKind, LossKind, PtSettings},
    },
    session::{PtRequest, Session, Target, Waits},
    units::Cpu,
};
use exist_user::{
    agent::{Options, Privileges, record_with},
    alloc::{Asked, CpuSets, LEAST_BUFFER_BYTES, Plan},
    capture::{OpenError, Operator, PtSource, Report, Request, Setup, Tracer, prepare, set_up},
    sys::{clock, perf::Event, roots::Roots},
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
        ..Asked::default()
    };
    let plan = Plan::equal(online.into_iter().map(Cpu).collect(), &asked, 1 << 40).unwrap();
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

/// One at a time: each makes the machine busy, and tracers are exclusive.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn windows() -> usize {
    env::var("EXIST_WINDOWS").ok().and_then(|n| n.parse().ok()).unwrap_or(5)
}

/// This machine's tracers, and what they are. `None` where no event of a whole CPU can be opened; said.
fn tracers() -> Option<(Setup, &'static str)> {
    let request = PtRequest {
        buffer_bytes: Some(LEAST_BUFFER_BYTES),
        ..PtRequest::default()
    };
    let found = match set_up(&request, Path::new("/sys"), Path::new("/proc")).unwrap() {
        Ok(setup) => Some((setup, "Intel PT")),
        Err(_) => dummy().ok().map(|setup| (setup, "a dummy event in Intel PT's place")),
    };
    if found.is_none() {
        println!("skipped: no perf event of a whole CPU can be opened (root or CAP_PERFMON)");
    }
    found
}

/// Runs `work` while every CPU is 95 % busy; gives the number of CPUs too.
fn while_busy<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let cpus = CpuSets::read(Path::new("/sys")).unwrap().online.len();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        (0..2 * cpus).for_each(|_| drop(scope.spawn(|| load(&stop))));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        (cpus, done)
    })
}

fn print(what: &str, cpus: usize, mut took: Vec<u64>) {
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    println!(
        "{what}, {} enables on {cpus} CPUs 95 % busy: p50 {:.0} µs, p99 {:.0} µs, longest {:.0} µs",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

#[test]
fn enabling_on_a_busy_machine() {
    let _alone = alone();
    let Some((first, what)) = tracers() else { return };
    drop(first);
    let windows = windows();
    let (cpus, took) = while_busy(|| {
        let took = (0..windows).flat_map(|_| window(tracers().unwrap().0));
        took.collect::<Vec<_>>()
    });
    assert_eq!(took.len(), windows * cpus);
    print(&format!("asked for, {what}"), cpus, took);
}

/// A recording of a command that runs on each CPU once. Nanoseconds from its first switch-in there to the tracer's running.
fn first_switches_in(cpus: &BTreeSet<u32>) -> Vec<u64> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("latency.exist");
    let on_each = cpus.iter().map(|cpu| format!("taskset -c {cpu} sleep 0.02; "));
    let options = Options {
        session: Session {
            target: Target::Command(vec!["sh".into(), "-c".into(), on_each.collect()]),
            period_ns: None,
            pt: PtRequest::default(),
            waits: Waits::default(),
        },
        out: out.clone(),
        roots: Roots::default(),
        ring_bytes: None,
        privileges: Privileges::Keep,
        earlier: exist_user::alloc::Earlier::default(),
    };
    let set_up = |_: exist_user::capture::LookBack<'_>| Ok(Ok(tracers().expect("the caller has looked").0));
    record_with(&options, set_up, |_| {}).unwrap();
    let trace = Trace::read(&fs::read(out).unwrap()).unwrap();
    let enabled = trace.ops.iter().filter(|op| op.kind == ControlKind::PtEnable);
    let enabled: BTreeSet<_> = enabled.filter_map(|op| op.cpu).collect();
    assert_eq!(
        enabled.len(),
        cpus.len(),
        "each CPU is enabled when the target comes: {:?}",
        trace.ops
    );
    let late: Vec<_> = trace
        .losses
        .iter()
        .filter(|loss| loss.kind == LossKind::PtLate)
        .collect();
    assert_eq!(
        late.len(),
        cpus.len(),
        "what ran before its CPU's tracer is told: {:?}",
        trace.losses
    );
    late.iter().map(|loss| loss.to.0 - loss.from.0).collect()
}

/// A look-back and a slow set-up before the period: what other processes map meanwhile fills no ring.
#[test]
fn a_look_back_sees_the_target_and_costs_nothing() {
    let _alone = alone();
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let Some((first, _)) = tracers() else { return };
    drop(first);
    let cgroup = recording::Cgroup::new("look-back");
    let _target = cgroup.start(
        &["taskset", "-c", "0", "sh", "-c", "while :; do sleep 0.001; done"],
        &[],
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("look-back.exist");
    let options = Options {
        session: Session {
            target: Target::Cgroup(cgroup.name.clone()),
            period_ns: Some(300_000_000),
            pt: PtRequest::default(),
            waits: Waits::default(),
        },
        out: out.clone(),
        roots: Roots::default(),
        ring_bytes: None,
        privileges: Privileges::Keep,
        earlier: exist_user::alloc::Earlier::default(),
    };
    let mut seen = Vec::new();
    let set_up = |look: exist_user::capture::LookBack<'_>| {
        seen.extend(look()?.expect("it is no command").seen());
        // Each program maps and unmaps some files: together more than a ring of the side-band holds.
        let others = "i=0; while [ $i -lt 1000 ]; do /bin/true; i=$((i+1)); done";
        let ran = std::process::Command::new("taskset")
            .args(["-c", "0", "sh", "-c", others])
            .status()?;
        assert!(ran.success());
        Ok(Ok(tracers().expect("there were some").0))
    };
    let summary = record_with(&options, set_up, |_| {}).unwrap();
    assert_eq!(seen, [Cpu(0)]);
    let trace = Trace::read(&fs::read(out).unwrap()).unwrap();
    let unexpected: Vec<_> = trace
        .losses
        .iter()
        .filter(|loss| loss.kind != LossKind::PtLate)
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    assert!(trace.records.len() > 50, "{} records", trace.records.len());
    let period = summary.period_ns;
    assert!((290_000_000..2_000_000_000).contains(&period), "{period} ns");
    // The file begins with the period, and what was before is in it as the state only.
    assert!(trace.records.iter().all(|r| r.time_ns >= trace.header.start.0));
}

#[test]
fn from_the_first_switch_in_on_a_busy_machine() {
    let _alone = alone();
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let Some((first, what)) = tracers() else { return };
    drop(first);
    let windows = windows();
    let online = CpuSets::read(Path::new("/sys")).unwrap().online;
    let (cpus, took) = while_busy(|| {
        (0..windows)
            .flat_map(|_| first_switches_in(&online))
            .collect::<Vec<_>>()
    });
    print(&format!("first switch-in, {what}"), cpus, took);
}
