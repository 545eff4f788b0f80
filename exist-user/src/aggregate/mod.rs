//! Merges what the sources tell, in time order, into generations of the trace file.
//!
//! Takes: switch records, the side-band, counters, clock pairs, operations, processor trace; once a tick each source is
//! drained, the side-band before the records, and then [`Aggregator::advance`] is called. Gives: [`Generation`]s that are
//! complete. Refuses: mappings and names of processes that are not the target's; they are dropped here.
//!
//! ```text
//!   side-band ─┐ held until it is certain that nothing earlier can come
//!   records   ─┴▶ by time ─▶ whose is it? ─▶ threads, spaces ─▶ open generation ─▶ closed: 100 ms or 1 MiB
//! ```
//!
//! The order of the drains matters: a child's fork record is written before the child can map anything. So whatever the
//! side-band holds when it is drained, the records drained after it say whose it is.

mod build_id;
mod generation;
mod live;
mod spaces;
mod threads;

use std::{collections::BTreeMap, sync::Arc};

use exist_trace::{
    file::model::{
        ClockPair, ControlOp, CpuCounters, End, Generation, Header, Loss, LossKind, Mapping, NameChange, PtBytes,
        Record, SwitchOp, Wait, flags,
    },
    units::{Cpu, MonoNs, Pid, Tid},
};

pub use live::Live;

use crate::sys::perf::record::{Body, Comm, Mmap, SideBandRecord, records};
use generation::Open;
use spaces::{MOST_MAPPINGS_IN_ALL, MOST_MAPPINGS_IN_GENERATION, Spaces};
use threads::{Change, Threads};

/// A record is written some microseconds after its stamp was taken, unless the hypervisor stops the CPU in between. What is
/// this old when a drain begins has been written.
const SETTLE_NS: u64 = 10_000_000;

/// What was recorded so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Threads of the target that ran.
    pub threads: u64,
    /// Switches out of a target thread.
    pub switches: u64,
    /// Switch records, and those of threads' lives.
    pub records: u64,
    /// Switch records that are missing.
    pub lost_records: u64,
    /// Losses of any kind.
    pub losses: u64,
    /// CPUs that the target ran on.
    pub cpus: Vec<Cpu>,
}

/// The recording as it grows.
#[derive(Debug)]
pub struct Aggregator {
    header: Header,
    threads: Threads,
    spaces: Spaces,
    counters: Vec<CpuCounters>,
    open: Open,
    /// Drained, but not yet old enough to be merged.
    records: Vec<Record>,
    waits: Vec<Wait>,
    side_band: Vec<SideBandRecord>,
    /// For each CPU: side-band records lost, as said so far.
    side_band_lost: BTreeMap<Cpu, u64>,
    /// When the last drain began.
    drained_at: MonoNs,
    /// Up to where everything has been merged.
    merged_to: MonoNs,
    /// Mappings and names have to be read from the live processes again.
    reread: bool,
    /// Something of the period itself has been merged.
    begun: bool,
    totals: Totals,
}

impl Aggregator {
    /// A recording that starts at `header.start`. Records from before that tell its state at the start.
    #[must_use]
    pub fn new(header: Header, live: Live) -> Self {
        let start = header.start;
        Self {
            header,
            threads: Threads::default(),
            spaces: Spaces::new(live),
            counters: Vec::new(),
            open: Open::new(0, start),
            records: Vec::new(),
            waits: Vec::new(),
            side_band: Vec::new(),
            side_band_lost: BTreeMap::new(),
            drained_at: start,
            merged_to: start,
            reread: false,
            begun: false,
            totals: Totals::default(),
        }
    }

    /// The period starts now, not when the recording was made: what came before was a look-back. Nothing may have been
    /// merged yet.
    pub fn starts_at(&mut self, start: MonoNs) {
        let late_ns = start.0.saturating_sub(self.header.start.0);
        self.header.start = start;
        self.header.start_realtime_ns += late_ns;
        self.drained_at = start;
        self.merged_to = start;
        self.open.starts_at(start);
    }

    /// Reads processes of the target as they stand, once both the hook and the side-band are on.
    pub fn snapshot(&mut self, pids: impl IntoIterator<Item = Pid>, now: MonoNs) {
        for pid in pids {
            for (tid, name) in self.spaces.live().threads(pid) {
                self.threads.name(pid, tid, name);
            }
            self.spaces.read(pid, self.header.start, now);
        }
    }

    /// Takes what a CPU's side-band gave since the last call: whole records of perf.
    pub fn side_band(&mut self, cpu: Cpu, bytes: &[u8], now: MonoNs) {
        for record in records(bytes) {
            match record {
                Ok(SideBandRecord {
                    body: Body::Lost(count),
                    ..
                }) => self.side_band_dropped(cpu, count, now),
                Ok(SideBandRecord {
                    body: Body::Other(_) | Body::Fork(_) | Body::Exit(_),
                    ..
                }) => {}
                Ok(record) => self.side_band.push(record),
                // The kernel wrote them, so this is a bug of one of us: what follows is lost, and said to be.
                Err(error) => {
                    let loss = side_band_loss(Some(cpu), self.drained_at, now, 1);
                    self.side_band_gap(Loss {
                        reason: error.to_string(),
                        ..loss
                    });
                }
            }
        }
    }

    /// Takes the kernel's own count of side-band records lost on a CPU.
    pub fn side_band_lost(&mut self, cpu: Cpu, total: u64, now: MonoNs) {
        let said = self.side_band_lost.get(&cpu).copied().unwrap_or_default();
        if let Some(count @ 1..) = total.checked_sub(said) {
            self.side_band_dropped(cpu, count, now);
        }
    }

    /// Takes records of the hook in any order.
    pub fn records(&mut self, records: impl IntoIterator<Item = Record>) {
        self.records.extend(records);
    }

    /// Takes a wait of a thread; in any order.
    pub fn wait(&mut self, wait: Wait) {
        self.waits.push(wait);
    }

    /// Takes the hook's running totals.
    pub fn counters(&mut self, counters: Vec<CpuCounters>) {
        self.counters = counters;
        self.counters.retain(|of_cpu| of_cpu.produced > 0);
    }

    /// Takes a pair of clock readings.
    pub fn clock_pair(&mut self, pair: ClockPair) {
        self.open.clock_pairs.push(pair);
    }

    /// Takes a control operation.
    pub fn op(&mut self, op: ControlOp) {
        self.open.add_op(op);
    }

    /// Takes bytes of the processor trace; appends the generation that they fill.
    pub fn pt(&mut self, bytes: PtBytes, out: &mut Vec<Generation>) {
        self.open.add_pt(bytes);
        if self.open.is_full() {
            self.close(self.merged_to, out);
        }
    }

    /// Takes a loss that another room has found.
    pub fn loss(&mut self, loss: Loss) {
        self.totals.losses += 1;
        if loss.kind == LossKind::RingFull {
            self.totals.lost_records += loss.records;
        }
        self.open.add_loss(loss);
    }

    /// What was recorded so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            threads: self.threads.ran(),
            ..self.totals.clone()
        }
    }

    /// Merges what is old enough. `drained_at` is when the last drain began; appends the generations that are complete.
    pub fn advance(&mut self, drained_at: MonoNs, out: &mut Vec<Generation>) {
        self.merge(MonoNs(drained_at.0.saturating_sub(SETTLE_NS)), out);
        self.drained_at = drained_at;
        if std::mem::take(&mut self.reread) {
            self.read_again(drained_at);
        }
    }

    /// Merges all that is left, after the last drain and the last counters, and closes the recording.
    pub fn finish(mut self, end: End, out: &mut Vec<Generation>) -> Totals {
        self.merge(MonoNs(u64::MAX), out);
        let at = end.time;
        self.open.end_of_recording = Some(end);
        self.close(at, out);
        self.totals()
    }

    fn merge(&mut self, until: MonoNs, out: &mut Vec<Generation>) {
        let records = take_until(&mut self.records, until, |record| record.time_ns);
        let side_band = take_until(&mut self.side_band, until, |record| record.stamp.time_ns);
        let mut side_band = side_band.into_iter().peekable();
        let mut waits = take_until(&mut self.waits, until, |wait| wait.run_ns)
            .into_iter()
            .peekable();
        for record in records {
            while let Some(earlier) = waits.next_if(|wait| wait.run_ns <= record.time_ns) {
                self.take_wait(earlier, out);
            }
            while let Some(earlier) = side_band.next_if(|s| s.stamp.time_ns <= record.time_ns) {
                self.take_side_band(earlier, out);
            }
            self.take_record(record, out);
        }
        side_band.for_each(|record| self.take_side_band(record, out));
        waits.for_each(|wait| self.take_wait(wait, out));
        if until.0 == u64::MAX {
            return;
        }
        self.merged_to = self.merged_to.max(until);
        if self.open.is_due(until) {
            self.close(until, out);
        }
    }

    /// One that ended before the period is not of it.
    fn take_wait(&mut self, wait: Wait, out: &mut Vec<Generation>) {
        let time = MonoNs(wait.run_ns);
        if time < self.header.start {
            return;
        }
        self.begin();
        if self.open.is_due(time) {
            self.close(time, out);
        }
        self.open.add_wait(wait);
    }

    fn take_record(&mut self, record: Record, out: &mut Vec<Generation>) {
        let time = MonoNs(record.time_ns);
        // The kernel tells where a process was moved to, not from where: most were never the target's.
        if record.op() == Some(SwitchOp::AttachOut) && !self.threads.has_process(Pid(record.pid)) {
            return;
        }
        if time < self.header.start {
            // Of the look-back: it only tells where the threads are when the period starts.
            return self.follow(&record);
        }
        self.begin();
        if self.open.is_due(time) {
            self.close(time, out);
        }
        self.count(&record);
        self.follow(&record);
        self.open.add_record(record);
    }

    /// The period starts with the state that the look-back has led to.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            self.open.threads = self.threads.statuses();
            self.open.forget_names();
        }
    }

    /// Keeps the state of the threads and their address spaces.
    fn follow(&mut self, record: &Record) {
        let (time, pid) = (MonoNs(record.time_ns), Pid(record.pid));
        let was_known = record.op() == Some(SwitchOp::Fork) && self.threads.has_process(pid);
        match self.threads.apply(record) {
            Change::None => {}
            Change::ProcessGone(pid) => self.spaces.end(pid),
            Change::Named { name } => {
                self.open.add_name(NameChange {
                    time,
                    pid,
                    tid: Tid(record.tid),
                    name,
                });
                if !was_known && !self.spaces.fork(Pid(record.parent().0), pid, time) {
                    self.spaces.read(pid, time, self.drained_at);
                }
            }
            Change::Stranger => self.take_in(pid, Some(Tid(record.tid)), time),
            Change::Joined => {
                let whole = record.flags & flags::THREADGROUP != 0;
                self.take_in(pid, (!whole).then_some(Tid(record.tid)), time);
            }
        }
    }

    /// Reads a thread, or a whole process, of which only its number is known.
    fn take_in(&mut self, pid: Pid, tid: Option<Tid>, time: MonoNs) {
        let named = match tid {
            Some(tid) => self
                .spaces
                .live()
                .name(pid, tid)
                .map(|name| (tid, name))
                .into_iter()
                .collect(),
            None => self.spaces.live().threads(pid),
        };
        for (tid, name) in named {
            self.threads.name(pid, tid, name.clone());
            self.open.add_name(NameChange { time, pid, tid, name });
        }
        if !self.spaces.has(pid) {
            self.spaces.read(pid, time, self.drained_at);
        }
    }

    fn count(&mut self, record: &Record) {
        self.totals.records += 1;
        let switch = record.flags & (flags::MOVED | flags::START | flags::END) == 0;
        match record.op() {
            Some(SwitchOp::Out) if switch => self.totals.switches += 1,
            Some(SwitchOp::In) => {
                let cpu = Cpu(record.cpu.into());
                if let Err(at) = self.totals.cpus.binary_search(&cpu) {
                    self.totals.cpus.insert(at, cpu);
                }
            }
            _ => {}
        }
    }

    fn take_side_band(&mut self, record: SideBandRecord, out: &mut Vec<Generation>) {
        let time = MonoNs(record.stamp.time_ns);
        // A process may change its name or its mappings as often as it likes.
        if self.begun && self.open.is_full() {
            self.close(time, out);
        }
        match record.body {
            Body::Mmap(mmap) if self.threads.has_process(Pid(mmap.pid)) => {
                let mapping = self.mapping(mmap, time);
                self.open.note_mapping();
                self.spaces.map(mapping, self.drained_at);
            }
            Body::Comm(comm) if self.names_one_of_ours(&comm) => {
                let (pid, tid, name) = (Pid(comm.pid), Tid(comm.tid), live::text(&comm.name));
                if comm.exec {
                    self.spaces.exec(pid, time);
                }
                self.threads.name(pid, tid, name.clone());
                self.open.add_name(NameChange { time, pid, tid, name });
            }
            _ => {} // of somebody else
        }
    }

    /// A thread that executes a program has its process's number by then, and that number's first bearer has ended; the
    /// record of the exec comes a little later.
    fn names_one_of_ours(&self, comm: &Comm) -> bool {
        let (pid, tid) = (Pid(comm.pid), Tid(comm.tid));
        self.threads.has(pid, tid) || comm.exec && self.threads.has_process(pid)
    }

    fn mapping(&mut self, mmap: Mmap, time: MonoNs) -> Mapping {
        Mapping {
            time,
            pid: Pid(mmap.pid),
            start: mmap.start,
            len: mmap.len,
            offset: mmap.offset,
            dev_major: mmap.dev_major,
            dev_minor: mmap.dev_minor,
            inode: mmap.inode,
            path: self.spaces.live().path(&mmap.path),
            build_id: Arc::from(mmap.build_id),
        }
    }

    fn side_band_dropped(&mut self, cpu: Cpu, count: u64, now: MonoNs) {
        *self.side_band_lost.entry(cpu).or_default() += count;
        self.side_band_gap(side_band_loss(Some(cpu), self.drained_at, now, count));
    }

    /// Says that mappings and names are missing, and has them read from the live processes again.
    fn side_band_gap(&mut self, loss: Loss) {
        self.loss(loss);
        self.reread = true;
    }

    fn read_again(&mut self, now: MonoNs) {
        let pids: Vec<_> = self.threads.processes().collect();
        for pid in pids {
            self.take_in(pid, None, now);
            self.spaces.read(pid, now, now);
        }
    }

    fn close(&mut self, end: MonoNs, out: &mut Vec<Generation>) {
        self.begin();
        let images = self.spaces.take_images();
        let next = self.open.next(end, self.threads.statuses());
        let open = std::mem::replace(&mut self.open, next);
        let spaces = &self.spaces;
        let mut room = MOST_MAPPINGS_IN_GENERATION;
        let mut left_out = 0;
        let mut generation = Generation {
            images,
            counters: self.counters.clone(),
            ..open.close(self.header.clone(), end, |pid| {
                let count = spaces.count_in_generation(pid);
                match room.checked_sub(count) {
                    Some(rest) => {
                        room = rest;
                        spaces.in_generation(pid)
                    }
                    None => {
                        left_out += count as u64;
                        Vec::new()
                    }
                }
            })
        };
        left_out += self.spaces.take_left_out();
        if left_out > 0 {
            self.totals.losses += 1;
            generation.losses.push(Loss {
                reason: format!(
                    "at least {left_out} mappings were left out: no more than {MOST_MAPPINGS_IN_ALL} are kept at a time, and \
                     {MOST_MAPPINGS_IN_GENERATION} in each chunk"
                ),
                ..side_band_loss(None, generation.start, generation.end, left_out)
            });
        }
        out.push(generation);
        self.spaces.next_generation();
    }
}

fn side_band_loss(cpu: Option<Cpu>, from: MonoNs, to: MonoNs, records: u64) -> Loss {
    Loss {
        from,
        to: to.max(from),
        cpu,
        kind: LossKind::SideBandFull,
        records,
        bytes: 0,
        reason: "the ring of mappings and names was full; they were read again from the live processes".to_owned(),
    }
}

/// Takes out what is not later than `until`, by time; equal times keep their order.
fn take_until<T>(pending: &mut Vec<T>, until: MonoNs, time_ns: impl Fn(&T) -> u64) -> Vec<T> {
    pending.sort_by_key(&time_ns);
    let due = pending.partition_point(|item| time_ns(item) <= until.0);
    pending.drain(..due).collect()
}

#[cfg(test)]
mod tests;
