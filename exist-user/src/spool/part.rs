//! A file that is written under a temporary name and given its own when it is complete.
//!
//! ```text
//!  create: NAME.PID.part ─▶ write … ─▶ finish: fsync, rename to NAME, fsync of the folder
//!                              └─ a write fails: cut back to the last whole chunk
//! ```
//! While it is written it is locked (`flock`), so that others can tell it from what a killed process has left.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::disk;

/// A file that is being written.
#[derive(Debug)]
pub struct PartFile {
    file: File,
    part: PathBuf,
    path: PathBuf,
    /// Bytes up to the end of the last whole write.
    whole_bytes: u64,
}

impl PartFile {
    /// Creates it beside `path`, readable by its owner only: a trace tells much about a service.
    ///
    /// # Errors
    /// `InvalidInput` when `path` is something else than a regular file; others as the system gives them.
    pub fn create(path: &Path) -> io::Result<Self> {
        match fs::metadata(path) {
            Ok(metadata) if !metadata.is_file() => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let name = path
            .file_name()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a file name"))?;
        let mut part = name.to_owned();
        part.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(part);
        let file = match disk::create(&part) {
            // Of a process that had our number and is no more: a live one has another.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk::remove(&part)?;
                disk::create(&part)?
            }
            other => other?,
        };
        // Without locks (some network file systems) a leftover is told by its age alone.
        let _ = file.try_lock();
        Ok(Self {
            file,
            part,
            path: path.to_owned(),
            whole_bytes: 0,
        })
    }

    /// Where it stands while it is not finished.
    #[must_use]
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// Cuts it back to its last whole write, after one that failed.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.whole_bytes)?;
        io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.whole_bytes)).map(drop)
    }

    /// Whether its folder entry is still there; without one nobody will ever read it.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    /// Makes it durable and gives it its name. What stood there is replaced. On failure the temporary file stays.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn finish(self) -> io::Result<()> {
        disk::sync(&self.file)?;
        disk::rename(&self.part, &self.path)
    }

    /// Removes it: nothing was recorded.
    pub fn discard(self) {
        // If it is gone already, that is what was wanted.
        let _ = disk::remove(&self.part);
    }
}

impl Write for PartFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        disk::write(&mut self.file, bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        disk::write_all(&mut self.file, bytes)?;
        self.whole_bytes += bytes.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes away with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("exist-spool-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let mut names: Vec<_> = fs::read_dir(&self.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_whole() {
        let folder = Folder::new("whole");
        let path = folder.0.join("x.trace");
        fs::write(&path, "old").unwrap();
        let mut file = PartFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read(file.part()).unwrap(), b"new");
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(folder.names(), ["x.trace"]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn it_is_cut_back_to_whole_writes() {
        let folder = Folder::new("cut");
        let path = folder.0.join("x.trace");
        let mut file = PartFile::create(&path).unwrap();
        file.write_all(b"whole").unwrap();
        assert_eq!(file.write(b"part").unwrap(), 4);
        file.cut().unwrap();
        file.write_all(b", more").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole, more");
    }

    #[test]
    fn a_folder_that_goes_away_is_noticed() {
        let folder = Folder::new("gone");
        let path = folder.0.join("x.trace");
        let file = PartFile::create(&path).unwrap();
        assert!(file.is_reachable());
        fs::remove_dir_all(&folder.0).unwrap();
        assert!(!file.is_reachable());
        assert_eq!(file.finish().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let folder = Folder::new("kinds");
        for path in [Path::new("/dev/null"), &folder.0] {
            assert_eq!(
                PartFile::create(path).unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{}",
                path.display()
            );
        }
        assert_eq!(
            PartFile::create(&folder.0.join("no/such/x")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let leftover = PartFile::create(&folder.0.join("x")).unwrap();
        drop(leftover);
        PartFile::create(&folder.0.join("x")).unwrap().discard();
        assert_eq!(folder.names(), [""; 0]);
    }
}
