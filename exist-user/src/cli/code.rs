//! The files behind a recording's mappings, as they are at hand now.

use std::{
    fs::Metadata,
    io::{self, Read},
    os::unix::fs::MetadataExt,
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
        for candidate in self.candidates(mapping) {
            let Ok((file, bytes)) = read(&candidate.path) else {
                continue;
            };
            let same = match mapping.build_id.is_empty() {
                true => !candidate.by_address || file.ino() == mapping.inode,
                false => build_id(&bytes).as_deref() == Some(&*mapping.build_id),
            };
            if same {
                return Ok(bytes.into());
            }
            // Another file at an address says nothing of the one that was mapped there.
            changed |= !candidate.by_address;
        }
        Err(if changed {
            NoCode::FileChanged
        } else {
            NoCode::FileMissing
        })
    }

    /// The user's folder alone if there is one; else what the process still maps, then its own view of the path, should it
    /// still live, and then the host's.
    fn candidates(&self, mapping: &Mapping) -> Vec<Candidate> {
        // As the kernel writes the path of a file that was removed (fs/d_path.c); another can be in its place.
        let named = match mapping.path.strip_suffix(" (deleted)") {
            Some(_) if mapping.build_id.is_empty() => None,
            Some(path) => Some(path),
            None => Some(&*mapping.path),
        };
        let relative = named.map(|path| path.trim_start_matches('/'));
        let by_name = |path| Candidate {
            path,
            by_address: false,
        };
        if let Some(root) = &self.root {
            return relative.map(|path| by_name(root.join(path))).into_iter().collect();
        }
        let process = Path::new("/proc").join(mapping.pid.to_string());
        let end = mapping.start.saturating_add(mapping.len);
        let mut candidates = vec![Candidate {
            path: process.join(format!("map_files/{:x}-{end:x}", mapping.start)),
            by_address: true,
        }];
        candidates.extend(relative.map(|path| by_name(process.join("root").join(path))));
        candidates.extend(named.map(|path| by_name(PathBuf::from(path))));
        candidates
    }
}

/// Where a file may be.
struct Candidate {
    path: PathBuf,
    /// Found by what the process maps at the address, removed or replaced files included; the number may be another
    /// process' by now.
    by_address: bool,
}

/// Larger files are left unread: no program is, and a trace from elsewhere can name any file.
const MOST: u64 = 4 << 30;

/// A path in a trace can be anything: only a regular file is opened, and of it no more than `MOST` is read.
fn read(path: &Path) -> io::Result<(Metadata, Vec<u8>)> {
    let file = regular::open(path)?;
    let metadata = file.metadata()?;
    let length = metadata.len();
    if length > MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large for a program"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(MOST).read_to_end(&mut bytes)?;
    Ok((metadata, bytes))
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

    /// A program that runs and whose file was then replaced.
    #[test]
    fn a_replaced_program_is_read_from_what_its_process_maps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::copy("/bin/sleep", &path).unwrap();
        let original = std::fs::read(&path).unwrap();
        let mut child = std::process::Command::new(&path).arg("60").spawn().unwrap();
        // The spawn is told before the program is mapped (begin_new_exec in fs/exec.c).
        let line = std::iter::repeat_with(|| std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap())
            .take(1000)
            .inspect(|_| std::thread::sleep(std::time::Duration::from_millis(5)))
            .find_map(|maps| {
                let is_code = |l: &&str| l.contains(" r-xp ") && l.ends_with("/program");
                maps.lines().find(is_code).map(str::to_owned)
            })
            .unwrap();
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::copy("/bin/true", &path).unwrap();
        let id = build_id(&original).unwrap_or_default();
        let inode = line.split_whitespace().nth(4).unwrap().parse().unwrap();
        let of = |name: &str, id: &[u8]| Mapping {
            pid: Pid(child.id()),
            start,
            len: end - start,
            inode,
            ..mapping(name, id)
        };
        let name = path.display().to_string();
        let may = std::fs::File::open(format!("/proc/{}/map_files/{start:x}-{end:x}", child.id()));
        let loaded = [
            Roots::default().load(&of(&name, &id)),
            Roots::default().load(&of(&format!("{name} (deleted)"), &[])),
            // It has neither the build ID nor the inode of what is mapped there.
            Roots::default().load(&of(&name, &[9; 20])),
            Roots::default().load(&Mapping {
                inode: inode + 1,
                ..of(&format!("{name} (deleted)"), &[])
            }),
        ];
        child.kill().unwrap();
        child.wait().unwrap();
        match may {
            Err(error) => println!("skipped: map_files: {error}"),
            Ok(_) => {
                assert_eq!(loaded[0].as_deref(), Ok(&*original));
                assert_eq!(loaded[1].as_deref(), Ok(&*original));
            }
        }
        assert_eq!(loaded[2], Err(NoCode::FileChanged));
        assert_eq!(loaded[3], Err(NoCode::FileMissing));
    }
}
