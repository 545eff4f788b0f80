//! Who may hold a CPU's tracer: the kernel says only EBUSY, so we look who has perf events open.

use std::{collections::BTreeMap, ffi::OsStr, fs, path::Path};

/// More names than this tell no more.
const MOST: usize = 8;

/// A sentence that names the processes below `proc` (a procfs) which have perf events or KVM open, but for this one, and
/// what to do. Files of other users are visible only with privilege; that it is not complete is said.
#[must_use]
pub fn describe(proc: &Path) -> String {
    let holders = find(proc, std::process::id());
    let named: Vec<_> = holders
        .iter()
        .take(MOST)
        .map(|(pid, what)| format!("{} (pid {pid}, {what})", name(proc, *pid)))
        .collect();
    match (named.is_empty(), holders.len().saturating_sub(MOST)) {
        (true, _) => "another program traces this CPU or some process with Intel PT; none is visible in /proc (other \
                      PID namespaces hide theirs); stop it, or record with --pt off"
            .to_owned(),
        (false, 0) => format!(
            "these may hold it: {}; stop it, or record with --pt off",
            named.join(", ")
        ),
        (false, more) => format!(
            "these may hold it: {} and {more} more; stop it, or record with --pt off",
            named.join(", ")
        ),
    }
}

/// Processes with descriptors that can hold a tracer, perf events first.
fn find(proc: &Path, own_pid: u32) -> Vec<(u32, &'static str)> {
    let mut by_pid = BTreeMap::new();
    for entry in fs::read_dir(proc).into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == own_pid {
            continue;
        }
        let found = fs::read_dir(entry.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .filter_map(|link| kind(link.as_os_str()))
            .min();
        by_pid.extend(found.map(|found| (pid, found)));
    }
    let mut holders: Vec<_> = by_pid.into_iter().collect();
    holders.sort_by_key(|&(pid, kind)| (kind, pid));
    holders.into_iter().map(|(pid, kind)| (pid, kind.text())).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    PerfEvent,
    /// KVM takes Intel PT for its guests with `kvm_intel.pt_mode=1`.
    Kvm,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Self::PerfEvent => "perf events",
            Self::Kvm => "KVM",
        }
    }
}

fn kind(link: &OsStr) -> Option<Kind> {
    match link.to_str()? {
        "anon_inode:[perf_event]" => Some(Kind::PerfEvent),
        "/dev/kvm" => Some(Kind::Kvm),
        _ => None,
    }
}

fn name(proc: &Path, pid: u32) -> String {
    let comm = fs::read_to_string(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
    match comm.trim() {
        "" => "?".to_owned(),
        comm => comm.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn holders_are_named_perf_first_and_never_ourselves() {
        let proc = std::env::temp_dir().join(format!("exist-holders-{}", std::process::id()));
        let process = |pid: u32, comm: &str, links: &[&str]| {
            let dir = proc.join(pid.to_string());
            fs::create_dir_all(dir.join("fd")).unwrap();
            fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
            for (fd, link) in links.iter().enumerate() {
                symlink(link, dir.join("fd").join(fd.to_string())).unwrap();
            }
        };
        process(7, "qemu-system-x86", &["/dev/kvm", "/dev/null"]);
        process(
            42,
            "perf",
            &["/dev/null", "anon_inode:[perf_event]", "anon_inode:[perf_event]"],
        );
        process(50, "sh", &["/dev/null", "pipe:[1]"]);
        process(std::process::id(), "exist", &["anon_inode:[perf_event]"]);
        fs::create_dir_all(proc.join("sys/fd")).unwrap();
        let said = describe(&proc);
        for pid in 100..120 {
            process(pid, "profiler", &["anon_inode:[perf_event]"]);
        }
        let many = describe(&proc);
        fs::remove_dir_all(&proc).unwrap();
        assert_eq!(
            said,
            "these may hold it: perf (pid 42, perf events), qemu-system-x86 (pid 7, KVM); stop it, or record with --pt off"
        );
        assert!(many.contains("and 14 more"), "{many}");
        assert!(describe(&proc).contains("none is visible"));
    }

    #[test]
    fn a_perf_event_of_this_machine_is_recognized() {
        let attr = {
            use perf_event_open_sys::bindings;
            let mut attr = bindings::perf_event_attr {
                type_: bindings::PERF_TYPE_SOFTWARE,
                config: u64::from(bindings::PERF_COUNT_SW_DUMMY),
                ..Default::default()
            };
            attr.set_disabled(1);
            attr
        };
        match crate::sys::perf::Event::open_on_cpu(&attr, 0) {
            Err(error) => println!("skipped: perf_event_open: {error}"),
            // As another process would see us.
            Ok(_event) => assert!(find(Path::new("/proc"), 0).contains(&(std::process::id(), "perf events"))),
        }
    }
}
