//! `cargo xtask build-ebpf`: compiles and links the BPF programs to `target/bpf/exist-ebpf`.
//!
//! Takes a tool chain that has the source of the standard library (libcore for
//! `bpfel-unknown-none` is not shipped compiled), and says which one it took. Refuses a linker whose
//! LLVM is older than that of the compiler: it could not read the bitcode.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{process, setup};

const TARGET: &str = "bpfel-unknown-none";
/// Where `exist-user/build.rs` looks for the object.
const OBJECT_DIR: &str = "target/bpf";
const OBJECT: &str = "exist-ebpf";

/// A compiler that can build libcore for BPF.
#[derive(Debug)]
struct ToolChain {
    /// For a person.
    name: String,
    rustc: PathBuf,
    cargo: PathBuf,
    /// Unstable flags need leave on a stable compiler.
    bootstrap: bool,
}

/// Runs `cargo xtask build-ebpf`.
///
/// # Errors
/// If there is no usable tool chain or linker (the message names the command that installs them), or the build fails.
pub fn run() -> Result<()> {
    let root = process::workspace();
    let chain = ToolChain::choose()?;
    let linker = setup::bpf_linker().context("there is no bpf-linker; `cargo xtask setup bpf` installs it")?;
    let llvm = chain.llvm()?;
    println!("compiler: {} (LLVM {llvm})", chain.name);
    match linker_llvm(&linker)? {
        Some(linked) if linked < llvm => bail!(
            "{} is linked with LLVM {linked}, older than the compiler's LLVM {llvm}; \
             remove it and run `cargo xtask setup bpf`",
            linker.display()
        ),
        Some(linked) => println!("linker: {} (LLVM {linked})", linker.display()),
        None => println!(
            "linker: {} (its LLVM is built in and not shown; it must be at least {llvm})",
            linker.display()
        ),
    }
    let built = chain.build(&root, &linker)?;
    let dir = root.join(OBJECT_DIR);
    fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
    let object = dir.join(OBJECT);
    // An unchanged object keeps its time stamp, so `exist` is not linked anew.
    let fresh = fs::read(&built).with_context(|| format!("failed to read {}", built.display()))?;
    if fs::read(&object).is_ok_and(|old| old == fresh) {
        println!("{} is up to date ({} bytes)", object.display(), fresh.len());
        return Ok(());
    }
    let temporary = dir.join(format!("{OBJECT}.new"));
    fs::write(&temporary, &fresh).with_context(|| format!("failed to write {}", temporary.display()))?;
    fs::rename(&temporary, &object).with_context(|| format!("failed to write {}", object.display()))?;
    println!("built {} ({} bytes)", object.display(), fresh.len());
    Ok(())
}

impl ToolChain {
    /// The first that has the standard library's source: rustup's, then the distribution's.
    fn choose() -> Result<Self> {
        let mut refused = Vec::new();
        for candidate in [Self::rustup("nightly"), Self::rustup("stable"), Self::distribution()] {
            match candidate {
                Ok(chain) => return Ok(chain),
                Err(why) => refused.push(format!("{why:#}")),
            }
        }
        bail!(
            "no tool chain can build for BPF ({}); `cargo xtask setup bpf` installs Debian's, \
             or `rustup component add rust-src` completes rustup's",
            refused.join("; ")
        )
    }

    fn rustup(channel: &str) -> Result<Self> {
        if !process::on_path("rustup") {
            bail!("rustup {channel}: there is no rustup");
        }
        let which = |program: &str| {
            process::output(Command::new("rustup").args(["which", "--toolchain", channel, program]))
                .map(|path| PathBuf::from(path.trim()))
        };
        let Ok(rustc) = which("rustc") else {
            bail!("rustup {channel}: not installed");
        };
        let chain = Self {
            name: format!("rustup {channel}"),
            cargo: which("cargo")?,
            rustc,
            bootstrap: channel == "stable",
        };
        chain.has_source()?;
        Ok(chain)
    }

    fn distribution() -> Result<Self> {
        let chain = Self {
            name: "the distribution's /usr/bin/rustc".to_owned(),
            rustc: "/usr/bin/rustc".into(),
            cargo: "/usr/bin/cargo".into(),
            bootstrap: true,
        };
        for program in [&chain.rustc, &chain.cargo] {
            if !program.is_file() {
                bail!("no {}", program.display());
            }
        }
        chain.has_source()?;
        Ok(chain)
    }

    fn has_source(&self) -> Result<()> {
        let sysroot = process::output(Command::new(&self.rustc).args(["--print", "sysroot"]))?;
        let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/Cargo.toml");
        if !core.is_file() {
            bail!("{}: no source of the standard library", self.name);
        }
        Ok(())
    }

    fn llvm(&self) -> Result<Version> {
        let verbose = process::output(Command::new(&self.rustc).arg("-vV"))?;
        rustc_llvm(&verbose).with_context(|| format!("{} does not say its LLVM version", self.rustc.display()))
    }

    fn build(&self, root: &Path, linker: &Path) -> Result<PathBuf> {
        let target_dir = root.join("target/ebpf");
        let flags = [
            format!("-Clinker={}", linker.display()),
            // Instructions that kernel 5.15 knows: 32-bit arithmetic and jumps.
            "-Ctarget-cpu=v3".to_owned(),
            "-Cdebuginfo=2".to_owned(),
            "-Clink-arg=--btf".to_owned(),
            format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH),
        ];
        let mut command = Command::new(&self.cargo);
        command
            .args([
                "build",
                "--locked",
                "--release",
                "--package",
                OBJECT,
                "--target",
                TARGET,
            ])
            .args(["-Z", "build-std=core"])
            .current_dir(root)
            .env("RUSTC", &self.rustc)
            .env("CARGO_TARGET_DIR", &target_dir)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        // What the outer cargo sets for its own compiler must not reach this one.
        for inherited in [
            "RUSTUP_TOOLCHAIN",
            "CARGO",
            "RUSTFLAGS",
            "RUSTC_WRAPPER",
            "RUSTC_WORKSPACE_WRAPPER",
        ] {
            command.env_remove(inherited);
        }
        if self.bootstrap {
            command.env("RUSTC_BOOTSTRAP", "1");
        }
        process::run(&mut command)?;
        Ok(target_dir.join(TARGET).join("release").join(OBJECT))
    }
}

/// A version of LLVM: major and minor. Patch releases keep the bitcode's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse().ok()
        });
        Some(Self(parts.next()??, parts.next().flatten().unwrap_or(0)))
    }
}

fn rustc_llvm(verbose: &str) -> Option<Version> {
    verbose
        .lines()
        .find_map(|line| Version::parse(line.strip_prefix("LLVM version: ")?))
}

/// The version of the shared libLLVM that the linker uses; `None` when LLVM is linked in.
fn linker_llvm(linker: &Path) -> Result<Option<Version>> {
    let libraries = process::output(Command::new("ldd").arg(linker))?;
    Ok(shared_llvm(&libraries))
}

fn shared_llvm(ldd: &str) -> Option<Version> {
    ldd.lines().find_map(|line| {
        let name = line.trim().split(' ').next()?;
        let version = name
            .strip_prefix("libLLVM.so.")
            .or_else(|| name.strip_prefix("libLLVM-").map(|rest| rest.trim_end_matches(".so")))?;
        Version::parse(version)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvm_of_the_compiler_and_of_the_linker() {
        assert_eq!(
            rustc_llvm("release: 1.96.0\nLLVM version: 22.1.8\n"),
            Some(Version(22, 1))
        );
        assert_eq!(rustc_llvm("release: 1.96.0\n"), None);
        let ldd = "\tlibgcc_s.so.1 => /lib/libgcc_s.so.1 (0x1)\n\tlibLLVM.so.22.1 => /usr/lib/libLLVM.so.22.1 (0x2)\n";
        assert_eq!(shared_llvm(ldd), Some(Version(22, 1)));
        assert_eq!(
            shared_llvm("\tlibLLVM-18.so => /usr/lib/libLLVM-18.so (0x2)\n"),
            Some(Version(18, 0))
        );
        assert_eq!(shared_llvm("\tstatically linked\n"), None);
        assert!(Version(21, 9) < Version(22, 1));
    }
}
