//! Files of other people's processes, opened so that opening harms nobody.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
};

/// Opens a file for reading if it is a regular one. A pipe or a device in its place is not opened: that could block, or
/// make a device do something.
///
/// # Errors
/// Those of opening it, and `InvalidInput` when it is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let place = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(path)?;
    if !place.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // The same file, whatever stands at the path by now.
    File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        assert!(open(&std::env::current_exe().unwrap()).is_ok());
        for other in ["/dev/null", "/tmp"] {
            assert_eq!(
                open(Path::new(other)).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{other}"
            );
        }
        let pipe = std::env::temp_dir().join(format!("exist-pipe-{}", std::process::id()));
        if !std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .is_ok_and(|status| status.success())
        {
            return println!("skipped: no mkfifo");
        }
        let refused = open(&pipe);
        std::fs::remove_file(&pipe).unwrap();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
