//! Why the hook cannot be loaded or used; each with its remedy.

use std::io;

use thiserror::Error;

use super::{btf::BtfError, compat::Feature};

/// See the variants.
#[derive(Debug, Error)]
pub enum HookError {
    /// This binary was built without the BPF programs.
    #[error(
        "this `exist` was built without its BPF programs; run `cargo xtask build-ebpf`, then build it again \
         (`cargo xtask setup bpf` installs the tool chain)"
    )]
    NoObject,
    /// The kernel does not show its types.
    #[error(
        "failed to read {path}: the kernel does not show its types; \
         it needs CONFIG_DEBUG_INFO_BTF, which every current distribution's kernel has"
    )]
    NoBtf { path: &'static str, source: io::Error },
    /// The kernel's types cannot be read, or lack something.
    #[error("failed to find a field of this kernel ({0}); please report it with the kernel's version")]
    Btf(#[from] BtfError),
    /// The kernel is too old.
    #[error(
        "this kernel lacks {} (since {}), which is used for {}; kernel 5.15 or later is needed",
        .0.name, .0.since, .0.used_for
    )]
    Missing(&'static Feature),
    /// A kernel that was built without this controller.
    #[error("cgroup controller {0} is not one of this kernel's")]
    NoController(String),
    /// The rings together have more slots than a map can.
    #[error("rings of {ring_bytes} bytes on {cpus} CPUs are more than a BPF map holds; make them smaller")]
    RingsTooLarge { ring_bytes: u32, cpus: u32 },
    /// The kernel, or the memory limit of this process's cgroup, has no room for the rings.
    #[error(
        "failed to {what}: no memory for rings of {} KiB on {cpus} CPUs ({why}); raise the memory limit, or make them smaller \
         with --ring-bytes", .ring_bytes >> 10
    )]
    NoMemory {
        what: String,
        ring_bytes: u32,
        cpus: u32,
        why: String,
    },
    /// The kernel refused a program or a map for want of privilege.
    #[error("{what} was not permitted; run as root, or with CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE ({why})")]
    NotPermitted { what: String, why: String },
    /// The loader refused.
    #[error("failed to {what}: {why}")]
    Load { what: String, why: String },
    /// A system call on a map or ring.
    #[error("failed to {what}")]
    Io { what: String, source: io::Error },
}

impl HookError {
    /// From an error while the object was loaded with its maps: as [`Self::load`], and [`Self::NoMemory`].
    pub(super) fn load_object(error: &aya::EbpfError, ring_bytes: u32, cpus: u32) -> Self {
        let no_memory = os_error(error) == Some(libc::ENOMEM);
        match Self::load("load the BPF object", error) {
            Self::Load { what, why } if no_memory => Self::NoMemory {
                what,
                ring_bytes,
                cpus,
                why,
            },
            other => other,
        }
    }

    /// From an error of the loader, whose chain is flattened: the verifier's log would fill pages, its end says why.
    pub(super) fn load(what: impl Into<String>, error: &(dyn std::error::Error + 'static)) -> Self {
        let what = what.into();
        let mut chain = vec![error.to_string()];
        let mut source = error.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !chain.iter().any(|part| part.contains(&text)) {
                chain.push(text);
            }
            source = error.source();
        }
        let why = tail(&chain.join(": "));
        if matches!(os_error(error), Some(libc::EPERM)) {
            return Self::NotPermitted { what, why };
        }
        Self::Load { what, why }
    }
}

/// The system's error number in the chain of an error.
pub(super) fn os_error(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error();
        }
        at = error.source();
    }
    None
}

fn tail(text: &str) -> String {
    const MOST: usize = 1500;
    match text.char_indices().rev().nth(MOST) {
        Some((at, _)) => format!("… {}", &text[at..]),
        None => text.to_owned(),
    }
}
