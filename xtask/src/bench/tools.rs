//! The recorders that are compared, ours among them: each is started on a target, known to be recording before the
//! measurement begins, and stopped by its process ID.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use super::{bpf, child::Running, ftrace, group::Group, sid};
use crate::process;

/// A recorder of context switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    /// `exist record --cgroup TARGET`.
    Exist,
    /// `perf sched record`: the whole machine.
    PerfSched,
    /// bpftrace, a program that prints the switches of the target.
    Bpftrace,
    /// Perfetto's `traced_probes` with `sched/sched_switch`: the whole machine.
    TracedProbes,
}

impl Tool {
    /// The ones to beat.
    pub const PEERS: [Self; 3] = [Self::PerfSched, Self::Bpftrace, Self::TracedProbes];
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exist => "exist",
            Self::PerfSched => "perf sched record",
            Self::Bpftrace => "bpftrace",
            Self::TracedProbes => "traced_probes",
        })
    }
}

/// The recorders, ready to be started. Perfetto's two daemons run for as long as this lives; they sleep between
/// recordings.
#[derive(Debug)]
pub struct Tools {
    dir: PathBuf,
    exist: PathBuf,
    perfetto: sid::Root,
    // `None` only while they are started anew.
    daemons: RefCell<Option<Daemons>>,
}

/// How often a recording of a peer is begun with new daemons. `traced_probes` now and then does not get its data sources
/// ready, most of all when another user of ftrace was killed just before.
const ATTEMPTS: u32 = 3;

#[derive(Debug)]
struct Daemons {
    // Dropped before the group, which then is empty.
    _running: [Running; 2],
    group: Group,
}

/// A recording under way.
#[derive(Debug)]
pub struct Recording {
    tool: Tool,
    // Dropped before the group.
    running: Running,
    group: Group,
    out: PathBuf,
    daemons_cpu: Duration,
}

/// A recording that has ended.
#[derive(Debug)]
pub struct Recorded {
    /// By whom.
    pub tool: Tool,
    /// The file, until the next recording of this tool.
    pub out: PathBuf,
}

/// Stands in the chain of an error that is a peer's: it cannot be had, or does not record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerFailed;

impl fmt::Display for PeerFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a peer failed")
    }
}

impl Tools {
    /// Sets up what is missing, builds ours, fetches and starts what the peers need. Files go to `dir`.
    ///
    /// # Errors
    /// Ours does not build; a peer cannot be had ([`PeerFailed`]).
    pub fn new(dir: &Path) -> Result<Self> {
        let xtask = std::env::current_exe().context("failed to find this program")?;
        process::run(
            Command::new(xtask)
                .args(["setup", "bpf", "bench"])
                .stdout(std::io::stderr()),
        )?;
        mount_tracefs()?;
        let perfetto = sid::Root::with("perfetto", &["perfetto", "libc6", "libstdc++6", "libgcc-s1", "zlib1g"])
            .context(PeerFailed)?;
        let tools = Self {
            dir: dir.to_owned(),
            exist: exist_binary()?,
            perfetto,
            daemons: RefCell::new(None),
        };
        tools.restart_daemons().context(PeerFailed)?;
        Ok(tools)
    }

    fn restart_daemons(&self) -> Result<()> {
        // The old ones end first.
        self.daemons.take();
        let daemons = self.start_daemons()?;
        self.daemons.replace(Some(daemons));
        Ok(())
    }

    fn start_daemons(&self) -> Result<Daemons> {
        let sockets = ["producer.sock", "consumer.sock"].map(|name| self.dir.join(name));
        // Those of daemons that were killed would be taken for the new ones'.
        sockets.iter().for_each(|socket| drop(fs::remove_file(socket)));
        let group = Group::new("perfetto-daemons")?;
        let start = |program: &str, arguments: &[&str]| {
            let name = format!("daemon-{}", program.rsplit('/').next().unwrap_or(program));
            let mut command = self.perfetto_command(program);
            command.args(arguments);
            Running::start(&name, &command, &group, &self.dir)
        };
        let mut traced = start("sbin/traced", &[])?;
        traced.wait_until(|_| sockets.iter().all(|socket| socket.exists()))?;
        // What a killed one left enabled in ftrace is in the way of the next.
        let mut probes = start("sbin/traced_probes", &["--reset-ftrace"])?;
        probes.wait_until(|probes| probes.stderr().contains("Connected to the service"))?;
        Ok(Daemons {
            _running: [traced, probes],
            group,
        })
    }

    fn perfetto_command(&self, program: &str) -> Command {
        let mut command = self.perfetto.command(program);
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", self.dir.join("producer.sock"))
            .env("PERFETTO_CONSUMER_SOCK_NAME", self.dir.join("consumer.sock"));
        command
    }

    /// Starts a recording of `target`, and comes back when it is under way.
    ///
    /// # Errors
    /// The tool ends early or does not get ready; [`PeerFailed`] if it is not ours.
    pub fn start(&self, tool: Tool, target: &Group) -> Result<Recording> {
        let mut attempt = 1;
        loop {
            match self.start_once(tool, target) {
                Err(error) if tool == Tool::TracedProbes && attempt < ATTEMPTS => {
                    eprintln!("{error:#}; once more, with new daemons ({attempt} of {ATTEMPTS})");
                    self.restart_daemons().context(PeerFailed)?;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn start_once(&self, tool: Tool, target: &Group) -> Result<Recording> {
        let name = tool.to_string().replace(' ', "-");
        let out = self.dir.join(format!("{name}.trace"));
        let _ = fs::remove_file(&out);
        let group = Group::new(&name)?;
        let daemons_cpu = self.daemons_cpu(tool)?;
        let command = self.command(tool, target, &out)?;
        let mut running = Running::start(&name, &command, &group, &self.dir)?;
        running
            .wait_until(|running| match tool {
                Tool::Exist | Tool::Bpftrace => bpf::is_attached(running.pid()),
                // The header is there; the events are enabled right after it.
                Tool::PerfSched => fs::metadata(&out).is_ok_and(|meta| meta.len() > 0),
                // One byte from --notify-fd: 0 when all data sources have started.
                Tool::TracedProbes => running.stdout() == [0],
            })
            .with_context(|| format!("{tool} does not record"))
            .map_err(|error| match tool {
                Tool::Exist => error,
                _ => error.context(PeerFailed),
            })?;
        thread::sleep(Duration::from_millis(100));
        Ok(Recording {
            tool,
            running,
            group,
            out,
            daemons_cpu,
        })
    }

    fn command(&self, tool: Tool, target: &Group, out: &Path) -> Result<Command> {
        Ok(match tool {
            Tool::Exist => {
                let mut command = Command::new(&self.exist);
                command
                    .args(["record", "--cgroup"])
                    .arg(target.path())
                    .arg("-o")
                    .arg(out);
                command
            }
            Tool::PerfSched => {
                let mut command = Command::new("perf");
                command.args(["sched", "record", "-o"]).arg(out);
                command
            }
            Tool::Bpftrace => {
                let program = self.dir.join("switches.bt");
                fs::write(&program, bpftrace_program(target)?)?;
                let mut command = Command::new("bpftrace");
                command.args(["-q", "-o"]).arg(out).arg(program);
                // Eight times its default, so that it loses little.
                command.env("BPFTRACE_PERF_RB_PAGES", "512");
                command
            }
            Tool::TracedProbes => {
                let config = self.dir.join("perfetto.cfg");
                fs::write(&config, PERFETTO_CONFIG)?;
                let mut command = self.perfetto_command("bin/perfetto");
                command
                    .args(["--txt", "--notify-fd", "1", "-c"])
                    .arg(config)
                    .arg("-o")
                    .arg(out);
                command
            }
        })
    }

    /// Ends a recording.
    ///
    /// # Errors
    /// The tool had ended by itself, or does not end; it left no file.
    pub fn stop(&self, recording: Recording) -> Result<Recorded> {
        let Recording {
            tool,
            mut running,
            group: _group,
            out,
            ..
        } = recording;
        running.stop(Signal::INT)?;
        if !fs::metadata(&out).is_ok_and(|meta| meta.len() > 0) {
            bail!("{tool} left no recording: {}", running.stderr().trim());
        }
        Ok(Recorded { tool, out })
    }

    /// CPU time of the recorder's own processes so far.
    ///
    /// # Errors
    /// They have ended.
    pub fn cpu(&self, recording: &Recording) -> Result<Duration> {
        Ok(recording.group.cpu()? + self.daemons_cpu(recording.tool)?.saturating_sub(recording.daemons_cpu))
    }

    fn daemons_cpu(&self, tool: Tool) -> Result<Duration> {
        match (&*self.daemons.borrow(), tool) {
            (Some(daemons), Tool::TracedProbes) => daemons.group.cpu(),
            _ => Ok(Duration::ZERO),
        }
    }

    /// How many switches (in and out) of these threads the recording holds.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn count(&self, recorded: &Recorded, tids: &BTreeSet<u32>) -> Result<usize> {
        let out = &recorded.out;
        Ok(match recorded.tool {
            Tool::Exist => self.dump(out)?.lines().count(),
            Tool::PerfSched => {
                let mut perf = Command::new("perf");
                perf.args(["script", "-F", "event,trace", "-i"]).arg(out);
                let text = process::output(&mut perf)?;
                let is_target = |word: &str| word.parse().is_ok_and(|tid| tids.contains(&tid));
                text.lines()
                    .filter(|line| line.contains("sched_switch"))
                    .flat_map(|line| line.split_whitespace())
                    .filter_map(|word| {
                        word.strip_prefix("prev_pid=")
                            .or_else(|| word.strip_prefix("next_pid="))
                    })
                    .filter(|word| is_target(word))
                    .count()
            }
            // Every line after "ready" is one switch of the target.
            Tool::Bpftrace => fs::read_to_string(out)?
                .lines()
                .skip(1)
                .filter(|line| !line.is_empty())
                .count(),
            Tool::TracedProbes => ftrace::read(&fs::read(out)?, tids)?.switches.len(),
        })
    }

    /// `exist dump FILE switches --json`.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn dump(&self, file: &Path) -> Result<String> {
        process::output(
            Command::new(&self.exist)
                .arg("dump")
                .arg(file)
                .args(["switches", "--json"]),
        )
    }
}

impl Recording {
    /// Time in BPF programs of this recorder so far.
    ///
    /// # Errors
    /// It has ended.
    pub fn bpf(&self) -> Result<bpf::Runs> {
        bpf::runs(self.running.pid())
    }
}

/// Streamed to the file, so that a long recording would work as well; sizes and periods are Perfetto's defaults else.
const PERFETTO_CONFIG: &str = r#"
buffers { size_kb: 65536 fill_policy: RING_BUFFER }
write_into_file: true
file_write_period_ms: 1000
data_sources { config { name: "linux.ftrace" ftrace_config { ftrace_events: "sched/sched_switch" } } }
"#;

/// The switches of the cgroup's threads, with the filter in the kernel. A thread that comes in is known by its ID once it
/// went out before: at the tracepoint the current task is the one that goes out.
fn bpftrace_program(target: &Group) -> Result<String> {
    let path = target.path().display();
    if path.to_string().contains('"') {
        bail!("{path}: a quote in the path");
    }
    Ok(format!(
        r#"tracepoint:sched:sched_switch {{
    if (cgroup == cgroupid("{path}")) {{
        @target[args->prev_pid] = 1;
        printf("%llu %d out %d\n", nsecs, cpu, args->prev_pid);
    }}
    if (@target[args->next_pid]) {{
        printf("%llu %d in %d\n", nsecs, cpu, args->next_pid);
    }}
}}
END {{ clear(@target); }}
"#
    ))
}

/// `perf sched` and `traced_probes` need tracefs; many machines mount it at boot, some do not.
fn mount_tracefs() -> Result<()> {
    if Path::new("/sys/kernel/tracing/events").exists() {
        return Ok(());
    }
    eprintln!("mounting tracefs on /sys/kernel/tracing, for the peers");
    process::run(Command::new("mount").args(["-t", "tracefs", "tracefs", "/sys/kernel/tracing"]))
}

/// Builds the BPF programs and `exist` in its release profile, and gives its path.
fn exist_binary() -> Result<PathBuf> {
    let xtask = std::env::current_exe().context("failed to find this program")?;
    // Standard output is for the rows.
    process::run(Command::new(xtask).arg("build-ebpf").stdout(std::io::stderr()))?;
    Ok(process::build_release(&[("exist-user", "exist")])?.join("exist"))
}
