//! One perf event: its descriptor and what can be asked of it.

use std::{
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use perf_event_open_sys::{bindings, ioctls};

/// An open perf event; closed on drop.
#[derive(Debug)]
pub struct Event {
    file: std::fs::File,
}

impl Event {
    /// Opens an event for all processes on one logical CPU.
    ///
    /// # Errors
    /// What the kernel says: EACCES (paranoid, privileges), EBUSY (an exclusive event is taken), EINVAL, ENODEV (CPU offline).
    pub fn open_on_cpu(attr: &bindings::perf_event_attr, cpu: u32) -> io::Result<Self> {
        let mut attr = *attr;
        attr.size = u32::try_from(size_of_val(&attr)).expect("the struct has some hundred bytes");
        let cpu = i32::try_from(cpu).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: `attr` is a whole, initialized struct that outlives the call; the kernel keeps no pointer to it.
        let fd = unsafe {
            perf_event_open_sys::perf_event_open(&raw mut attr, -1, cpu, -1, bindings::PERF_FLAG_FD_CLOEXEC.into())
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { file: fd.into() })
    }

    /// Starts counting or tracing.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enable(&self) -> io::Result<()> {
        // SAFETY: the descriptor is a perf event's, and this ioctl takes no pointer.
        match unsafe { ioctls::ENABLE(self.file.as_raw_fd(), 0) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Stops counting or tracing.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn disable(&self) -> io::Result<()> {
        // SAFETY: the descriptor is a perf event's, and this ioctl takes no pointer.
        match unsafe { ioctls::DISABLE(self.file.as_raw_fd(), 0) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Records lost so far because the ring was full: for an event whose `read_format` is `PERF_FORMAT_LOST` alone.
    ///
    /// # Errors
    /// What the kernel says, and `UnexpectedEof` for an event with another `read_format`.
    pub fn read_lost(&self) -> io::Result<u64> {
        let mut bytes = [0; 16]; // value, lost
        (&self.file).read_exact(&mut bytes)?;
        let [_, _, _, _, _, _, _, _, lost @ ..] = bytes;
        Ok(u64::from_ne_bytes(lost))
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
