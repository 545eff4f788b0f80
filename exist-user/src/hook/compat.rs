//! What the hook needs of a kernel: a table, and its answers on this one.
//!
//! Takes: the kernel's BTF. Gives: each feature with whether it is there. Refuses nothing: what is missing and needed
//! becomes an error when the hook is loaded.

use super::btf::{Btf, Parameter};

/// Where the kernel shows its types.
pub const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

/// Something that the hook uses.
#[derive(Clone, Copy, Debug)]
pub struct Feature {
    /// As the kernel calls it.
    pub name: &'static str,
    /// First kernel that has it.
    pub since: &'static str,
    /// What it is used for.
    pub used_for: &'static str,
    /// What happens without it.
    pub without: Without,
    sign: Sign,
}

/// What happens on a kernel that lacks a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// The hook is not loaded.
    Refused,
    /// The hook works, less well in this respect.
    Lesser(&'static str),
}

/// By what a feature shows in BTF.
#[derive(Clone, Copy, Debug)]
enum Sign {
    Function(&'static str),
    Field(&'static str, &'static str),
    /// The tracepoint, with `task_struct` or `cgroup` pointers where the programs read them.
    Tracepoint(&'static str, &'static [Option<&'static str>]),
}

const TASK: Option<&str> = Some("task_struct");
const CGROUP: Option<&str> = Some("cgroup");

/// Name of a feature that the programs have to know of.
pub const PREV_STATE: &str = "sched_switch argument prev_state";

/// Every feature. The least kernel is 5.15: the newest of those that are needed.
pub const FEATURES: &[Feature] = &[
    Feature {
        name: "BTF tracepoint sched_switch",
        since: "5.5",
        used_for: "context switches",
        without: Without::Refused,
        sign: Sign::Tracepoint("sched_switch", &[None, TASK, TASK]),
    },
    Feature {
        name: PREV_STATE,
        since: "5.18",
        used_for: "the state in which a thread goes out",
        without: Without::Lesser("a thread that is woken while it goes out shows as runnable"),
        sign: Sign::Tracepoint("sched_switch", &[None, TASK, TASK, None]),
    },
    Feature {
        name: "task_struct.__state",
        since: "5.14",
        used_for: "the state in which a thread goes out, without prev_state",
        without: Without::Refused,
        sign: Sign::Field("task_struct", "__state"),
    },
    Feature {
        name: "BTF tracepoint sched_process_fork",
        since: "5.5",
        used_for: "new threads and processes",
        without: Without::Refused,
        sign: Sign::Tracepoint("sched_process_fork", &[TASK, TASK]),
    },
    Feature {
        name: "BTF tracepoint sched_process_exec",
        since: "5.5",
        used_for: "programs that a process executes",
        without: Without::Refused,
        sign: Sign::Tracepoint("sched_process_exec", &[TASK, None]),
    },
    Feature {
        name: "BTF tracepoint sched_process_exit",
        since: "5.5",
        used_for: "threads that end",
        without: Without::Refused,
        sign: Sign::Tracepoint("sched_process_exit", &[TASK]),
    },
    Feature {
        name: "BTF tracepoint cgroup_mkdir",
        since: "5.5",
        used_for: "cgroups made below the target",
        without: Without::Refused,
        sign: Sign::Tracepoint("cgroup_mkdir", &[CGROUP]),
    },
    Feature {
        name: "BTF tracepoint cgroup_rmdir",
        since: "5.5",
        used_for: "the target's end",
        without: Without::Refused,
        sign: Sign::Tracepoint("cgroup_rmdir", &[CGROUP]),
    },
    Feature {
        name: "BTF tracepoint cgroup_release",
        since: "5.5",
        used_for: "forgetting cgroups below the target",
        without: Without::Refused,
        sign: Sign::Tracepoint("cgroup_release", &[CGROUP]),
    },
    Feature {
        name: "BTF tracepoint cgroup_attach_task",
        since: "5.5",
        used_for: "processes moved into or out of the target",
        without: Without::Refused,
        sign: Sign::Tracepoint("cgroup_attach_task", &[CGROUP, None, TASK, None]),
    },
    Feature {
        name: "BPF ring buffer",
        since: "5.8",
        used_for: "records and notices",
        without: Without::Refused,
        sign: Sign::Function("bpf_ringbuf_reserve"),
    },
    Feature {
        name: "bpf_get_current_task_btf",
        since: "5.11",
        used_for: "who runs when recording begins and ends",
        without: Without::Refused,
        sign: Sign::Function("bpf_get_current_task_btf"),
    },
    Feature {
        name: "BPF_PROG_TEST_RUN of raw tracepoints on a chosen CPU",
        since: "5.10",
        used_for: "who runs when recording begins and ends",
        without: Without::Refused,
        sign: Sign::Function("bpf_prog_test_run_raw_tp"),
    },
    Feature {
        name: "bpf_task_pt_regs",
        since: "5.15",
        used_for: "the instruction at which a thread goes out and comes in",
        without: Without::Refused,
        sign: Sign::Function("bpf_task_pt_regs"),
    },
    Feature {
        name: "BTF tracepoint sched_waking",
        since: "5.5",
        used_for: "who wakes a thread",
        without: Without::Lesser("waits cannot be recorded"),
        sign: Sign::Tracepoint("sched_waking", &[TASK]),
    },
    Feature {
        name: "BTF tracepoint sched_wakeup",
        since: "5.5",
        used_for: "when a thread is runnable",
        without: Without::Lesser("waits cannot be recorded"),
        sign: Sign::Tracepoint("sched_wakeup", &[TASK]),
    },
    Feature {
        name: "BTF tracepoint sched_wakeup_new",
        since: "5.5",
        used_for: "when a new thread is runnable",
        without: Without::Lesser("waits cannot be recorded"),
        sign: Sign::Tracepoint("sched_wakeup_new", &[TASK]),
    },
    Feature {
        name: "task_struct.throttled",
        since: "6.18",
        used_for: "waits for the quota of a cgroup",
        without: Without::Lesser("a thread whose quota is used up shows as preempted"),
        sign: Sign::Field("task_struct", "throttled"),
    },
];

impl Feature {
    /// Whether this kernel has it.
    #[must_use]
    pub fn present(&self, btf: &Btf) -> bool {
        match self.sign {
            Sign::Function(name) => btf.has_function(name),
            Sign::Field(of, field) => btf.offset(of, field).is_ok(),
            Sign::Tracepoint(name, wanted) => btf.tracepoint(name).is_ok_and(|has| {
                wanted.len() <= has.len()
                    && wanted.iter().zip(&has).all(|(wanted, has)| match (wanted, has) {
                        (Some(wanted), Parameter::Struct(name)) => wanted == name,
                        (Some(_), Parameter::Other) => false,
                        (None, _) => true,
                    })
            }),
        }
    }
}

/// Every feature with whether this kernel has it.
pub fn check(btf: &Btf) -> impl Iterator<Item = (&'static Feature, bool)> {
    FEATURES.iter().map(|feature| (feature, feature.present(btf)))
}
