//! Debian packages by a private apt configuration: takes nothing of the machine's own lists and changes nothing there,
//! gives an unpacked QEMU, perf and busybox, and kernel images. Everything is kept under target/lab.
//!
//! Refuses a host without apt, and says which package brings Debian's archive keys where they are missing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::process;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const SUITES: [&str; 4] = ["trixie", "trixie-updates", "trixie-backports", "bookworm"];
const TOOLS: [&str; 3] = ["qemu-system-x86", "linux-perf", "busybox-static"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A Debian cloud kernel that the lab boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kernel {
    /// Debian 12
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13
    #[value(name = "6.12")]
    V6_12,
    /// Debian 13 backports
    #[value(name = "7.3")]
    V7_3,
}

impl Kernel {
    /// Its first two numbers.
    pub fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7_3 => "7.3",
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub struct KernelFiles {
    pub image: PathBuf,
    /// Modules that the guest needs for its results, in the order of loading.
    pub modules: Vec<PathBuf>,
}

/// Programs that run from the folder they were unpacked to, by their own dynamic linker.
#[derive(Clone, Debug)]
pub struct Tools {
    root: PathBuf,
}

impl Tools {
    /// The folder of a Debian root that holds the programs.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Their dynamic linker.
    pub fn linker(&self) -> PathBuf {
        self.root.join(LIBRARIES).join("ld-linux-x86-64.so.2")
    }

    /// A command that starts `usr/bin/NAME`.
    pub fn command(&self, name: &str) -> Command {
        let libraries = self.root.join(LIBRARIES);
        let mut command = Command::new(self.linker());
        command
            .arg("--library-path")
            .arg(libraries)
            .arg(self.root.join("usr/bin").join(name));
        command
    }

    /// The shared libraries that `usr/bin/NAME` loads, by their real paths with the name they are asked for.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn libraries(&self, name: &str) -> Result<Vec<(String, PathBuf)>> {
        let libraries = self.root.join(LIBRARIES);
        let mut command = Command::new(self.linker());
        command
            .arg("--library-path")
            .arg(&libraries)
            .arg("--list")
            .arg(self.root.join("usr/bin").join(name));
        let listed = process::output(&mut command)?;
        Ok(super::libraries::parse(&listed))
    }
}

/// The private apt, with its lists.
#[derive(Clone, Debug)]
pub struct Packages {
    root: PathBuf,
}

impl Packages {
    /// The configuration under `root`, with lists that are fetched once.
    ///
    /// # Errors
    /// A host without apt or Debian's keys; a mirror that does not answer.
    pub fn open(root: &Path) -> Result<Self> {
        if !process::on_path("apt-get") || !process::on_path("dpkg") {
            bail!(
                "the lab takes QEMU and kernels from Debian with apt-get and dpkg, which are not here: use Debian or Ubuntu"
            );
        }
        if !Path::new(KEYRING).exists() {
            bail!("{KEYRING} is missing, by which Debian's packages are checked: install debian-archive-keyring");
        }
        let packages = Self {
            root: root.to_path_buf(),
        };
        for folder in ["state/lists/partial", "cache/archives/partial", "debs"] {
            let folder = root.join(folder);
            fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
        }
        let write = |name: &str, text: String| {
            fs::write(root.join(name), text).with_context(|| format!("failed to write {name} in {}", root.display()))
        };
        let archive = process::debian_archive()?;
        let sources: Vec<_> = SUITES
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {archive} {suite} main\n"))
            .collect();
        write("sources.list", sources.concat())?;
        write("apt.conf", configuration(root))?;
        write("state/status", String::new())?;
        if !root.join("lists.done").exists() {
            eprintln!("lab: fetching Debian's package lists, once");
            packages.apt("apt-get", &["-q", "update"])?;
            write("lists.done", String::new())?;
        }
        Ok(packages)
    }

    /// QEMU, perf and busybox with everything they need, unpacked once.
    ///
    /// # Errors
    /// A package that cannot be fetched or unpacked.
    pub fn tools(&self) -> Result<Tools> {
        let root = self.root.join("tools");
        self.once(&root, |into| {
            eprintln!("lab: fetching {} with their libraries, once", TOOLS.join(", "));
            let options = [
                "-q",
                "-y",
                "--no-install-recommends",
                "--download-only",
                "-t",
                "trixie-backports",
                "install",
            ];
            self.apt("apt-get", &[&options[..], &TOOLS[..]].concat())?;
            unpack_all(&self.root.join("cache/archives"), into)
        })?;
        Ok(Tools { root })
    }

    /// A kernel, unpacked once.
    ///
    /// # Errors
    /// A version that Debian does not have (any more); a package that cannot be fetched or unpacked.
    pub fn kernel(&self, kernel: Kernel) -> Result<KernelFiles> {
        let root = self.root.join(format!("kernel-{}", kernel.name()));
        self.once(&root, |into| {
            let shown = self.apt("apt-cache", &["show", "linux-image-cloud-amd64"])?;
            let image = image_package(&shown, kernel.name()).with_context(|| {
                format!(
                    "Debian has no {} cloud kernel; choose another with --kernel",
                    kernel.name()
                )
            })?;
            // From 7.x on the image is in a package of its own.
            let binary = image.replacen("linux-image-", "linux-binary-", 1);
            let package = if self.apt("apt-cache", &["show", &binary]).is_ok() {
                binary
            } else {
                image
            };
            eprintln!("lab: fetching {package}, once");
            let debs = self.root.join("debs").join(kernel.name());
            fs::create_dir_all(&debs).with_context(|| format!("failed to make {}", debs.display()))?;
            let mut download = self.command("apt-get");
            process::output(download.args(["-q", "download", &package]).current_dir(&debs))?;
            unpack_all(&debs, into)
        })?;
        let image = find(&root, &|name| name.starts_with("vmlinuz")).context("the kernel package has no vmlinuz")?;
        // Debian 12's kernel has the result channel as modules.
        let modules = [
            "virtio.ko",
            "virtio_ring.ko",
            "virtio_pci_modern_dev.ko",
            "virtio_pci_legacy_dev.ko",
            "virtio_pci.ko",
            "virtio_console.ko",
        ];
        let modules = modules
            .iter()
            .filter_map(|module| find(&root, &|name| name == *module))
            .collect();
        Ok(KernelFiles { image, modules })
    }

    /// Fills a folder by `fill`, whole or not at all.
    fn once(&self, folder: &Path, fill: impl Fn(&Path) -> Result<()>) -> Result<()> {
        if folder.exists() {
            return Ok(());
        }
        let partial = folder.with_extension(format!("partial-{}", std::process::id()));
        fs::create_dir_all(&partial).with_context(|| format!("failed to make {}", partial.display()))?;
        fill(&partial)?;
        fs::rename(&partial, folder).with_context(|| format!("failed to name {}", folder.display()))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("APT_CONFIG", self.root.join("apt.conf"))
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    fn apt(&self, program: &str, arguments: &[&str]) -> Result<String> {
        process::output(self.command(program).args(arguments))
            .context("failed to ask Debian's archive; is it reachable?")
    }
}

fn configuration(root: &Path) -> String {
    let root = root.display();
    format!(
        "Dir::Etc::sourcelist \"{root}/sources.list\";\nDir::Etc::sourceparts \"-\";\nDir::Etc::preferencesparts \"-\";\n\
         Dir::State \"{root}/state\";\nDir::State::status \"{root}/state/status\";\nDir::Cache \"{root}/cache\";\n\
         APT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\nAPT::Sandbox::User \"\";\nDebug::NoLocking \"1\";\n"
    )
}

fn unpack_all(debs: &Path, into: &Path) -> Result<()> {
    let listed = fs::read_dir(debs).with_context(|| format!("failed to list {}", debs.display()))?;
    for deb in listed {
        let deb = deb
            .with_context(|| format!("failed to list {}", debs.display()))?
            .path();
        if deb.extension().is_some_and(|extension| extension == "deb") {
            process::output(Command::new("dpkg").arg("-x").arg(&deb).arg(into))?;
        }
    }
    Ok(())
}

/// The newest image package of a version in what `apt-cache show` printed of the meta-package.
fn image_package(shown: &str, version: &str) -> Option<String> {
    let wanted = format!("linux-image-{version}.");
    shown
        .lines()
        .filter_map(|line| line.strip_prefix("Depends: "))
        .flat_map(|depends| depends.split(", "))
        .filter_map(|depend| depend.split_whitespace().next())
        .find(|package| package.starts_with(&wanted))
        .map(String::from)
}

/// The first file below `folder` whose name is wanted.
fn find(folder: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .ok()?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    entries.into_iter().find_map(|path| {
        if path.is_dir() && !path.is_symlink() {
            find(&path, wanted)
        } else {
            path.file_name()?.to_str().is_some_and(wanted).then_some(path)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_of_a_version() {
        let shown = "Package: linux-image-cloud-amd64\nDepends: linux-base-cloud-amd64 (= 7.3.4), linux-image-7.3.4+deb13-cloud-amd64 (= 7.3.4-1)\n\n\
                     Package: linux-image-cloud-amd64\nDepends: linux-image-6.12.118+deb13-cloud-amd64 (= 6.12.118-1)\n\n\
                     Package: linux-image-cloud-amd64\nDepends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.176-1)\n";
        let image = |version| image_package(shown, version);
        assert_eq!(image("7.3").as_deref(), Some("linux-image-7.3.4+deb13-cloud-amd64"));
        assert_eq!(image("6.1").as_deref(), Some("linux-image-6.1.0-50-cloud-amd64"));
        assert_eq!(image("6.12").as_deref(), Some("linux-image-6.12.118+deb13-cloud-amd64"));
        assert_eq!(image("6.2"), None);
    }
}
