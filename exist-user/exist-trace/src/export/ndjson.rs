//! Rows of a trace as JSON objects, one a line. Addresses are text in hexadecimal: not every reader of JSON keeps 64 bits.

use serde::{Serialize, Serializer};

use crate::{
    file::model::{ControlOp, Loss, Mapping, Record, SwitchOp, Wait, flags, holder},
    flow::state::TaskState,
};

/// A switch of a target thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Switch {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub t_ns: u64,
    pub cpu: u16,
    pub pid: u32,
    pub tid: u32,
    /// `in` or `out`.
    pub op: &'static str,
    /// `switch`; `missed` (a switch at which the kernel did not run the hook: its time comes from the scheduler's accounts); or
    /// why there is a record without one: `moved` (into or out of the target), `start`, `end` (of the recording).
    pub why: &'static str,
    /// Switch-out: the letter of `ps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// Switch-out: whether the scheduler preempted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempt: Option<bool>,
    /// Where it left or resumes user mode; absent for kernel threads.
    #[serde(serialize_with = "hex_or_none", skip_serializing_if = "Option::is_none")]
    pub ip: Option<u64>,
}

impl Switch {
    /// `None` for a record that is not a switch.
    #[must_use]
    pub fn of(r: &Record) -> Option<Self> {
        let op = match r.op()? {
            SwitchOp::In => "in",
            SwitchOp::Out => "out",
            _ => return None,
        };
        let is_out = op == "out" && r.flags & (flags::MOVED | flags::END) == 0;
        Some(Self {
            t_ns: r.time_ns,
            cpu: r.cpu,
            pid: r.pid,
            tid: r.tid,
            op,
            why: why(r.flags),
            state: is_out.then(|| TaskState::from_raw(r.state).letter()),
            preempt: is_out.then_some(r.flags & flags::PREEMPT != 0),
            ip: (r.flags & flags::KERNEL == 0 && r.ip != 0).then_some(r.ip),
        })
    }
}

const fn why(f: u8) -> &'static str {
    if f & flags::START != 0 {
        "start"
    } else if f & flags::END != 0 {
        "end"
    } else if f & flags::MOVED != 0 {
        "moved"
    } else if f & flags::MISSED != 0 {
        "missed"
    } else {
        "switch"
    }
}

/// A wait of a target thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitRow {
    /// When it went out; CLOCK_MONOTONIC, nanoseconds, as all times here.
    pub t_ns: u64,
    /// When it was being woken; absent: it did not sleep, or nobody saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waking_ns: Option<u64>,
    /// When it was runnable; absent: nobody saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runnable_ns: Option<u64>,
    /// When it ran again.
    pub run_ns: u64,
    pub cpu: u16,
    pub pid: u32,
    pub tid: u32,
    pub kind: &'static str,
    /// Number of the system call; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<u16>,
    /// Its first argument.
    #[serde(serialize_with = "hex_or_none", skip_serializing_if = "Option::is_none")]
    pub arg0: Option<u64>,
    /// The thread that woke it, or was stopped by the interrupt that did; 0: the idle task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waker: Option<u32>,
    /// The thread that had the CPU before it; 0: the idle task.
    pub holder_tid: u32,
    /// Whose that was: `idle`, `target`, `other`, `kernel`.
    pub holder: &'static str,
    /// `other`: ID of its cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_cgroup: Option<u64>,
}

impl From<&Wait> for WaitRow {
    fn from(w: &Wait) -> Self {
        let syscall = (w.syscall != Wait::NO_SYSCALL).then_some(w.syscall);
        let seen = w.waking_ns != 0;
        Self {
            t_ns: w.off_ns,
            waking_ns: (w.slept() && seen).then_some(w.waking_ns),
            runnable_ns: (w.runnable_ns != 0).then_some(w.runnable_ns),
            run_ns: w.run_ns,
            cpu: w.cpu,
            pid: w.pid,
            tid: w.tid,
            kind: w.kind().as_str(),
            syscall,
            arg0: syscall.map(|_| w.arg0),
            waker: (w.slept() && seen).then_some(w.waker),
            holder_tid: w.holder_tid,
            holder: match w.holder {
                holder::IDLE => "idle",
                holder::TARGET => "target",
                holder::KERNEL => "kernel",
                _ => "other",
            },
            holder_cgroup: (w.holder_cgroup != 0).then_some(w.holder_cgroup),
        }
    }
}

/// A step in the life of a thread or process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Life {
    pub t_ns: u64,
    pub cpu: u16,
    pub pid: u32,
    pub tid: u32,
    /// `fork`, `exec`, `exit`, `attach_in`, `attach_out`.
    pub op: &'static str,
    /// Fork: the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_tid: Option<u32>,
    /// Attach: whether the whole process moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole_process: Option<bool>,
}

impl Life {
    /// `None` for a record that is a switch.
    #[must_use]
    pub fn of(r: &Record) -> Option<Self> {
        let op = r.op()?;
        let name = match op {
            SwitchOp::In | SwitchOp::Out => return None,
            SwitchOp::Fork => "fork",
            SwitchOp::Exec => "exec",
            SwitchOp::Exit => "exit",
            SwitchOp::AttachIn => "attach_in",
            SwitchOp::AttachOut => "attach_out",
        };
        let parent = (op == SwitchOp::Fork).then(|| r.parent());
        let is_attach = matches!(op, SwitchOp::AttachIn | SwitchOp::AttachOut);
        Some(Self {
            t_ns: r.time_ns,
            cpu: r.cpu,
            pid: r.pid,
            tid: r.tid,
            op: name,
            parent_pid: parent.map(|p| p.0),
            parent_tid: parent.map(|p| p.1),
            whole_process: is_attach.then_some(r.flags & flags::THREADGROUP != 0),
        })
    }
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MappingRow<'a> {
    pub t_ns: u64,
    pub pid: u32,
    #[serde(serialize_with = "hex")]
    pub start: u64,
    pub len: u64,
    pub offset: u64,
    /// `major:minor`.
    pub dev: String,
    pub inode: u64,
    pub path: &'a str,
    /// Hexadecimal; empty when unknown.
    pub build_id: String,
}

impl<'a> From<&'a Mapping> for MappingRow<'a> {
    fn from(m: &'a Mapping) -> Self {
        Self {
            t_ns: m.time.0,
            pid: m.pid.0,
            start: m.start,
            len: m.len,
            offset: m.offset,
            dev: format!("{}:{}", m.dev_major, m.dev_minor),
            inode: m.inode,
            path: &m.path,
            build_id: m.build_id.iter().map(|b| format!("{b:02x}")).collect(),
        }
    }
}

/// Something that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LossRow {
    /// It happened between these.
    pub t_ns: u64,
    pub to_ns: u64,
    /// `null`: not of one CPU.
    pub cpu: Option<u32>,
    pub kind: &'static str,
    pub records: u64,
    pub bytes: u64,
    pub reason: String,
}

impl From<&Loss> for LossRow {
    fn from(l: &Loss) -> Self {
        Self {
            t_ns: l.from.0,
            to_ns: l.to.0,
            cpu: l.cpu.map(|c| c.0),
            kind: l.kind.as_str(),
            records: l.records,
            bytes: l.bytes,
            reason: l.reason.clone(),
        }
    }
}

/// A control operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpRow<'a> {
    /// Just before and just after it.
    pub t_ns: u64,
    pub to_ns: u64,
    /// `null`: not of one CPU.
    pub cpu: Option<u32>,
    pub kind: &'static str,
    /// `null`: done.
    pub error: Option<&'a str>,
}

impl<'a> From<&'a ControlOp> for OpRow<'a> {
    fn from(o: &'a ControlOp) -> Self {
        Self {
            t_ns: o.from.0,
            to_ns: o.to.0,
            cpu: o.cpu.map(|c| c.0),
            kind: o.kind.as_str(),
            error: o.error.as_deref(),
        }
    }
}

fn hex<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{value:#x}"))
}

fn hex_or_none<S: Serializer>(value: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => hex(value, to),
        None => to.serialize_none(),
    }
}
