//! The generation that is being filled.

use exist_trace::{
    file::model::{
        ClockPair, ControlOp, End, GENERATION_BYTES, GENERATION_NS, Generation, Header, Loss, Mapping, NameChange,
        PtBytes, RECORD_BYTES, Record, ThreadStatus, WAIT_BYTES, Wait, flags,
    },
    units::{MonoNs, Pid},
};

/// One in which nothing happens but clock readings stays open this long, so that a target that sleeps costs little.
const QUIET_NS: u64 = 1_000_000_000;

/// A row of a table without its text, at the most in usual cases: a name, a mapping, a loss.
const ROW_BYTES: usize = 24;

/// What has been gathered since the last generation was closed.
#[derive(Debug)]
pub struct Open {
    number: u64,
    start: MonoNs,
    records: Vec<Record>,
    waits: Vec<Wait>,
    pt: Vec<PtBytes>,
    payload_bytes: usize,
    /// The first one was read before the generation began, so that its start lies between two.
    pub clock_pairs: Vec<ClockPair>,
    pub threads: Vec<ThreadStatus>,
    names: Vec<NameChange>,
    losses: Vec<Loss>,
    ops: Vec<ControlOp>,
    pub end_of_recording: Option<End>,
}

impl Open {
    pub fn new(number: u64, start: MonoNs) -> Self {
        Self {
            number,
            start,
            records: Vec::new(),
            waits: Vec::new(),
            pt: Vec::new(),
            payload_bytes: 0,
            clock_pairs: Vec::new(),
            threads: Vec::new(),
            names: Vec::new(),
            losses: Vec::new(),
            ops: Vec::new(),
            end_of_recording: None,
        }
    }

    /// It begins then.
    pub fn starts_at(&mut self, start: MonoNs) {
        self.start = start;
    }

    /// The one that follows when this one is closed at `end`, with the threads as they are then.
    pub fn next(&self, end: MonoNs, threads: Vec<ThreadStatus>) -> Self {
        let mut next = Self::new(self.number + 1, end);
        next.clock_pairs.extend(self.clock_pairs.last());
        next.threads = threads;
        next
    }

    /// Whether it must be closed before something that happened at `time` is added.
    pub fn is_due(&self, time: MonoNs) -> bool {
        let age_ns = time.0.saturating_sub(self.start.0);
        let limit_ns = if self.is_quiet() { QUIET_NS } else { GENERATION_NS };
        self.is_full() || age_ns >= limit_ns
    }

    /// Whether it holds as much as one may.
    pub fn is_full(&self) -> bool {
        self.payload_bytes >= GENERATION_BYTES
    }

    fn is_quiet(&self) -> bool {
        self.payload_bytes == 0
    }

    pub fn add_record(&mut self, record: Record) {
        let synthetic = record.flags & (flags::MOVED | flags::START | flags::END) != 0;
        if !synthetic {
            // It came later than all that was thought to be complete: this generation reaches back to it.
            self.start = self.start.min(MonoNs(record.time_ns));
        }
        self.records.push(record);
        self.payload_bytes += RECORD_BYTES;
    }

    /// Waits come sorted by their ends.
    pub fn add_wait(&mut self, wait: Wait) {
        self.start = self.start.min(MonoNs(wait.run_ns));
        self.waits.push(wait);
        self.payload_bytes += WAIT_BYTES;
    }

    pub fn add_name(&mut self, name: NameChange) {
        self.payload_bytes += ROW_BYTES + name.name.len();
        self.names.push(name);
    }

    pub fn add_loss(&mut self, loss: Loss) {
        self.payload_bytes += ROW_BYTES + loss.reason.len();
        self.losses.push(loss);
    }

    pub fn add_op(&mut self, op: ControlOp) {
        self.payload_bytes += ROW_BYTES + op.error.as_ref().map_or(0, String::len);
        self.ops.push(op);
    }

    /// A mapping was made; those that stand at its end are added when it is closed.
    pub fn note_mapping(&mut self) {
        self.payload_bytes += ROW_BYTES;
    }

    /// What was named so far happened before the period.
    pub fn forget_names(&mut self) {
        self.names.clear();
    }

    pub fn add_pt(&mut self, bytes: PtBytes) {
        self.payload_bytes += bytes.bytes.len();
        self.pt.push(bytes);
    }

    /// Closes it at `end`. `mappings` gives those of one process.
    pub fn close(self, header: Header, end: MonoNs, mappings: impl FnMut(Pid) -> Vec<Mapping>) -> Generation {
        let mut records = self.records;
        if !records.is_sorted_by_key(|record| record.time_ns) {
            records.sort_by_key(|record| record.time_ns);
        }
        let mut pids: Vec<_> = records.iter().map(|record| Pid(record.pid)).collect();
        pids.sort_unstable();
        pids.dedup();
        let end = end.max(self.start);
        Generation {
            clock_pairs: self.clock_pairs,
            threads: self.threads,
            mappings: pids.into_iter().flat_map(mappings).collect(),
            names: self.names,
            records,
            waits: self.waits,
            losses: self.losses,
            ops: self.ops,
            pt: self.pt,
            end_of_recording: self.end_of_recording,
            ..Generation::empty(header, self.number, self.start, end)
        }
    }
}
