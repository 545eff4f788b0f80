//! `exist dump … packets|branches|spans`: what the processor trace says.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

use anyhow::Context as _;
use exist_trace::{
    file::{Reader, Trace, model::Loss},
    flow::{Flow, FunctionRow, Functions, Streams, Windows},
    image::{Image, Symbols},
    pt::{Errata, Packets},
    units::Cpu,
    walk::What,
};
use serde::Serialize;

use super::{code::Roots, text};

/// A recording's processor trace, put in order.
pub struct Decoded {
    pub trace: Trace,
    pub image: Image,
    pub flow: Flow,
}

fn streams(data: &[u8]) -> Streams {
    let mut streams = Streams::default();
    // What cannot be read is a loss, which the rows of losses tell.
    for generation in Reader::new(data).flatten() {
        generation.pt.iter().for_each(|chunk| streams.push(chunk));
    }
    streams
}

fn trace(data: &[u8], path: &Path) -> anyhow::Result<Trace> {
    let trace = Trace::read(data).with_context(|| format!("failed to read the trace {}", path.display()))?;
    if let Err(reason) = &trace.header.pt {
        anyhow::bail!(
            "{} holds no processor trace, so there are no branches in it: {reason}",
            path.display()
        );
    }
    Ok(trace)
}

/// Why a file that holds a processor trace can show no calls.
pub const NO_CLOCKS: &str =
    "the trace holds no readings of both clocks, so switches and packets cannot be put together";

impl Decoded {
    /// Decodes a whole file; code comes from `roots`.
    pub fn new(data: &[u8], path: &Path, roots: &Roots) -> anyhow::Result<Self> {
        Self::if_aligned(data, path, roots)?.context(NO_CLOCKS)
    }

    /// For what can be shown without calls. `None`: [`NO_CLOCKS`].
    pub fn if_aligned(data: &[u8], path: &Path, roots: &Roots) -> anyhow::Result<Option<Self>> {
        let trace = trace(data, path)?;
        let image = Image::new(&trace, |mapping| roots.load(mapping));
        let flow = Flow::new(&trace, streams(data), &image);
        Ok(flow.map(|flow| Self { trace, image, flow }))
    }
}

/// Overflows and damage of a recording's processor trace. Needs no code.
pub fn losses(data: &[u8], path: &Path) -> anyhow::Result<Vec<Loss>> {
    let trace = trace(data, path)?;
    // Without readings of both clocks there is no place in time.
    let flow = Flow::new(&trace, streams(data), &Image::default());
    Ok(flow.map_or_else(Vec::new, |flow| flow.losses()))
}

#[derive(Serialize)]
struct PacketRow<'a> {
    cpu: u32,
    offset: u64,
    packet: &'a str,
}

/// Every packet of every CPU.
pub fn packets(data: &[u8], path: &Path, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let trace = trace(data, path)?;
    for (cpu, bytes) in streams(data).iter() {
        let mut packets = Packets::new(bytes, 0, errata(&trace, cpu));
        let start = packets.resync(0).then(|| packets.offset());
        // Bytes before the first PSB cannot be read.
        if let Some(skipped) = start.filter(|&n| n > 0) {
            row(json, out, cpu, 0, &format!("{skipped} bytes before the first psb"))?;
        }
        while let Some(next) = packets.next() {
            match next {
                Ok(p) => row(json, out, cpu, p.offset, &p.packet.to_string())?,
                Err(error) => {
                    row(json, out, cpu, error.offset(), &format!("error: {error}"))?;
                    if !packets.resync(error.offset() + 1) {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

fn row(json: bool, out: &mut dyn Write, cpu: Cpu, offset: u64, packet: &str) -> io::Result<()> {
    if json {
        serde_json::to_writer(
            &mut *out,
            &PacketRow {
                cpu: cpu.0,
                offset,
                packet,
            },
        )?;
        return out.write_all(b"\n");
    }
    writeln!(out, "{cpu:>3}  {offset:>#10x}  {packet}")
}

fn errata(trace: &Trace, cpu: Cpu) -> Errata {
    let cpus = &trace.header.node.cpus;
    let info = cpus.iter().find(|i| i.cpu == cpu).or(cpus.first());
    info.map_or_else(Errata::default, |i| Errata::of(&i.vendor, i.family, i.model))
}

#[derive(Serialize)]
struct BranchRow {
    t_ns: u64,
    cpu: u32,
    tid: u32,
    from: String,
    to: String,
}

/// Every branch of the target's threads, thread by thread.
pub fn branches(decoded: &Decoded, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut result = Ok(());
    let mut unknown: BTreeMap<&'static str, u64> = BTreeMap::new();
    for tid in decoded.flow.threads() {
        decoded.flow.walk(tid, &decoded.image, |s| {
            let (from, to) = match s.step.what {
                What::Branch { from, to, .. } | What::Interrupted { at: from, to } => (from, to),
                What::Error { error, .. } => return *unknown.entry(error.name()).or_default() += 1,
                _ => return,
            };
            if result.is_ok() {
                result = branch(
                    json,
                    out,
                    BranchRow {
                        t_ns: s.time.0,
                        cpu: s.cpu.0,
                        tid: tid.0,
                        from: format!("{from:#x}"),
                        to: format!("{to:#x}"),
                    },
                );
            }
        });
    }
    result?;
    tell(decoded, &unknown);
    Ok(())
}

fn branch(json: bool, out: &mut dyn Write, row: BranchRow) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, &row)?;
        return out.write_all(b"\n");
    }
    writeln!(out, "{} {} {} {}", row.tid, row.cpu, row.from, row.to)
}

#[derive(Serialize)]
struct SpanRow<'a> {
    tid: u32,
    function: &'a str,
    module: &'a str,
    start_ns: u64,
    end_ns: u64,
    depth: u32,
    inferred: bool,
}

/// Every call of the target's threads, thread by thread, each when it ends.
pub fn spans(decoded: &Decoded, json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut symbols = Symbols::default();
    for tid in decoded.flow.threads() {
        // The names are complete only when the thread is.
        let mut spans = Vec::new();
        decoded
            .flow
            .spans(tid, &decoded.image, &mut symbols, |span| spans.push(span));
        for span in spans {
            let function = symbols.function(span.function);
            let row = SpanRow {
                tid: tid.0,
                function: &function.name,
                module: &function.module,
                start_ns: span.start.0,
                end_ns: span.end.0,
                depth: span.depth,
                inferred: span.inferred,
            };
            if json {
                serde_json::to_writer(&mut *out, &row)?;
                out.write_all(b"\n")?;
            } else {
                let start = text::since(row.start_ns, decoded.trace.header.start.0);
                let took = text::duration(row.end_ns - row.start_ns);
                let (mark, name) = (if row.inferred { "?" } else { " " }, text::plain(row.function));
                let indent = usize::try_from(row.depth.min(40)).unwrap_or(40);
                writeln!(
                    out,
                    "{start:>15}  {took:>9}  {:>7} {mark} {:indent$}{name}",
                    row.tid, ""
                )?;
            }
        }
    }
    tell(decoded, &BTreeMap::new());
    Ok(())
}

/// How much of what the target did the processor trace covers.
#[derive(Clone, Debug, Serialize)]
pub struct CoverageRow {
    /// Share of the time that threads of the target ran for which their CPU was traced and it is known who ran.
    pub pt_share: f64,
    /// Share of the target's trace that may be any of several threads', and is shown to none.
    pub ambiguous_share: f64,
    /// Stretches of execution that were put down to a thread, to several, or lack switch records.
    pub attributed: u64,
    pub ambiguous: u64,
    pub unattributed: u64,
    pub overflows: u64,
    pub damaged: u64,
    /// When each CPU was recorded.
    pub windows: Windows,
}

/// The functions of all threads, longest first, and the coverage.
pub fn functions(decoded: &Decoded) -> (Vec<FunctionRow>, CoverageRow) {
    let (mut symbols, mut functions) = (Symbols::default(), Functions::default());
    for tid in decoded.flow.threads() {
        decoded
            .flow
            .spans(tid, &decoded.image, &mut symbols, |span| functions.add(&span));
    }
    let c = decoded.flow.coverage();
    let coverage = CoverageRow {
        pt_share: c.pt_share(),
        ambiguous_share: c.ambiguous_share(),
        attributed: c.attributed,
        ambiguous: c.ambiguous,
        unattributed: c.lost,
        overflows: c.overflows,
        damaged: c.packet_errors,
        windows: Windows::new(&decoded.flow, &decoded.trace),
    };
    (functions.rows(&symbols), coverage)
}

/// What is missing, for a person.
fn tell(decoded: &Decoded, unknown: &BTreeMap<&'static str, u64>) {
    let coverage = decoded.flow.coverage();
    if coverage.ambiguous + coverage.lost > 0 {
        eprintln!(
            "exist: {} stretches may be any of several threads', {} lack switch records; they are left out",
            coverage.ambiguous, coverage.lost
        );
    }
    if coverage.overflows + coverage.packet_errors > 0 {
        eprintln!(
            "exist: {} overflows of the processor, {} damaged places",
            coverage.overflows, coverage.packet_errors
        );
    }
    if !unknown.is_empty() {
        let list: Vec<String> = unknown.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        eprintln!(
            "exist: places where the code could not be followed: {}",
            list.join(", ")
        );
    }
}
