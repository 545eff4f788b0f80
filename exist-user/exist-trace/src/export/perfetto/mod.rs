//! A trace in Perfetto's format: CPUs and threads as ftrace's `sched_switch`, losses and control operations as instants;
//! call spans as slices behind them ([`Calls`]).
//!
//! Streams: a packet for each CPU and generation. What is not the target's is not known, so a CPU that runs something
//! else, or nothing, shows as idle. Only what is certain is drawn as running.
//! Times are CLOCK_MONOTONIC, given to Perfetto as its BOOTTIME (the two differ by the time that a machine was suspended).

pub mod proto;

mod calls;

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Write},
};

use prost::Message as _;
use proto::{
    CLONE_THREAD, Clock, ClockSnapshot, DebugAnnotation, FtraceEvent, FtraceEventBundle, Process, ProcessTree,
    SEQ_INCREMENTAL_STATE_CLEARED, SchedProcessFree, SchedSwitch, SystemInfo, TYPE_INSTANT, TaskNewtask, TracePacket,
    TrackDescriptor, TrackEvent, Utsname, clock,
};

pub use calls::Calls;

use crate::{
    file::{
        Header, Piece, Pieces,
        model::{ControlOp, Loss},
    },
    flow::{Sched, Step, Thread, ThreadIx, Threads, state::TaskState},
    units::{Cpu, MonoNs},
};

/// The writer's sequence, and the tracks of its own events.
const SEQUENCE: u32 = 1;
const LOSSES: u64 = 1;
const OPS: u64 = 2;

/// Writes the whole file.
///
/// # Errors
/// Those of `out`.
pub fn write(pieces: Pieces<'_>, out: impl Write) -> io::Result<()> {
    let mut to = Packets::new(out);
    to.head(pieces.header())?;
    let start = pieces.header().start;
    let mut sched = Sched::default();
    let mut drawn = Drawn {
        start,
        ..Drawn::default()
    };
    let mut ran = Vec::new();
    for piece in pieces {
        sched.piece(&piece, &mut |step| ran.push(step));
        drawn.steps(&sched.threads, &mut ran);
        drawn.bundles(&mut to)?;
        match piece {
            Piece::Loss(loss) => to.instant(LOSSES, loss.from, loss_event(&loss))?,
            Piece::Unseen(_) => {}
            Piece::Generation(g, _) => g.ops.iter().try_for_each(|op| to.instant(OPS, op.from, op_event(op)))?,
        }
    }
    let (threads, _) = sched.finish(&mut |step| ran.push(step));
    drawn.steps(&threads, &mut ran);
    drawn.end(&threads);
    drawn.bundles(&mut to)
}

struct Packets<W> {
    out: W,
    buffer: Vec<u8>,
}

impl<W: Write> Packets<W> {
    const fn new(out: W) -> Self {
        Self {
            out,
            buffer: Vec::new(),
        }
    }

    /// A trace is a message whose one field, number 1, repeats: packets can be appended.
    fn packet(&mut self, packet: &TracePacket) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.push(1 << 3 | 2);
        packet
            .encode_length_delimited(&mut self.buffer)
            .map_err(io::Error::other)?;
        self.out.write_all(&self.buffer)
    }

    fn head(&mut self, header: &Header) -> io::Result<()> {
        let clock = |clock_id, timestamp| Clock {
            clock_id: Some(clock_id),
            timestamp: Some(timestamp),
        };
        let start = header.start.0;
        self.packet(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(SEQ_INCREMENTAL_STATE_CLEARED),
            clock_snapshot: Some(ClockSnapshot {
                clocks: vec![
                    clock(clock::BOOTTIME, start),
                    clock(clock::MONOTONIC, start),
                    clock(clock::REALTIME, header.start_realtime_ns),
                ],
            }),
            ..TracePacket::default()
        })?;
        // Without the kernel's version the task states are read as those of an old one.
        self.packet(&TracePacket {
            system_info: Some(SystemInfo {
                utsname: Some(Utsname {
                    sysname: Some("Linux".into()),
                    release: Some(header.node.kernel.clone()),
                    machine: Some(header.node.machine.clone()),
                }),
                num_cpus: u32::try_from(header.node.cpus.len()).ok(),
            }),
            ..TracePacket::default()
        })?;
        [(LOSSES, "exist: losses"), (OPS, "exist: control operations")]
            .into_iter()
            .try_for_each(|(uuid, name)| {
                self.packet(&TracePacket {
                    trusted_packet_sequence_id: Some(SEQUENCE),
                    track_descriptor: Some(TrackDescriptor {
                        uuid: Some(uuid),
                        name: Some(name.into()),
                        ..TrackDescriptor::default()
                    }),
                    ..TracePacket::default()
                })
            })
    }

    fn instant(&mut self, track: u64, time: MonoNs, event: TrackEvent) -> io::Result<()> {
        self.packet(&TracePacket {
            timestamp: Some(time.0),
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_event: Some(TrackEvent {
                r#type: Some(TYPE_INSTANT),
                track_uuid: Some(track),
                ..event
            }),
            ..TracePacket::default()
        })
    }
}

fn loss_event(loss: &Loss) -> TrackEvent {
    event(
        "loss",
        loss.kind.as_str(),
        [
            number("cpu", loss.cpu.map(|c| c.0.into())),
            number("records", Some(loss.records)),
            number("bytes", Some(loss.bytes)),
            number("to_ns", Some(loss.to.0)),
            text("reason", &loss.reason),
        ],
    )
}

fn op_event(op: &ControlOp) -> TrackEvent {
    event(
        "control",
        op.kind.as_str(),
        [
            number("cpu", op.cpu.map(|c| c.0.into())),
            number("took_ns", Some(op.to.0.saturating_sub(op.from.0))),
            text("result", op.error.as_deref().unwrap_or("done")),
        ],
    )
}

fn event<const N: usize>(category: &str, name: &str, annotations: [Option<DebugAnnotation>; N]) -> TrackEvent {
    TrackEvent {
        debug_annotations: annotations.into_iter().flatten().collect(),
        categories: vec![category.into()],
        name: Some(name.into()),
        ..TrackEvent::default()
    }
}

fn number(name: &str, value: Option<u64>) -> Option<DebugAnnotation> {
    let uint_value = Some(value?);
    Some(DebugAnnotation {
        name: Some(name.into()),
        uint_value,
        ..DebugAnnotation::default()
    })
}

fn text(name: &str, value: &str) -> Option<DebugAnnotation> {
    let string_value = Some(value.into());
    Some(DebugAnnotation {
        name: Some(name.into()),
        string_value,
        ..DebugAnnotation::default()
    })
}

/// The last stay on a CPU: its end is drawn when it is known who follows.
struct Last {
    thread: ThreadIx,
    end: MonoNs,
    state: TaskState,
}

/// What is on its way into packets.
#[derive(Default)]
struct Drawn {
    start: MonoNs,
    last: BTreeMap<u32, Last>,
    /// Events of each CPU that stand in no packet yet.
    events: BTreeMap<u32, Vec<FtraceEvent>>,
    trees: Vec<(MonoNs, ProcessTree)>,
    /// Threads that were introduced, the latest bearer of each number, and processes.
    introduced: u32,
    bearers: HashMap<u32, ThreadIx>,
    processes: HashMap<u32, ()>,
}

impl Drawn {
    fn steps(&mut self, threads: &Threads, steps: &mut Vec<Step>) {
        for step in steps.drain(..) {
            if let Step::Ran {
                thread,
                cpu,
                from,
                to,
                state,
            } = step
            {
                self.ran(threads, cpu, Last { thread, end: to, state }, from);
            }
        }
        let first = self.introduced;
        for (ix, thread) in threads.iter().skip(first as usize) {
            self.introduce(threads, ix, thread);
            self.introduced += 1;
        }
    }

    fn ran(&mut self, threads: &Threads, cpu: Cpu, stay: Last, from: MonoNs) {
        let next = (threads.get(stay.thread), from);
        match self.last.insert(cpu.0, stay) {
            Some(last) if last.end == from => self.switch(cpu, Some((threads.get(last.thread), &last)), Some(next)),
            Some(last) => {
                self.switch(cpu, Some((threads.get(last.thread), &last)), None);
                self.switch(cpu, None, Some(next));
            }
            None => self.switch(cpu, None, Some(next)),
        }
    }

    /// `None`: the idle task, which stands for everything that is not the target's.
    fn switch(&mut self, cpu: Cpu, prev: Option<(&Thread, &Last)>, next: Option<(&Thread, MonoNs)>) {
        let Some(time) = next.map(|(_, from)| from).or(prev.map(|(_, last)| last.end)) else {
            return;
        };
        let of = |thread: Option<&Thread>| match thread {
            Some(thread) => (thread.name.to_string(), thread.tid.0.cast_signed()),
            None => (format!("swapper/{cpu}"), 0),
        };
        let (prev_comm, prev_pid) = of(prev.map(|(thread, _)| thread));
        let (next_comm, next_pid) = of(next.map(|(thread, _)| thread));
        self.events.entry(cpu.0).or_default().push(FtraceEvent {
            timestamp: Some(time.0),
            pid: Some(prev_pid.cast_unsigned()),
            sched_switch: Some(SchedSwitch {
                prev_comm: Some(prev_comm),
                prev_pid: Some(prev_pid),
                prev_state: Some(prev.map_or(0, |(_, last)| last.state.ftrace())),
                next_comm: Some(next_comm),
                next_pid: Some(next_pid),
            }),
            ..FtraceEvent::default()
        });
    }

    /// Tells which process a thread belongs to, from its birth if that is known.
    fn introduce(&mut self, threads: &Threads, ix: ThreadIx, thread: &Thread) {
        let name = thread.name.to_string();
        let tid = thread.tid.0.cast_signed();
        let mut time = self.start;
        if let Some(old) = self.bearers.insert(thread.tid.0, ix).map(|old| threads.get(old)) {
            // The number is used again: what had it is gone, a moment after it was last switched out.
            let gone = MonoNs(old.exited.unwrap_or(self.start).0.saturating_add(1));
            let free = SchedProcessFree {
                comm: Some(old.name.to_string()),
                pid: Some(tid),
            };
            self.life(
                gone,
                0,
                FtraceEvent {
                    sched_process_free: Some(free),
                    ..FtraceEvent::default()
                },
            );
            self.processes.remove(&thread.tid.0);
            time = MonoNs(gone.0.saturating_add(1));
        }
        if let (Some(born), Some((parent_pid, parent_tid))) = (thread.born, thread.parent) {
            let is_thread = parent_pid == thread.pid && thread.pid.0 != thread.tid.0;
            let clone_flags = if is_thread { CLONE_THREAD } else { 0 };
            let task = TaskNewtask {
                pid: Some(tid),
                comm: Some(name),
                clone_flags: Some(clone_flags),
            };
            self.life(
                born,
                parent_tid.0,
                FtraceEvent {
                    task_newtask: Some(task),
                    ..FtraceEvent::default()
                },
            );
            if thread.pid.0 == thread.tid.0 {
                self.processes.insert(thread.pid.0, ());
            }
            return;
        }
        let pid = thread.pid.0.cast_signed();
        let is_new = self.processes.insert(thread.pid.0, ()).is_none();
        let processes = is_new.then(|| Process {
            pid: Some(pid),
            cmdline: vec![name.clone()],
        });
        let entry = proto::Thread {
            tid: Some(tid),
            name: Some(name),
            tgid: Some(pid),
        };
        let tree = ProcessTree {
            processes: processes.into_iter().collect(),
            threads: vec![entry],
        };
        self.trees.push((time, tree));
    }

    fn life(&mut self, time: MonoNs, by: u32, event: FtraceEvent) {
        let event = FtraceEvent {
            timestamp: Some(time.0),
            pid: Some(by),
            ..event
        };
        self.events.entry(0).or_default().push(event);
    }

    /// The last stay of each CPU ends.
    fn end(&mut self, threads: &Threads) {
        for (cpu, last) in std::mem::take(&mut self.last) {
            self.switch(Cpu(cpu), Some((threads.get(last.thread), &last)), None);
        }
    }

    fn bundles(&mut self, to: &mut Packets<impl Write>) -> io::Result<()> {
        for (time, tree) in self.trees.drain(..) {
            let (timestamp, process_tree) = (Some(time.0), Some(tree));
            to.packet(&TracePacket {
                timestamp,
                process_tree,
                ..TracePacket::default()
            })?;
        }
        for (cpu, event) in std::mem::take(&mut self.events) {
            let bundle = FtraceEventBundle { cpu: Some(cpu), event };
            to.packet(&TracePacket {
                ftrace_events: Some(bundle),
                ..TracePacket::default()
            })?;
        }
        Ok(())
    }
}
