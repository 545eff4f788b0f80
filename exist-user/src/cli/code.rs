//! The files behind a recording's mappings, as they are at hand now.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use exist_trace::{
    file::model::Mapping,
    image::{NoCode, build_id},
};

use crate::sys::regular;

/// Where files are looked for.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// A folder that holds the recorded machine's or container's files.
    pub root: Option<PathBuf>,
}

impl Roots {
    /// The bytes of the file behind `mapping`, if they are those that ran.
    ///
    /// # Errors
    /// Why there are none.
    pub fn load(&self, mapping: &Mapping) -> Result<Arc<[u8]>, NoCode> {
        let path = &*mapping.path;
        if !path.starts_with('/') || path.starts_with("//") || path.starts_with("/memfd:") {
            return Err(NoCode::Anonymous);
        }
        let mut changed = false;
        for candidate in self.candidates(mapping.pid.0, path) {
            let Ok(bytes) = read(&candidate) else { continue };
            if mapping.build_id.is_empty() || build_id(&bytes).as_deref() == Some(&*mapping.build_id) {
                return Ok(bytes.into());
            }
            changed = true;
        }
        Err(if changed {
            NoCode::FileChanged
        } else {
            NoCode::FileMissing
        })
    }

    /// The user's folder alone if there is one; else the process' own view, should it still live, and then the host's.
    fn candidates(&self, pid: u32, path: &str) -> Vec<PathBuf> {
        let relative = path.trim_start_matches('/');
        match &self.root {
            Some(root) => vec![root.join(relative)],
            None => vec![
                Path::new("/proc").join(pid.to_string()).join("root").join(relative),
                PathBuf::from(path),
            ],
        }
    }
}

/// Larger files are left unread: no program is, and a trace from elsewhere can name any file.
const MOST: u64 = 4 << 30;

/// A path in a trace can be anything: only a regular file is opened, and of it no more than `MOST` is read.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = regular::open(path)?;
    let length = file.metadata()?.len();
    if length > MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large for a program"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use exist_trace::units::{MonoNs, Pid};

    use super::*;

    fn mapping(path: &str, build_id: &[u8]) -> Mapping {
        Mapping {
            time: MonoNs(0),
            pid: Pid(u32::MAX),
            start: 0,
            len: 1,
            offset: 0,
            dev_major: 0,
            dev_minor: 0,
            inode: 0,
            path: path.into(),
            build_id: build_id.into(),
        }
    }

    #[test]
    fn code_that_has_no_file_or_another_one_has_a_reason() {
        let roots = Roots::default();
        let reason = |path: &str, id: &[u8]| roots.load(&mapping(path, id)).map(|_| ());
        assert_eq!(reason("//anon", &[]), Err(NoCode::Anonymous));
        assert_eq!(reason("[heap]", &[]), Err(NoCode::Anonymous));
        assert_eq!(reason("/nowhere/at/all", &[]), Err(NoCode::FileMissing));
        // Endless.
        assert_eq!(reason("/dev/zero", &[]), Err(NoCode::FileMissing));
        let own = std::env::current_exe().unwrap();
        assert_eq!(reason(&own.display().to_string(), &[]), Ok(()));
        assert_eq!(reason(&own.display().to_string(), &[1, 2, 3]), Err(NoCode::FileChanged));
        let elsewhere = Roots {
            root: Some(own.parent().unwrap().to_owned()),
        };
        let name = format!("/{}", own.file_name().unwrap().display());
        assert!(elsewhere.load(&mapping(&name, &[])).is_ok());
    }
}
