//! The payload of a chunk, whose checksum is right → a generation.
//!
//! Refuses sections that do not fit their own lengths and counts; skips sections with unknown tags.

use std::sync::Arc;

use super::{
    layout::{ChunkHeader, MAX_CPU_TEXT_BYTES, MAX_CPUS, MAX_JSON_BYTES, MAX_TABLE_BYTES, SECTION_BYTES, tag},
    model::{
        ClockPair, ControlKind, ControlOp, CpuCounters, CpuInfo, End, Generation, Header, ImageBytes, Loss, LossKind,
        Mapping, NameChange, PtBytes, Record, ThreadStatus, Wait,
    },
    wire::{Get, Malformed},
};
use crate::units::{Cpu, MonoNs, Pid, Tid, Tsc};

/// Reads the payload that stands at `base` in the file.
pub fn decode(chunk: &ChunkHeader, payload: &[u8], base: u64) -> Result<Generation, Malformed> {
    let mut sections = Get::new(payload, base);
    let at_start = sections;
    let mut out: Option<Generation> = None;
    let mut tables = Tables::default();
    let mut table_bytes = 0;
    while !sections.is_empty() {
        let at = sections;
        let frame = sections.take(SECTION_BYTES)?;
        let (tag, len) = (
            [frame[0], frame[1], frame[2], frame[3]],
            [frame[4], frame[5], frame[6], frame[7]],
        );
        let section_at = sections.offset();
        let section = sections.take(u32::from_le_bytes(len) as usize)?;
        if !matches!(tag, tag::RECORDS | tag::WAITS | tag::PT | tag::IMAGE) {
            table_bytes += SECTION_BYTES + section.len();
            if table_bytes > MAX_TABLE_BYTES {
                return Err(at.malformed("sections larger than they may be", table_bytes as u64));
            }
        }
        let get = Get::new(section, section_at);
        match &mut out {
            None if tag == tag::HEADER => out = Some(decode_header(chunk, get)?),
            None => return Err(at.malformed("section before the header", u32::from_le_bytes(tag).into())),
            Some(g) => decode_section(tag, get, g, &mut tables)?,
        }
    }
    out.ok_or(at_start.malformed("payload without a header", payload.len() as u64))
}

/// What later sections of a chunk refer to.
#[derive(Default)]
struct Tables<'a> {
    strings: Vec<Interned<'a>>,
    files: Vec<File>,
}

/// A string of the table; shared from its first use on.
struct Interned<'a> {
    bytes: &'a [u8],
    text: Option<Arc<str>>,
    blob: Option<Arc<[u8]>>,
}

#[derive(Clone)]
struct File {
    dev_major: u32,
    dev_minor: u32,
    inode: u64,
    path: Arc<str>,
    build_id: Arc<[u8]>,
}

impl<'a> Tables<'a> {
    fn entry(&mut self, get: &mut Get) -> Result<&mut Interned<'a>, Malformed> {
        let at = *get;
        let number = get.uint()?;
        let entry = usize::try_from(number).ok().and_then(|i| self.strings.get_mut(i));
        entry.ok_or(at.malformed("number of a string that is not there", number))
    }

    fn text(&mut self, get: &mut Get) -> Result<Arc<str>, Malformed> {
        let at = *get;
        let entry = self.entry(get)?;
        if let Some(text) = &entry.text {
            return Ok(text.clone());
        }
        let text = std::str::from_utf8(entry.bytes)
            .map_err(|e| at.malformed("text that is not UTF-8", e.valid_up_to() as u64))?;
        Ok(entry.text.insert(text.into()).clone())
    }

    fn blob(&mut self, get: &mut Get) -> Result<Arc<[u8]>, Malformed> {
        let entry = self.entry(get)?;
        Ok(entry.blob.get_or_insert_with(|| entry.bytes.into()).clone())
    }
}

fn decode_header(chunk: &ChunkHeader, mut get: Get) -> Result<Generation, Malformed> {
    let at = get;
    let json = get.remainder();
    if json.len() > MAX_JSON_BYTES {
        return Err(at.malformed("header larger than it may be", json.len() as u64));
    }
    let (header, end_of_recording): (Header, Option<End>) = serde_json::from_slice(json)
        .map_err(|e| at.malformed("header that is not what it should be, column", e.column() as u64))?;
    if header.recording_id != chunk.recording_id {
        return Err(at.malformed("header of another recording", header.recording_id));
    }
    Ok(Generation {
        end_of_recording,
        ..Generation::empty(header, chunk.number, chunk.start, chunk.end)
    })
}

fn decode_section<'a>(
    tag: [u8; 4],
    mut get: Get<'a>,
    g: &mut Generation,
    tables: &mut Tables<'a>,
) -> Result<(), Malformed> {
    let at = get;
    let start = g.start.0;
    match tag {
        // Each of these stands once: a second one would let a small chunk fill memory.
        tag::STRINGS if tables.strings.is_empty() => {
            tables.strings = get.list(1, |get| {
                Ok(Interned {
                    bytes: get.bytes()?,
                    text: None,
                    blob: None,
                })
            })?;
        }
        tag::FILES if tables.files.is_empty() => tables.files = get.list(5, |get| file(get, tables))?,
        tag::CPUS if g.header.node.cpus.is_empty() => g.header.node.cpus = cpus(&mut get, tables)?,
        tag::CLOCKS if g.clock_pairs.is_empty() => g.clock_pairs = clock_pairs(&mut get, start)?,
        tag::THREADS if g.threads.is_empty() => g.threads = threads(&mut get, start, tables)?,
        tag::MAPPINGS if g.mappings.is_empty() => g.mappings = mappings(&mut get, start, tables)?,
        tag::NAMES if g.names.is_empty() => {
            g.names = get.list(4, |get| {
                Ok(NameChange {
                    time: MonoNs(get.diff(start)?),
                    pid: Pid(get.u32()?),
                    tid: Tid(get.u32()?),
                    name: tables.text(get)?,
                })
            })?;
        }
        tag::RECORDS if g.records.is_empty() => g.records = records(&mut get)?,
        tag::WAITS if g.waits.is_empty() => g.waits = waits(&mut get)?,
        tag::COUNTERS if g.counters.is_empty() => {
            g.counters = get.list(4, |get| {
                Ok(CpuCounters {
                    cpu: Cpu(get.u32()?),
                    on_cpu_ns: get.uint()?,
                    produced: get.uint()?,
                    dropped: get.uint()?,
                })
            })?;
        }
        tag::LOSSES if g.losses.is_empty() => g.losses = get.list(7, |get| loss(get, start))?,
        tag::OPS if g.ops.is_empty() => g.ops = get.list(5, |get| op(get, start))?,
        tag::PT => g.pt.push(PtBytes {
            cpu: Cpu(get.u32()?),
            offset: get.uint()?,
            aux_flags: get.uint()?,
            bytes: get.remainder().to_vec(),
        }),
        tag::IMAGE => g.images.push(ImageBytes {
            pid: Pid(get.u32()?),
            start: get.uint()?,
            path: get.str()?.to_owned(),
            bytes: get.remainder().to_vec(),
        }),
        tag::STRINGS
        | tag::FILES
        | tag::CPUS
        | tag::CLOCKS
        | tag::THREADS
        | tag::MAPPINGS
        | tag::NAMES
        | tag::RECORDS
        | tag::WAITS
        | tag::COUNTERS
        | tag::LOSSES
        | tag::OPS
        | tag::HEADER => {
            return Err(at.malformed("section that stands twice", u32::from_le_bytes(tag).into()));
        }
        _ => return Ok(()),
    }
    if get.is_empty() {
        Ok(())
    } else {
        Err(get.malformed("bytes after the section's items", 0))
    }
}

fn records(get: &mut Get) -> Result<Vec<Record>, Malformed> {
    let at = *get;
    let bytes = get.remainder();
    let (records, rest) = bytes.as_chunks::<{ exist_common::RECORD_BYTES }>();
    if !rest.is_empty() {
        return Err(at.malformed("records that are not whole, bytes", bytes.len() as u64));
    }
    let mut out = Vec::with_capacity(records.len());
    for (i, bytes) in records.iter().enumerate() {
        let record = Record::from_bytes(bytes).map_err(|_| Malformed {
            offset: at.offset() + (i * exist_common::RECORD_BYTES) as u64,
            what: "record with an unknown operation",
            value: bytes[26].into(),
        })?;
        out.push(record);
    }
    Ok(out)
}

fn waits(get: &mut Get) -> Result<Vec<Wait>, Malformed> {
    let at = *get;
    let bytes = get.remainder();
    let (waits, rest) = bytes.as_chunks::<{ exist_common::WAIT_BYTES }>();
    let not_whole = || at.malformed("waits that are not whole, bytes", bytes.len() as u64);
    if !rest.is_empty() {
        return Err(not_whole());
    }
    waits
        .iter()
        .map(|bytes| Wait::from_bytes(bytes).map_err(|_| not_whole()))
        .collect()
}

fn cpus(get: &mut Get, tables: &mut Tables) -> Result<Vec<CpuInfo>, Malformed> {
    let mut out = Vec::new();
    for _ in 0..get.count(8)? {
        let at = *get;
        let (first, count) = (get.u32()?, get.uint()?);
        if count > (MAX_CPUS - out.len()) as u64 || u64::from(first) + count > u32::MAX.into() {
            return Err(at.malformed("more CPUs than there can be", count));
        }
        // The texts are copied for each CPU, so they must be as short as they are in life.
        let short = |text: Arc<str>| {
            if text.len() <= MAX_CPU_TEXT_BYTES {
                Ok(text.to_string())
            } else {
                Err(at.malformed("long name of a CPU", text.len() as u64))
            }
        };
        let info = CpuInfo {
            cpu: Cpu(first),
            vendor: short(tables.text(get)?)?,
            family: get.u32()?,
            model: get.u32()?,
            stepping: get.u32()?,
            microcode: get.uint()?,
            kind: short(tables.text(get)?)?,
        };
        out.extend((0..count as u32).map(|i| CpuInfo {
            cpu: Cpu(first + i),
            ..info.clone()
        }));
    }
    Ok(out)
}

fn clock_pairs(get: &mut Get, start: u64) -> Result<Vec<ClockPair>, Malformed> {
    let (mut mono, mut tsc) = (start, 0);
    get.list(3, |get| {
        mono = get.diff(mono)?;
        tsc = get.diff(tsc)?;
        Ok(ClockPair {
            mono: MonoNs(mono),
            tsc_before: Tsc(tsc),
            tsc_after: Tsc(get.diff(tsc)?),
        })
    })
}

fn threads(get: &mut Get, start: u64, tables: &mut Tables) -> Result<Vec<ThreadStatus>, Malformed> {
    let mut last = 0;
    get.list(4, |get| {
        let pid = Pid(get.u32()?);
        last = tid(get, last)?;
        let name = tables.text(get)?;
        let running = match cpu_or_none(get)? {
            None => None,
            Some(cpu) => Some((cpu, MonoNs(get.diff(start)?))),
        };
        Ok(ThreadStatus {
            pid,
            tid: Tid(last),
            name,
            running,
        })
    })
}

fn file(get: &mut Get, tables: &mut Tables) -> Result<File, Malformed> {
    Ok(File {
        dev_major: get.u32()?,
        dev_minor: get.u32()?,
        inode: get.uint()?,
        path: tables.text(get)?,
        build_id: tables.blob(get)?,
    })
}

fn mappings(get: &mut Get, start: u64, tables: &Tables) -> Result<Vec<Mapping>, Malformed> {
    let (mut pid, mut end, mut time) = (0, 0, start);
    get.list(6, |get| {
        time = get.diff(time)?;
        pid = tid(get, pid)?;
        let start = get.diff(end)?;
        let len = get.uint()?;
        end = start.wrapping_add(len);
        let offset = get.uint()?;
        let at = *get;
        let number = get.uint()?;
        let file = usize::try_from(number).ok().and_then(|i| tables.files.get(i));
        let file = file
            .ok_or(at.malformed("number of a file that is not there", number))?
            .clone();
        Ok(Mapping {
            time: MonoNs(time),
            pid: Pid(pid),
            start,
            len,
            offset,
            dev_major: file.dev_major,
            dev_minor: file.dev_minor,
            inode: file.inode,
            path: file.path,
            build_id: file.build_id,
        })
    })
}

fn loss(get: &mut Get, start: u64) -> Result<Loss, Malformed> {
    let from = get.diff(start)?;
    Ok(Loss {
        from: MonoNs(from),
        to: MonoNs(get.diff(from)?),
        cpu: cpu_or_none(get)?,
        kind: loss_kind(get.uint()?),
        records: get.uint()?,
        bytes: get.uint()?,
        reason: get.str()?.to_owned(),
    })
}

fn op(get: &mut Get, start: u64) -> Result<ControlOp, Malformed> {
    let from = get.diff(start)?;
    Ok(ControlOp {
        from: MonoNs(from),
        to: MonoNs(get.diff(from)?),
        cpu: cpu_or_none(get)?,
        kind: control_kind(get.uint()?),
        error: if get.uint()? == 0 {
            None
        } else {
            Some(get.str()?.to_owned())
        },
    })
}

fn cpu_or_none(get: &mut Get) -> Result<Option<Cpu>, Malformed> {
    Ok(get.u32()?.checked_sub(1).map(Cpu))
}

fn tid(get: &mut Get, base: u32) -> Result<u32, Malformed> {
    let at = *get;
    let value = get.diff(base.into())?;
    u32::try_from(value).map_err(|_| at.malformed("thread above 32 bits", value))
}

const fn loss_kind(number: u64) -> LossKind {
    match number {
        1 => LossKind::RingFull,
        2 => LossKind::SideBandFull,
        3 => LossKind::MapFull,
        4 => LossKind::Write,
        5 => LossKind::AuxTruncated,
        6 => LossKind::AuxPartial,
        7 => LossKind::PtUnavailable,
        8 => LossKind::PtLate,
        9 => LossKind::CpuHotplug,
        10 => LossKind::FileDamaged,
        11 => LossKind::FileCut,
        12 => LossKind::Unaccounted,
        13 => LossKind::PtOverflow,
        14 => LossKind::PtDamaged,
        15 => LossKind::WaitsLost,
        _ => LossKind::Other,
    }
}

const fn control_kind(number: u64) -> ControlKind {
    match number {
        1 => ControlKind::HookAttach,
        2 => ControlKind::HookDetach,
        3 => ControlKind::PtOpen,
        4 => ControlKind::PtEnable,
        5 => ControlKind::PtDisable,
        6 => ControlKind::PtClose,
        7 => ControlKind::CpuSeen,
        _ => ControlKind::Other,
    }
}
