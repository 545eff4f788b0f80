//! Capabilities: which this process has, and giving them up.
//!
//! Takes: a set to keep. Gives: the effective set, and a process that can never have more than what it kept.
//! Refuses: nothing; where the bounding set cannot be lowered (no `CAP_SETPCAP`), `no_new_privs` still holds.
//!
//! Capabilities belong to threads: what is dropped is the calling thread's, and that of the threads which it starts later.

use std::{fmt, io};

use super::{
    procfs::{Process, is_gone},
    roots::Roots,
};

/// The capabilities that matter here, with the kernel's numbers (include/uapi/linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Capability {
    DacOverride = 1,
    DacReadSearch = 2,
    Kill = 5,
    Setpcap = 8,
    IpcLock = 14,
    SysPtrace = 19,
    SysAdmin = 21,
    SysNice = 23,
    SysResource = 24,
    Perfmon = 38,
    Bpf = 39,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::DacOverride,
        Self::DacReadSearch,
        Self::Kill,
        Self::Setpcap,
        Self::IpcLock,
        Self::SysPtrace,
        Self::SysAdmin,
        Self::SysNice,
        Self::SysResource,
        Self::Perfmon,
        Self::Bpf,
    ];

    /// The kernel's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DacOverride => "CAP_DAC_OVERRIDE",
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::Kill => "CAP_KILL",
            Self::Setpcap => "CAP_SETPCAP",
            Self::IpcLock => "CAP_IPC_LOCK",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysNice => "CAP_SYS_NICE",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// A set of capabilities, bit n is capability n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapSet(pub u64);

impl CapSet {
    /// The set of these.
    #[must_use]
    pub fn of(capabilities: &[Capability]) -> Self {
        Self(capabilities.iter().fold(0, |bits, &c| bits | 1 << c as u8))
    }

    /// Whether it holds one.
    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        self.0 >> capability as u8 & 1 == 1
    }

    /// What is in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of it is in the other.
    #[must_use]
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }
}

/// The known ones by name, others as `capability N`.
impl fmt::Display for CapSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for number in (0..64).filter(|n| self.0 >> n & 1 == 1) {
            match Capability::ALL.into_iter().find(|&c| c as u8 == number) {
                Some(known) => write!(f, "{separator}{}", known.name())?,
                None => write!(f, "{separator}capability {number}")?,
            }
            separator = ", ";
        }
        Ok(())
    }
}

// The kernel's __user_cap_header_struct and __user_cap_data_struct: two of the latter hold 64 bits in version 3.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}
const VERSION_3: u32 = 0x2008_0522;

/// The calling thread's effective set.
///
/// # Errors
/// What the kernel says.
pub fn effective() -> io::Result<CapSet> {
    let data = get()?;
    Ok(CapSet(
        u64::from(data[1].effective) << 32 | u64::from(data[0].effective),
    ))
}

fn get() -> io::Result<[Data; 2]> {
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let mut data = [Data::default(); 2];
    // SAFETY: both are of the layout that version 3 promises and live through the call.
    match unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) } {
        0 => Ok(data),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up for ever, in this thread and those it starts from now on, all capabilities but those of `keep` that it has: effective,
/// permitted, inheritable, ambient and bounding sets, and no program that it executes gains any (`no_new_privs`). Gives what it has then.
///
/// # Errors
/// What the kernel says; nothing that was given up comes back then.
pub fn keep_only(keep: CapSet) -> io::Result<CapSet> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    // A kernel without ambient capabilities (before 4.3) has none to clear; the floor is later.
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong)?;
    let have = effective()?;
    if have.has(Capability::Setpcap) {
        for number in (0..64).filter(|n| keep.0 >> n & 1 == 0) {
            match prctl(libc::PR_CAPBSET_DROP, number) {
                // No such capability: the kernel's last one is passed.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => break,
                other => other?,
            }
        }
    }
    let kept = have.and(keep);
    let half = |bits: u64| {
        let bits = u32::try_from(bits & u64::from(u32::MAX)).expect("masked to 32 bits");
        Data {
            effective: bits,
            permitted: bits,
            inheritable: 0,
        }
    };
    let data = [half(kept.0), half(kept.0 >> 32)];
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    // SAFETY: both are of the layout that version 3 promises and live through the call.
    match unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) } {
        0 => Ok(kept),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Threads of this process that have more than `keep`: none, when all were started after [`keep_only`].
///
/// # Errors
/// When procfs cannot be read.
pub fn threads_with_more(keep: CapSet) -> io::Result<Vec<u32>> {
    let own = Process::new(&Roots::default(), std::process::id());
    let mut more = Vec::new();
    for tid in own.threads()? {
        match own.thread(tid).status() {
            Ok(status) if status.cap_effective.is_some_and(|c| CapSet(c).is_within(keep)) => {}
            Err(e) if is_gone(&e) => {}
            Err(e) => return Err(e),
            Ok(_) => more.push(tid),
        }
    }
    Ok(more)
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    let zero: libc::c_ulong = 0;
    // SAFETY: the options used here take numbers, no pointers.
    match unsafe { libc::prctl(option, argument, zero, zero, zero) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_and_names() {
        let set = CapSet::of(&[Capability::Bpf, Capability::Perfmon, Capability::DacReadSearch]);
        assert_eq!(set.0, 1 << 39 | 1 << 38 | 1 << 2);
        assert!(set.has(Capability::Bpf) && !set.has(Capability::SysAdmin));
        assert_eq!(set.to_string(), "CAP_DAC_READ_SEARCH, CAP_PERFMON, CAP_BPF");
        assert_eq!(CapSet(1 << 63 | 1).to_string(), "capability 0, capability 63");
        assert!(CapSet(4).is_within(set) && !CapSet(5).is_within(set));
        assert_eq!(CapSet::default().to_string(), "");
    }

    #[test]
    fn the_kernel_says_the_same_twice() {
        let own = Process::new(&Roots::default(), std::process::id());
        assert_eq!(Some(effective().unwrap().0), own.status().unwrap().cap_effective);
    }

    #[test]
    fn what_is_dropped_is_gone_for_a_thread_and_those_it_starts() {
        let keep = CapSet::of(&[Capability::Bpf]);
        let had = effective().unwrap();
        let status = std::thread::spawn(move || {
            assert_eq!(keep_only(keep).unwrap(), had.and(keep));
            // It cannot come back.
            assert_eq!(keep_only(CapSet(u64::MAX)).unwrap(), had.and(keep));
            std::thread::spawn(|| {
                // SAFETY: gettid takes nothing.
                let tid = unsafe { libc::gettid() }.unsigned_abs();
                Process::new(&Roots::default(), std::process::id())
                    .thread(tid)
                    .status()
                    .unwrap()
            })
            .join()
            .unwrap()
        })
        .join()
        .unwrap();
        assert_eq!(status.cap_effective, Some(had.and(keep).0));
        assert_eq!(status.no_new_privs, Some(true));
        if had.has(Capability::Setpcap) {
            assert!(CapSet(status.cap_bounding.unwrap()).is_within(keep));
        }
        // This thread kept its own.
        assert_eq!(effective().unwrap(), had);
        if !had.is_within(keep) {
            assert!(!threads_with_more(keep).unwrap().is_empty());
        }
        assert_eq!(threads_with_more(CapSet(u64::MAX)).unwrap(), Vec::<u32>::new());
    }
}
