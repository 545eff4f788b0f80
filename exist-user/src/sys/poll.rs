//! Waiting for descriptors.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    time::Duration,
};

/// What a descriptor has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    Nothing,
    Readable,
    /// It will say nothing else any more: do not wait for it again.
    Gone,
}

/// Waits until one of `fds` is ready, at most `timeout` (`None`: for ever). Gives one answer for each, in their order;
/// all [`Ready::Nothing`] when the time is up or a signal came.
///
/// # Errors
/// What the kernel says.
pub fn wait(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<Ready>> {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let timeout_ms = timeout.map_or(-1, |t| i32::try_from(t.as_millis()).unwrap_or(i32::MAX));
    let count = libc::nfds_t::try_from(polled.len()).map_err(io::Error::other)?;
    // SAFETY: `polled` holds `count` structs and outlives the call; the descriptors are borrowed, so they are open.
    let done = unsafe { libc::poll(polled.as_mut_ptr(), count, timeout_ms) };
    if done < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        return Ok(vec![Ready::Nothing; fds.len()]);
    }
    Ok(polled.iter().map(|fd| ready(fd.revents)).collect())
}

fn ready(events: i16) -> Ready {
    if events & libc::POLLIN != 0 {
        Ready::Readable
    } else if events != 0 {
        Ready::Gone
    } else {
        Ready::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::fd::AsFd};

    #[test]
    fn readable_then_gone() {
        let (quiet, _keep) = io::pipe().unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        let poll = || wait(&[quiet.as_fd(), reader.as_fd()], Some(Duration::from_millis(1))).unwrap();
        assert_eq!(poll(), [Ready::Nothing, Ready::Nothing]);
        writer.write_all(&[1]).unwrap();
        assert_eq!(poll(), [Ready::Nothing, Ready::Readable]);
        io::Read::read_exact(&mut &reader, &mut [0]).unwrap();
        drop(writer);
        assert_eq!(poll(), [Ready::Nothing, Ready::Gone]);
    }
}
