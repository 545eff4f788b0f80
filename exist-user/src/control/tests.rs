use super::*;

const A: PeriodId = PeriodId(1);
const B: PeriodId = PeriodId(2);

fn begin(period: PeriodId, ends_at: u64, look_back: &[u32]) -> Input {
    Input::Begin {
        period,
        ends_at: Some(MonoNs(ends_at)),
        look_back: look_back.iter().map(|&c| Cpu(c)).collect(),
    }
}

fn seen(period: PeriodId, cpu: u32) -> Input {
    Input::Seen { period, cpu: Cpu(cpu) }
}

fn failed(period: PeriodId) -> Input {
    Input::Failed {
        period,
        reason: "disk full".into(),
    }
}

/// Runs `(now, input)` steps and compares all commands as text: `+3` enable, `-3` disable, `x3` abandon, `drain 1`,
/// `finish 1 reason`; steps are separated by `;`.
fn check(steps: &[(u64, Input)], expect: &str) {
    let mut controller = Controller::default();
    let text: Vec<_> = steps
        .iter()
        .map(|(now, input)| {
            let mut commands = Vec::new();
            controller.step(MonoNs(*now), input.clone(), &mut commands);
            commands.iter().map(show).collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(text.join(";"), expect);
}

fn show(command: &Command) -> String {
    match command {
        Command::Enable(cpu) => format!("+{cpu}"),
        Command::Disable(cpu) => format!("-{cpu}"),
        Command::Abandon(cpu) => format!("x{cpu}"),
        Command::Drain(period) => format!("drain {}", period.0),
        Command::Finish(period, reason) => format!("finish {} {reason}", period.0),
    }
}

#[test]
fn a_period_ends_by_time() {
    check(
        &[
            (0, begin(A, 100, &[])),
            (1, seen(A, 0)),
            (2, seen(A, 3)),
            (3, seen(A, 0)),
            (99, Input::Tick),
            (100, Input::Tick),
            (101, Input::Drained { period: A }),
        ],
        ";+0;+3;;;-0 -3 drain 1;finish 1 period",
    );
}

#[test]
fn any_input_after_the_deadline_ends_the_period_first() {
    check(&[(0, begin(A, 100, &[1])), (100, seen(A, 2))], "+1;-1 drain 1");
    check(&[(100, begin(A, 100, &[1]))], "+1 -1 drain 1");
}

#[test]
fn a_period_ends_by_exit_interrupt_and_failure() {
    let exited = Input::TargetExited { period: A };
    check(
        &[
            (0, begin(A, 9, &[1])),
            (1, exited.clone()),
            (2, exited),
            (3, Input::Drained { period: A }),
        ],
        "+1;-1 drain 1;;finish 1 target_exited",
    );
    check(
        &[
            (0, begin(A, 9, &[1])),
            (1, Input::Interrupt),
            (2, Input::Drained { period: A }),
        ],
        "+1;-1 drain 1;finish 1 interrupted",
    );
    check(
        &[(0, begin(A, 9, &[1])), (1, failed(A))],
        "+1;-1 drain 1 finish 1 error: disk full",
    );
    check(
        &[(0, begin(A, 9, &[1])), (1, Input::Interrupt), (2, failed(A))],
        "+1;-1 drain 1;finish 1 error: disk full",
    );
}

#[test]
fn a_second_interrupt_does_not_wait_for_the_drain() {
    check(
        &[
            (0, begin(A, 9, &[])),
            (1, Input::Interrupt),
            (2, Input::Interrupt),
            (3, Input::Interrupt),
        ],
        ";drain 1;finish 1 interrupted;",
    );
}

#[test]
fn a_period_ends_when_all_buffers_are_full() {
    let full = |cpu| Input::BufferFull { cpu: Cpu(cpu) };
    check(
        &[(0, begin(A, 9, &[1, 2])), (1, full(1)), (2, full(1)), (3, full(2))],
        "+1 +2;;;-1 -2 drain 1",
    );
    // A CPU that joins before the last one is full keeps the period open.
    check(
        &[
            (0, begin(A, 9, &[1, 2])),
            (1, full(1)),
            (2, seen(A, 3)),
            (3, full(2)),
            (4, full(3)),
        ],
        "+1 +2;;+3;;-1 -2 -3 drain 1",
    );
    // One that could not be enabled has no buffer, one that is not held says nothing.
    check(
        &[
            (0, begin(A, 9, &[1, 2])),
            (1, full(7)),
            (1, full(1)),
            (2, Input::EnableFailed { cpu: Cpu(2) }),
        ],
        "+1 +2;;;-1 drain 1",
    );
}

#[test]
fn a_tracer_that_failed_is_neither_disabled_nor_tried_again_in_the_period() {
    check(
        &[
            (0, begin(A, 9, &[1])),
            (1, Input::EnableFailed { cpu: Cpu(1) }),
            (2, seen(A, 1)),
            (9, Input::Tick),
            (10, Input::Drained { period: A }),
            (11, begin(B, 20, &[1])),
        ],
        "+1;;;drain 1;finish 1 period;+1",
    );
}

#[test]
fn periods_share_a_tracer() {
    check(
        &[
            (0, begin(A, 50, &[1])),
            (1, begin(B, 100, &[1, 2])),
            (50, Input::Tick),
            (51, seen(A, 3)),
            (52, seen(B, 3)),
            (100, Input::Tick),
        ],
        "+1;+2;drain 1;;+3;-1 -2 -3 drain 2",
    );
    // One begins while the other drains: the CPU's tracer is a new one.
    check(
        &[(0, begin(A, 50, &[1])), (50, begin(B, 100, &[1]))],
        "+1;-1 drain 1 +1",
    );
}

#[test]
fn a_cpu_goes_and_comes_back() {
    let offline = Input::Offline { cpu: Cpu(1) };
    let online = Input::Online { cpu: Cpu(1) };
    check(
        &[
            (0, begin(A, 9, &[1])),
            (1, offline.clone()),
            (2, offline.clone()),
            (3, online.clone()),
            (4, online.clone()),
            (9, Input::Tick),
        ],
        "+1;x1;;+1;;-1 drain 1",
    );
    check(
        &[(0, begin(A, 9, &[1])), (1, offline.clone()), (9, Input::Tick)],
        "+1;x1;drain 1",
    );
    // Not held: nothing to do.
    check(&[(0, begin(A, 9, &[])), (1, offline), (2, online)], ";;");
}

#[test]
fn inputs_of_unknown_periods_are_ignored() {
    check(
        &[
            (0, seen(A, 1)),
            (0, Input::Drained { period: A }),
            (0, failed(A)),
            (0, Input::TargetExited { period: A }),
            (0, begin(A, 9, &[1])),
            (1, Input::Drained { period: A }),
            (2, begin(A, 99, &[2])),
        ],
        ";;;;+1;;",
    );
}

#[test]
fn the_deadline_is_the_nearest_of_the_running_periods() {
    let mut controller = Controller::default();
    let mut step = |now, input| {
        controller.step(MonoNs(now), input, &mut Vec::new());
        controller.next_deadline()
    };
    assert_eq!(
        step(
            0,
            Input::Begin {
                period: A,
                ends_at: None,
                look_back: vec![]
            }
        ),
        None
    );
    assert_eq!(step(1, begin(B, 50, &[])), Some(MonoNs(50)));
    assert_eq!(step(2, begin(PeriodId(3), 20, &[])), Some(MonoNs(20)));
    assert_eq!(step(20, Input::Tick), Some(MonoNs(50)));
    assert_eq!(step(50, Input::Tick), None);
}

#[test]
fn a_period_can_be_given_its_end_later() {
    let begin = Input::Begin {
        period: A,
        ends_at: None,
        look_back: vec![Cpu(1)],
    };
    let ends_at = Input::EndsAt {
        period: A,
        time: MonoNs(7),
    };
    check(
        &[
            (0, begin.clone()),
            (5, ends_at.clone()),
            (6, Input::Tick),
            (7, Input::Tick),
        ],
        "+1;;;-1 drain 1",
    );
    check(&[(0, begin), (8, ends_at)], "+1;-1 drain 1");
}

/// Every input in every order, at random: what must hold whatever happens.
#[test]
fn random_walks_keep_the_invariants() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for _ in 0..300 {
        let mut controller = Controller::default();
        let mut watch = Watch::default();
        let mut now = 0;
        for _ in 0..200 {
            now += next(20);
            let period = PeriodId(u32::try_from(next(3)).unwrap());
            let cpu = Cpu(u32::try_from(next(4)).unwrap());
            let input = match next(25) {
                0 | 1 => begin(period, now + next(200), &[cpu.0]),
                2 => Input::Begin {
                    period,
                    ends_at: None,
                    look_back: vec![],
                },
                3 => Input::BufferFull { cpu },
                4 => Input::EnableFailed { cpu },
                5 => Input::Offline { cpu },
                6 => Input::Online { cpu },
                7 => Input::TargetExited { period },
                8 => Input::Interrupt,
                9 => failed(period),
                10..=13 => Input::Drained { period },
                14 | 15 => Input::Tick,
                16 => Input::EndsAt {
                    period,
                    time: MonoNs(now + next(100)),
                },
                _ => Input::Seen { period, cpu },
            };
            let mut commands = Vec::new();
            watch.before(&input);
            controller.step(MonoNs(now), input, &mut commands);
            commands.iter().for_each(|command| watch.command(command));
        }
        // However it went, two interrupts end it all.
        for _ in 0..2 {
            let mut commands = Vec::new();
            controller.step(MonoNs(now), Input::Interrupt, &mut commands);
            commands.iter().for_each(|command| watch.command(command));
        }
        assert!(controller.is_idle());
        assert!(watch.on.is_empty(), "tracers left on: {:?}", watch.on);
        assert!(
            watch.draining.is_empty(),
            "drained but not finished: {:?}",
            watch.draining
        );
    }
}

/// The world as the commands make it.
#[derive(Default)]
struct Watch {
    on: BTreeSet<Cpu>,
    draining: BTreeSet<PeriodId>,
}

impl Watch {
    fn before(&mut self, input: &Input) {
        if let Input::EnableFailed { cpu } = input {
            self.on.remove(cpu);
        }
    }

    fn command(&mut self, command: &Command) {
        match command {
            Command::Enable(cpu) => assert!(self.on.insert(*cpu), "{cpu} enabled twice"),
            Command::Disable(cpu) | Command::Abandon(cpu) => {
                assert!(self.on.remove(cpu), "{cpu} stopped but not on");
            }
            Command::Drain(period) => assert!(self.draining.insert(*period), "{period:?} drained twice"),
            Command::Finish(period, _) => assert!(self.draining.remove(period), "{period:?} finished undrained"),
        }
    }
}
