//! Who ran where and for how long, and what the trace lacks.
//!
//! Takes the pieces of a file, gives plain data. Times are of what is certain; where switches are missing, an upper
//! bound stands beside them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::utilization::{Utilization, UtilizationRow};
use crate::{
    export::ndjson::LossRow,
    file::{
        Generation, Header, Piece, Pieces,
        model::{ControlKind, ControlOp, LossKind, flags},
    },
    flow::{Sched, Seen, Step, Thread, ThreadIx, Threads, Why, state::TaskState},
    session::Target,
    units::{Cpu, MonoNs},
};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// As it was resolved: the container's ID, else the cgroup, else as it was asked.
    pub target: String,
    /// Root cgroups, and the hierarchy that decides.
    pub cgroups: Vec<String>,
    pub hierarchy: String,
    pub kernel: String,
    pub exist_version: String,
    /// The time that the file covers.
    pub period_ns: u64,
    /// Its ends on CLOCK_MONOTONIC, and its start on CLOCK_REALTIME.
    pub start_ns: u64,
    pub end_ns: u64,
    pub start_realtime_ns: u64,
    /// Why it ended; `null` when the end is not in the file.
    pub ended: Option<String>,
    /// Most on-CPU time first.
    pub threads: Vec<ThreadRow>,
    /// CPUs that the target ran on, or that lost something.
    pub cpus: Vec<CpuRow>,
    /// The least CPU that the target had, for windows of each length that fits, shortest first.
    pub utilization: Vec<UtilizationRow>,
    pub losses: Vec<LossRow>,
    /// Records of switches and lives in the file.
    pub records: u64,
    /// Those of switches at which the kernel did not run its tracepoint: their times come from the scheduler's accounts.
    pub missed: u64,
    /// Time of the period in which switches are missing.
    pub blind_ns: u64,
    /// Migrations that are stamped in before out, and by how much at most: clocks of CPUs differ.
    pub skewed: u64,
    pub skew_max_ns: u64,
    /// What is not in the trace, for a person.
    pub lacks: Vec<String>,
}

/// One thread; a number that was used again gives two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadRow {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    /// It surely ran for this long, and at most for `on_cpu_max_ns`: the same unless something was lost.
    pub on_cpu_ns: u64,
    pub on_cpu_max_ns: u64,
    /// Times that it was switched out: the kernel's voluntary and nonvoluntary context switches together.
    pub switches: u64,
    pub switches_in: u64,
    /// Switched out because it waits.
    pub voluntary: u64,
    /// Switched out while it could have run on.
    pub preempted: u64,
    pub migrations: u64,
    pub cpus: Vec<u32>,
    /// When it was created and when it exited, if within the recording.
    pub born_ns: Option<u64>,
    pub exited_ns: Option<u64>,
}

/// One CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CpuRow {
    pub cpu: u32,
    /// Time that the target surely ran on it.
    pub on_cpu_ns: u64,
    /// The same as the kernel counted it, from the recording's start; `null` when the file has no count.
    pub kernel_on_cpu_ns: Option<u64>,
    /// Times that the target was switched out on it.
    pub switches: u64,
    /// Records lost on it.
    pub lost: u64,
    /// Bytes of processor trace.
    pub pt_bytes: u64,
    /// Times that its tracer was enabled or disabled.
    pub ops: u64,
}

/// Reads a file to its end.
#[must_use]
pub fn report(pieces: Pieces<'_>) -> Report {
    let mut tally = Tally::new(pieces.header().clone());
    let mut sched = Sched::default();
    for piece in pieces {
        tally.piece(&piece);
        sched.piece(&piece, &mut |step| tally.step(step));
    }
    let (threads, seen) = sched.finish(&mut |step| tally.step(step));
    tally.report(&threads, seen)
}

#[derive(Clone, Debug, Default)]
struct ThreadTally {
    on_cpu_ns: u64,
    /// Beyond what the blind times of the whole recording allow for.
    unpaired_ns: u64,
    switches_in: u64,
    voluntary: u64,
    preempted: u64,
    migrations: u64,
    cpu: Option<Cpu>,
    cpus: BTreeSet<u32>,
}

struct Tally {
    header: Header,
    first_number: Option<u64>,
    ended: Option<String>,
    threads: Vec<ThreadTally>,
    cpus: BTreeMap<u32, CpuRow>,
    utilization: Utilization,
    losses: Vec<LossRow>,
    records: u64,
    missed: u64,
    lacks_sideband: bool,
    lacks_members: bool,
}

impl Tally {
    fn new(header: Header) -> Self {
        Self {
            header,
            first_number: None,
            ended: None,
            threads: Vec::new(),
            cpus: BTreeMap::new(),
            utilization: Utilization::default(),
            losses: Vec::new(),
            records: 0,
            missed: 0,
            lacks_sideband: false,
            lacks_members: false,
        }
    }

    fn piece(&mut self, piece: &Piece) {
        match piece {
            Piece::Generation(g, _) => self.generation(g),
            Piece::Loss(loss) => {
                if let Some(cpu) = loss.cpu {
                    let lost = &mut self.cpu(cpu).lost;
                    *lost = lost.saturating_add(loss.records);
                }
                self.lacks_sideband |= loss.kind == LossKind::SideBandFull;
                self.lacks_members |= loss.kind == LossKind::MapFull;
                self.losses.push(loss.into());
            }
            Piece::Unseen(_) => {}
        }
    }

    fn generation(&mut self, g: &Generation) {
        self.first_number.get_or_insert(g.number);
        self.records += g.records.len() as u64;
        self.missed += g.records.iter().filter(|r| r.flags & flags::MISSED != 0).count() as u64;
        for c in &g.counters {
            self.cpu(c.cpu).kernel_on_cpu_ns = Some(c.on_cpu_ns);
        }
        for chunk in &g.pt {
            self.cpu(chunk.cpu).pt_bytes += chunk.bytes.len() as u64;
        }
        let is_switch =
            |op: &&ControlOp| matches!(op.kind, ControlKind::PtEnable | ControlKind::PtDisable) && op.error.is_none();
        for cpu in g.ops.iter().filter(is_switch).filter_map(|op| op.cpu) {
            self.cpu(cpu).ops += 1;
        }
        if let Some(end) = &g.end_of_recording {
            self.ended = Some(end.reason.clone());
        }
    }

    fn step(&mut self, step: Step) {
        self.utilization.step(&step);
        match step {
            Step::In { thread, cpu, why, .. } => {
                let t = self.thread(thread);
                t.switches_in += u64::from(why == Why::Switch);
                t.arrives(cpu);
            }
            Step::Out {
                thread,
                cpu,
                why,
                state,
                preempt,
                ..
            } => {
                let t = self.thread(thread);
                t.arrives(cpu);
                if why == Why::Switch {
                    // kernel/sched/core.c, __schedule(): nvcsw counts who blocks and was not preempted, nivcsw the rest.
                    if state != TaskState::Runnable && !preempt {
                        t.voluntary += 1;
                    } else {
                        t.preempted += 1;
                    }
                    self.cpu(cpu).switches += 1;
                }
            }
            Step::Ran {
                thread, cpu, from, to, ..
            } => {
                let t = self.thread(thread);
                t.on_cpu_ns = t.on_cpu_ns.saturating_add(to.0 - from.0);
                t.arrives(cpu);
                let on_cpu_ns = &mut self.cpu(cpu).on_cpu_ns;
                *on_cpu_ns = on_cpu_ns.saturating_add(to.0 - from.0);
            }
            Step::Unknown {
                thread,
                cpu,
                from,
                to,
                is_blind,
            } => {
                let t = self.thread(thread);
                t.arrives(cpu);
                if !is_blind {
                    t.unpaired_ns = t.unpaired_ns.saturating_add(to.0 - from.0);
                }
            }
        }
    }

    fn thread(&mut self, thread: ThreadIx) -> &mut ThreadTally {
        let i = thread.0 as usize;
        if i >= self.threads.len() {
            self.threads.resize_with(i + 1, ThreadTally::default);
        }
        &mut self.threads[i]
    }

    fn cpu(&mut self, cpu: Cpu) -> &mut CpuRow {
        self.cpus.entry(cpu.0).or_insert_with(|| CpuRow {
            cpu: cpu.0,
            ..CpuRow::default()
        })
    }

    fn report(mut self, threads: &Threads, seen: Seen) -> Report {
        let tallies = std::mem::take(&mut self.threads);
        let none = ThreadTally::default();
        let mut rows: Vec<ThreadRow> = (threads.iter())
            .map(|(ix, thread)| row(thread, tallies.get(ix.0 as usize).unwrap_or(&none), &seen))
            .collect();
        rows.sort_by_key(|r| (std::cmp::Reverse(r.on_cpu_ns), r.pid, r.tid, r.born_ns));
        self.losses.sort_by_key(|l| l.t_ns);
        let lacks = self.lacks(&seen);
        // A counter alone does not make a CPU one that the target ran on.
        let ran = |c: &CpuRow| {
            c.on_cpu_ns > 0 || c.switches > 0 || c.lost > 0 || c.ops > 0 || c.kernel_on_cpu_ns.unwrap_or(0) > 0
        };
        let header = self.header;
        Report {
            target: target(&header.session.target, header.target.container.as_deref()),
            cgroups: header.target.cgroups.into_iter().map(|(path, _)| path).collect(),
            hierarchy: header.target.hierarchy,
            kernel: header.node.kernel,
            exist_version: header.exist_version,
            period_ns: seen.end.0 - seen.start.0,
            start_ns: seen.start.0,
            end_ns: seen.end.0,
            start_realtime_ns: header
                .start_realtime_ns
                .saturating_add(seen.start.0.saturating_sub(header.start.0)),
            ended: self.ended,
            threads: rows,
            cpus: self.cpus.into_values().filter(ran).collect(),
            utilization: self.utilization.finish(&seen),
            losses: self.losses,
            records: self.records,
            missed: self.missed,
            blind_ns: seen.blind_ns(),
            skewed: seen.skewed,
            skew_max_ns: seen.skew_max_ns,
            lacks,
        }
    }

    fn lacks(&self, seen: &Seen) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(number) = self.first_number.filter(|&n| n > 0) {
            let ms = seen.start.0.saturating_sub(self.header.start.0) / 1_000_000;
            out.push(format!(
                "the recording's first {ms} ms: the file begins with chunk {number}"
            ));
        }
        if self.ended.is_none() {
            out.push("the recording's end: the recorder died, or the file was cut".into());
        }
        if !seen.blind.is_empty() {
            let (us, n) = (seen.blind_ns() / 1000, seen.blind.len());
            out.push(format!(
                "switches during {us} µs, in {n} places: on-CPU times are between two bounds"
            ));
        }
        if seen.unpaired > 0 {
            out.push(format!(
                "{} halves of switches, though none was dropped: please report it",
                seen.unpaired
            ));
        }
        let (ours, kernels) = (self
            .cpus
            .values()
            .filter_map(|c| Some((c.on_cpu_ns, c.kernel_on_cpu_ns?))))
        .fold((0u64, 0u64), |sum, (ours, kernels)| {
            (sum.0.saturating_add(ours), sum.1.saturating_add(kernels))
        });
        if self.first_number == Some(0) && self.ended.is_some() && ours < kernels {
            let us = (kernels - ours) / 1000;
            out.push(format!(
                "{us} µs of on-CPU time that the kernel counted beyond what the records show"
            ));
        }
        if self.lacks_sideband {
            out.push("some names and mappings: their buffer was full".into());
        }
        if self.lacks_members {
            out.push("some of the target: a table of the hook was full".into());
        }
        if let Err(reason) = &self.header.pt {
            out.push(format!("the processor trace: {reason}"));
        }
        out
    }
}

impl ThreadTally {
    fn arrives(&mut self, cpu: Cpu) {
        if self.cpu != Some(cpu) {
            self.migrations += u64::from(self.cpu.is_some());
            self.cpu = Some(cpu);
            self.cpus.insert(cpu.0);
        }
    }
}

fn row(thread: &Thread, t: &ThreadTally, seen: &Seen) -> ThreadRow {
    let until = thread.exited.unwrap_or(seen.end);
    let since = thread.born.unwrap_or(seen.start);
    let life_ns = until.0.saturating_sub(since.0).max(t.on_cpu_ns);
    let hidden_ns = t.unpaired_ns.saturating_add(blind_within(&seen.blind, since, until));
    ThreadRow {
        pid: thread.pid.0,
        tid: thread.tid.0,
        name: thread.name.to_string(),
        on_cpu_ns: t.on_cpu_ns,
        on_cpu_max_ns: t.on_cpu_ns.saturating_add(hidden_ns).min(life_ns),
        switches: t.voluntary + t.preempted,
        switches_in: t.switches_in,
        voluntary: t.voluntary,
        preempted: t.preempted,
        migrations: t.migrations,
        cpus: t.cpus.iter().copied().collect(),
        born_ns: thread.born.map(|t| t.0),
        exited_ns: thread.exited.map(|t| t.0),
    }
}

/// How much of the blind times lies in a thread's life.
fn blind_within(blind: &[(MonoNs, MonoNs)], since: MonoNs, until: MonoNs) -> u64 {
    let first = blind.partition_point(|(_, to)| *to <= since);
    let within = blind[first..].iter().take_while(|(from, _)| *from < until);
    within
        .map(|&(from, to)| to.min(until).0.saturating_sub(from.max(since).0))
        .sum()
}

/// What was followed: as it was resolved, else as it was asked.
fn target(asked: &Target, container: Option<&str>) -> String {
    match (asked, container) {
        (Target::OnlyPid(pid), Some(id)) => format!("process {pid} in container {id}"),
        (Target::OnlyPid(pid), None) => format!("process {pid}"),
        (_, Some(id)) => format!("container {id}"),
        (Target::Container(id), None) => format!("container {id}"),
        (Target::Cgroup(path), None) => format!("cgroup {path}"),
        (Target::Pid(pid), None) => format!("cgroup of process {pid}"),
        (Target::Command(words), None) => format!("command {}", words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_what_was_followed() {
        let check = |asked: &Target, container, expect: &str| assert_eq!(target(asked, container), expect);
        check(&Target::Container("ab12".into()), Some("ab12cd"), "container ab12cd");
        check(
            &Target::Cgroup("/docker/ab12cd".into()),
            Some("ab12cd"),
            "container ab12cd",
        );
        check(&Target::Cgroup("/x".into()), None, "cgroup /x");
        check(&Target::Pid(7), Some("ab12cd"), "container ab12cd");
        check(&Target::Pid(7), None, "cgroup of process 7");
        check(&Target::OnlyPid(7), Some("ab12cd"), "process 7 in container ab12cd");
        check(&Target::OnlyPid(7), None, "process 7");
        check(&Target::Command(vec!["ls".into(), "-l".into()]), None, "command ls -l");
    }
}
