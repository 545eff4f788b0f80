//! Programs of a newer Debian suite, unpacked into a folder of `target/` with the libraries they need.
//! The machine's own package lists and packages stay as they are: apt gets lists, cache and sources of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::process;

/// An unpacked root whose programs run through its own dynamic loader.
#[derive(Debug)]
pub struct Root {
    dir: PathBuf,
}

impl Root {
    /// Unpacks these packages of Debian sid, and nothing that they depend on, unless an earlier run did.
    ///
    /// # Errors
    /// No apt, no such package, no network; the message says which.
    pub fn with(name: &str, packages: &[&str]) -> Result<Self> {
        let dir = process::workspace().join("target/peers").join(name);
        let done = dir.join("unpacked");
        let wanted = packages.join(" ");
        let root = Self { dir };
        if fs::read_to_string(&done).is_ok_and(|have| have == wanted) {
            return Ok(root);
        }
        if !process::on_path("apt-get") || !process::on_path("dpkg") {
            bail!("{name} comes from Debian's packages, and this machine has no apt");
        }
        eprintln!("unpacking from Debian sid into {}: {wanted}", root.dir.display());
        let debs = root.dir.join("debs");
        for folder in ["lists/partial", "cache/archives/partial", "debs", "root"] {
            let path = root.dir.join(folder);
            fs::create_dir_all(&path).with_context(|| format!("failed to create {}", path.display()))?;
        }
        fs::write(
            root.dir.join("sources.list"),
            format!(
                "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {} sid main\n",
                process::debian_archive()?
            ),
        )?;
        process::run(root.apt_get().arg("update"))?;
        process::run(root.apt_get().arg("download").args(packages).current_dir(&debs))?;
        for deb in fs::read_dir(&debs)? {
            process::run(
                Command::new("dpkg")
                    .arg("-x")
                    .arg(deb?.path())
                    .arg(root.dir.join("root")),
            )?;
        }
        fs::write(&done, wanted)?;
        Ok(root)
    }

    /// A command that runs `usr/PROGRAM` of this root, with this root's libraries.
    pub fn command(&self, program: &str) -> Command {
        let usr = self.dir.join("root/usr");
        let libraries = usr.join("lib/x86_64-linux-gnu");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        let path = [libraries.as_path(), Path::new(&usr.join("lib/perfetto"))]
            .map(|dir| dir.display().to_string())
            .join(":");
        command.arg("--library-path").arg(path).arg(usr.join(program));
        command
    }

    fn apt_get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.arg("-qq");
        let options = [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::State::Lists", "lists"),
            ("Dir::Cache", "cache"),
        ];
        for (key, value) in options {
            command
                .arg("-o")
                .arg(format!("{key}={}", self.dir.join(value).display()));
        }
        for key in [
            "Dir::Etc::sourceparts",
            "Dir::Etc::preferences",
            "Dir::Etc::preferencesparts",
        ] {
            command.arg("-o").arg(format!("{key}=/dev/null"));
        }
        command.args(["-o", "APT::Sandbox::User=root"]);
        command
    }
}
