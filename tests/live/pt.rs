//! Intel PT of this machine through the driver's own doors. Needs Intel PT, root, and nobody else who uses it.
//! Taking a CPU offline is done only where `EXIST_LAB` is set: in the lab's guest.

#![allow(clippy::unwrap_used)]

use std::{
    env, fs,
    hint::black_box,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard,
        mpsc::{Receiver, channel},
    },
    time::{Duration, Instant},
};

use exist_trace::{
    file::model::{ControlKind, ControlOp, Loss, LossKind},
    pt::{Errata, Packet, Packets, find_psb},
    session::{PtMode, PtRequest},
    units::Cpu,
};
use exist_user::{
    capture::{Change, Hotplug, Operator, Recording, Report, Request, Setup, set_up},
    sys::{
        cpu,
        privileges::{CapSet, effective, keep_only},
    },
};

/// Set for the copy of this test that holds the tracers.
const HOLDER: &str = "EXIST_TEST_HOLDER";
/// Set for the copy of this test that may lock little memory.
const LIMITED: &str = "EXIST_TEST_LIMITED";

/// One at a time: the tracers are exclusive.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn request(buffer_bytes: u64) -> PtRequest {
    PtRequest {
        mode: PtMode::Auto,
        buffer_bytes: Some(buffer_bytes),
        ..PtRequest::default()
    }
}

/// `None` where there is no Intel PT for us; said.
fn ready(request: &PtRequest) -> Option<Setup> {
    match set_up(request, Path::new("/sys"), Path::new("/proc")).unwrap() {
        Ok(setup) => Some(setup),
        Err(reason) => {
            assert!(
                std::env::var_os("EXIST_HARDWARE").is_none(),
                "this runner is to have a processor trace: {reason}"
            );
            println!("skipped: {reason}");
            None
        }
    }
}

/// An operator with everything that it reported.
struct Bench {
    operator: Operator,
    reports: Receiver<Report>,
    cpus: Vec<Cpu>,
    ops: Vec<ControlOp>,
    losses: Vec<Loss>,
    full: Vec<Cpu>,
}

impl Bench {
    fn new(setup: Setup) -> Self {
        let cpus = setup
            .prepared
            .settings
            .buffers
            .iter()
            .map(|buffer| buffer.cpu)
            .collect();
        let (send, reports) = channel();
        let report = Box::new(move |report| drop(send.send(report)));
        Self {
            operator: Operator::start(setup.source, setup.prepared, report).unwrap(),
            reports,
            cpus,
            ops: Vec::new(),
            losses: Vec::new(),
            full: Vec::new(),
        }
    }

    fn enable(&mut self, cpu: Cpu) {
        self.operator.request(Request::Enable { cpu, seen: None });
        self.until(|bench, _| bench.has(ControlKind::PtEnable, cpu));
    }

    fn has(&self, kind: ControlKind, cpu: Cpu) -> bool {
        self.ops.iter().any(|op| op.kind == kind && op.cpu == Some(cpu))
    }

    fn stop(&mut self, request: Request) -> Recording {
        self.operator.request(request);
        self.until(|_, recording| recording).expect("until gives it")
    }

    /// Takes reports until `done` gives something that is true.
    fn until<T: Truth>(&mut self, done: impl Fn(&Self, Option<Recording>) -> T) -> T {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut recording = None;
            match self.reports.recv_timeout(left).expect("a report within a minute") {
                Report::Op(op) => self.ops.push(op),
                Report::Loss(loss) => self.losses.push(loss),
                Report::EnableFailed(cpu) => panic!("CPU {cpu} could not be enabled: {:?}", self.losses),
                Report::Notice(_) => {}
                Report::BufferFull(cpu) => self.full.push(cpu),
                Report::Recorded(recorded) => recording = Some(recorded),
            }
            let result = done(self, recording);
            if result.is_true() {
                return result;
            }
        }
    }
}

trait Truth {
    fn is_true(&self) -> bool;
}

impl Truth for bool {
    fn is_true(&self) -> bool {
        *self
    }
}

impl Truth for Option<Recording> {
    fn is_true(&self) -> bool {
        self.is_some()
    }
}

/// Branches that cannot be foreseen.
fn spin(for_ms: u64) -> u64 {
    let end = Instant::now() + Duration::from_millis(for_ms);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut sum = 0;
    while Instant::now() < end {
        for _ in 0..1000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if black_box(random) & 1 == 0 {
                sum += 1;
            }
        }
    }
    black_box(sum)
}

fn bytes_of(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in recording.pieces() {
        assert_eq!(piece.cpu, recording.cpu());
        assert!(!piece.bytes.is_empty() && piece.bytes.len() <= 1 << 20);
        bytes.extend(piece.bytes);
    }
    bytes
}

/// Every byte from the first PSB on is a packet. A full buffer can cut the last one.
fn check_packets(bytes: &[u8], cut: bool) -> (usize, usize) {
    let start = usize::try_from(find_psb(bytes, 0).expect("a PSB")).unwrap();
    assert!(start < 64, "the first PSB is at {start}");
    let (mut packets, mut tnt) = (0, 0);
    for packet in Packets::new(bytes, 0, Errata::default()) {
        match packet {
            Ok(located) => {
                packets += 1;
                tnt += usize::from(matches!(located.packet, Packet::Tnt(_)));
            }
            Err(error) => assert!(cut, "after {packets} packets of {} bytes: {error}", bytes.len()),
        }
    }
    (packets, tnt)
}

#[test]
fn a_window_of_every_cpu_is_two_operations_each() {
    let _alone = alone();
    let Some(setup) = ready(&request(16 << 20)) else { return };
    println!(
        "buffers {:?}, notes {:?}",
        setup.prepared.settings.buffers, setup.prepared.notes
    );
    let mut bench = Bench::new(setup);
    let cpus = bench.cpus.clone();
    cpus.iter().for_each(|&cpu| bench.enable(cpu));
    std::thread::scope(|scope| {
        cpus.iter().for_each(|_| drop(scope.spawn(|| spin(200))));
    });
    let recordings: Vec<_> = cpus.iter().map(|&cpu| bench.stop(Request::Disable(cpu))).collect();
    assert_eq!(bench.ops.len(), 2 * cpus.len(), "{:?}", bench.ops);
    assert_eq!(bench.losses, [], "16 MiB last for 200 ms");
    let mut branches = 0;
    for recording in recordings.iter().filter(|recording| !recording.is_empty()) {
        let (packets, tnt) = check_packets(&bytes_of(recording), false);
        println!(
            "cpu {}: {} bytes, {packets} packets, {tnt} TNT",
            recording.cpu(),
            recording.len()
        );
        branches += tnt;
    }
    assert!(
        branches > 100,
        "the spinning threads ran somewhere: {branches} TNT packets"
    );
    for recording in recordings {
        assert_eq!(recording.close().kind, ControlKind::PtClose);
    }
}

#[test]
fn a_full_buffer_stops_that_tracer_and_is_told() {
    let _alone = alone();
    let Some(setup) = ready(&request(64 << 10)) else { return };
    let mut bench = Bench::new(setup);
    let cpus = bench.cpus.clone();
    cpus.iter().for_each(|&cpu| bench.enable(cpu));
    std::thread::scope(|scope| {
        cpus.iter().for_each(|_| drop(scope.spawn(|| spin(3000))));
        bench.until(|bench, _| !bench.full.is_empty());
    });
    let full = bench.full[0];
    for &cpu in &cpus {
        let recording = bench.stop(Request::Disable(cpu));
        if cpu == full {
            assert_eq!(recording.len(), 64 << 10);
            check_packets(&bytes_of(&recording), true);
        }
    }
    let loss = bench.losses.iter().find(|loss| loss.cpu == Some(full)).unwrap();
    assert_eq!(loss.kind, LossKind::AuxTruncated);
    assert!(loss.from < loss.to, "{loss:?}");
    assert_eq!(bench.ops.len(), 2 * cpus.len(), "{:?}", bench.ops);
}

#[test]
fn who_holds_the_tracers_is_named() {
    if env::var_os(HOLDER).is_some() {
        let _setup = ready(&request(64 << 10));
        return wait_to_be_killed();
    }
    let _alone = alone();
    if ready(&request(64 << 10)).is_none() {
        return;
    }
    let mut holder = holder("who_holds_the_tracers_is_named");
    let reason = set_up(&request(64 << 10), Path::new("/sys"), Path::new("/proc"))
        .unwrap()
        .err();
    let pid = holder.id();
    holder.kill().unwrap();
    holder.wait().unwrap();
    let reason = reason.expect("a second opener is refused");
    assert!(reason.contains(&format!("pid {pid}, perf events")), "{reason}");
    assert!(
        ready(&request(64 << 10)).is_some(),
        "after a SIGKILL the tracers are free"
    );
}

/// Tells the parent that it has come so far, and waits to be killed.
fn wait_to_be_killed() {
    println!("\nholding");
    std::thread::sleep(Duration::from_secs(60));
}

/// A copy of this test in the role of a holder, once it says that it holds.
fn holder(test: &str) -> Child {
    let mut holder = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(HOLDER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "holding"));
    holder
}

#[test]
fn a_sigkill_in_mid_window_leaves_nothing_twenty_times() {
    const NAME: &str = "a_sigkill_in_mid_window_leaves_nothing_twenty_times";
    if env::var_os(HOLDER).is_some() {
        let mut bench = Bench::new(ready(&request(64 << 10)).expect("the parent had one"));
        bench.cpus.clone().into_iter().for_each(|cpu| bench.enable(cpu));
        return wait_to_be_killed();
    }
    let _alone = alone();
    for _ in 0..20 {
        let Some(setup) = ready(&request(64 << 10)) else { return };
        drop(setup);
        let mut holder = holder(NAME);
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
    // Free, and at work.
    let mut bench = Bench::new(ready(&request(64 << 10)).unwrap());
    let cpu = bench.cpus[0];
    bench.enable(cpu);
    bench.stop(Request::Disable(cpu));
}

#[test]
fn a_limit_of_locked_memory_makes_buffers_smaller_and_is_said() {
    /// `include/uapi/linux/capability.h`; root has it, and with it no limit.
    const CAP_IPC_LOCK: u64 = 1 << 14;
    if env::var_os(LIMITED).is_some() {
        keep_only(CapSet(effective().unwrap().0 & !CAP_IPC_LOCK)).unwrap();
        let setup = ready(&request(16 << 20)).expect("the parent had one");
        let (buffers, total) = (
            setup.prepared.settings.buffers.len() as u64,
            setup.prepared.locked_bytes(),
        );
        println!("locked {total}: {:?}", setup.prepared.notes);
        assert!(total < buffers * (16 << 20), "{total}");
        let notes = setup.prepared.notes.join("\n");
        assert!(notes.contains("not 16 MiB") && notes.contains("ulimit -l"), "{notes}");
        return;
    }
    let _alone = alone();
    if ready(&request(16 << 20)).is_none() {
        return;
    }
    let paranoid = Path::new("/proc/sys/kernel/perf_event_paranoid");
    if env::var_os("EXIST_LAB").is_some() {
        fs::write(paranoid, "2").unwrap();
    }
    if fs::read_to_string(paranoid).unwrap().trim() == "-1" {
        return println!("skipped: with kernel.perf_event_paranoid at -1 there is no limit");
    }
    // With next to no RLIMIT_MEMLOCK, what perf allows each user is left.
    let limited = Command::new("sh")
        .args(["-c", "ulimit -l 64 && exec \"$0\" \"$@\""])
        .arg(env::current_exe().unwrap())
        .args([
            "--exact",
            "a_limit_of_locked_memory_makes_buffers_smaller_and_is_said",
            "--nocapture",
        ])
        .env(LIMITED, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&limited.stdout).into_owned() + &String::from_utf8_lossy(&limited.stderr);
    assert!(limited.status.success(), "{said}");
    println!("{said}");
}

#[test]
fn a_cpu_taken_offline_in_mid_window_keeps_what_it_wrote() {
    let _alone = alone();
    let switch = Path::new("/sys/devices/system/cpu/cpu1/online");
    if env::var_os("EXIST_LAB").is_none() || !switch.exists() {
        return println!("skipped: CPU 1 is taken offline only in the lab");
    }
    let Some(setup) = ready(&request(16 << 20)) else { return };
    let mut bench = Bench::new(setup);
    let mut hotplug = Hotplug::new(&cpu::online(Path::new("/sys")).unwrap());
    bench.enable(Cpu(0));
    bench.enable(Cpu(1));
    std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(|| spin(300))));
    });
    fs::write(switch, "0").unwrap();
    assert_eq!(
        hotplug.look(&cpu::online(Path::new("/sys")).unwrap()),
        [Change::Offline(Cpu(1))]
    );
    let recording = bench.stop(Request::Abandon(Cpu(1)));
    let first = recording.len();
    check_packets(&bytes_of(&recording), false);
    drop(recording);
    fs::write(switch, "1").unwrap();
    assert_eq!(
        hotplug.look(&cpu::online(Path::new("/sys")).unwrap()),
        [Change::Online(Cpu(1))]
    );
    bench.enable(Cpu(1));
    std::thread::scope(|scope| {
        (0..2).for_each(|_| drop(scope.spawn(|| spin(300))));
    });
    let recording = bench.stop(Request::Disable(Cpu(1)));
    assert!(
        recording
            .pieces()
            .next()
            .is_none_or(|piece| piece.offset > first as u64)
    );
    drop(recording);
    drop(bench.stop(Request::Disable(Cpu(0))));
    // CPU 0 may have filled its buffer meanwhile.
    let of_cpu_1: Vec<_> = bench.losses.iter().filter(|loss| loss.cpu == Some(Cpu(1))).collect();
    assert!(
        of_cpu_1.iter().any(|loss| loss.kind == LossKind::CpuHotplug),
        "{of_cpu_1:?}"
    );
}
