use std::{
    io::{PipeReader, Read},
    os::fd::{AsFd, BorrowedFd},
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

use exist_trace::file::model::LossKind;

use super::*;
use crate::{
    alloc::{Asked, LEAST_BUFFER_BYTES, Plan, Reserve},
    capture::{Prepared, fake::FakePt, prepare},
    hook::NoticeKind,
};

const BUFFER: u64 = LEAST_BUFFER_BYTES;

/// An operator over a fake machine with `cpus` prepared, and its reports.
struct Bench {
    pt: FakePt,
    operator: Operator,
    reports: mpsc::Receiver<Report>,
}

impl Bench {
    fn new(cpus: u32) -> Self {
        Self::with(cpus, |_| {})
    }

    /// What is prepared, changed.
    fn with(cpus: u32, change: impl FnOnce(&mut Prepared)) -> Self {
        let pt = FakePt::default();
        let asked = Asked {
            buffer_bytes: Some(BUFFER),
            budget_bytes: None,
            ..Asked::default()
        };
        let plan = Plan::equal((0..cpus).map(Cpu).collect(), &asked, 1 << 40).unwrap();
        let mut prepared = prepare(&pt, plan).unwrap();
        change(&mut prepared);
        let (send, reports) = mpsc::channel();
        let report = Box::new(move |report| drop(send.send(report)));
        let operator = Operator::start(Box::new(pt.clone()), prepared, report).unwrap();
        Self { pt, operator, reports }
    }

    fn enable(&mut self, cpu: u32) {
        self.operator.request(Request::Enable {
            cpu: Cpu(cpu),
            seen: None,
        });
    }

    /// The next reports, as text, until one starts with `last`.
    fn until(&self, last: &str) -> Vec<String> {
        let mut texts = Vec::new();
        loop {
            match self.reports.recv_timeout(Duration::from_secs(20)) {
                Ok(report) => texts.push(show(&report)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => panic!("no {last} after {texts:?}"),
            }
            if texts.last().is_some_and(|text| text.starts_with(last)) {
                return texts;
            }
        }
    }

    fn recording(&self) -> (Recording, Vec<String>) {
        let mut texts = Vec::new();
        loop {
            match self.reports.recv_timeout(Duration::from_secs(20)) {
                Ok(Report::Recorded(recording)) => return (recording, texts),
                Ok(report) => texts.push(show(&report)),
                Err(_) => panic!("no recording after {texts:?}"),
            }
        }
    }
}

fn show(report: &Report) -> String {
    match report {
        Report::Op(op) => {
            assert!(op.from <= op.to);
            let cpu = op.cpu.unwrap();
            let error = op.error.as_ref().map(|_| "!").unwrap_or_default();
            format!("{}{cpu}{error}", op.kind.as_str())
        }
        Report::Loss(loss) => {
            assert!(loss.from <= loss.to);
            format!("lost:{}{}", loss.kind.as_str(), loss.cpu.unwrap())
        }
        Report::Notice(notice) => format!("notice{}", notice.cpu),
        Report::EnableFailed(cpu) => format!("failed{cpu}"),
        Report::BufferFull(cpu) => format!("full{cpu}"),
        Report::Recorded(recording) => format!("recorded{}", recording.cpu()),
    }
}

#[test]
fn a_window_is_two_operations_a_cpu_and_untouched_cpus_none() {
    let mut bench = Bench::new(3);
    bench.enable(0);
    bench.enable(2);
    bench.enable(2); // a second time: nothing
    bench.until("pt_enable2");
    bench.pt.write(Cpu(0), b"zero");
    bench.pt.write(Cpu(2), b"two");
    bench.operator.request(Request::Disable(Cpu(0)));
    bench.operator.request(Request::Disable(Cpu(1))); // never enabled: nothing
    bench.operator.request(Request::Disable(Cpu(2)));
    for (cpu, bytes) in [(0, &b"zero"[..]), (2, b"two")] {
        let (recording, before) = bench.recording();
        assert_eq!(before, [format!("pt_disable{cpu}")]);
        let pieces: Vec<_> = recording.pieces().collect();
        assert_eq!((recording.cpu(), pieces.len()), (Cpu(cpu), 1));
        assert_eq!(
            (&pieces[0].bytes[..], pieces[0].offset, pieces[0].aux_flags),
            (bytes, 0, 0)
        );
        assert_eq!(recording.close().kind, ControlKind::PtClose);
    }
    drop(bench.operator);
    let said = bench.pt.said();
    assert_eq!(said.matches("able").count(), 4, "{said}");
    assert_eq!(said.matches("close").count(), 3, "{said}");
}

#[test]
fn a_cpu_without_a_tracer_gets_one_of_the_reserve_unless_it_is_left_out() {
    let mut bench = Bench::with(1, |prepared| {
        prepared.left_out = [Cpu(1)].into();
        prepared.reserve = Reserve {
            buffer_bytes: BUFFER,
            total_bytes: BUFFER,
        };
    });
    let refused = |bench: &mut Bench, cpu: u32, why: &str| {
        bench.enable(cpu);
        match bench.reports.recv_timeout(Duration::from_secs(20)).unwrap() {
            Report::Loss(loss) => assert!(loss.reason.contains(why), "{loss:?}"),
            other => panic!("{}", show(&other)),
        }
        assert_eq!(
            bench.until("pt_open"),
            [format!("failed{cpu}"), format!("pt_open{cpu}!")]
        );
    };
    refused(&mut bench, 1, "it is not to be recorded");
    bench.enable(2);
    assert_eq!(bench.until("pt_enable"), ["pt_open2", "pt_enable2"]);
    refused(&mut bench, 3, "the reserve is used up; raise --budget");
    drop(bench.operator);
    let said = bench.pt.said();
    assert!(
        said.contains("open2") && !said.contains("open1") && !said.contains("open3"),
        "{said}"
    );
}

/// Notices as a test gives them.
struct Told {
    notices: mpsc::Receiver<Notice>,
    readable: PipeReader,
}

impl Sightings for Told {
    fn fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }

    fn take(&mut self, sink: &mut dyn FnMut(Notice)) {
        for notice in self.notices.try_iter() {
            self.readable.read_exact(&mut [0]).unwrap();
            sink(notice);
        }
    }
}

/// Says that the target has come to a CPU.
struct Tell {
    notices: mpsc::Sender<Notice>,
    wake: PipeWriter,
}

impl Tell {
    fn seen(&mut self, cpu: u32) {
        self.notices
            .send(Notice {
                time_ns: clock::mono_ns(),
                kind: NoticeKind::CpuSeen as u32,
                cpu,
                pid: 1,
                tid: 1,
                id: 1,
            })
            .unwrap();
        self.wake.write_all(&[0]).unwrap();
    }
}

fn told() -> (Tell, Box<Told>) {
    let (send, notices) = mpsc::channel();
    let (readable, wake) = io::pipe().unwrap();
    (Tell { notices: send, wake }, Box::new(Told { notices, readable }))
}

#[test]
fn a_cpu_that_the_target_comes_to_is_started_before_the_controller_asks() {
    let mut bench = Bench::new(3);
    bench.enable(0);
    bench.until("pt_enable0");
    let (mut tell, told) = told();
    tell.seen(1); // before the watch begins
    bench.operator.request(Request::Watch(told));
    assert_eq!(bench.until("notice"), ["lost:pt_late1", "pt_enable1", "notice1"]);
    tell.seen(0); // runs already
    assert_eq!(bench.until("notice"), ["notice0"]);
    bench.enable(1); // what the controller says to the notice: no further operation
    tell.seen(2);
    assert_eq!(bench.until("notice2"), ["lost:pt_late2", "pt_enable2", "notice2"]);
    tell.seen(9); // not prepared: only the controller can want it
    assert_eq!(bench.until("notice"), ["notice9"]);

    // Nobody has asked for CPU 2 when the watch ends: its window is nobody's.
    bench.operator.request(Request::EndWatch);
    assert_eq!(bench.until("pt_disable"), ["pt_disable2"]);
    for cpu in [0, 1] {
        bench.operator.request(Request::Disable(Cpu(cpu)));
        let (recording, before) = bench.recording();
        assert_eq!((recording.cpu(), before), (Cpu(cpu), vec![format!("pt_disable{cpu}")]));
    }
    drop(bench.operator);
    let said = bench.pt.said();
    assert_eq!(said.matches("able").count(), 6, "{said}");
}

#[test]
fn a_late_cpu_is_a_loss_from_its_first_switch_in() {
    let mut bench = Bench::new(1);
    let seen = Some(MonoNs(clock::mono_ns() - 250_000));
    bench.operator.request(Request::Enable { cpu: Cpu(0), seen });
    let late = bench.reports.recv_timeout(Duration::from_secs(20)).unwrap();
    let Report::Loss(loss) = late else {
        panic!("{}", show(&late))
    };
    assert_eq!(
        (loss.kind, loss.cpu, Some(loss.from)),
        (LossKind::PtLate, Some(Cpu(0)), seen)
    );
    assert!(loss.to.0 - loss.from.0 >= 250_000);
    assert_eq!(bench.until("pt_enable0").len(), 1);
}

#[test]
fn a_full_buffer_is_told_once_and_is_a_loss() {
    let mut bench = Bench::new(2);
    bench.enable(0);
    bench.until("pt_enable0");
    bench.pt.write(Cpu(0), &vec![7; BUFFER as usize + 5]);
    assert_eq!(bench.until("full0"), ["full0"]);
    let full_by = clock::mono_ns();
    bench.operator.request(Request::Disable(Cpu(0)));
    let (recording, before) = bench.recording();
    assert_eq!(before, ["pt_disable0", "lost:aux_truncated0"]);
    assert_eq!(recording.len(), BUFFER as usize);
    assert!(recording.recorded_until().0 <= full_by);
    let last = recording.pieces().last().unwrap();
    assert_eq!(last.aux_flags, 1);
}

#[test]
fn a_tracer_that_cannot_be_enabled_is_a_loss() {
    let mut bench = Bench::new(1);
    bench.pt.refuse(Cpu(0), libc::EIO);
    bench.enable(0);
    assert_eq!(
        bench.until("pt_enable"),
        ["lost:pt_unavailable0", "failed0", "pt_enable0!"]
    );
    // One that is not prepared is opened; that fails too.
    bench.pt.refuse(Cpu(5), libc::EBUSY);
    bench.enable(5);
    assert_eq!(bench.until("pt_open"), ["lost:pt_unavailable5", "failed5", "pt_open5!"]);
}

#[test]
fn a_cpu_that_goes_keeps_its_bytes_and_one_that_returns_starts_a_new_stream() {
    let mut bench = Bench::new(1);
    bench.enable(0);
    bench.until("pt_enable0");
    bench.pt.write(Cpu(0), b"before");
    bench.pt.take_offline(Cpu(0));
    bench.operator.request(Request::Abandon(Cpu(0)));
    let (recording, before) = bench.recording();
    assert_eq!(before, ["lost:cpu_hotplug0"]);
    assert_eq!(recording.pieces().next().unwrap().bytes, b"before");
    let end = recording
        .pieces()
        .map(|piece| piece.offset + piece.bytes.len() as u64)
        .last()
        .unwrap();
    drop(recording);
    bench.enable(0);
    assert_eq!(bench.until("pt_enable0"), ["pt_open0", "pt_enable0"]);
    bench.pt.write(Cpu(0), b"after");
    bench.operator.request(Request::Disable(Cpu(0)));
    let (recording, _) = bench.recording();
    let piece = recording.pieces().next().unwrap();
    assert_eq!(piece.bytes, b"after");
    assert!(piece.offset > end, "the streams must not join");
}

#[test]
fn nothing_stays_when_the_operator_goes() {
    let mut bench = Bench::new(2);
    bench.enable(0);
    bench.until("pt_enable0");
    drop(bench.operator);
    assert!(bench.pt.said().ends_with("close0 close1"), "{}", bench.pt.said());
}
