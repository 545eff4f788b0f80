//! `/proc/PID/status`.

use super::{decimal, hexadecimal};
use crate::sys::cpu;

/// What is used of `status`; `None` where the kernel does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The process of this thread.
    pub tgid: Option<u32>,
    /// The ID in each PID namespace, from the reader's inwards.
    pub ns_pids: Vec<u32>,
    /// Switches because the thread waited.
    pub voluntary_switches: Option<u64>,
    /// Switches because the scheduler preferred another.
    pub nonvoluntary_switches: Option<u64>,
    /// Effective capabilities, bit n is capability n.
    pub cap_effective: Option<u64>,
    /// Capability bounding set.
    pub cap_bounding: Option<u64>,
    /// Whether `no_new_privs` is set.
    pub no_new_privs: Option<bool>,
    /// CPUs that it may run on: its affinity within its cpuset.
    pub allowed_cpus: Option<Vec<u32>>,
    /// Signals that it ignores, bit n is signal n + 1.
    pub ignored_signals: Option<u64>,
}

impl Status {
    /// Whether it ignores this signal.
    #[must_use]
    pub fn ignores(&self, signal: i32) -> bool {
        let bit = u32::try_from(signal).ok().and_then(|n| n.checked_sub(1));
        bit.and_then(|bit| self.ignored_signals?.checked_shr(bit))
            .is_some_and(|mask| mask & 1 != 0)
    }
}

/// Reads `status`. The kernel escapes newlines in the name (`proc_task_name`), so no process can forge a line.
#[must_use]
pub fn parse_status(bytes: &[u8]) -> Status {
    let mut status = Status::default();
    for line in bytes.split(|&b| b == b'\n') {
        let Some(colon) = line.iter().position(|&b| b == b':') else {
            continue;
        };
        let value = line[colon + 1..].trim_ascii();
        let small = |bytes: &[u8]| u32::try_from(decimal(bytes)?).ok();
        match &line[..colon] {
            b"Tgid" => status.tgid = small(value),
            b"NSpid" => status.ns_pids = value.split(|b| b.is_ascii_whitespace()).filter_map(small).collect(),
            b"voluntary_ctxt_switches" => status.voluntary_switches = decimal(value),
            b"nonvoluntary_ctxt_switches" => status.nonvoluntary_switches = decimal(value),
            b"CapEff" => status.cap_effective = hexadecimal(value),
            b"CapBnd" => status.cap_bounding = hexadecimal(value),
            b"NoNewPrivs" => status.no_new_privs = decimal(value).map(|v| v != 0),
            b"Cpus_allowed_list" => status.allowed_cpus = std::str::from_utf8(value).ok().and_then(cpu::parse_list),
            b"SigIgn" => status.ignored_signals = hexadecimal(value),
            _ => {}
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_keys_are_read_and_others_skipped() {
        let text =
            b"Name:\tx\\nTgid:\t9\nTgid:\t7\nNSpid:\t7\t1\nCapEff:\t000001ffffffffff\nCapBnd:\t0\nNoNewPrivs:\t1\nSigIgn:\t0000000000001001\nCpus_allowed_list:\t0-1,3\n\
            voluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\nno colon\n:\n\xff:\xff";
        let expect = Status {
            tgid: Some(7),
            ns_pids: vec![7, 1],
            voluntary_switches: Some(12),
            nonvoluntary_switches: Some(3),
            cap_effective: Some(0x1ff_ffff_ffff),
            cap_bounding: Some(0),
            no_new_privs: Some(true),
            allowed_cpus: Some(vec![0, 1, 3]),
            ignored_signals: Some(0x1001),
        };
        assert_eq!(parse_status(text), expect);
        let ignored: Vec<_> = (-1..100).filter(|&signal| expect.ignores(signal)).collect();
        assert_eq!(ignored, [1, 13]);
        assert!(!Status::default().ignores(1));
        assert_eq!(parse_status(b""), Status::default());
        assert_eq!(parse_status(b"Tgid:\t-1\n").tgid, None);
    }
}
