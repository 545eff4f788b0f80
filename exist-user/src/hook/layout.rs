//! From the kernel's types to the words that are frozen into the programs.

use exist_common::{Frozen, judge};

use super::{
    HookError,
    btf::Btf,
    compat::{self, Without},
};
use crate::sys::cgroupfs::Hierarchy;

/// Size of a pointer to a `cgroup_subsys_state`, the elements of `css_set.subsys`.
const POINTER_BYTES: u32 = 8;

/// What is chosen, not found.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The hierarchy that decides.
    pub hierarchy: &'a Hierarchy,
    /// Only this process, wherever it is.
    pub only_pid: Option<u32>,
    /// Room of a CPU's ring: a power of two.
    pub ring_records: u32,
    /// Whether waits are told.
    pub waits: bool,
}

/// Offsets on the kernel with these types.
///
/// # Errors
/// [`HookError::Missing`] for the first feature that is needed and not there, [`HookError::Btf`] for a field,
/// [`HookError::NoController`].
pub fn frozen(btf: &Btf, choice: Choice<'_>) -> Result<Frozen, HookError> {
    let mut has_prev_state = true;
    for (feature, present) in compat::check(btf) {
        match feature.without {
            Without::Refused if !present => return Err(HookError::Missing(feature)),
            Without::Lesser(_) if feature.name == compat::PREV_STATE => has_prev_state = present,
            Without::Refused | Without::Lesser(_) => {}
        }
    }
    let (hierarchy_id, subsys) = match choice.hierarchy {
        Hierarchy::V2 => (0, 0),
        Hierarchy::V1 { controller, number } => (*number, subsys(btf, controller)?),
    };
    let judge = match (choice.only_pid, choice.hierarchy) {
        (Some(_), _) => judge::PROCESS,
        (None, Hierarchy::V2) => judge::CGROUP2,
        (None, Hierarchy::V1 { .. }) => judge::CGROUP1,
    };
    let se = btf.offset("task_struct", "se")?;
    Ok(Frozen {
        judge,
        hierarchy_id,
        tgid: choice.only_pid.unwrap_or(0),
        has_prev_state: u32::from(has_prev_state),
        ring_records: choice.ring_records,
        task_pid: btf.offset("task_struct", "pid")?,
        task_tgid: btf.offset("task_struct", "tgid")?,
        task_flags: btf.offset("task_struct", "flags")?,
        task_state: btf.offset("task_struct", "__state")?,
        task_sum_exec: se + btf.offset("sched_entity", "sum_exec_runtime")?,
        task_prev_sum_exec: se + btf.offset("sched_entity", "prev_sum_exec_runtime")?,
        task_cgroups: btf.offset("task_struct", "cgroups")?,
        css_set_dfl_cgrp: btf.offset("css_set", "dfl_cgrp")?,
        css_set_subsys: btf.offset("css_set", "subsys")? + subsys * POINTER_BYTES,
        css_cgroup: btf.offset("cgroup_subsys_state", "cgroup")?,
        css_parent: btf.offset("cgroup_subsys_state", "parent")?,
        cgroup_self_parent: btf.offset("cgroup", "self")? + btf.offset("cgroup_subsys_state", "parent")?,
        cgroup_kn: btf.offset("cgroup", "kn")?,
        cgroup_root: btf.offset("cgroup", "root")?,
        root_hierarchy_id: btf.offset("cgroup_root", "hierarchy_id")?,
        kn_id: btf.offset("kernfs_node", "id")?,
        regs_ip: btf.offset("pt_regs", "ip")?,
        waits: u32::from(choice.waits),
        regs_orig_ax: btf.offset("pt_regs", "orig_ax")?,
        regs_di: btf.offset("pt_regs", "di")?,
        task_files: btf.offset("task_struct", "files")?,
        files_fdt: btf.offset("files_struct", "fdt")?,
        fdtable_max_fds: btf.offset("fdtable", "max_fds")?,
        fdtable_fd: btf.offset("fdtable", "fd")?,
        file_inode: btf.offset("file", "f_inode")?,
        inode_mode: btf.offset("inode", "i_mode")?,
        task_throttled: btf.offset("task_struct", "throttled").unwrap_or(0),
    })
}

/// Place of a controller in `css_set.subsys`: its constant in the kernel's own enumeration, which depends on its configuration.
fn subsys(btf: &Btf, controller: &str) -> Result<u32, HookError> {
    // `blkio` is the version 1 name (`legacy_name`) of the subsystem `io`, block/blk-cgroup.c.
    let name = if controller == "blkio" { "io" } else { controller };
    btf.constant("cgroup_subsys_id", &format!("{name}_cgrp_id"))
        .map_err(|_| HookError::NoController(controller.to_owned()))
}
