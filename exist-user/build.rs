//! Embeds the BPF object, if `cargo xtask build-ebpf` has made it.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    println!("cargo::rustc-check-cfg=cfg(bpf_object)");
    let workspace = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or(io::ErrorKind::NotFound)?).join("..");
    let dir = workspace.join("target/bpf");
    // An empty folder can be watched; a file that is not there would build this package anew each time.
    fs::create_dir_all(&dir)?;
    println!("cargo::rerun-if-changed={}", dir.display());
    let object = dir.join("exist-ebpf");
    if object.is_file() {
        println!("cargo::rerun-if-changed={}", object.display());
        let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
        fs::copy(&object, out.join("exist-ebpf"))?;
        println!("cargo::rustc-cfg=bpf_object");
    }
    Ok(())
}
