//! Address spaces over time: which file's bytes stood at an address of a process.

use std::{collections::HashMap, sync::Arc};

use super::{NoCode, VIRTUAL_CPU};
use crate::{
    file::{
        Trace,
        model::{ImageBytes, Mapping, NameChange, Record, SwitchOp},
    },
    units::{MonoNs, Pid},
};

/// A file (or the vDSO) as it is at hand.
#[derive(Clone, Debug)]
pub struct File {
    /// Path as the process saw it.
    pub path: Arc<str>,
    pub bytes: Result<Arc<[u8]>, NoCode>,
}

/// A stretch of a process' memory that shows a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    pub start: u64,
    pub end: u64,
    /// Which file, as an index into [`Image::files`].
    pub file: usize,
    /// Offset in the file of the byte at `start`.
    pub offset: u64,
}

#[derive(Clone, Debug)]
struct Epoch {
    from: MonoNs,
    /// By address, without overlaps.
    sections: Vec<Section>,
}

/// The memory of one process during one stretch of time.
#[derive(Clone, Copy, Debug)]
pub struct Space<'a> {
    image: &'a Image,
    sections: &'a [Section],
}

/// The executable memory of every process of the target, over time.
#[derive(Clone, Debug, Default)]
pub struct Image {
    files: Vec<File>,
    processes: HashMap<Pid, Vec<Epoch>>,
}

enum Change<'a> {
    Map(&'a Mapping),
    Fork { parent: Pid },
    Exec,
}

impl Image {
    /// From a recording. `load` gives the bytes of the file behind a mapping; it is asked once for each file.
    pub fn new(trace: &Trace, load: impl FnMut(&Mapping) -> Result<Arc<[u8]>, NoCode>) -> Self {
        let vdsos: Vec<&ImageBytes> = trace.images.iter().collect();
        Self::of(changes(&trace.mappings, &trace.records, &trace.names), &vdsos, load)
    }

    fn of(
        changes: Vec<(MonoNs, Pid, Change<'_>)>,
        vdsos: &[&ImageBytes],
        mut load: impl FnMut(&Mapping) -> Result<Arc<[u8]>, NoCode>,
    ) -> Self {
        let mut image = Self::default();
        let mut known = HashMap::new();
        for (time, pid, change) in changes {
            match change {
                Change::Exec => image.epochs(pid).push(Epoch {
                    from: time,
                    sections: Vec::new(),
                }),
                Change::Fork { parent } => {
                    // A child starts with its parent's memory; the kernel tells of no mappings then.
                    let sections = image
                        .processes
                        .get(&parent)
                        .and_then(|e| e.last())
                        .map(|e| e.sections.clone());
                    if let (Some(sections), false) = (sections, image.processes.contains_key(&pid)) {
                        image.epochs(pid).push(Epoch { from: time, sections });
                    }
                }
                Change::Map(mapping) => {
                    let key = (
                        mapping.dev_major,
                        mapping.dev_minor,
                        mapping.inode,
                        mapping.path.clone(),
                        mapping.build_id.clone(),
                    );
                    let file = *known.entry(key).or_insert_with(|| {
                        let bytes = vdso(vdsos, mapping).map_or_else(|| load(mapping), Ok);
                        image.files.push(File {
                            path: mapping.path.clone(),
                            bytes,
                        });
                        image.files.len() - 1
                    });
                    let end = mapping.start.saturating_add(mapping.len);
                    let section = Section {
                        start: mapping.start,
                        end,
                        file,
                        offset: mapping.offset,
                    };
                    image.map(pid, time, section);
                }
            }
        }
        image
    }

    fn epochs(&mut self, pid: Pid) -> &mut Vec<Epoch> {
        self.processes.entry(pid).or_default()
    }

    fn map(&mut self, pid: Pid, time: MonoNs, section: Section) {
        let epochs = self.epochs(pid);
        if epochs.is_empty() {
            epochs.push(Epoch {
                from: time,
                sections: Vec::new(),
            });
        }
        let Some(last) = epochs.last_mut() else { return };
        let overlaps = |s: &Section| s.start < section.end && section.start < s.end;
        if last.sections.iter().any(|s| overlaps(s) && *s != section) {
            // What stood there before stays known for the time before.
            let mut sections = last.sections.clone();
            sections = sections.into_iter().flat_map(|s| cut(s, section)).collect();
            let epoch = Epoch { from: time, sections };
            if last.from == time {
                *last = epoch
            } else {
                epochs.push(epoch)
            }
        }
        let Some(last) = epochs.last_mut() else { return };
        if let Err(at) = last.sections.binary_search_by_key(&section.start, |s| s.start) {
            last.sections.insert(at, section);
        }
    }

    /// All files that were mapped.
    #[must_use]
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// The memory of `pid` at `time`; `None` when nothing is known of it.
    #[must_use]
    pub fn space(&self, pid: Pid, time: MonoNs) -> Option<Space<'_>> {
        let epochs = self.processes.get(&pid)?;
        // What was mapped first is taken to have stood before, too.
        let at = epochs.partition_point(|e| e.from <= time).saturating_sub(1);
        Some(Space {
            image: self,
            sections: &epochs.get(at)?.sections,
        })
    }
}

impl<'a> Space<'a> {
    /// The section that holds `ip`.
    #[must_use]
    pub fn section(&self, ip: u64) -> Option<Section> {
        let at = self.sections.partition_point(|s| s.start <= ip).checked_sub(1)?;
        self.sections.get(at).copied().filter(|s| ip < s.end)
    }

    /// The bytes from `ip` on, to the end of its section or file.
    ///
    /// # Errors
    /// Why there are none.
    pub fn bytes(&self, ip: u64) -> Result<&'a [u8], NoCode> {
        let section = self.section(ip).ok_or_else(|| self.unmapped())?;
        let bytes: &'a [u8] = match &self.image.files[section.file].bytes {
            Ok(bytes) => bytes,
            Err(reason) => return Err(*reason),
        };
        let offset = (ip - section.start).saturating_add(section.offset);
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|at| bytes.get(at..))
            .filter(|rest| !rest.is_empty());
        let rest = rest.ok_or(NoCode::BeyondFile)?;
        let mapped = usize::try_from(section.end - ip).unwrap_or(usize::MAX);
        Ok(&rest[..rest.len().min(mapped)])
    }

    /// Why nothing is mapped at an address.
    fn unmapped(&self) -> NoCode {
        let is_virtual_cpu = |s: &Section| self.image.files[s.file].path.starts_with(VIRTUAL_CPU);
        match self.sections.iter().any(is_virtual_cpu) {
            true => NoCode::Guest,
            false => NoCode::Unmapped,
        }
    }

    /// Tells spaces apart that have nothing in common: where their sections are kept.
    #[must_use]
    pub fn id(&self) -> usize {
        self.sections.as_ptr() as usize
    }
}

/// What happens to address spaces, in order.
fn changes<'a>(mappings: &'a [Mapping], records: &[Record], names: &[NameChange]) -> Vec<(MonoNs, Pid, Change<'a>)> {
    // The hook tells of an exec when it is done (`exec_binprm` in fs/exec.c); by then the new program is mapped. The
    // first thing that the new address space brings is the program's name (`begin_new_exec`).
    let mut named: HashMap<Pid, Vec<MonoNs>> = HashMap::new();
    for name in names.iter().filter(|name| name.tid.0 == name.pid.0) {
        named.entry(name.pid).or_default().push(name.time);
    }
    let exec_began = |pid: Pid, done: MonoNs| {
        let before = named.get(&pid).into_iter().flatten().filter(|time| **time <= done);
        before.max().copied().unwrap_or(done)
    };
    let mut changes: Vec<(MonoNs, u8, Pid, Change<'_>)> =
        mappings.iter().map(|m| (m.time, 2, m.pid, Change::Map(m))).collect();
    for record in records {
        let (time, pid) = (MonoNs(record.time_ns), Pid(record.pid));
        match record.op() {
            Some(SwitchOp::Exec) => changes.push((exec_began(pid, time), 1, pid, Change::Exec)),
            Some(SwitchOp::Fork) if record.parent().0 != record.pid => {
                let parent = Pid(record.parent().0);
                changes.push((time, 0, pid, Change::Fork { parent }));
            }
            _ => {}
        }
    }
    changes.sort_by_key(|c| (c.0, c.1));
    changes
        .into_iter()
        .map(|(time, _, pid, change)| (time, pid, change))
        .collect()
}

fn vdso(images: &[&ImageBytes], mapping: &Mapping) -> Option<Arc<[u8]>> {
    let same = |i: &&&ImageBytes| i.path == *mapping.path;
    let own = images
        .iter()
        .filter(same)
        .find(|i| i.pid == mapping.pid && i.start == mapping.start);
    // The kernel has one vDSO for all processes of a kind.
    own.or_else(|| images.iter().find(same)).map(|i| i.bytes.clone().into())
}

/// What is left of `old` when `new` is put over it.
fn cut(old: Section, new: Section) -> impl Iterator<Item = Section> {
    let before = (old.start < new.start).then(|| Section {
        end: old.end.min(new.start),
        ..old
    });
    let after = (new.end < old.end).then(|| {
        let start = old.start.max(new.end);
        Section {
            start,
            offset: old.offset + (start - old.start),
            ..old
        }
    });
    before.into_iter().chain(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tid;

    const PID: u32 = 7;

    fn mapping(time: u64, start: u64, path: &str) -> Mapping {
        Mapping {
            time: MonoNs(time),
            pid: Pid(PID),
            start,
            len: 0x1000,
            offset: 0,
            dev_major: 0,
            dev_minor: 0,
            inode: 0,
            path: path.into(),
            build_id: [].into(),
        }
    }

    fn exec(time_ns: u64) -> Record {
        Record {
            time_ns,
            ip: 0,
            pid: PID,
            tid: PID,
            cpu: 0,
            op: SwitchOp::Exec as u8,
            flags: 0,
            state: 0,
            seq: 0,
        }
    }

    fn name(time: u64, tid: u32) -> NameChange {
        NameChange {
            time: MonoNs(time),
            pid: Pid(PID),
            tid: Tid(tid),
            name: "new".into(),
        }
    }

    /// What stands at 0x1000 and at 0x5000 at a time.
    fn check(mappings: &[Mapping], records: &[Record], names: &[NameChange], expect: &[(u64, [Option<&str>; 2])]) {
        let load = |mapping: &Mapping| Ok(Arc::from(mapping.path.as_bytes()));
        let image = Image::of(changes(mappings, records, names), &[], load);
        for (time, paths) in expect {
            let space = image.space(Pid(PID), MonoNs(*time)).unwrap();
            let found = [0x1000, 0x5000].map(|ip| space.bytes(ip).ok());
            assert_eq!(found, paths.map(|path| path.map(str::as_bytes)), "at {time}");
        }
    }

    #[test]
    fn what_an_exec_maps_stands_after_it_though_it_is_told_last() {
        let mappings = [mapping(1, 0x1000, "old"), mapping(21, 0x5000, "new")];
        let expect = [(10, [Some("old"), None]), (30, [None, Some("new")])];
        // Another thread's name says nothing, and neither does one that was given before.
        let names = [name(2, PID), name(20, PID), name(21, PID + 1)];
        check(&mappings, &[exec(22)], &names, &expect);
        // Without the name the record's own time is all there is.
        check(
            &[mapping(1, 0x1000, "old"), mapping(23, 0x5000, "new")],
            &[exec(22)],
            &[],
            &expect,
        );
    }

    #[test]
    fn a_guests_code_has_a_reason_of_its_own() {
        let reason = |others: &[Mapping], ip| {
            let load = |_: &Mapping| Err(NoCode::Anonymous);
            let mappings = [&[mapping(1, 0x1000, "qemu")], others].concat();
            let image = Image::of(changes(&mappings, &[], &[]), &[], load);
            image.space(Pid(PID), MonoNs(5)).unwrap().bytes(ip).unwrap_err()
        };
        let virtual_cpu = [mapping(1, 0x5000, "anon_inode:kvm-vcpu:0")];
        assert_eq!(reason(&[], 0xffff_0000), NoCode::Unmapped);
        assert_eq!(reason(&virtual_cpu, 0xffff_0000), NoCode::Guest);
        assert_eq!(reason(&virtual_cpu, 0x1000), NoCode::Anonymous);
        assert_eq!(
            reason(&[mapping(1, 0x5000, "anon_inode:kvm-vm")], 0x9000),
            NoCode::Unmapped
        );
    }

    #[test]
    fn a_newer_mapping_hides_what_it_covers_from_its_time_on() {
        let mappings = [mapping(1, 0x1000, "old"), mapping(9, 0x1000, "new")];
        check(
            &mappings,
            &[],
            &[],
            &[(5, [Some("old"), None]), (9, [Some("new"), None])],
        );
    }
}
