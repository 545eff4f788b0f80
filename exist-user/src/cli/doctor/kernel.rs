//! What the kernel is and allows: version, types, BPF, lockdown, perf events.

use std::{fs, io, path::Path};

use perf_event_open_sys::bindings;

use super::check::{Check, Need};
use crate::{
    hook::{self, Hook, HookError, HookOptions, compat},
    sys::{cgroupfs::Hierarchy, perf},
};

/// The oldest kernel that is supported.
const FLOOR: (u32, u32) = (5, 15);

/// `release`: `uname -r`.
pub fn version(release: &str) -> Check {
    let check = Check::ok("kernel", Need::Switches, format!("Linux {release}"));
    match major_minor(release) {
        Some(version) if version >= FLOOR => check,
        _ => check.missing(format!("Linux {}.{} or newer is needed", FLOOR.0, FLOOR.1)),
    }
}

fn major_minor(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The kernel's types, and what the hook uses of them; the real programs in this kernel, with `hierarchy`.
pub fn bpf(hierarchy: Hierarchy) -> Vec<Check> {
    let types = match hook::kernel_btf() {
        Ok(types) => types,
        Err(error) => {
            let check = Check::ok("BTF", Need::Switches, "none");
            return vec![check.missing(error.to_string())];
        }
    };
    let mut checks = vec![Check::ok("BTF", Need::Switches, compat::BTF_PATH)];
    let mut present = 0;
    for (feature, is_present) in compat::check(&types) {
        let absent = Check::ok(
            feature.name,
            Need::Switches,
            format!("not here (since {}): {}", feature.since, feature.used_for),
        );
        match feature.without {
            _ if is_present => present += 1,
            compat::Without::Refused => checks.push(absent.missing("a newer kernel is needed")),
            compat::Without::Lesser(how) => checks.push(absent.limited(format!("without it {how}"))),
        }
    }
    checks.push(Check::ok(
        "kernel features",
        Need::Switches,
        format!("{present} that the hook uses"),
    ));
    checks.push(match Hook::load_within_memory(&HookOptions::new(hierarchy)) {
        Ok(hook) => Check::ok(
            "BPF",
            Need::Switches,
            format!("programs and ring buffers ({} MiB) load", hook.ring_bytes() >> 20),
        ),
        Err(error) => not_loaded(&error),
    });
    checks
}

fn not_loaded(error: &HookError) -> Check {
    let (found, remedy) = match error {
        HookError::NotPermitted { .. } => ("not permitted", error.to_string()),
        HookError::NoObject => ("not built in", error.to_string()),
        _ => ("the programs do not load", error.to_string()),
    };
    Check::ok("BPF", Need::Switches, found).missing(remedy)
}

/// `text`: `/sys/kernel/security/lockdown`, where there is one.
pub fn lockdown(text: Option<&str>) -> Check {
    let mode = text.and_then(|t| Some(t.split_once('[')?.1.split_once(']')?.0));
    let check = Check::ok(
        "lockdown",
        Need::Switches,
        mode.unwrap_or("not shown (a container rarely sees it)"),
    );
    match mode {
        // LOCKDOWN_BPF_READ_KERNEL and LOCKDOWN_PERF (include/linux/security.h) are above LOCKDOWN_INTEGRITY_MAX.
        Some("confidentiality") => check.missing(
            "confidentiality forbids BPF programs and perf events to read the kernel: boot with lockdown=integrity",
        ),
        _ => check,
    }
}

/// `paranoid`: `kernel.perf_event_paranoid`. Opens the event that tells of mappings and names.
pub fn perf_events(paranoid: Option<&str>, cpu: u32) -> Check {
    let mut attr = bindings::perf_event_attr {
        type_: bindings::PERF_TYPE_SOFTWARE,
        config: bindings::PERF_COUNT_SW_DUMMY.into(),
        ..Default::default()
    };
    attr.set_disabled(1);
    let found = format!("perf_event_paranoid {}", paranoid.map_or("unknown", str::trim));
    let check = Check::ok("perf events", Need::Switches, found);
    match perf::Event::open_on_cpu(&attr, cpu) {
        Ok(_) => check,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            check.missing("run as root or with CAP_PERFMON; a container's seccomp profile must allow perf_event_open")
        }
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {
            check.missing("the kernel is built without CONFIG_PERF_EVENTS")
        }
        Err(e) => check.missing(format!("perf_event_open: {e}")),
    }
}

/// A small file's text, where it can be read.
pub fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::check::State;

    #[test]
    fn kernels_against_the_floor() {
        for (release, expect) in [
            ("5.15.0", State::Ok),
            ("5.15.0-1028-aws", State::Ok),
            ("6.1", State::Ok),
            ("10.0.1", State::Ok),
            ("5.14.21", State::Missing),
            ("4.19.0", State::Missing),
            ("5", State::Missing),
            ("", State::Missing),
            ("x.y", State::Missing),
        ] {
            assert_eq!(version(release).state, expect, "{release}");
        }
    }

    #[test]
    fn lockdown_modes() {
        for (text, found, expect) in [
            (None, "not shown (a container rarely sees it)", State::Ok),
            (Some("[none] integrity confidentiality\n"), "none", State::Ok),
            (Some("none [integrity] confidentiality\n"), "integrity", State::Ok),
            (
                Some("none integrity [confidentiality]\n"),
                "confidentiality",
                State::Missing,
            ),
            (Some("odd"), "not shown (a container rarely sees it)", State::Ok),
        ] {
            let check = lockdown(text);
            assert_eq!((check.found.as_str(), check.state), (found, expect));
        }
    }
}
