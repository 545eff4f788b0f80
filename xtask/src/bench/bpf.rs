//! What BPF programs cost, by the kernel's own statistics (`kernel.bpf_stats_enabled`), read from the descriptors that a
//! process holds (`/proc/PID/fdinfo`, kernel/bpf/syscall.c `bpf_prog_show_fdinfo`).

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context, Result};

const STATS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Statistics are on while this lives. They cost two clock reads a run, so they are off outside of measurement.
#[derive(Debug)]
pub struct Stats {
    before: String,
}

impl Stats {
    /// Switches them on.
    ///
    /// # Errors
    /// Not root, or a kernel without them.
    pub fn on() -> Result<Self> {
        let before = fs::read_to_string(STATS).with_context(|| format!("failed to read {STATS}"))?;
        fs::write(STATS, "1").with_context(|| format!("failed to write {STATS}; run as root"))?;
        Ok(Self { before })
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        if fs::write(STATS, self.before.trim()).is_err() {
            eprintln!("warning: {STATS} stays at 1; set it to {}", self.before.trim());
        }
    }
}

/// Time and number of runs of some BPF programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// Time in the programs since they were loaded, while statistics were on.
    pub time: Duration,
    /// How often they ran.
    pub count: u64,
}

/// Sums over the BPF programs that process `pid` holds a descriptor of, each once.
///
/// # Errors
/// The process is gone or its descriptors may not be read.
pub fn runs(pid: u32) -> Result<Runs> {
    let dir = format!("/proc/{pid}/fdinfo");
    let mut programs = BTreeMap::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("failed to read {dir}"))? {
        // A descriptor that was closed meanwhile has no text.
        let text = entry
            .ok()
            .and_then(|entry| fs::read_to_string(entry.path()).ok())
            .unwrap_or_default();
        if let Some((id, runs)) = program(&text) {
            programs.insert(id, runs);
        }
    }
    Ok(programs.values().fold(Runs::default(), |sum, runs| Runs {
        time: sum.time + runs.time,
        count: sum.count + runs.count,
    }))
}

/// Whether process `pid` holds a tracing program that is attached: by a link, or, in older programs, by a perf event
/// (then the program is attached within milliseconds after it was loaded).
pub fn is_attached(pid: u32) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| is_attachment(&fs::read_to_string(entry.path()).unwrap_or_default()))
}

/// `link_type: tracing` or `raw_tracepoint`; `prog_type: 5` is BPF_PROG_TYPE_TRACEPOINT.
fn is_attachment(fdinfo: &str) -> bool {
    field(fdinfo, "link_type:").is_some_and(|kind| kind == "tracing" || kind == "raw_tracepoint")
        || field(fdinfo, "prog_type:") == Some("5")
}

fn program(fdinfo: &str) -> Option<(u64, Runs)> {
    let number = |name| field(fdinfo, name)?.parse::<u64>().ok();
    let runs = Runs {
        time: Duration::from_nanos(number("run_time_ns:")?),
        count: number("run_cnt:")?,
    };
    Some((number("prog_id:")?, runs))
}

fn field<'a>(fdinfo: &'a str, name: &str) -> Option<&'a str> {
    fdinfo.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_and_other_descriptors_are_not() {
        let text =
            "pos:\t0\nprog_type:\t26\nprog_jited:\t1\nmemlock:\t4096\nprog_id:\t7\nrun_time_ns:\t1234\nrun_cnt:\t5\n";
        assert_eq!(
            program(text),
            Some((
                7,
                Runs {
                    time: Duration::from_nanos(1234),
                    count: 5
                }
            ))
        );
        assert_eq!(program("pos:\t0\nmap_type:\t27\n"), None);
        assert_eq!(
            program("pos:\t0\nlink_type:\ttracing\nlink_id:\t3\nprog_id:\t7\n"),
            None
        );
        assert_eq!(program(""), None);
        assert!(!is_attachment(text));
        assert!(is_attachment("link_type:\traw_tracepoint\nprog_id:\t7\n"));
        assert!(is_attachment("link_type:\ttracing\nprog_id:\t7\n"));
        assert!(is_attachment("prog_type:\t5\n"));
    }
}
