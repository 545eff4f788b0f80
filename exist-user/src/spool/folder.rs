//! A folder of windows, with requests and what is done. See the drawing above the room.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use exist_trace::session::{Session, Target};
use thiserror::Error;

use super::{Entry, FILLS, Kind, Name, PartFile, Quota, disk, fills, request};
use crate::{
    alloc::{Earlier, WindowFill},
    sys::regular,
};

const WINDOW: &str = ".exist";
const REQUEST: &str = ".json";
const ERROR: &str = ".error";
/// A part that nobody has locked and nobody has written to for so long is a leftover.
const ABANDONED: Duration = Duration::from_secs(60);

/// The folder.
#[derive(Clone, Debug)]
pub struct Spool {
    root: PathBuf,
    quota: Quota,
}

/// What was removed, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Files that are gone, with their bytes.
    pub removed: Vec<(PathBuf, u64)>,
    /// What the folder holds beyond its quota, all of it held, being written or just written.
    pub over_bytes: u64,
}

/// Why the folder cannot be used.
#[derive(Debug, Error)]
pub enum SpoolError {
    #[error("failed to {what} {path}: {source}", path = .path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "the spool {path} is full: {over_bytes} bytes more than its quota of {quota_bytes} are held by entries of \
         requests/ and done/ or are being written; remove done/NAME.json of what was shipped, or raise the quota",
        path = .path.display()
    )]
    Full {
        path: PathBuf,
        over_bytes: u64,
        quota_bytes: u64,
    },
    /// For whoever wrote it; [`Spool::refuse`] tells them.
    #[error("request {name}: {reason}")]
    Request { name: Name, reason: String },
}

impl Spool {
    /// Opens the folder, makes what is not there, and completes what a killed process has left half done.
    ///
    /// # Errors
    /// When it cannot be made or listed.
    pub fn open(root: &Path, quota: Quota) -> Result<Self, SpoolError> {
        let spool = Self {
            root: root.to_owned(),
            quota,
        };
        for folder in ["windows", "requests", "done"].map(|name| root.join(name)) {
            fs::create_dir_all(&folder).map_err(io_error("make the folder", &folder))?;
        }
        for name in spool.requests()? {
            if spool.window(&name).exists() || spool.done(&name, ERROR).exists() {
                spool.close(&name)?;
            }
        }
        Ok(spool)
    }

    /// Where the window of this name stands when it is finished; write it with [`PartFile`].
    #[must_use]
    pub fn window(&self, name: &Name) -> PathBuf {
        self.root.join("windows").join(format!("{name}{WINDOW}"))
    }

    /// Every file of the windows' folder, the oldest name first.
    ///
    /// # Errors
    /// When a folder cannot be listed.
    pub fn entries(&self) -> Result<Vec<Entry>, SpoolError> {
        let held: BTreeSet<Name> = self.requests()?.into_iter().chain(self.finished()?).collect();
        let mut entries = Vec::new();
        for file in list(&self.root.join("windows"))? {
            // What went meanwhile is not there; what has another name is not ours.
            let Ok(metadata) = fs::symlink_metadata(&file) else {
                continue;
            };
            let Some((name, is_part)) = window_name(&file).filter(|_| metadata.is_file()) else {
                continue;
            };
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let kind = match (is_part, held.contains(&name)) {
                (true, _) if is_abandoned(&file, modified) => Kind::Leftover,
                (true, _) => Kind::Live,
                (false, true) => Kind::Held,
                (false, false) => Kind::Window,
            };
            entries.push(Entry {
                name,
                file,
                bytes: metadata.len(),
                modified,
                kind,
            });
        }
        entries.sort_by(|a, b| (&a.name, &a.file).cmp(&(&b.name, &b.file)));
        Ok(entries)
    }

    /// Requests that wait, the oldest first.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn requests(&self) -> Result<Vec<Name>, SpoolError> {
        let mut waiting: Vec<_> = names(&self.root.join("requests"), REQUEST)?.into_iter().collect();
        waiting.sort_by(|(a, at), (b, bt)| (at, a).cmp(&(bt, b)));
        Ok(waiting.into_iter().map(|(name, _)| name).collect())
    }

    /// Requests that are done and that nobody has taken away yet.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn finished(&self) -> Result<Vec<Name>, SpoolError> {
        Ok(names(&self.root.join("done"), REQUEST)?.into_keys().collect())
    }

    /// What a request asks for.
    ///
    /// # Errors
    /// [`SpoolError::Request`] when it is not one that can be carried out: [`Self::refuse`] it.
    pub fn request(&self, name: &Name) -> Result<Session, SpoolError> {
        let refused = |reason| SpoolError::Request {
            name: name.clone(),
            reason,
        };
        let file = regular::open(&self.waiting(name)).map_err(|e| refused(format!("cannot be read: {e}")))?;
        let mut bytes = Vec::new();
        file.take(request::MOST_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| refused(format!("cannot be read: {e}")))?;
        if bytes.len() as u64 > request::MOST_BYTES {
            return Err(refused("larger than 1 MiB".to_owned()));
        }
        request::parse(&bytes).map_err(refused)
    }

    /// The request's window stands under its name: the request is done.
    ///
    /// # Errors
    /// As the system gives them; the request then waits still, and [`Self::open`] completes it.
    pub fn close(&self, name: &Name) -> Result<(), SpoolError> {
        let (from, to) = (self.waiting(name), self.done(name, REQUEST));
        match disk::rename(&from, &to) {
            // Another process has done so, or whoever asked has thought better of it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(io_error("move to done/ the request", &from)),
        }
    }

    /// The request cannot be carried out, for this reason: it is done without a window.
    ///
    /// # Errors
    /// As [`Self::close`].
    pub fn refuse(&self, name: &Name, reason: &str) -> Result<(), SpoolError> {
        let path = self.done(name, ERROR);
        let write = || {
            let mut file = PartFile::create(&path)?;
            match writeln!(file, "{reason}") {
                Ok(()) => file.finish(),
                Err(error) => {
                    file.discard();
                    Err(error)
                }
            }
        };
        write().map_err(io_error("write", &path))?;
        self.close(name)
    }

    /// What earlier windows of the target showed of its CPUs.
    #[must_use]
    pub fn earlier(&self, target: &Target) -> Earlier {
        super::earlier(&self.root, target)
    }

    /// Adds the window that has just ended, for the plan of the next.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn remember(&self, target: &Target, window: WindowFill) -> Result<(), SpoolError> {
        let folder = self.root.join(FILLS);
        fills::remember(&folder, target, window).map_err(io_error("remember the window in", &folder))
    }

    /// Removes what the quota does not allow, but for the window `keep`, and answers to requests that nobody waits for.
    ///
    /// # Errors
    /// When a folder cannot be listed or a file not be removed.
    pub fn sweep(&self, now: SystemTime, keep: Option<&Name>) -> Result<Swept, SpoolError> {
        let entries = self.entries()?;
        let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut swept = Swept::default();
        for entry in self.quota.excess(&entries, now, keep) {
            // A request for it may have come since the list was made; it is looked for once more.
            if entry.kind == Kind::Window && self.is_held(&entry.name) {
                continue;
            }
            remove(&entry.file)?;
            total -= entry.bytes;
            swept.removed.push((entry.file.clone(), entry.bytes));
        }
        swept.over_bytes = total.saturating_sub(self.quota.bytes);
        for (name, _) in names(&self.root.join("done"), ERROR)? {
            if !self.is_held(&name) {
                remove(&self.done(&name, ERROR))?;
            }
        }
        Ok(swept)
    }

    /// Makes room before a new window.
    ///
    /// # Errors
    /// [`SpoolError::Full`] when what is held alone exceeds the quota; as [`Self::sweep`].
    pub fn admit(&self, now: SystemTime) -> Result<Swept, SpoolError> {
        let swept = self.sweep(now, None)?;
        match swept.over_bytes {
            0 => Ok(swept),
            over_bytes => Err(SpoolError::Full {
                path: self.root.clone(),
                over_bytes,
                quota_bytes: self.quota.bytes,
            }),
        }
    }

    fn is_held(&self, name: &Name) -> bool {
        self.waiting(name).exists() || self.done(name, REQUEST).exists()
    }

    fn waiting(&self, name: &Name) -> PathBuf {
        self.root.join("requests").join(format!("{name}{REQUEST}"))
    }

    fn done(&self, name: &Name, ending: &str) -> PathBuf {
        self.root.join("done").join(format!("{name}{ending}"))
    }
}

/// `NAME.exist`, or `NAME.exist.PID.part`: the name, and whether it is a part.
fn window_name(file: &Path) -> Option<(Name, bool)> {
    let text = file.file_name().and_then(OsStr::to_str)?;
    if let Some(name) = text.strip_suffix(WINDOW) {
        return Some((Name::new(name)?, false));
    }
    let (window, pid) = text.strip_suffix(".part")?.rsplit_once('.')?;
    pid.parse::<u32>().ok()?;
    Some((Name::new(window.strip_suffix(WINDOW)?)?, true))
}

/// A lock that can be had is nobody's. A part that is just made may not be locked yet.
fn is_abandoned(part: &Path, modified: SystemTime) -> bool {
    let is_quiet = SystemTime::now()
        .duration_since(modified)
        .is_ok_and(|quiet| quiet >= ABANDONED);
    is_quiet && fs::File::open(part).is_ok_and(|file| file.try_lock().is_ok())
}

/// Regular files with this ending, by name, with the time of their last change.
fn names(folder: &Path, ending: &str) -> Result<BTreeMap<Name, SystemTime>, SpoolError> {
    let mut found = BTreeMap::new();
    for file in list(folder)? {
        let text = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let name = text.strip_suffix(ending).and_then(Name::new);
        let metadata = fs::symlink_metadata(&file).ok().filter(fs::Metadata::is_file);
        if let (Some(name), Some(metadata)) = (name, metadata) {
            found.insert(name, metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
        }
    }
    Ok(found)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, SpoolError> {
    let failed = io_error("list", folder);
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect()),
        Err(error) => Err(failed(error)),
    }
}

fn remove(file: &Path) -> Result<(), SpoolError> {
    match disk::remove(file) {
        // Another process was faster.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(io_error("remove", file)),
    }
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SpoolError {
    let path = path.to_owned();
    move |source| SpoolError::Io { what, path, source }
}
