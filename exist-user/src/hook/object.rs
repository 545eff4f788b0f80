//! The BPF object that is built into this binary.

/// The object; `None` when this binary was built before `cargo xtask build-ebpf` made one.
#[cfg(bpf_object)]
pub const OBJECT: Option<&[u8]> = Some(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/exist-ebpf")));
#[cfg(not(bpf_object))]
pub const OBJECT: Option<&[u8]> = None;
