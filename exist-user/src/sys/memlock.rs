//! The limit of locked memory (`RLIMIT_MEMLOCK`): perf's rings count against it, and BPF maps before kernel 5.11.

use std::io;

/// Takes the limit away, or raises it as far as it goes; gives what it is then, in bytes (`None`: no limit).
///
/// # Errors
/// When the limit cannot even be read.
pub fn raise() -> io::Result<Option<u64>> {
    let no_limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    if set(no_limit).is_err() {
        // Without CAP_SYS_RESOURCE only up to the hard limit.
        let now = get()?;
        set(libc::rlimit {
            rlim_cur: now.rlim_max,
            ..now
        })?;
    }
    limit()
}

/// The limit in bytes; `None`: none.
///
/// # Errors
/// When it cannot be read.
pub fn limit() -> io::Result<Option<u64>> {
    let now = get()?;
    Ok((now.rlim_cur != libc::RLIM_INFINITY).then_some(now.rlim_cur))
}

fn get() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for the answer.
    match unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is valid for the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_never_sinks() {
        let before = super::get().unwrap().rlim_cur;
        let after = super::raise().unwrap();
        assert!(after.is_none_or(|after| after >= before), "{before} to {after:?}");
    }
}
