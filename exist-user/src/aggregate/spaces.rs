//! Executable mappings of the target's processes over time.
//!
//! Mappings come whole from the live process once, then one by one from the side-band. Nobody tells of an `munmap`: a
//! newer mapping hides what it covers, and a list that grows too long is compared with the live process again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use exist_trace::{
    file::model::{ImageBytes, Mapping},
    units::{MonoNs, Pid},
};

use super::{
    build_id::build_id,
    live::{Live, VDSO},
};

/// A list longer than this is compared with the live process; programs that compile as they run get here.
const MOST_MAPPINGS: usize = 4096;

/// No more mappings than this are kept, of all processes together: about 100 MB. A process may have 65,530
/// (`vm.max_map_count`) and hand them to each of its children.
pub const MOST_MAPPINGS_IN_ALL: usize = 1 << 20;

/// No more than this are in a generation, which would not fit into a chunk else, nor be written in its time.
pub const MOST_MAPPINGS_IN_GENERATION: usize = 100_000;

#[derive(Debug, Default)]
struct Space {
    /// Those that stand, each with the moment it was made.
    standing: Vec<Mapping>,
    /// Those that went since the open generation began.
    gone: Vec<Mapping>,
    /// When the live process was read last.
    read_at: Option<MonoNs>,
}

impl Space {
    /// Takes a mapping that was made before the live process was read: it is known, but not since when; or it had gone.
    fn date(&mut self, mapping: Mapping) {
        match self.standing.iter_mut().find(|known| is_same(known, &mapping)) {
            Some(known) => {
                *known = Mapping {
                    time: known.time.max(mapping.time),
                    ..mapping
                }
            }
            None => self.gone.push(mapping),
        }
    }
}

fn is_same(a: &Mapping, b: &Mapping) -> bool {
    (a.start, a.len, a.offset, &a.path) == (b.start, b.len, b.offset, &b.path)
}

/// The target's address spaces, and the vDSO images that were found in them.
#[derive(Debug)]
pub struct Spaces {
    live: Live,
    of: HashMap<Pid, Space>,
    /// Spaces of processes that ended since the open generation began.
    ended: HashMap<Pid, Vec<Mapping>>,
    vdsos: HashMap<(u64, bool), Arc<[u8]>>,
    images: Vec<ImageBytes>,
    /// How many are kept; those that went in the open generation count until it is closed.
    kept: usize,
    left_out: u64,
}

impl Spaces {
    pub fn new(live: Live) -> Self {
        Self {
            live,
            of: HashMap::new(),
            ended: HashMap::new(),
            vdsos: HashMap::new(),
            images: Vec::new(),
            kept: 0,
            left_out: 0,
        }
    }

    pub fn live(&mut self) -> &mut Live {
        &mut self.live
    }

    /// Reads a process as it stands; mappings that were not known before count from `time` on.
    pub fn read(&mut self, pid: Pid, time: MonoNs, now: MonoNs) {
        if self.kept >= MOST_MAPPINGS_IN_ALL {
            self.left_out += 1; // one at least: to count them is what costs
            return;
        }
        let mut mappings = self.live.mappings(pid, time);
        let room = self.take_room(mappings.len());
        mappings.truncate(room);
        mappings.iter_mut().for_each(|mapping| self.identify(mapping));
        let space = self.of.entry(pid).or_default();
        let mut known = BTreeMap::new();
        for old in space.standing.drain(..) {
            space.gone.extend(known.insert(old.start, old));
        }
        for mapping in &mut mappings {
            if known
                .get(&mapping.start)
                .is_some_and(|old: &Mapping| is_same(old, mapping))
                && let Some(old) = known.remove(&mapping.start)
            {
                *mapping = old;
            }
        }
        space.gone.extend(known.into_values());
        space.standing = mappings;
        space.read_at = Some(now);
    }

    /// Whether the process's mappings are known.
    pub fn has(&self, pid: Pid) -> bool {
        self.of.contains_key(&pid)
    }

    /// A child has its parent's mappings; the side-band does not repeat them.
    pub fn fork(&mut self, parent: Pid, child: Pid, time: MonoNs) -> bool {
        let Some(inherited) = self.of.get(&parent).map(|space| space.standing.len()) else {
            return false;
        };
        let room = self.take_room(inherited);
        let parent = self.of.get(&parent).map_or(&[][..], |space| &space.standing);
        let standing = parent
            .iter()
            .take(room)
            .map(|mapping| Mapping {
                pid: child,
                time,
                ..mapping.clone()
            })
            .collect();
        self.end(child);
        self.of.insert(
            child,
            Space {
                standing,
                gone: Vec::new(),
                read_at: None,
            },
        );
        true
    }

    /// A new mapping, from the side-band.
    pub fn map(&mut self, mut mapping: Mapping, now: MonoNs) {
        if self.take_room(1) == 0 {
            return;
        }
        self.identify(&mut mapping);
        let space = self.of.entry(mapping.pid).or_default();
        if space.read_at.is_some_and(|at| mapping.time <= at) {
            return space.date(mapping);
        }
        let (start, end) = (mapping.start, mapping.start.saturating_add(mapping.len));
        let covered = |old: &mut Mapping| start <= old.start && old.start.saturating_add(old.len) <= end;
        space.gone.extend(space.standing.extract_if(.., covered));
        let pid = mapping.pid;
        space.standing.push(mapping);
        if space.standing.len() > MOST_MAPPINGS {
            self.compare(pid, now);
        }
    }

    /// The process executes another program: nothing of the old one stands.
    pub fn exec(&mut self, pid: Pid, time: MonoNs) {
        let space = self.of.entry(pid).or_default();
        if space.read_at.is_none_or(|at| time > at) {
            space.gone.append(&mut space.standing);
        } else {
            // What was read later is the new program's: before the exec nothing is known.
            space
                .standing
                .iter_mut()
                .for_each(|mapping| mapping.time = mapping.time.max(time));
        }
    }

    /// The process has ended, or left the target.
    pub fn end(&mut self, pid: Pid) {
        if let Some(space) = self.of.remove(&pid) {
            let ended = self.ended.entry(pid).or_default();
            ended.extend(space.gone);
            ended.extend(space.standing);
        }
    }

    /// Every mapping of a process that stood at some time in the open generation, oldest first.
    pub fn in_generation(&self, pid: Pid) -> Vec<Mapping> {
        let ended = self.ended.get(&pid).into_iter().flatten();
        let of = self
            .of
            .get(&pid)
            .into_iter()
            .flat_map(|space| space.gone.iter().chain(&space.standing));
        let mut all: Vec<_> = ended.chain(of).cloned().collect();
        all.sort_by_key(|mapping| mapping.time);
        all
    }

    /// How many those are.
    pub fn count_in_generation(&self, pid: Pid) -> usize {
        let ended = self.ended.get(&pid).map_or(0, Vec::len);
        ended
            + self
                .of
                .get(&pid)
                .map_or(0, |space| space.gone.len() + space.standing.len())
    }

    /// Images found since the last call.
    pub fn take_images(&mut self) -> Vec<ImageBytes> {
        std::mem::take(&mut self.images)
    }

    /// A new generation begins: what went before is of no interest to it.
    pub fn next_generation(&mut self) {
        self.ended.clear();
        self.of.values_mut().for_each(|space| space.gone.clear());
        self.kept = self.of.values().map(|space| space.standing.len()).sum();
    }

    /// How many mappings were left out since the last call.
    pub fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    /// Room for `wanted` more, or for as many as there are left.
    fn take_room(&mut self, wanted: usize) -> usize {
        let room = wanted.min(MOST_MAPPINGS_IN_ALL - self.kept);
        self.kept += room;
        self.left_out += (wanted - room) as u64;
        room
    }

    /// Keeps only what the live process still has.
    fn compare(&mut self, pid: Pid, now: MonoNs) {
        let live = self.live.mappings(pid, now);
        let Some(space) = self.of.get_mut(&pid) else { return };
        // The live process was read after the newest mapping here was made, so what it lacks is gone. It may have joined
        // neighbours: what lies within one of its mappings stays.
        let stands = |m: &Mapping| {
            // The kernel lists them by address, and they do not overlap.
            let below = live.partition_point(|l| l.start <= m.start);
            live[..below]
                .last()
                .is_some_and(|l| m.start.saturating_add(m.len) <= l.start.saturating_add(l.len))
        };
        space
            .gone
            .extend(space.standing.extract_if(.., |mapping| !stands(mapping)));
        // A process that is gone, or has that many: the oldest go.
        let excess = space.standing.len().saturating_sub(MOST_MAPPINGS / 2);
        if excess > MOST_MAPPINGS / 4 {
            space.gone.extend(space.standing.drain(..excess));
        }
    }

    /// Gives a vDSO its build ID, and keeps its bytes when the content is new. The kernel has one for each kind of process
    /// (64 bits, 32 bits), so its size and place tell which it is.
    fn identify(&mut self, mapping: &mut Mapping) {
        if &*mapping.path != VDSO {
            return;
        }
        let kind = (mapping.len, mapping.start > u64::from(u32::MAX));
        if !self.vdsos.contains_key(&kind) {
            let Some(bytes) = self.live.vdso(mapping.pid, mapping.start, mapping.len) else {
                return;
            };
            let id = build_id(|buffer, offset| {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = bytes.get(from..).and_then(|rest| rest.get(..buffer.len()));
                buffer.copy_from_slice(part.ok_or(std::io::ErrorKind::UnexpectedEof)?);
                Ok(())
            });
            self.vdsos.insert(kind, id.ok().flatten().unwrap_or_default().into());
            let path = mapping.path.to_string();
            self.images.push(ImageBytes {
                pid: mapping.pid,
                start: mapping.start,
                path,
                bytes,
            });
        }
        if let Some(id) = self.vdsos.get(&kind) {
            mapping.build_id = id.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::roots::Roots;

    const P: Pid = Pid(4_000_000_000);

    fn mapping(time: u64, start: u64, len: u64) -> Mapping {
        Mapping {
            time: MonoNs(time),
            pid: P,
            start,
            len,
            offset: 0,
            dev_major: 8,
            dev_minor: 1,
            inode: 7,
            path: Arc::from("/bin/x"),
            build_id: Arc::from([]),
        }
    }

    impl Spaces {
        /// As if the live process had it.
        pub fn keep(&mut self, mapping: Mapping) {
            self.of.entry(mapping.pid).or_default().standing.push(mapping);
        }
    }

    fn spaces() -> Spaces {
        Spaces::new(Live::new(Roots {
            proc: "/nonexistent".into(),
            ..Roots::default()
        }))
    }

    /// Mappings of the generation as `time:start+len`.
    fn show(spaces: &Spaces, pid: Pid) -> String {
        let each: Vec<_> = spaces
            .in_generation(pid)
            .iter()
            .map(|m| format!("{}:{:x}+{:x}", m.time, m.start, m.len))
            .collect();
        each.join(" ")
    }

    #[test]
    fn a_newer_mapping_hides_what_it_covers() {
        let mut s = spaces();
        s.map(mapping(1, 0x1000, 0x1000), MonoNs(9));
        s.map(mapping(2, 0x5000, 0x2000), MonoNs(9));
        s.map(mapping(3, 0x1000, 0x3000), MonoNs(9));
        assert_eq!(show(&s, P), "1:1000+1000 2:5000+2000 3:1000+3000");
        s.next_generation();
        assert_eq!(show(&s, P), "2:5000+2000 3:1000+3000");
        s.map(mapping(4, 0x6000, 0x1000), MonoNs(9)); // covers a part: both stay, the newer wins
        s.next_generation();
        assert_eq!(show(&s, P), "2:5000+2000 3:1000+3000 4:6000+1000");
    }

    #[test]
    fn however_many_children_inherit_memory_is_bounded() {
        let mut s = spaces();
        let (mappings, children) = (1 << 10, 1 << 11);
        (0..mappings).for_each(|i| s.map(mapping(1, i << 12, 0x1000), MonoNs(9)));
        for child in 1..=children {
            assert!(s.fork(P, Pid(child), MonoNs(5)));
        }
        let kept = |s: &Spaces| {
            s.of.values()
                .map(|space| space.standing.len() + space.gone.len())
                .sum::<usize>()
        };
        assert_eq!(kept(&s), MOST_MAPPINGS_IN_ALL);
        assert_eq!(
            s.take_left_out(),
            (u64::from(children) + 1) * mappings - MOST_MAPPINGS_IN_ALL as u64
        );
        assert_eq!(s.take_left_out(), 0);
        // Those that end give their room back with the generation.
        (1..=children).for_each(|child| s.end(Pid(child)));
        s.map(mapping(6, 0x4000_0000, 0x1000), MonoNs(9));
        assert_eq!(s.take_left_out(), 1);
        s.next_generation();
        s.map(mapping(6, 0x4000_0000, 0x1000), MonoNs(9));
        assert_eq!((s.take_left_out(), kept(&s)), (0, mappings as usize + 1));
    }

    #[test]
    fn an_exec_takes_all_and_a_child_inherits() {
        let mut s = spaces();
        let child = Pid(4_000_000_001);
        s.map(mapping(1, 0x1000, 0x1000), MonoNs(9));
        assert!(s.fork(P, child, MonoNs(5)));
        assert!(!s.fork(Pid(1), child, MonoNs(5)));
        s.exec(child, MonoNs(7));
        s.map(
            Mapping {
                pid: child,
                ..mapping(8, 0x9000, 0x1000)
            },
            MonoNs(9),
        );
        assert_eq!(show(&s, child), "5:1000+1000 8:9000+1000");
        s.next_generation();
        assert_eq!(show(&s, child), "8:9000+1000");
        assert_eq!(show(&s, P), "1:1000+1000");
    }

    #[test]
    fn a_process_that_ended_keeps_its_mappings_for_the_generation() {
        let mut s = spaces();
        s.map(mapping(1, 0x1000, 0x1000), MonoNs(9));
        s.end(P);
        assert!(!s.has(P));
        assert_eq!(show(&s, P), "1:1000+1000");
        s.next_generation();
        assert_eq!(show(&s, P), "");
    }

    #[test]
    fn what_was_read_is_dated_by_what_the_side_band_tells_of_before() {
        let own = Pid(std::process::id());
        let mut s = Spaces::new(Live::new(Roots::default()));
        s.read(own, MonoNs(1), MonoNs(50));
        let read = s.in_generation(own);
        assert!(read.len() > 1 && read.iter().all(|m| m.time == MonoNs(1)));
        // An exec before the reading: nothing that was read stood before it.
        s.exec(own, MonoNs(40));
        assert!(s.in_generation(own).iter().all(|m| m.time == MonoNs(40)));
        // A mapping that was made before the reading is known already; one that is not there any more had gone.
        s.map(
            Mapping {
                time: MonoNs(45),
                ..read[0].clone()
            },
            MonoNs(50),
        );
        s.map(
            Mapping {
                time: MonoNs(46),
                start: 0x1000,
                ..read[0].clone()
            },
            MonoNs(50),
        );
        let dated = s.in_generation(own);
        let times: Vec<_> = dated.iter().map(|m| m.time.0).filter(|&t| t != 40).collect();
        assert_eq!((times, dated.len()), (vec![45, 46], read.len() + 1));
        // Read again, what stands keeps its time.
        s.next_generation();
        s.read(own, MonoNs(60), MonoNs(60));
        assert!(s.in_generation(own).iter().filter(|m| m.time == MonoNs(60)).count() < 3);
    }

    #[test]
    fn a_vdso_is_kept_once_and_known_by_its_build_id() {
        let own = Pid(std::process::id());
        let mut s = Spaces::new(Live::new(Roots::default()));
        s.read(own, MonoNs(1), MonoNs(50));
        assert_eq!(s.take_images().len(), 1);
        s.read(own, MonoNs(1), MonoNs(60));
        assert_eq!(s.take_images().len(), 0, "the same vDSO again");
        let with_id = s
            .in_generation(own)
            .iter()
            .filter(|m| &*m.path == VDSO && m.build_id.len() == 20)
            .count();
        assert_eq!(with_id, 1);
    }

    #[test]
    fn lists_stay_bounded() {
        let mut s = spaces();
        for i in 0..20_000 {
            s.map(mapping(i, 0x10_0000 + i * 0x2000, 0x1000), MonoNs(i));
            s.next_generation();
        }
        assert!(s.in_generation(P).len() <= MOST_MAPPINGS);
    }
}
