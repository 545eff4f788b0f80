//! A generation → the payload of a chunk.
//!
//! Refuses what a reader would refuse: more than the limits of `layout`.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, DefaultHasher},
};

use super::{
    layout::{MAX_CPU_TEXT_BYTES, MAX_CPUS, MAX_JSON_BYTES, MAX_PAYLOAD_BYTES, MAX_TABLE_BYTES, SECTION_BYTES, tag},
    model::{ControlKind, CpuInfo, Generation, LossKind, Mapping, Node},
    wire::Put,
};

/// A generation that is larger than a chunk may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of generation {number}: {bytes}, and a chunk holds at most {max}; close generations earlier")]
pub struct TooLarge {
    pub number: u64,
    pub what: &'static str,
    pub bytes: usize,
    pub max: usize,
}

/// Appends the payload to `out`.
pub fn encode(generation: &Generation, out: &mut Vec<u8>) -> Result<(), TooLarge> {
    let g = generation;
    let limit = |what, bytes, max| {
        if bytes > max {
            Err(TooLarge {
                number: g.number,
                what,
                bytes,
                max,
            })
        } else {
            Ok(())
        }
    };
    let raw = g.records.len() * exist_common::RECORD_BYTES
        + g.waits.len() * exist_common::WAIT_BYTES
        + g.pt.iter().map(|p| p.bytes.len()).sum::<usize>()
        + g.images.iter().map(|i| i.bytes.len()).sum::<usize>();
    limit("records, waits, processor trace and images", raw, MAX_PAYLOAD_BYTES)?;
    limit("the node's CPUs", g.header.node.cpus.len(), MAX_CPUS)?;
    let cpu_text = g
        .header
        .node
        .cpus
        .iter()
        .map(|c| c.vendor.len().max(c.kind.len()))
        .max();
    limit("the name of a CPU", cpu_text.unwrap_or(0), MAX_CPU_TEXT_BYTES)?;

    let from = out.len();
    let json = header_json(g);
    limit("the header", json.len(), MAX_JSON_BYTES)?;
    section(out, tag::HEADER, |out| out.extend_from_slice(&json));
    let mut strings = Strings::default();
    let mut tables = Vec::new();
    encode_tables(g, &mut strings, &mut tables);
    section(out, tag::STRINGS, |out| {
        out.uint(strings.order.len() as u64);
        strings.order.iter().for_each(|s| out.bytes(s));
    });
    out.append(&mut tables);
    limit(
        "names, mappings, losses and the like",
        out.len() - from,
        MAX_TABLE_BYTES,
    )?;

    if !g.records.is_empty() {
        section(out, tag::RECORDS, |out| {
            g.records.iter().for_each(|r| out.extend_from_slice(&r.to_bytes()))
        });
    }
    if !g.waits.is_empty() {
        section(out, tag::WAITS, |out| {
            g.waits.iter().for_each(|w| out.extend_from_slice(&w.to_bytes()))
        });
    }
    for p in &g.pt {
        section(out, tag::PT, |out| {
            out.uint(p.cpu.0.into());
            out.uint(p.offset);
            out.uint(p.aux_flags);
            out.extend_from_slice(&p.bytes);
        });
    }
    for i in &g.images {
        section(out, tag::IMAGE, |out| {
            out.uint(i.pid.0.into());
            out.uint(i.start);
            out.bytes(i.path.as_bytes());
            out.extend_from_slice(&i.bytes);
        });
    }
    limit("the sections", out.len() - from, MAX_PAYLOAD_BYTES)
}

/// The header as JSON, without the CPUs, which have a denser table.
fn header_json(g: &Generation) -> Vec<u8> {
    let mut header = g.header.clone();
    header.node = Node {
        cpus: Vec::new(),
        ..header.node
    };
    let json = serde_json::to_vec(&(&header, &g.end_of_recording));
    json.expect("plain data with text keys is always JSON")
}

fn encode_tables<'a>(g: &'a Generation, strings: &mut Strings<'a>, out: &mut Vec<u8>) {
    let start = g.start.0;
    list(out, tag::CPUS, &cpu_groups(&g.header.node.cpus), |out, group| {
        let c = group.first;
        out.uint(c.cpu.0.into());
        out.uint(group.count);
        out.uint(strings.of(c.vendor.as_bytes()));
        out.uint(c.family.into());
        out.uint(c.model.into());
        out.uint(c.stepping.into());
        out.uint(c.microcode);
        out.uint(strings.of(c.kind.as_bytes()));
    });
    let (mut mono, mut tsc) = (start, 0);
    list(out, tag::CLOCKS, &g.clock_pairs, |out, p| {
        out.diff(mono, p.mono.0);
        out.diff(tsc, p.tsc_before.0);
        out.diff(p.tsc_before.0, p.tsc_after.0);
        (mono, tsc) = (p.mono.0, p.tsc_before.0);
    });
    let mut last = 0;
    list(out, tag::THREADS, &g.threads, |out, t| {
        out.uint(t.pid.0.into());
        out.diff(last, t.tid.0.into());
        out.uint(strings.of(t.name.as_bytes()));
        // 0: not running; otherwise the CPU + 1, and since when.
        match t.running {
            None => out.uint(0),
            Some((cpu, since)) => {
                out.uint(u64::from(cpu.0) + 1);
                out.diff(start, since.0);
            }
        }
        last = t.tid.0.into();
    });
    encode_mappings(g, strings, out);
    list(out, tag::NAMES, &g.names, |out, n| {
        out.diff(start, n.time.0);
        out.uint(n.pid.0.into());
        out.uint(n.tid.0.into());
        out.uint(strings.of(n.name.as_bytes()));
    });
    list(out, tag::COUNTERS, &g.counters, |out, c| {
        out.uint(c.cpu.0.into());
        out.uint(c.on_cpu_ns);
        out.uint(c.produced);
        out.uint(c.dropped);
    });
    list(out, tag::LOSSES, &g.losses, |out, l| {
        out.diff(start, l.from.0);
        out.diff(l.from.0, l.to.0);
        out.uint(l.cpu.map_or(0, |c| u64::from(c.0) + 1));
        out.uint(loss_number(l.kind));
        out.uint(l.records);
        out.uint(l.bytes);
        out.bytes(l.reason.as_bytes());
    });
    list(out, tag::OPS, &g.ops, |out, o| {
        out.diff(start, o.from.0);
        out.diff(o.from.0, o.to.0);
        out.uint(o.cpu.map_or(0, |c| u64::from(c.0) + 1));
        out.uint(control_number(o.kind));
        // 0: no error.
        out.uint(o.error.is_some().into());
        if let Some(error) = &o.error {
            out.bytes(error.as_bytes());
        }
    });
}

/// The files that are mapped, each once, and the mappings that refer to them.
fn encode_mappings<'a>(g: &'a Generation, strings: &mut Strings<'a>, out: &mut Vec<u8>) {
    let mut files: Vec<(&Mapping, u64, u64)> = Vec::new();
    let mut known = HashMap::<_, u64, Stable>::default();
    let mut file_of = Vec::with_capacity(g.mappings.len());
    for m in &g.mappings {
        let (path, build_id) = (strings.of(m.path.as_bytes()), strings.of(&m.build_id));
        file_of.push(
            *known
                .entry((m.dev_major, m.dev_minor, m.inode, path, build_id))
                .or_insert_with(|| {
                    files.push((m, path, build_id));
                    files.len() as u64 - 1
                }),
        );
    }
    list(out, tag::FILES, &files, |out, (m, path, build_id)| {
        out.uint(m.dev_major.into());
        out.uint(m.dev_minor.into());
        out.uint(m.inode);
        out.uint(*path);
        out.uint(*build_id);
    });
    let (mut pid, mut end, mut time) = (0, 0, g.start.0);
    list(
        out,
        tag::MAPPINGS,
        &file_of.iter().zip(&g.mappings).collect::<Vec<_>>(),
        |out, (file, m)| {
            out.diff(time, m.time.0);
            out.diff(pid, m.pid.0.into());
            out.diff(end, m.start);
            out.uint(m.len);
            out.uint(m.offset);
            out.uint(**file);
            (pid, end, time) = (m.pid.0.into(), m.start.wrapping_add(m.len), m.time.0);
        },
    );
}

/// Consecutive CPUs that differ only in their number.
struct CpuGroup<'a> {
    first: &'a CpuInfo,
    count: u64,
}

fn cpu_groups(cpus: &[CpuInfo]) -> Vec<CpuGroup<'_>> {
    let mut groups: Vec<CpuGroup> = Vec::new();
    for cpu in cpus {
        if let Some(g) = groups.last_mut() {
            let next = u64::from(g.first.cpu.0) + g.count;
            if u64::from(cpu.cpu.0) == next && kind_of(cpu) == kind_of(g.first) {
                g.count += 1;
                continue;
            }
        }
        groups.push(CpuGroup { first: cpu, count: 1 });
    }
    groups
}

/// All but the number.
fn kind_of(c: &CpuInfo) -> (&str, u32, u32, u32, u64, &str) {
    (&c.vendor, c.family, c.model, c.stepping, c.microcode, &c.kind)
}

/// Byte strings in order of first use, so that equal generations give equal bytes.
#[derive(Default)]
struct Strings<'a> {
    order: Vec<&'a [u8]>,
    number: HashMap<&'a [u8], u64, Stable>,
    /// By address and length: most strings are shared, and need not be hashed again.
    by_place: HashMap<(usize, usize), u64, Stable>,
}

type Stable = BuildHasherDefault<DefaultHasher>;

impl<'a> Strings<'a> {
    fn of(&mut self, s: &'a [u8]) -> u64 {
        *self.by_place.entry((s.as_ptr().addr(), s.len())).or_insert_with(|| {
            *self.number.entry(s).or_insert_with(|| {
                self.order.push(s);
                self.order.len() as u64 - 1
            })
        })
    }
}

fn section(out: &mut Vec<u8>, tag: [u8; 4], fill: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&tag);
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    // Beyond 32 bits the payload is refused a few lines later, so a wrapped length is never written.
    let len = (out.len() - length_at - (SECTION_BYTES - tag.len())) as u32;
    out[length_at..length_at + 4].copy_from_slice(&len.to_le_bytes());
}

/// A section that is a count and its items; none when there are none.
fn list<'i, T>(out: &mut Vec<u8>, tag: [u8; 4], items: &'i [T], mut put: impl FnMut(&mut Vec<u8>, &'i T)) {
    if items.is_empty() {
        return;
    }
    section(out, tag, |out| {
        out.uint(items.len() as u64);
        items.iter().for_each(|item| put(out, item));
    });
}

/// Numbers in the file; never reused.
const fn loss_number(kind: LossKind) -> u64 {
    match kind {
        LossKind::Other => 0,
        LossKind::RingFull => 1,
        LossKind::SideBandFull => 2,
        LossKind::MapFull => 3,
        LossKind::Write => 4,
        LossKind::AuxTruncated => 5,
        LossKind::AuxPartial => 6,
        LossKind::PtUnavailable => 7,
        LossKind::PtLate => 8,
        LossKind::CpuHotplug => 9,
        LossKind::FileDamaged => 10,
        LossKind::FileCut => 11,
        LossKind::Unaccounted => 12,
        LossKind::PtOverflow => 13,
        LossKind::PtDamaged => 14,
        LossKind::WaitsLost => 15,
    }
}

/// Numbers in the file; never reused.
const fn control_number(kind: ControlKind) -> u64 {
    match kind {
        ControlKind::Other => 0,
        ControlKind::HookAttach => 1,
        ControlKind::HookDetach => 2,
        ControlKind::PtOpen => 3,
        ControlKind::PtEnable => 4,
        ControlKind::PtDisable => 5,
        ControlKind::PtClose => 6,
        ControlKind::CpuSeen => 7,
    }
}
