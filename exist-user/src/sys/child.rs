//! A child process that is held before it executes its program.
//!
//! Takes: a program with its arguments. Gives: [`HeldChild`], which runs once [`HeldChild::release`] is called and dies with
//! the thread that made it. Refuses: a program that is not found, before anything is started.
//!
//! ```text
//! parent:  fork ───────── attach to cgroup, start tracing ───── write "go" ─▶ read error or end of file
//! child:    └─ PDEATHSIG ─ read "go" ................................. execve (close-on-exec ends the pipe) or write errno
//! ```

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, fs::PermissionsExt},
    },
    path::{Path, PathBuf},
    ptr,
};

/// A child that waits to be released, or that runs.
#[derive(Debug)]
pub struct HeldChild {
    pid: libc::pid_t,
    pidfd: OwnedFd,
    /// Writing a byte releases it; closing makes it exit.
    go: Option<io::PipeWriter>,
    /// Gives the errno of a failed `execve`, or ends.
    failed: io::PipeReader,
    status: Option<i32>,
}

impl HeldChild {
    /// Forks a child that waits before it executes `argv[0]`, looked up in `PATH` when it holds no slash.
    /// The thread that calls this must live as long as the child: the kernel's parent is a thread (`PR_SET_PDEATHSIG`).
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for no or unusable arguments, [`io::ErrorKind::NotFound`] and
    /// [`io::ErrorKind::PermissionDenied`] for the program, others as `pipe` and `fork` give them.
    pub fn spawn(argv: &[String]) -> io::Result<Self> {
        let name = argv
            .first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no command was given"))?;
        let program = c_string(find(OsStr::new(name), env::var_os("PATH"))?.as_os_str())?;
        let arguments = argv
            .iter()
            .map(|a| c_string(OsStr::new(a)))
            .collect::<io::Result<Vec<_>>>()?;
        let environment = env::vars_os()
            .map(|(name, value)| {
                let mut entry = name;
                entry.push("=");
                entry.push(value);
                c_string(&entry)
            })
            .collect::<io::Result<Vec<_>>>()?;
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
        };
        let (argv, envp) = (pointers(&arguments), pointers(&environment));
        let (go_read, go) = io::pipe()?;
        let (failed, failed_write) = io::pipe()?;
        let parent = std::process::id();

        // SAFETY: between fork and execve the child calls async-signal-safe functions only, on memory made before.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid == 0 {
            // The write end that this process inherited would keep its own read from ending.
            // SAFETY: the descriptors are open, the arrays end with null and point to strings that live.
            unsafe {
                libc::close(go.as_raw_fd());
                run_child(
                    go_read.as_raw_fd(),
                    failed_write.as_raw_fd(),
                    parent,
                    &program,
                    &argv,
                    &envp,
                )
            }
        }
        // SAFETY: pidfd_open takes no pointers; the child is not reaped yet, so the PID is its own.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let Ok(fd @ 0..) = RawFd::try_from(fd) else {
            let error = io::Error::last_os_error();
            drop(go);
            reap(pid);
            return Err(error);
        };
        Ok(Self {
            pid,
            // SAFETY: the kernel gave a new descriptor that nothing else owns.
            pidfd: unsafe { OwnedFd::from_raw_fd(fd) },
            go: Some(go),
            failed,
            status: None,
        })
    }

    /// Its process ID, as this process's PID namespace numbers it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Lets it execute its program; returns when that has succeeded or failed. A second call does nothing.
    ///
    /// # Errors
    /// That of `execve`, or [`io::ErrorKind::BrokenPipe`] when the child was killed.
    pub fn release(&mut self) -> io::Result<()> {
        let Some(mut go) = self.go.take() else { return Ok(()) };
        go.write_all(b"g")?;
        let mut errno = Vec::new();
        self.failed.read_to_end(&mut errno)?;
        match <[u8; 4]>::try_from(errno.as_slice()) {
            Ok(errno) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            Err(_) => Ok(()),
        }
    }

    /// Its wait status, once it has ended; never waits. The descriptor ([`AsFd`]) becomes readable then.
    ///
    /// # Errors
    /// As `waitpid` gives them.
    pub fn try_wait(&mut self) -> io::Result<Option<i32>> {
        if self.status.is_none() {
            let mut status = 0;
            // SAFETY: `status` is a place for an int.
            match unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) } {
                0 => {}
                pid if pid == self.pid => self.status = Some(status),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(self.status)
    }
}

impl AsFd for HeldChild {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for HeldChild {
    fn drop(&mut self) {
        if matches!(self.try_wait(), Ok(None)) {
            // SAFETY: kill takes no pointers; the child is not reaped, so the PID is its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            reap(self.pid);
        }
    }
}

fn reap(pid: libc::pid_t) {
    // SAFETY: a null status is allowed.
    while unsafe { libc::waitpid(pid, ptr::null_mut(), 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// What the child does.
///
/// # Safety
/// Only in a forked child. The descriptors are open, `argv` and `envp` end with null and point to live strings.
unsafe fn run_child(
    go: RawFd,
    failed: RawFd,
    parent: u32,
    program: &CString,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
) -> ! {
    // SAFETY: all of these are async-signal-safe and get what this function's contract promises.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // The parent may have died before that call.
        if libc::getppid().unsigned_abs() != parent {
            libc::_exit(127);
        }
        let mut byte = 0u8;
        loop {
            match libc::read(go, (&raw mut byte).cast(), 1) {
                1 => break,
                -1 if *libc::__errno_location() == libc::EINTR => {}
                _ => libc::_exit(127),
            }
        }
        // Rust programs ignore it; the child gets what a shell would give.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr());
        let errno = (*libc::__errno_location()).to_ne_bytes();
        libc::write(failed, errno.as_ptr().cast(), errno.len());
        libc::_exit(127)
    }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an argument holds a zero byte"))
}

fn find(name: &OsStr, path: Option<OsString>) -> io::Result<PathBuf> {
    let usable = |file: &Path| match fs::metadata(file) {
        Ok(m) if !m.is_file() || m.permissions().mode() & 0o111 == 0 => Err(io::ErrorKind::PermissionDenied.into()),
        other => other.map(drop),
    };
    if name.as_bytes().contains(&b'/') {
        return usable(Path::new(name)).map(|()| PathBuf::from(name));
    }
    env::split_paths(&path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()))
        .map(|dir| dir.join(name))
        .find(|file| !name.is_empty() && usable(file).is_ok())
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn shell(script: &str) -> HeldChild {
        HeldChild::spawn(&["sh".into(), "-c".into(), script.into()]).unwrap()
    }

    fn wait(child: &mut HeldChild) -> i32 {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the child does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn nothing_runs_before_the_release() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let mut child = shell(&format!("echo x > {}; exit 7", mark.display()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!mark.exists());
        assert_eq!(child.try_wait().unwrap(), None);
        child.release().unwrap();
        let status = wait(&mut child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
        assert!(mark.exists());
    }

    #[test]
    fn a_dropped_child_is_dead_whether_held_or_running() {
        for release in [Release::Never, Release::First] {
            let mut child = shell("sleep 60");
            if let Release::First = release {
                child.release().unwrap();
            }
            let pid = child.pid;
            drop(child);
            // SAFETY: signal 0 only asks.
            assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
        }
    }

    enum Release {
        Never,
        First,
    }

    #[test]
    fn what_cannot_be_executed_is_told() {
        let kind = |argv: &[&str]| {
            let argv: Vec<String> = argv.iter().map(|&a| a.into()).collect();
            HeldChild::spawn(&argv).unwrap_err().kind()
        };
        assert_eq!(kind(&[]), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&["sh", "a\0b"]), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&[""]), io::ErrorKind::NotFound);
        assert_eq!(kind(&["no-such-program-here"]), io::ErrorKind::NotFound);
        assert_eq!(kind(&["/no/such/program"]), io::ErrorKind::NotFound);
        assert_eq!(kind(&["/etc"]), io::ErrorKind::PermissionDenied);
        assert_eq!(kind(&["/etc/passwd"]), io::ErrorKind::PermissionDenied);

        // Found, but no program: the kernel tells at execve.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        fs::write(&file, [0x7f, b'E', b'L', b'F', 0]).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = HeldChild::spawn(&[file.to_str().unwrap().into()]).unwrap();
        assert_eq!(child.release().unwrap_err().raw_os_error(), Some(libc::ENOEXEC));
    }
}
