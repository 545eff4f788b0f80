//! `exist dump`: the rows of a trace, as they stand in it.

use std::{
    collections::HashSet,
    io::{self, Write},
    path::PathBuf,
};

use clap::{Args, ValueEnum};
use exist_trace::{
    export::ndjson::{Life, LossRow, MappingRow, OpRow, Switch, WaitRow},
    file::{
        Piece, Pieces,
        model::{Loss, Mapping},
    },
};
use serde::Serialize;

use super::{Outcome, Strictness, code::Roots, flow, pieces, read, text};

/// Print the rows of a trace, in the file's order
#[derive(Debug, Args)]
#[command(after_help = "\
Times in text are seconds since the recording began; in JSON, t_ns is CLOCK_MONOTONIC in nanoseconds.

Examples:
  exist dump trace.exist switches | head
  exist dump trace.exist switches --json | jq 'select(.tid == 4711 and .op == \"out\")'
  exist dump trace.exist losses
  exist dump trace.exist branches --root /srv/rootfs
  exist dump trace.exist spans --json | jq -r .function | sort | uniq -c
  exist dump trace.exist mappings --json | jq -r .path | sort -u")]
pub struct Dump {
    /// The trace
    file: PathBuf,
    /// What to print
    what: What,
    /// Print a JSON object a line
    #[arg(long)]
    json: bool,
    /// Branches and spans: the folder that holds the recorded machine's files [default: the process', or this machine's]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(flatten)]
    strictness: Strictness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Context switches of the target's threads
    Switches,
    /// Waits of the target's threads, where they were recorded (`exist record --waits on`)
    Waits,
    /// Forks, execs, exits, and moves into and out of the target
    Life,
    /// Executable mappings of the target's processes, and those of virtual CPUs
    Mappings,
    /// Everything that is missing, and why
    Losses,
    /// Control operations on the hook and on the processor trace
    Ops,
    /// Packets of the processor trace, CPU by CPU: offset and text
    Packets,
    /// Branches of the target's threads, thread by thread: thread, CPU, from, to
    Branches,
    /// Calls of functions by the target's threads, each when it ends
    Spans,
}

impl Dump {
    pub fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let data = read(&self.file)?;
        if let What::Packets | What::Branches | What::Spans = self.what {
            return self.processor_trace(&data, out);
        }
        let within = self.within_the_trace(&data)?;
        let pieces = pieces(&data, &self.file)?;
        let mut to = Printer {
            start_ns: pieces.header().start.0,
            json: self.json,
            out,
        };
        if !self.json {
            writeln!(to.out, "{}", self.what.head())?;
        }
        let mut losses = 0;
        let mut known = HashSet::new();
        for piece in pieces {
            match piece {
                Piece::Loss(loss) => {
                    losses += 1;
                    if self.what == What::Losses {
                        to.loss(&(&loss).into())?;
                    }
                }
                Piece::Unseen(_) => {}
                Piece::Generation(g, _) => match self.what {
                    What::Switches => g
                        .records
                        .iter()
                        .filter_map(Switch::of)
                        .try_for_each(|r| to.switch(&r))?,
                    What::Waits => g.waits.iter().try_for_each(|w| to.wait(&w.into()))?,
                    What::Life => g.records.iter().filter_map(Life::of).try_for_each(|r| to.life(&r))?,
                    What::Ops => g.ops.iter().try_for_each(|op| to.op(&op.into()))?,
                    What::Mappings => new(&g.mappings, &mut known).try_for_each(|m| to.mapping(&m.into()))?,
                    What::Losses | What::Packets | What::Branches | What::Spans => {}
                },
            }
        }
        for loss in &within {
            losses += 1;
            to.loss(&loss.into())?;
        }
        Ok(self.strictness.outcome(losses))
    }

    /// What the processor trace itself lacks: only decoding it tells. Nothing unless losses are asked for.
    fn within_the_trace(&self, data: &[u8]) -> anyhow::Result<Vec<Loss>> {
        let holds_pt = |p: Pieces<'_>| p.header().pt.is_ok();
        if self.what != What::Losses || !holds_pt(pieces(data, &self.file)?) {
            return Ok(Vec::new());
        }
        flow::losses(data, &self.file)
    }

    fn processor_trace(&self, data: &[u8], out: &mut dyn Write) -> anyhow::Result<Outcome> {
        if self.what == What::Packets {
            flow::packets(data, &self.file, self.json, out)?;
            return Ok(Outcome::Done);
        }
        let decoded = flow::Decoded::new(
            data,
            &self.file,
            &Roots {
                root: self.root.clone(),
            },
        )?;
        match self.what {
            What::Branches => flow::branches(&decoded, self.json, out)?,
            _ => flow::spans(&decoded, self.json, out)?,
        }
        let coverage = decoded.flow.coverage();
        let missing = coverage.ambiguous + coverage.lost + coverage.overflows + coverage.packet_errors;
        Ok(self.strictness.outcome(usize::try_from(missing).unwrap_or(usize::MAX)))
    }
}

impl What {
    const fn head(self) -> &'static str {
        match self {
            Self::Switches => "        SECONDS  CPU      PID      TID  OP   STATE  IP",
            Self::Waits => {
                "        SECONDS  CPU      PID      TID  KIND             OFF   RUNNABLE    SYSCALL    WAKER  HOLDER"
            }
            Self::Life => "        SECONDS  CPU      PID      TID  OP",
            Self::Mappings => "        SECONDS      PID            START        LEN     OFFSET  PATH",
            Self::Losses => "        SECONDS  CPU  KIND            RECORDS      BYTES  REASON",
            Self::Packets | Self::Branches | Self::Spans => "",
            Self::Ops => "        SECONDS       TOOK  CPU  KIND         RESULT",
        }
    }
}

/// Mappings that no earlier generation had.
fn new<'a>(mappings: &'a [Mapping], known: &mut HashSet<Mapping>) -> impl Iterator<Item = &'a Mapping> {
    mappings.iter().filter(|m| known.insert((*m).clone()))
}

struct Printer<'a> {
    start_ns: u64,
    json: bool,
    out: &'a mut dyn Write,
}

impl Printer<'_> {
    fn json(&mut self, row: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, row)?;
        self.out.write_all(b"\n")
    }

    fn since(&self, t_ns: u64) -> String {
        text::since(t_ns, self.start_ns)
    }

    fn switch(&mut self, r: &Switch) -> io::Result<()> {
        if self.json {
            return self.json(r);
        }
        let state = match (r.state, r.preempt) {
            (Some(state), Some(true)) => format!("{state}+"),
            (Some(state), _) => state.to_string(),
            // Not a switch: say why there is a record.
            (None, _) if r.why != "switch" => r.why.to_owned(),
            (None, _) => String::new(),
        };
        let ip = r.ip.map(|ip| format!("{ip:#x}")).unwrap_or_default();
        let (t, cpu, pid, tid, op) = (self.since(r.t_ns), r.cpu, r.pid, r.tid, r.op);
        let line = format!("{t:>15}  {cpu:>3}  {pid:>7}  {tid:>7}  {op:<3}  {state:<5}  {ip}");
        writeln!(self.out, "{}", line.trim_end())
    }

    fn wait(&mut self, r: &WaitRow) -> io::Result<()> {
        if self.json {
            return self.json(r);
        }
        let none = || "-".to_owned();
        let (t, cpu, pid, tid, kind) = (self.since(r.t_ns), r.cpu, r.pid, r.tid, r.kind);
        let off = text::duration(r.run_ns.saturating_sub(r.t_ns));
        let runnable = r
            .runnable_ns
            .map_or_else(none, |at| text::duration(r.run_ns.saturating_sub(at)));
        let syscall = r.syscall.map_or_else(none, |n| n.to_string());
        let waker = r.waker.map_or_else(none, |tid| tid.to_string());
        let (holder, holder_tid) = (r.holder, r.holder_tid);
        writeln!(
            self.out,
            "{t:>15}  {cpu:>3}  {pid:>7}  {tid:>7}  {kind:<10}  {off:>9}  {runnable:>9}  {syscall:>9}  {waker:>7}  {holder} {holder_tid}"
        )
    }

    fn life(&mut self, r: &Life) -> io::Result<()> {
        if self.json {
            return self.json(r);
        }
        let more = match (r.parent_pid, r.parent_tid, r.whole_process) {
            (Some(pid), Some(tid), _) => format!(" by {pid}/{tid}"),
            (_, _, Some(true)) => " (whole process)".into(),
            _ => String::new(),
        };
        let (t, cpu, pid, tid, op) = (self.since(r.t_ns), r.cpu, r.pid, r.tid, r.op);
        writeln!(self.out, "{t:>15}  {cpu:>3}  {pid:>7}  {tid:>7}  {op}{more}")
    }

    fn mapping(&mut self, r: &MappingRow) -> io::Result<()> {
        if self.json {
            return self.json(r);
        }
        let (t, pid, path) = (self.since(r.t_ns), r.pid, text::plain(r.path));
        writeln!(
            self.out,
            "{t:>15}  {pid:>7}  {:>#15x}  {:>#9x}  {:>#9x}  {path}",
            r.start, r.len, r.offset
        )
    }

    fn loss(&mut self, r: &LossRow) -> io::Result<()> {
        if self.json {
            return self.json(r);
        }
        let (t, cpu, reason) = (self.since(r.t_ns), cpu_text(r.cpu), text::plain(&r.reason));
        let (kind, records, bytes) = (r.kind, r.records, text::bytes(r.bytes));
        writeln!(
            self.out,
            "{t:>15}  {cpu:>3}  {kind:<14}  {records:>7}  {bytes:>9}  {reason}"
        )
    }

    fn op(&mut self, r: &OpRow) -> io::Result<()> {
        if self.json {
            return self.json(r);
        }
        let (t, cpu, kind) = (self.since(r.t_ns), cpu_text(r.cpu), r.kind);
        let took = text::duration(r.to_ns.saturating_sub(r.t_ns));
        let result = r.error.map_or_else(|| "done".into(), text::plain);
        writeln!(self.out, "{t:>15}  {took:>9}  {cpu:>3}  {kind:<11}  {result}")
    }
}

fn cpu_text(cpu: Option<u32>) -> String {
    cpu.map_or_else(|| "-".into(), |cpu| cpu.to_string())
}
