//! The steps that change a folder on disk, a function each: a test stops or fails before every one of them.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Creates a file that is not there, readable by its owner only.
pub fn create(path: &Path) -> io::Result<File> {
    before("create")?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// As [`io::Write::write`].
pub fn write(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    before("write")?;
    file.write(bytes)
}

/// As [`io::Write::write_all`].
pub fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    if let Err(full) = before("write") {
        // As a disk that fills up: a part fits.
        file.write_all(&bytes[..bytes.len() / 2])?;
        return Err(full);
    }
    file.write_all(bytes)
}

/// Makes a file's bytes durable.
pub fn sync(file: &File) -> io::Result<()> {
    before("fsync")?;
    file.sync_all()
}

/// Renames within a file system, and makes that durable. What stood at `to` is replaced.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    before("rename")?;
    fs::rename(from, to)?;
    sync_folder(to)?;
    if from.parent() != to.parent() {
        sync_folder(from)?;
    }
    Ok(())
}

/// Removes a file.
pub fn remove(path: &Path) -> io::Result<()> {
    before("remove")?;
    fs::remove_file(path)
}

/// A name is durable when its folder is. Some file systems cannot do that, and need not.
fn sync_folder(path: &Path) -> io::Result<()> {
    before("fsync of a folder")?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
        _ => Ok(()),
    }
}

#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "under test a step can fail")]
const fn before(_: &'static str) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
fn before(step: &'static str) -> io::Result<()> {
    fault::before(step)
}

/// What a test does to the steps of its thread.
#[cfg(test)]
pub mod fault {
    use std::{cell::RefCell, io};

    type Watch = Box<dyn FnMut(usize, &'static str) -> io::Result<()>>;

    thread_local! {
        static WATCH: RefCell<Option<(usize, Watch)>> = const { RefCell::new(None) };
    }

    /// Calls `watch` before each step of this thread, with its number; its error is the step's.
    pub fn watch(watch: impl FnMut(usize, &'static str) -> io::Result<()> + 'static) {
        WATCH.set(Some((0, Box::new(watch))));
    }

    /// Ends it; gives how many steps there were.
    pub fn unwatch() -> usize {
        WATCH.take().map_or(0, |(steps, _)| steps)
    }

    pub fn before(step: &'static str) -> io::Result<()> {
        WATCH.with_borrow_mut(|watch| match watch {
            None => Ok(()),
            Some((steps, watch)) => {
                *steps += 1;
                watch(*steps - 1, step)
            }
        })
    }
}
