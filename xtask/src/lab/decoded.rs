//! A trace file as exist-trace decodes it: takes the file's bytes and the guest's files, gives each CPU's pieces with
//! the thread that they were given to, the way `exist dump branches` gives them.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result};
use exist_lab_truth::{Begin, Owner, Piece};
use exist_trace::{
    file::{Reader, Trace},
    flow::{self, Coverage, Flow, Streams, segments::Entry},
    image::{Image, NoCode, Symbols, build_id},
    units::Pid,
    walk::What,
};

use super::by_truth::true_step;

/// How often each function, by name and module, was called.
pub type CallCounts = BTreeMap<(String, String), u64>;

/// What became of a file.
pub struct Decoded {
    pub trace: Trace,
    pub flow: Flow,
    pub image: Image,
    pub coverage: Coverage,
    /// Each CPU's pieces in the order of its stream.
    pub cpus: BTreeMap<u32, Vec<Piece>>,
    /// Each thread's pieces in the order in which it is said to have run them: CPU and place there.
    pub order: BTreeMap<u32, Vec<(u32, usize)>>,
    /// Places where the walk could not go on, by reason.
    pub errors: BTreeMap<String, usize>,
    /// Each thread's calls of functions that have a symbol, as `exist report` counts them.
    pub calls: BTreeMap<u32, CallCounts>,
}

/// Decodes a file; `root` holds the guest's files.
///
/// # Errors
/// A file that cannot be read, or holds no processor trace.
pub fn of(file: &[u8], root: &Path) -> Result<Decoded> {
    let trace = Trace::read(file).context("failed to read the trace")?;
    if let Err(reason) = &trace.header.pt {
        anyhow::bail!("the trace holds no processor trace: {reason}");
    }
    let mut streams = Streams::default();
    for generation in Reader::new(file) {
        let generation = generation.context("the trace is damaged")?;
        generation.pt.iter().for_each(|chunk| streams.push(chunk));
    }
    let image = Image::new(&trace, |mapping| {
        if !mapping.path.starts_with('/') || mapping.path.starts_with("//") {
            return Err(NoCode::Anonymous);
        }
        let path = root.join(mapping.path.trim_start_matches('/'));
        let bytes = fs::read(path).map_err(|_| NoCode::FileMissing)?;
        if !mapping.build_id.is_empty() && build_id(&bytes).as_deref() != Some(&*mapping.build_id) {
            return Err(NoCode::FileChanged);
        }
        Ok(bytes.into())
    });
    let flow = Flow::new(&trace, streams, &image).context("the trace holds no readings of both clocks")?;
    let mut decoded = Decoded {
        coverage: flow.coverage(),
        cpus: BTreeMap::new(),
        order: BTreeMap::new(),
        errors: BTreeMap::new(),
        calls: BTreeMap::new(),
        trace,
        flow,
        image,
    };
    decoded.pieces();
    decoded.steps();
    decoded.calls();
    Ok(decoded)
}

impl Decoded {
    fn pieces(&mut self) {
        for cpu in &self.flow.cpus {
            let owners = cpu.owners.iter();
            let pieces = cpu.segments.segments.iter().zip(owners).map(|(segment, owner)| Piece {
                begin: match segment.entry {
                    Entry::Enable(ip) => Begin::Entry(ip),
                    Entry::Sync | Entry::Overflow => Begin::Within,
                },
                time: segment.entered.lo.0..=segment.entered.hi.0,
                owner: match owner {
                    flow::Owner::Thread { tid, .. } => Owner::Thread(tid.0.into()),
                    flow::Owner::Foreign => Owner::Foreign,
                    flow::Owner::Ambiguous | flow::Owner::Lost => Owner::Untold,
                },
                steps: None,
            });
            self.cpus.insert(cpu.cpu.0, pieces.collect());
        }
    }

    /// Every thread's steps, as they are given out, put back into the pieces that they come from.
    fn steps(&mut self) {
        let starts: HashMap<u32, Vec<u64>> = self
            .flow
            .cpus
            .iter()
            .map(|cpu| (cpu.cpu.0, cpu.segments.segments.iter().map(|s| s.start).collect()))
            .collect();
        for tid in self.flow.threads() {
            let order = self.order.entry(tid.0).or_default();
            self.flow.walk(tid, &self.image, |step| {
                let cpu = step.cpu.0;
                let at = starts[&cpu].partition_point(|start| *start <= step.step.offset);
                let at = at.saturating_sub(1);
                if order.last() != Some(&(cpu, at)) {
                    order.push((cpu, at));
                }
                if let What::Error { error, .. } = step.step.what {
                    *self.errors.entry(error.to_string()).or_default() += 1;
                }
                if let Some(piece) = self.cpus.get_mut(&cpu).and_then(|pieces| pieces.get_mut(at)) {
                    piece.steps.get_or_insert_default().extend(true_step(&step.step));
                }
            });
        }
    }

    fn calls(&mut self) {
        let mut symbols = Symbols::default();
        for tid in self.flow.threads() {
            let mut functions: HashMap<_, u64> = HashMap::new();
            self.flow.spans(tid, &self.image, &mut symbols, |span| {
                *functions.entry(span.function).or_default() += u64::from(span.called);
            });
            let counts = self.calls.entry(tid.0).or_default();
            for (id, calls) in functions.into_iter().filter(|(_, calls)| *calls > 0) {
                let function = symbols.function(id);
                // What has no symbol is called after its module, in brackets.
                if !function.name.starts_with('[') {
                    *counts
                        .entry((function.name.to_string(), function.module.to_string()))
                        .or_default() += calls;
                }
            }
        }
    }

    /// The process of a thread, by its records.
    pub fn pid_of(&self, tid: u64) -> Option<Pid> {
        let record = self.trace.records.iter().find(|record| u64::from(record.tid) == tid);
        record.map(|record| Pid(record.pid))
    }
}
