//! What is fixed when the programs are loaded: the verifier sees constants and drops the branches not taken.

use crate::words::words;

words! {
    /// Offsets of kernel fields, from the running kernel's BTF, and the choices of this recording.
    ///
    /// It is one global in read-only data; its words are overridden before load.
    pub struct Frozen: u32 {
        /// How a task is judged: [`judge`].
        judge,
        /// `hierarchy_id` of the hierarchy whose cgroups are the target (0: version 2).
        hierarchy_id,
        /// The only process to follow, for [`judge::PROCESS`].
        tgid,
        /// Whether the `sched_switch` tracepoint has the argument `prev_state` (since 5.18).
        has_prev_state,
        /// Room of a CPU's ring, in records: a power of two.
        ring_records,

        /// `task_struct.pid`: what users call the thread.
        task_pid,
        /// `task_struct.tgid`: what users call the process.
        task_tgid,
        /// `task_struct.flags`.
        task_flags,
        /// `task_struct.__state` (before 5.14: `state`).
        task_state,
        /// `task_struct.se.sum_exec_runtime`.
        task_sum_exec,
        /// `task_struct.se.prev_sum_exec_runtime`.
        task_prev_sum_exec,
        /// `task_struct.cgroups`.
        task_cgroups,
        /// `css_set.dfl_cgrp`.
        css_set_dfl_cgrp,
        /// `css_set.subsys[N]` with the N of the controller that decides.
        css_set_subsys,
        /// `cgroup_subsys_state.cgroup`.
        css_cgroup,
        /// `cgroup_subsys_state.parent`.
        css_parent,
        /// `cgroup.self.parent`.
        cgroup_self_parent,
        /// `cgroup.kn`.
        cgroup_kn,
        /// `cgroup.root`.
        cgroup_root,
        /// `cgroup_root.hierarchy_id`.
        root_hierarchy_id,
        /// `kernfs_node.id`.
        kn_id,
        /// `pt_regs.ip`.
        regs_ip,

        /// Whether waits are told. The words below are for these alone.
        waits,
        /// `pt_regs.orig_ax`.
        regs_orig_ax,
        /// `pt_regs.di`.
        regs_di,
        /// `task_struct.files`.
        task_files,
        /// `files_struct.fdt`.
        files_fdt,
        /// `fdtable.max_fds`.
        fdtable_max_fds,
        /// `fdtable.fd`.
        fdtable_fd,
        /// `file.f_inode`.
        file_inode,
        /// `inode.i_mode`.
        inode_mode,
        /// `task_struct.throttled`; 0: this kernel has none.
        task_throttled,
    }
}

/// Values of [`Frozen::judge`].
pub mod judge {
    /// By the task's cgroup in the version 2 hierarchy.
    pub const CGROUP2: u32 = 0;
    /// By the task's cgroup in the hierarchy of a version 1 controller.
    pub const CGROUP1: u32 = 1;
    /// By the process alone, wherever it is.
    pub const PROCESS: u32 = 2;
}
