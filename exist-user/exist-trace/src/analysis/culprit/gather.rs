//! Windows → [`Calls`]: what each thread did and where it ran, put together call by call.
//!
//! Takes, file by file: the spans and branches of each thread ([`FileGather::span`], [`FileGather::branch`]), stays on CPUs,
//! waits, names. Gives: every whole call of the function with its things. Memory is bounded: what there is no room for is
//! counted in [`LeftOut`](super::calls::LeftOut).

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    calls::{Call, Calls, Id, Name, Thing},
    tree::{Branches, Last, MOST_BEFORE, Tree},
};
use crate::{
    flow::Span,
    units::{Cpu, MonoNs, Tid},
};

/// More calls are not kept.
const MOST_CALLS: usize = 1 << 20;
/// More things of all calls together are not kept.
const MOST_ENTRIES: usize = 1 << 25;
/// More calls of other threads are not kept of a file: then only longer ones.
const MOST_BESIDE: usize = 1 << 21;
/// A shorter call of another thread is not looked at.
const LEAST_BESIDE_NS: u64 = 1000;
/// More neighbours, moves and waits are not looked at in one call.
const MOST_STAYS: usize = 1024;

/// The calls before a call are looked at in these numbers: between two operations of a service there are often small ones.
const WITHIN: [u8; 4] = [1, 2, 4, 8];
const _: () = assert!(WITHIN[3] as usize == MOST_BEFORE);

/// A time on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stay {
    tid: Tid,
    cpu: Cpu,
    from: u64,
    to: u64,
}

/// A call of another thread that may be beside one.
#[derive(Clone, Copy, Debug)]
struct Beside {
    tid: Tid,
    function: Id,
    from: u64,
    to: u64,
}

/// Collects the calls of the functions that `function` means.
#[derive(Debug)]
pub struct Gather {
    function: String,
    calls: Calls,
    /// By name: whether it is meant.
    meant: Vec<bool>,
    entries: usize,
    threads: u32,
}

/// One file's part.
#[derive(Debug)]
pub struct FileGather<'a> {
    all: &'a mut Gather,
    file: u32,
    thread: Option<(Tid, Tree)>,
    names: BTreeMap<Tid, Arc<str>>,
    stays: Vec<Stay>,
    off: Vec<(Tid, u64, &'static str)>,
    beside: Vec<Beside>,
    beside_least_ns: u64,
    /// Index of its first call, and of each when the calls so many ([`WITHIN`]) before it began.
    first: usize,
    before: Vec<[Option<u64>; WITHIN.len()]>,
}

impl Gather {
    #[must_use]
    pub fn new(function: &str) -> Self {
        Self {
            function: function.to_owned(),
            calls: Calls::default(),
            meant: Vec::new(),
            entries: 0,
            threads: 0,
        }
    }

    /// The function as the user wrote it.
    pub(super) fn function(&self) -> &str {
        &self.function
    }

    /// The number of a function.
    pub fn name(&mut self, name: &Name) -> Id {
        let id = self.calls.names.id(name);
        if self.meant.len() < self.calls.names.count() {
            self.meant.push(name.is_meant(&self.function));
        }
        id
    }

    /// Whether it is one of those looked for.
    #[must_use]
    pub fn is_meant(&self, function: Id) -> bool {
        self.meant.get(function.0 as usize).copied().unwrap_or(false)
    }

    /// Begins a file, whose recording began at `start`.
    pub fn file(&mut self, name: &str, start: MonoNs) -> FileGather<'_> {
        self.calls.files.push((name.to_owned(), start));
        FileGather {
            file: self.calls.files.len() as u32 - 1,
            first: self.calls.calls.len(),
            all: self,
            thread: None,
            names: BTreeMap::new(),
            stays: Vec::new(),
            off: Vec::new(),
            beside: Vec::new(),
            beside_least_ns: LEAST_BESIDE_NS,
            before: Vec::new(),
        }
    }

    /// All files' calls.
    #[must_use]
    pub fn calls(self) -> Calls {
        self.calls
    }

    fn count(&mut self, counts: &mut HashMap<Id, u32>, thing: &Thing, count: u32) {
        let id = self.calls.things.id(thing);
        let sum = counts.entry(id).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Adds things to a call that is there, as far as there is room.
    fn add(&mut self, call: usize, counts: HashMap<Id, u32>) {
        if self.entries + counts.len() > MOST_ENTRIES {
            self.calls.left_out.crowded += 1;
            return;
        }
        self.entries += counts.len();
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_unstable();
        self.calls.calls[call].things.extend(counts);
    }
}

impl FileGather<'_> {
    /// From here on spans and branches are this thread's.
    pub fn thread(&mut self, tid: Tid) {
        self.thread = Some((tid, Tree::default()));
        self.all.threads += 1;
    }

    /// The number of a function.
    pub fn name(&mut self, name: &Name) -> Id {
        self.all.name(name)
    }

    /// Whether it is one of those looked for: only their branches are wanted.
    #[must_use]
    pub fn is_meant(&self, function: Id) -> bool {
        self.all.is_meant(function)
    }

    /// A branch within the call of a meant function that is at this depth now.
    pub fn branch(&mut self, depth: u32, from: u64, to: u64) {
        if let Some((_, tree)) = &mut self.thread {
            tree.branch(depth, from, to);
        }
    }

    /// A span ends: in the order of their ends, as [`crate::flow::Flow::spans`] gives them. Offsets of its branches are of
    /// the file with this build ID.
    pub fn span(&mut self, function: Id, span: &Span, build: &Arc<str>) {
        let Some((tid, mut tree)) = self.thread.take() else {
            return;
        };
        // Of a call whose begin or end was not seen it is not known how long it was there.
        if !span.recursive && !span.inferred {
            self.beside(Beside {
                tid,
                function,
                from: span.start.0,
                to: span.end.0,
            });
        }
        tree.ends(function, span, |known| {
            let mut inside = known.inside.iter();
            if inside.any(|(inside, _)| self.all.is_meant(inside)) {
                self.all.calls.kin.insert(function);
            }
            if self.all.is_meant(function) {
                self.call(tid, function, span, build, known);
            }
        });
        self.thread = Some((tid, tree));
    }

    fn call(&mut self, tid: Tid, function: Id, span: &Span, build: &Arc<str>, known: super::tree::Known<'_>) {
        let all = &mut *self.all;
        if !all.calls.meant.contains(&function) {
            all.calls.meant.push(function);
        }
        // A call within another of the same function is a part of that one.
        if span.recursive {
            return;
        }
        if span.inferred {
            all.calls.left_out.incomplete += 1;
            return;
        }
        if all.calls.calls.len() >= MOST_CALLS || all.entries >= MOST_ENTRIES {
            all.calls.left_out.calls += 1;
            return;
        }
        let mut counts = HashMap::new();
        for within in WITHIN {
            all.after(&mut counts, &known.before, within);
        }
        all.calls.kin.insert(function);
        for (called, count) in known.inside.iter() {
            all.calls.kin.insert(called);
            all.count(&mut counts, &Thing::Calls(called), count);
        }
        all.calls.left_out.crowded += u64::from(known.inside.crowded);
        all.branches(&mut counts, build, known.branches);
        self.before
            .push(WITHIN.map(|n| known.before.get(usize::from(n) - 1).map(|last| last.start)));
        all.calls.calls.push(Call {
            file: self.file,
            thread: all.threads - 1,
            tid,
            start: span.start,
            end: span.end,
            things: Vec::new(),
        });
        all.add(all.calls.calls.len() - 1, counts);
    }

    fn beside(&mut self, beside: Beside) {
        if beside.to.saturating_sub(beside.from) < self.beside_least_ns {
            return;
        }
        self.beside.push(beside);
        while self.beside.len() > MOST_BESIDE {
            self.beside_least_ns = self.beside_least_ns.saturating_mul(2);
            let least = self.beside_least_ns;
            self.beside.retain(|b| b.to - b.from >= least);
        }
    }

    /// A thread ran on a CPU.
    pub fn stay(&mut self, tid: Tid, cpu: Cpu, from: MonoNs, to: MonoNs) {
        self.stays.push(Stay {
            tid,
            cpu,
            from: from.0,
            to: to.0.max(from.0),
        });
    }

    /// It left the CPU then, for this reason.
    pub fn off(&mut self, tid: Tid, time: MonoNs, reason: &'static str) {
        self.off.push((tid, time.0, reason));
    }

    /// A thread's name.
    pub fn thread_name(&mut self, tid: Tid, name: &Arc<str>) {
        self.names.insert(tid, name.clone());
    }

    /// Puts the file's calls together with where the threads ran and what others did.
    pub fn finish(mut self) {
        self.where_they_ran();
        self.what_others_did();
        let left_out = &mut self.all.calls.left_out;
        left_out.beside_below_ns = left_out.beside_below_ns.max(self.beside_least_ns);
        if self.all.entries >= MOST_ENTRIES {
            // So that the last calls do not look as if nothing was beside them.
            let calls = &mut self.all.calls;
            calls.left_out.calls += (calls.calls.len() - self.first) as u64;
            calls.calls.truncate(self.first);
        }
    }

    fn where_they_ran(&mut self) {
        self.stays.sort_unstable_by_key(|s| (s.tid, s.from));
        self.off.sort_unstable();
        let mut by_cpu: Vec<Stay> = self.stays.clone();
        by_cpu.sort_unstable_by_key(|s| (s.cpu, s.from));
        for at in self.first..self.all.calls.calls.len() {
            let call = &self.all.calls.calls[at];
            let (tid, from, to) = (call.tid, call.start.0, call.end.0);
            let mut counts = HashMap::new();
            let here = self.cpu_at(tid, from);
            for (within, before) in WITHIN.into_iter().zip(self.before[at - self.first]) {
                let before = before.and_then(|time| self.cpu_at(tid, time));
                if here.is_some() && before.is_some() && here != before {
                    self.all.count(&mut counts, &Thing::MovedBefore { within }, 1);
                }
            }
            let first = self.stays.partition_point(|s| (s.tid, s.to) < (tid, from));
            let within = self.stays[first..]
                .iter()
                .take_while(|s| s.tid == tid && s.from <= to)
                .take(MOST_STAYS);
            let mut last: Option<Stay> = None;
            for stay in within.copied().collect::<Vec<_>>() {
                if let Some(last) = last.replace(stay) {
                    if last.cpu != stay.cpu {
                        self.all.count(&mut counts, &Thing::Moved, 1);
                    }
                    self.neighbours(&by_cpu, &mut counts, (tid, last.cpu), (last.to, stay.from));
                }
            }
            let first = self.off.partition_point(|o| (o.0, o.1) < (tid, from));
            let within = self.off[first..]
                .iter()
                .take_while(|o| o.0 == tid && o.1 < to)
                .take(MOST_STAYS);
            for (_, _, reason) in within {
                self.all.count(&mut counts, &Thing::Off(reason), 1);
            }
            self.all.add(at, counts);
        }
    }

    /// Where a thread ran at this time, or last before it.
    fn cpu_at(&self, tid: Tid, time: u64) -> Option<Cpu> {
        let next = self.stays.partition_point(|s| (s.tid, s.from) <= (tid, time));
        let stay = self.stays.get(next.checked_sub(1)?)?;
        (stay.tid == tid).then_some(stay.cpu)
    }

    fn neighbours(
        &mut self,
        by_cpu: &[Stay],
        counts: &mut HashMap<Id, u32>,
        (tid, cpu): (Tid, Cpu),
        (from, to): (u64, u64),
    ) {
        let first = by_cpu.partition_point(|s| (s.cpu, s.from) < (cpu, from));
        let others = by_cpu[first..]
            .iter()
            .take_while(|s| s.cpu == cpu && s.from < to)
            .take(MOST_STAYS);
        for other in others.filter(|s| s.tid != tid) {
            let name = self.names.get(&other.tid).filter(|name| !name.is_empty());
            let name = name.cloned().unwrap_or_else(|| other.tid.to_string().into());
            self.all.count(counts, &Thing::Neighbour(name), 1);
        }
    }

    /// Only at the begin of each call: a longer call meets more, whatever made it long.
    fn what_others_did(&mut self) {
        let calls = &self.all.calls.calls[self.first..];
        let mut by_start: Vec<usize> = (0..calls.len()).collect();
        by_start.sort_unstable_by_key(|at| calls[*at].start);
        let mut met: Vec<HashMap<Id, u32>> = vec![HashMap::new(); calls.len()];
        let mut entries = self.all.entries;
        for beside in &self.beside {
            let first = by_start.partition_point(|at| calls[*at].start.0 < beside.from);
            let within = by_start[first..]
                .iter()
                .take_while(|at| calls[**at].start.0 < beside.to);
            for at in within.filter(|at| calls[**at].tid != beside.tid) {
                if entries >= MOST_ENTRIES {
                    break;
                }
                // The function's number for now.
                entries += usize::from(met[*at].insert(beside.function, 1).is_none());
            }
        }
        for (at, met) in met.into_iter().enumerate() {
            let things = &mut self.all.calls.things;
            let met = met
                .into_keys()
                .map(|function| (things.id(&Thing::Beside(function)), 1))
                .collect();
            self.all.add(self.first + at, met);
        }
    }
}

impl Gather {
    fn after(&mut self, counts: &mut HashMap<Id, u32>, before: &[&Last], within: u8) {
        for last in before.iter().take(usize::from(within)) {
            let direct = self.calls.things.id(&Thing::After {
                function: last.function,
                within,
            });
            *self.calls.direct.entry(direct).or_default() += 1;
            counts.insert(direct, 1);
            for (function, _) in last.inside.iter() {
                counts.insert(self.calls.things.id(&Thing::After { function, within }), 1);
            }
            self.calls.left_out.crowded += u64::from(within == 1 && last.inside.crowded);
        }
    }

    fn branches(&mut self, counts: &mut HashMap<Id, u32>, build: &Arc<str>, branches: Branches) {
        for ((from, to), count) in branches {
            let build = build.clone();
            self.count(counts, &Thing::Branch { build, from, to }, count);
        }
    }
}
