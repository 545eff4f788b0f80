//! One run of a guest: takes what to run and on what, gives what came back. The guest's whole life is scripted; it ends
//! by itself, by its time limit, or by the lab when nothing more can come.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    initramfs::Tree,
    libraries,
    packages::{Kernel, KernelFiles, Tools},
};
use crate::process;

/// Skylake without what TCG cannot do; the two forced features are the ones that the plugin stands for. No RDTSCP: the
/// plugin answers RDTSC. No x2APIC: the performance interrupt is raised through the xAPIC's page. Level 15H, so that
/// the driver reads the TSC's ratio to the crystal.
const CPU: &str = "Skylake-Client,-x2apic,-hle,-rtm,-rdtscp,-pcid,-tsc-deadline,-invpcid,-xsavec,level=0x15";
const CPU_PT: &str = ",x-force-features=on,+invtsc,+intel-pt";
const KERNEL_LINE: &str = "console=ttyS0 panic=-1 oops=panic tsc=reliable nmi_watchdog=0 mitigations=off nokaslr lapic=notscdeadline no_timer_check quiet";
const BOOTED: &str = "lab: booted";

/// What a guest is.
#[derive(Clone, Debug)]
pub struct Plan {
    pub kernel: Kernel,
    pub cpus: u32,
    pub memory_mib: u32,
    pub time_limit: Duration,
    /// Whether the plugin is loaded: without it there is no PT, and no truth.
    pub plugin: Option<Plugin>,
    /// Commands of the guest's shell. Their output and every file in /lab/out come back.
    pub script: String,
    /// Programs and files of the host, copied to /lab/bin with the libraries they load.
    pub copies: Vec<PathBuf>,
    pub perf: bool,
}

/// The plugin and how it behaves where the manual leaves a choice.
#[derive(Clone, Debug)]
pub struct Plugin {
    pub library: PathBuf,
    pub labctl: PathBuf,
    /// `ip=all`, `tnt=long`, `mtc=coarse`.
    pub options: Vec<String>,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The script's exit code.
    pub code: i32,
    /// The run's folder: out/ (from the guest), truth.N, root/ (the guest's files), console.log, qemu.log.
    pub folder: PathBuf,
}

impl Outcome {
    /// A file that the guest left in /lab/out.
    ///
    /// # Errors
    /// If it did not.
    pub fn file(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.folder.join("out").join(name);
        fs::read(&path).with_context(|| format!("the guest left no {name} in {}", self.folder.display()))
    }

    /// The same as text.
    ///
    /// # Errors
    /// If it is not there.
    pub fn text(&self, name: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.file(name)?).into_owned())
    }

    /// The ground truth of each vCPU.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn truths(&self, cpus: u32) -> Result<Vec<Vec<u8>>> {
        (0..cpus)
            .map(|cpu| {
                let path = self.folder.join(format!("truth.{cpu}"));
                fs::read(&path).with_context(|| format!("the plugin left no {}", path.display()))
            })
            .collect()
    }
}

/// Runs a guest in `folder`, which is emptied first. On a machine that is very busy an emulated boot can fail on its own
/// timers: a guest that did not come to its script is started once more.
///
/// # Errors
/// A guest that cannot be started, does not boot, panics, runs out of time or leaves no result; each with the end of
/// its console.
pub fn run(plan: &Plan, tools: &Tools, kernel: &KernelFiles, folder: &Path) -> Result<Outcome> {
    let once = run_once(plan, tools, kernel, folder);
    let Err(error) = &once else { return once };
    if tail(&folder.join("console.log")).contains(BOOTED) || !folder.join("qemu.log").exists() {
        return once;
    }
    eprintln!("lab: the guest did not boot, trying once more: {error:#}");
    run_once(plan, tools, kernel, folder)
}

fn run_once(plan: &Plan, tools: &Tools, kernel: &KernelFiles, folder: &Path) -> Result<Outcome> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("failed to empty {}", folder.display()))?;
    }
    let make = |path: &Path| fs::create_dir_all(path).with_context(|| format!("failed to make {}", path.display()));
    make(&folder.join("out"))?;
    let tree = tree(plan, tools, kernel)?;
    tree.write_below(&folder.join("root"))?;
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("failed to write {}", path.display()))
    };
    write("initramfs", &tree.archive())?;

    let mut command = qemu(plan, tools, kernel, folder);
    let log = File::create(folder.join("qemu.log")).context("failed to make qemu.log")?;
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
    let mut child = child.context("failed to start QEMU")?;
    let ended = watch(&mut child, plan, folder);
    // Whatever happened, the guest does not outlive this call.
    let _ = child.kill();
    let _ = child.wait();
    ended?;
    fs::remove_file(folder.join("initramfs")).context("failed to remove the initramfs")?;
    collect(folder)
}

/// Waits for the guest's end.
fn watch(child: &mut Child, plan: &Plan, folder: &Path) -> Result<()> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("failed to wait for QEMU")? {
            let console = tail(&folder.join("console.log"));
            if console.contains("Kernel panic") {
                bail!(
                    "the guest's kernel panicked; see {}:\n{console}",
                    folder.join("console.log").display()
                );
            }
            if !status.success() {
                bail!("QEMU ended with {status}; it said:\n{}", tail(&folder.join("qemu.log")));
            }
            return Ok(());
        }
        if begin.elapsed() > plan.time_limit {
            let console = tail(&folder.join("console.log"));
            let what = if console.contains(BOOTED) {
                "did not end"
            } else {
                "did not boot"
            };
            bail!(
                "the guest {what} within {} s; allow more with --time-limit; its console ended with:\n{console}",
                plan.time_limit.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Unpacks what the guest sent.
fn collect(folder: &Path) -> Result<Outcome> {
    let sent = folder.join("sent.tar");
    let out = folder.join("out");
    let unpacked = process::output(Command::new("tar").arg("-xf").arg(&sent).arg("-C").arg(&out));
    if unpacked.is_err() || !out.join("code").exists() {
        bail!(
            "the guest sent no result; its console ended with:\n{}",
            tail(&folder.join("console.log"))
        );
    }
    fs::remove_file(&sent).context("failed to remove the guest's archive")?;
    left(folder)
}

/// What an earlier run left in its folder.
///
/// # Errors
/// If there is no whole run.
pub fn left(folder: &Path) -> Result<Outcome> {
    let outcome = Outcome {
        code: 0,
        folder: folder.to_path_buf(),
    };
    let code = outcome.text("code")?;
    let code = code
        .trim()
        .parse()
        .with_context(|| format!("the guest's exit code is {code:?}"))?;
    Ok(Outcome { code, ..outcome })
}

fn qemu(plan: &Plan, tools: &Tools, kernel: &KernelFiles, folder: &Path) -> Command {
    let share = tools.root().join("usr/share");
    let mut command = tools.command("qemu-system-x86_64");
    let file = |id: &str, name: &str| format!("file,id={id},path={}", folder.join(name).display());
    let cpu = if plan.plugin.is_some() {
        [CPU, CPU_PT].concat()
    } else {
        CPU.to_owned()
    };
    command
        .arg("-L")
        .arg(share.join("qemu"))
        .arg("-L")
        .arg(share.join("seabios"));
    command.args(["-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", &cpu]);
    command.args(["-smp", &plan.cpus.to_string(), "-m", &plan.memory_mib.to_string()]);
    command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
    command.args([
        "-chardev",
        &file("console", "console.log"),
        "-serial",
        "chardev:console",
    ]);
    command.args(["-device", "virtio-serial-pci", "-chardev", &file("sent", "sent.tar")]);
    command.args(["-device", "virtserialport,chardev=sent,name=lab"]);
    command
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(folder.join("initramfs"));
    command.args(["-append", KERNEL_LINE]);
    if let Some(plugin) = &plan.plugin {
        let mut argument = format!("{},truth={}", plugin.library.display(), folder.display());
        for option in &plugin.options {
            argument += &format!(",{option}");
        }
        command.args(["-plugin", &argument]);
    }
    command
}

/// The guest's files.
fn tree(plan: &Plan, tools: &Tools, kernel: &KernelFiles) -> Result<Tree> {
    let mut tree = Tree::new();
    tree.copy(&tools.root().join("usr/bin/busybox"), "bin/busybox")?;
    let mut loads = String::new();
    for module in &kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        tree.copy(module, &format!("lab/modules/{name}"))?;
        loads += &format!("insmod /lab/modules/{name}\n");
    }
    tree.file("init", init(&loads, plan.plugin.is_some()).into_bytes());
    tree.file("lab/script", plan.script.clone().into_bytes());
    let labctl = plan.plugin.iter().map(|plugin| &plugin.labctl);
    for program in plan.copies.iter().chain(labctl) {
        let name = program
            .file_name()
            .with_context(|| format!("{} is no file", program.display()))?;
        tree.copy(program, &format!("lab/bin/{}", name.to_string_lossy()))?;
        for (_, library) in libraries::of(program)? {
            tree.copy(&library, &library.to_string_lossy())?;
        }
    }
    if plan.perf {
        add_perf(&mut tree, tools)?;
    }
    Ok(tree)
}

/// perf, with the libraries of its own Debian beside it.
fn add_perf(tree: &mut Tree, tools: &Tools) -> Result<()> {
    tree.copy(&tools.root().join("usr/bin/perf"), "lab/perf/perf")?;
    tree.copy(&tools.linker(), "lab/perf/ld.so")?;
    for (name, library) in tools.libraries("perf")? {
        let name = name.rsplit('/').next().unwrap_or(&name);
        tree.copy(&library, &format!("lab/perf/lib/{name}"))?;
    }
    tree.file(
        "lab/bin/perf",
        b"#!/bin/sh\nexec /lab/perf/ld.so --library-path /lab/perf/lib /lab/perf/perf \"$@\"\n".to_vec(),
    );
    Ok(())
}

/// The guest's first process. It delegates a controller, as systemd does: until somebody does, new cgroups of version 2 have
/// no perf_event either (`kernel/cgroup/cgroup.c`, `cgroup_propagate_control`), and perf by cgroup fails with ENOENT.
fn init(loads: &str, plugin: bool) -> String {
    let setup = if plugin {
        "labctl setup || echo 'lab: labctl setup failed'\n"
    } else {
        ""
    };
    format!(
        "#!/bin/busybox sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/lab/bin:/bin HOME=/root\n\
         mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys\n\
         mount -t tmpfs tmp /tmp; mkdir -p /dev/shm; mount -t tmpfs shm /dev/shm\n\
         mount -t tracefs tracing /sys/kernel/tracing; mount -t bpf bpf /sys/fs/bpf\n\
         mount -t cgroup2 cgroup /sys/fs/cgroup; echo +pids > /sys/fs/cgroup/cgroup.subtree_control\n\
         echo 0 > /proc/sys/kernel/kptr_restrict; echo -1 > /proc/sys/kernel/perf_event_paranoid\n\
         hostname lab; ip link set lo up\n\
         {loads}\
         echo '{BOOTED}' > /dev/console\n\
         {setup}\
         cd /lab/out\n\
         sh /lab/script > /lab/out/stdout 2> /lab/out/stderr < /dev/null\n\
         echo $? > /lab/out/code\n\
         dmesg > /lab/out/dmesg\n\
         tar -cf - -C /lab/out . > /dev/vport0p1\n\
         poweroff -f\n"
    )
}

/// The end of a log.
fn tail(path: &Path) -> String {
    const BYTES: u64 = 3000;
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_else(|error| format!("({} cannot be read: {error})", path.display()))
}
