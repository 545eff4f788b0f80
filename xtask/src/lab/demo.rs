//! For `cargo xtask demo`: a program recorded in the guest, with its processor trace.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{GuestArgs, Kernel, Lab};

/// What the guest left.
pub struct Recorded {
    /// The trace.
    pub trace: PathBuf,
    /// The guest's files: the code that ran.
    pub root: PathBuf,
}

/// Records `program` with these arguments by `exist`, both of this machine, in the guest.
///
/// # Errors
/// A part of the lab that cannot be had; a guest that does not boot; a recording that fails there.
pub fn record(exist: &Path, program: &Path, arguments: &str) -> Result<Recorded> {
    let Some(name) = program.file_name().and_then(|name| name.to_str()) else {
        bail!("{} names no program", program.display());
    };
    let lab = Lab::open()?;
    let guest = GuestArgs {
        kernel: Kernel::V6_12,
        cpus: 2,
        time_limit: 240,
        copy: vec![exist.to_path_buf(), program.to_path_buf()],
        without_plugin: false,
        all_ip_forms: false,
        long_tnt: false,
        // The guest is slower than its clock: finer time would fill the buffers with nothing else.
        coarse_mtc: true,
        name: "demo".to_owned(),
    };
    let script = format!("exist record --pt on -o /lab/out/demo.exist -- /lab/bin/{name} {arguments}");
    let outcome = lab.run(&guest.plan(script, false), &guest.name)?;
    print!("{}", outcome.text("stdout")?);
    eprint!("{}", outcome.text("stderr")?);
    if outcome.code != 0 {
        bail!("exist record ended with {} in the guest", outcome.code);
    }
    Ok(Recorded {
        trace: outcome.folder.join("out/demo.exist"),
        root: outcome.folder.join("root"),
    })
}
