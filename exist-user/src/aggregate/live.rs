//! What the live processes themselves tell: threads, names, mappings, build IDs, the vDSO.
//!
//! Takes: a process ID. Gives: plain data. A process that ends meanwhile gives less; that is no error, since what it did
//! before is in the other streams.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    sync::Arc,
};

use exist_trace::{
    file::model::Mapping,
    image::VIRTUAL_CPU,
    units::{MonoNs, Pid, Tid},
};

use super::build_id::build_id;
use crate::sys::{
    procfs::{MapsLine, Process},
    regular,
    roots::Roots,
};

pub const VDSO: &str = "[vdso]";
/// Name of executable memory without a file, as the side-band gives it.
const ANONYMOUS: &str = "//anon";
/// Real ones have two or three pages.
const MOST_VDSO_BYTES: u64 = 64 << 10;
/// User space ends below this on x86-64; what the kernel maps above (`[vsyscall]`) runs no code.
const USER_END: u64 = 1 << 63;

/// A file, as the kernel tells files apart.
type FileKey = (u32, u32, u64);

/// Reads live processes, and remembers the build IDs of files.
#[derive(Debug)]
pub struct Live {
    roots: Roots,
    build_ids: HashMap<FileKey, Arc<[u8]>>,
    paths: HashMap<Vec<u8>, Arc<str>>,
}

impl Live {
    pub fn new(roots: Roots) -> Self {
        Self {
            roots,
            build_ids: HashMap::new(),
            paths: HashMap::new(),
        }
    }

    /// Threads of a process with their names.
    pub fn threads(&self, pid: Pid) -> Vec<(Tid, Arc<str>)> {
        let process = Process::new(&self.roots, pid.0);
        let tids = process.threads().unwrap_or_default();
        tids.into_iter()
            .filter_map(|tid| Some((Tid(tid), text(&process.thread(tid).comm().ok()?))))
            .collect()
    }

    /// Name of one thread.
    pub fn name(&self, pid: Pid, tid: Tid) -> Option<Arc<str>> {
        Process::new(&self.roots, pid.0)
            .thread(tid.0)
            .comm()
            .ok()
            .map(|name| text(&name))
    }

    /// Executable mappings of a process, and those of its virtual CPUs, stamped with `time`.
    pub fn mappings(&mut self, pid: Pid, time: MonoNs) -> Vec<Mapping> {
        let lines = Process::new(&self.roots, pid.0).maps().unwrap_or_default();
        lines
            .iter()
            .filter(|line| line.executable() && line.start < USER_END || is_virtual_cpu(line))
            .map(|line| Mapping {
                time,
                pid,
                start: line.start,
                len: line.end - line.start,
                offset: line.offset,
                dev_major: line.dev_major,
                dev_minor: line.dev_minor,
                inode: line.inode,
                path: self.path(if line.path.is_empty() {
                    ANONYMOUS.as_bytes()
                } else {
                    &line.path
                }),
                build_id: self.build_id(pid, line),
            })
            .collect()
    }

    /// Bytes of a process's memory: only for the vDSO, which no file holds. `None` when it is gone or implausible.
    pub fn vdso(&self, pid: Pid, start: u64, len: u64) -> Option<Vec<u8>> {
        if len > MOST_VDSO_BYTES {
            return None;
        }
        let memory = File::open(self.roots.proc_file(format!("{pid}/mem"))).ok()?;
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        memory.read_exact_at(&mut bytes, start).ok()?;
        Some(bytes)
    }

    /// The shared text of a path, lossy UTF-8.
    pub fn path(&mut self, bytes: &[u8]) -> Arc<str> {
        /// Paths of churning anonymous files (`/memfd:…`) would fill memory.
        const MOST_PATHS: usize = 1 << 16;
        if let Some(path) = self.paths.get(bytes) {
            return path.clone();
        }
        if self.paths.len() >= MOST_PATHS {
            self.paths.clear();
        }
        let path = text(bytes);
        self.paths.insert(bytes.to_vec(), path.clone());
        path
    }

    fn build_id(&mut self, pid: Pid, line: &MapsLine) -> Arc<[u8]> {
        let key = (line.dev_major, line.dev_minor, line.inode);
        if line.inode == 0 || is_virtual_cpu(line) {
            return Arc::from([]);
        }
        if let Some(known) = self.build_ids.get(&key) {
            return known.clone();
        }
        let id: Arc<[u8]> = self.read_build_id(pid, line).ok().flatten().unwrap_or_default().into();
        self.build_ids.insert(key, id.clone());
        id
    }

    fn read_build_id(&self, pid: Pid, line: &MapsLine) -> io::Result<Option<Vec<u8>>> {
        let file = self.mapped_file(pid, line)?;
        build_id(|buffer, offset| file.read_exact_at(buffer, offset))
    }

    /// The mapped file itself, or, without the privilege for that, what stands at its path in the process's own root now.
    fn mapped_file(&self, pid: Pid, line: &MapsLine) -> io::Result<File> {
        let link = self
            .roots
            .proc_file(format!("{pid}/map_files/{:x}-{:x}", line.start, line.end));
        if fs::symlink_metadata(&link).is_ok()
            && let Ok(file) = regular::open(&link)
        {
            return Ok(file);
        }
        let path = String::from_utf8_lossy(&line.path);
        let file = regular::open(
            &self
                .roots
                .proc_file(format!("{pid}/root/{}", path.trim_start_matches('/'))),
        )?;
        // Replaced since, or a link out of the container: another file's ID would be wrong.
        if file.metadata()?.ino() != line.inode {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(file)
    }
}

fn is_virtual_cpu(line: &MapsLine) -> bool {
    line.path.starts_with(VIRTUAL_CPU.as_bytes())
}

/// Lossy UTF-8, shared.
pub fn text(bytes: &[u8]) -> Arc<str> {
    Arc::from(String::from_utf8_lossy(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_is_read_with_build_ids_and_vdso() {
        let pid = Pid(std::process::id());
        let mut live = Live::new(Roots::default());
        let mappings = live.mappings(pid, MonoNs(5));
        let exe = std::env::current_exe().unwrap();
        let own = mappings
            .iter()
            .find(|m| *m.path == *exe.to_string_lossy())
            .expect("we run from our own file");
        assert_eq!((own.time, own.build_id.len()), (MonoNs(5), 20));
        let code = own_code as *const () as u64;
        assert!((own.start..own.start + own.len).contains(&code));

        let vdso = mappings
            .iter()
            .find(|m| &*m.path == VDSO)
            .expect("x86-64 processes have one");
        let bytes = live.vdso(pid, vdso.start, vdso.len).unwrap();
        assert_eq!(bytes[..4], *b"\x7fELF");
        assert_eq!(live.vdso(pid, vdso.start, MOST_VDSO_BYTES + 1), None);
        assert!(mappings.iter().all(|m| &*m.path != "[vsyscall]"));
        assert!(
            live.threads(pid)
                .iter()
                .any(|(tid, name)| tid.0 == pid.0 && !name.is_empty())
        );
    }

    #[test]
    fn data_is_left_out_but_for_virtual_cpus() {
        let node = tempfile::tempdir().unwrap();
        fs::create_dir_all(node.path().join("7")).unwrap();
        let maps = "1000-2000 r-xp 00000000 00:00 0 /bin/vmm\n\
                    3000-4000 rw-p 00000000 00:00 0 [heap]\n\
                    5000-8000 rw-s 00000000 00:0f 1053 anon_inode:kvm-vcpu:1\n";
        fs::write(node.path().join("7/maps"), maps).unwrap();
        let mut live = Live::new(Roots {
            proc: node.path().to_owned(),
            ..Roots::default()
        });
        let mappings = live.mappings(Pid(7), MonoNs(5));
        let found: Vec<_> = mappings.iter().map(|m| (m.start, &*m.path)).collect();
        assert_eq!(found, [(0x1000, "/bin/vmm"), (0x5000, "anon_inode:kvm-vcpu:1")]);
        assert!(mappings.iter().all(|m| m.build_id.is_empty()));
    }

    #[test]
    fn a_process_that_is_gone_gives_nothing() {
        let mut live = Live::new(Roots::default());
        let gone = Pid(u32::MAX);
        assert_eq!(live.mappings(gone, MonoNs(0)), []);
        assert_eq!(live.threads(gone), []);
        assert_eq!(live.name(gone, Tid(1)), None);
        assert_eq!(live.vdso(gone, 0, 4096), None);
    }

    fn own_code() {}
}
