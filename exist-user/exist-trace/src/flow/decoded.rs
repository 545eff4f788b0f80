//! All CPUs: the steps of each thread in the order of time, and how much is known.

use std::collections::{BTreeMap, HashMap};

use super::{
    attribution::{Counts, Owner},
    cpu::{Context, CpuFlow},
    runs::{Spans, Unseen, runs},
    segments::{Entry, Exit, Segment},
    spans::{Branch, Span, Stack},
    streams::Streams,
};
use crate::{
    file::{
        Trace,
        model::{Record, SwitchOp},
    },
    image::{Function, Image, Place, Symbols},
    pt::{Errata, TimeSettings},
    units::{ClockMap, Cpu, MonoNs, Pid, Tid},
    walk::{BranchKind, Code, Step, What},
};

/// What a recording executed.
pub struct Flow {
    pub cpus: Vec<CpuFlow>,
    pub clock: ClockMap,
    /// Every thread that owns a segment, with its process.
    threads: BTreeMap<Tid, Vec<Piece>>,
    records: Vec<Record>,
    unseen: Unseen,
    /// By CPU, the segments that may be any thread's, in order.
    open: Vec<Vec<usize>>,
}

/// A segment of a thread.
#[derive(Clone, Copy, Debug)]
struct Piece {
    pid: Pid,
    cpu: usize,
    segment: usize,
}

/// What [`Flow::spans_and_jumps`] tells, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A call ended.
    Span(Span),
    /// A jump or taken branch within a function that is wanted: the depth of its call, and offsets in bytes from its begin.
    Jump { depth: u32, from: u64, to: u64 },
}

/// A step of a thread, with its time.
#[derive(Clone, Copy, Debug)]
pub struct ThreadStep {
    pub tid: Tid,
    pub pid: Pid,
    pub cpu: Cpu,
    pub time: MonoNs,
    pub step: Step,
}

/// How much of the target's execution is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Coverage {
    /// Time that threads of the target ran, by their switch records, nanoseconds.
    pub on_cpu_ns: u64,
    /// Of it, on a CPU while its trace was recorded.
    pub traced_ns: u64,
    /// Of the traced time, in segments that were put down to nobody.
    pub unsure_ns: u64,
    /// Segments that were put down to a thread, to two or more, or to records that are missing.
    pub attributed: u64,
    pub ambiguous: u64,
    pub lost: u64,
    pub foreign: u64,
    /// Bytes of trace in ambiguous segments and in all that are not foreign.
    pub ambiguous_bytes: u64,
    pub target_bytes: u64,
    pub counts: Counts,
    pub overflows: u64,
    pub packet_errors: u64,
}

impl Coverage {
    /// Share of the time that threads ran for which a trace was recorded, and is known to be whose.
    #[must_use]
    pub fn pt_share(&self) -> f64 {
        share(self.traced_ns.saturating_sub(self.unsure_ns), self.on_cpu_ns)
    }

    /// Share of the target's trace that could be any of several threads'.
    #[must_use]
    pub fn ambiguous_share(&self) -> f64 {
        share(self.ambiguous_bytes, self.target_bytes)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Flow {
    /// Puts a recording's streams and records together. `None` without processor trace, or without readings of both clocks.
    #[must_use]
    pub fn new(trace: &Trace, streams: Streams, image: &Image) -> Option<Self> {
        let header = &trace.header;
        let pt = header.pt.as_ref().ok()?;
        let clock = ClockMap::new(&trace.clock_pairs, header.node.tsc_khz)?;
        let time = TimeSettings::new(pt, trace.clock_pairs.first()?.tsc_before);
        let records = trace.records.clone();
        let context = Context {
            image,
            clock: &clock,
            time,
        };
        let cpus: Vec<CpuFlow> = streams
            .cpus
            .into_iter()
            .map(|(cpu, bytes)| {
                let info = header
                    .node
                    .cpus
                    .iter()
                    .find(|i| i.cpu == cpu)
                    .or(header.node.cpus.first());
                let errata = info.map_or_else(Errata::default, |i| Errata::of(&i.vendor, i.family, i.model));
                let own: Vec<Record> = records
                    .iter()
                    .filter(|r| Cpu(u32::from(r.cpu)) == cpu)
                    .copied()
                    .collect();
                let mut flow = CpuFlow::new(cpu, bytes, errata, &own, &context);
                // The tracers of a look-back run before the period, of whose switches there are no records.
                for (segment, owner) in flow.segments.segments.iter().zip(&mut flow.owners) {
                    if clock.mono(segment.entered.lo) < trace.start && *owner != Owner::Foreign {
                        *owner = Owner::Lost;
                    }
                }
                flow
            })
            .collect();
        let mut threads: BTreeMap<Tid, Vec<Piece>> = BTreeMap::new();
        for (index, cpu) in cpus.iter().enumerate() {
            for (segment, owner) in cpu.owners.iter().enumerate() {
                if let Owner::Thread { pid, tid } = *owner {
                    threads.entry(tid).or_default().push(Piece {
                        pid,
                        cpu: index,
                        segment,
                    });
                }
            }
        }
        for pieces in threads.values_mut() {
            pieces.sort_by_key(|p| (cpus[p.cpu].segments.segments[p.segment].entered.lo, p.cpu, p.segment));
        }
        let mut flow = Self {
            cpus,
            clock,
            threads,
            records,
            unseen: Unseen::default(),
            open: Vec::new(),
        };
        flow.unseen = Unseen::new(&flow.records, &flow.streams());
        let is_open = |owner: &Owner| matches!(owner, Owner::Ambiguous | Owner::Lost);
        let open = |cpu: &CpuFlow| {
            (0..)
                .zip(&cpu.owners)
                .filter(|(_, owner)| is_open(owner))
                .map(|(at, _)| at)
                .collect()
        };
        flow.open = flow.cpus.iter().map(open).collect();
        Some(flow)
    }

    /// The threads that own a part of the trace.
    pub fn threads(&self) -> impl Iterator<Item = Tid> {
        self.threads.keys().copied()
    }

    /// The process that a thread was last in.
    #[must_use]
    pub fn process(&self, tid: Tid) -> Option<Pid> {
        self.threads.get(&tid)?.last().map(|piece| piece.pid)
    }

    fn piece(&self, piece: &Piece) -> (&CpuFlow, &Segment) {
        let cpu = &self.cpus[piece.cpu];
        (cpu, &cpu.segments.segments[piece.segment])
    }

    /// Everything that a thread executed, in order.
    pub fn walk(&self, tid: Tid, image: &Image, mut sink: impl FnMut(ThreadStep)) {
        let mut codes = HashMap::new();
        for piece in self.threads.get(&tid).into_iter().flatten() {
            let (cpu, segment) = self.piece(piece);
            let Some(space) = image.space(piece.pid, self.clock.mono(segment.entered.lo)) else {
                continue;
            };
            let code = codes
                .entry(space.id())
                .or_insert_with(|| Code::new(move |ip| space.bytes(ip)));
            let mut last = MonoNs(0);
            for step in cpu.walk(segment, code) {
                // No earlier than the packets say, and never back.
                let time = self.clock.mono(cpu.line.at(step.offset).lo).max(last);
                last = time;
                sink(ThreadStep {
                    tid,
                    pid: piece.pid,
                    cpu: cpu.cpu,
                    time,
                    step,
                });
            }
        }
    }

    /// The call spans of a thread, each when it ends.
    pub fn spans(&self, tid: Tid, image: &Image, symbols: &mut Symbols, mut sink: impl FnMut(Span)) {
        let none = |_: &Function| false;
        self.spans_and_jumps(tid, image, symbols, none, |_, told| match told {
            Told::Span(span) => sink(span),
            Told::Jump { .. } => {}
        });
    }

    /// The same with the jumps, taken branches included, within the functions that are `wanted`. The sink is given the names
    /// as far as they are known.
    pub fn spans_and_jumps(
        &self,
        tid: Tid,
        image: &Image,
        symbols: &mut Symbols,
        wanted: impl Fn(&Function) -> bool,
        mut told: impl FnMut(&Symbols, Told),
    ) {
        let mut stack = Stack::default();
        let mut codes = HashMap::new();
        let mut resume: Option<u64> = None;
        let mut end = MonoNs(0);
        let mut places: HashMap<(usize, u64), (Place, bool)> = HashMap::new();
        let mut last: Option<&Piece> = None;
        for piece in self.threads.get(&tid).into_iter().flatten() {
            let (cpu, segment) = self.piece(piece);
            let entered = self.clock.mono(segment.entered.lo);
            // It may be anywhere by now.
            if self.unseen.between(tid, end, entered) || last.is_some_and(|last| self.ran_unseen(last, piece)) {
                resume = None;
            }
            last = Some(piece);
            let Some(space) = image.space(piece.pid, entered) else {
                continue;
            };
            // Another program (exec) has another stack.
            if self.executed_between(piece.pid, end, entered) {
                stack.end(end, &mut |span| told(symbols, Told::Span(span)));
                resume = None;
            }
            let code = codes
                .entry(space.id())
                .or_insert_with(|| Code::new(move |ip| space.bytes(ip)));
            let mut find = |ip: u64, symbols: &mut Symbols| {
                *places.entry((space.id(), ip)).or_insert_with(|| {
                    let place = symbols.place(&space, image, ip);
                    (place, wanted(symbols.function(place.function)))
                })
            };
            if matches!(segment.entry, Entry::Sync | Entry::Overflow) {
                resume = None;
            }
            let mut instructions = Code::new(move |ip| space.bytes(ip));
            for step in cpu.walk(segment, code) {
                let time = self.clock.mono(cpu.line.at(step.offset).lo).max(end);
                end = time;
                match step.what {
                    What::Enabled { ip, .. } => match resume.take() {
                        Some(expected) => {
                            let (place, _) = find(ip, symbols);
                            stack.resume(ip, expected, place, time, &mut |span| told(symbols, Told::Span(span)));
                        }
                        None => {
                            let (place, _) = find(ip, symbols);
                            stack.restart(place, time, &mut |span| told(symbols, Told::Span(span)));
                        }
                    },
                    What::Branch { from, to, kind } => {
                        // Only a call needs to know where it returns to.
                        let call = matches!(kind, BranchKind::Call | BranchKind::IndirectCall);
                        let next = if call {
                            instructions.instruction(from).ok()
                        } else {
                            None
                        };
                        let after = next.map_or(from, |i| i.next_ip());
                        let (place, is_wanted) = find(to, symbols);
                        stack.branch(Branch { kind, to, after }, place, time, &mut |span| {
                            told(symbols, Told::Span(span));
                        });
                        let jump = !call && kind != BranchKind::Return;
                        if is_wanted
                            && jump
                            && let Some(depth) = stack.depth()
                            && let (origin, _) = find(from, symbols)
                            && origin.function == place.function
                        {
                            let (from, to) = (origin.offset, place.offset);
                            told(symbols, Told::Jump { depth, from, to });
                        }
                    }
                    What::Interrupted { at, to } => {
                        let (place, _) = find(to, symbols);
                        stack.resume(to, at, place, time, &mut |span| told(symbols, Told::Span(span)));
                    }
                    What::Disabled(disabled) => resume = disabled.resume,
                    What::Overflow | What::Error { .. } => resume = None,
                    What::Event { .. } | What::End { .. } => {}
                }
            }
            if segment.exit != Exit::Disable {
                resume = None;
            }
        }
        stack.end(end, &mut |span| told(symbols, Told::Span(span)));
    }

    fn executed_between(&self, pid: Pid, from: MonoNs, to: MonoNs) -> bool {
        from.0 > 0
            && self
                .records
                .iter()
                .any(|r| r.op() == Some(SwitchOp::Exec) && r.pid == pid.0 && (from.0..to.0).contains(&r.time_ns))
    }

    /// How much is known.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::default();
        let spans = self.streams();
        for cpu in &self.cpus {
            coverage.overflows += cpu.segments.overflows.len() as u64;
            coverage.packet_errors += cpu.segments.errors.len() as u64;
            coverage.counts.exact += cpu.counts.exact;
            coverage.counts.by_time += cpu.counts.by_time;
            coverage.counts.ambiguous += cpu.counts.ambiguous;
            for (segment, owner) in cpu.segments.segments.iter().zip(&cpu.owners) {
                let bytes = segment.end - segment.start;
                if matches!(owner, Owner::Ambiguous | Owner::Lost) {
                    let (from, to) = (self.clock.mono(segment.entered.lo), self.clock.mono(segment.left.hi));
                    coverage.unsure_ns = coverage.unsure_ns.saturating_add(to.0.saturating_sub(from.0));
                }
                match owner {
                    Owner::Thread { .. } => coverage.attributed += 1,
                    Owner::Ambiguous => {
                        coverage.ambiguous += 1;
                        coverage.ambiguous_bytes += bytes;
                    }
                    Owner::Lost => coverage.lost += 1,
                    Owner::Foreign => coverage.foreign += 1,
                }
                if *owner != Owner::Foreign {
                    coverage.target_bytes += bytes;
                }
            }
        }
        for run in runs(&self.records) {
            coverage.on_cpu_ns += run.time.end.0 - run.time.start.0;
            coverage.traced_ns += run.traced_ns(&spans);
        }
        coverage
    }

    /// When each CPU's stream begins and ends.
    fn streams(&self) -> Spans {
        let span = |cpu: &CpuFlow| {
            let span = cpu.line.span()?;
            Some((cpu.cpu, (self.clock.mono(span.lo), self.clock.mono(span.hi))))
        };
        self.cpus.iter().filter_map(span).collect()
    }

    /// Whether a thread can have run between two of its segments without a segment that is put down to it.
    fn ran_unseen(&self, last: &Piece, next: &Piece) -> bool {
        let open = |cpu: usize, from: usize, to: usize| {
            let first = self.open[cpu].partition_point(|at| *at < from);
            self.open[cpu].get(first).is_some_and(|at| *at < to)
        };
        if last.cpu == next.cpu {
            open(last.cpu, last.segment + 1, next.segment)
        } else {
            open(last.cpu, last.segment + 1, last.segment + 2)
                || open(next.cpu, next.segment.saturating_sub(1), next.segment)
        }
    }
}
