//! Records of the side-band, from bytes: total, whatever the bytes are.
//!
//! Layout: `include/uapi/linux/perf_event.h`, `enum perf_event_type`. Each record ends with the `sample_id` that
//! [`super::SideBand`] asks for:
//!
//! ```text
//!  0      4      6      8                  size-24   size-20  size-16   size-8   size-4   size
//!  | type | misc | size | body …           | pid     | tid    | time_ns | cpu    | reserved |
//! ```

use perf_event_open_sys::bindings;
use thiserror::Error;

/// A record with the moment and the place where the kernel wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideBandRecord {
    pub stamp: Stamp,
    pub body: Body,
}

/// The `sample_id` of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub pid: u32,
    pub tid: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
    pub cpu: u32,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Mmap(Mmap),
    Comm(Comm),
    Fork(Task),
    Exit(Task),
    /// This many records were lost before this one.
    Lost(u64),
    Aux(Aux),
    /// The tracer was started for the first time while this thread ran.
    ItraceStart {
        pid: u32,
        tid: u32,
    },
    /// A record of a kind that is not used here, by its number.
    Other(u32),
}

/// A new executable mapping (`PERF_RECORD_MMAP2`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mmap {
    pub pid: u32,
    pub tid: u32,
    pub start: u64,
    pub len: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Device and inode are 0 when the kernel gave the build ID in their place.
    pub dev_major: u32,
    pub dev_minor: u32,
    pub inode: u64,
    pub build_id: Vec<u8>,
    pub path: Vec<u8>,
}

/// A new name (`PERF_RECORD_COMM`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comm {
    pub pid: u32,
    pub tid: u32,
    /// The name came with an exec: the process's old mappings are gone.
    pub exec: bool,
    pub name: Vec<u8>,
}

/// A task that came or went (`PERF_RECORD_FORK`, `PERF_RECORD_EXIT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    pub pid: u32,
    pub parent_pid: u32,
    pub tid: u32,
    pub parent_tid: u32,
    pub time_ns: u64,
}

/// Bytes that were written to the AUX area (`PERF_RECORD_AUX`), stamped when the writing ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aux {
    /// Free-running offset of the first byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// `PERF_AUX_FLAG_*`.
    pub flags: u64,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    #[error("side-band cut at offset {offset}: a header needs 8 bytes, {left} are left")]
    Header { offset: usize, left: usize },
    #[error("side-band record at offset {offset} says {size} bytes, {left} are left")]
    Size { offset: usize, size: usize, left: usize },
    #[error("side-band record of type {kind} at offset {offset}: {size} bytes are too few for its fields")]
    Body { offset: usize, kind: u32, size: usize },
}

const HEADER_BYTES: usize = 8;
const STAMP_BYTES: usize = 24;

/// The records in `bytes`, in order; after the first error nothing more comes.
pub fn records(bytes: &[u8]) -> impl Iterator<Item = Result<SideBandRecord, ParseError>> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        if offset >= bytes.len() {
            return None;
        }
        let result = parse(bytes, offset);
        offset = match &result {
            Ok((_, next)) => *next,
            Err(_) => bytes.len(),
        };
        Some(result.map(|(record, _)| record))
    })
}

/// Reads the record at `offset`; gives it and the offset of the next one.
fn parse(bytes: &[u8], offset: usize) -> Result<(SideBandRecord, usize), ParseError> {
    let rest = bytes.get(offset..).unwrap_or_default();
    let left = rest.len();
    let mut header = Fields(rest);
    let (Some(kind), Some(misc), Some(size)) = (header.u32(), header.u16(), header.u16()) else {
        return Err(ParseError::Header { offset, left });
    };
    let size = usize::from(size);
    if size < HEADER_BYTES || size > left {
        return Err(ParseError::Size { offset, size, left });
    }
    let record = split_stamp(&rest[HEADER_BYTES..size])
        .and_then(|(fields, stamp)| {
            Some(SideBandRecord {
                stamp,
                body: body(kind, misc, fields)?,
            })
        })
        .ok_or(ParseError::Body { offset, kind, size })?;
    Ok((record, offset + size))
}

fn split_stamp(body: &[u8]) -> Option<(Fields<'_>, Stamp)> {
    let (fields, stamp) = body.split_at_checked(body.len().checked_sub(STAMP_BYTES)?)?;
    let mut stamp = Fields(stamp);
    let stamp = Stamp {
        pid: stamp.u32()?,
        tid: stamp.u32()?,
        time_ns: stamp.u64()?,
        cpu: stamp.u32()?,
    };
    Some((Fields(fields), stamp))
}

fn body(kind: u32, misc: u16, mut f: Fields<'_>) -> Option<Body> {
    Some(match kind {
        bindings::PERF_RECORD_MMAP2 => Body::Mmap(mmap2(misc, f)?),
        bindings::PERF_RECORD_COMM => Body::Comm(Comm {
            pid: f.u32()?,
            tid: f.u32()?,
            exec: u32::from(misc) & bindings::PERF_RECORD_MISC_COMM_EXEC != 0,
            name: f.text(),
        }),
        bindings::PERF_RECORD_FORK => Body::Fork(task(f)?),
        bindings::PERF_RECORD_EXIT => Body::Exit(task(f)?),
        bindings::PERF_RECORD_LOST => {
            f.u64()?; // the event's ID
            Body::Lost(f.u64()?)
        }
        bindings::PERF_RECORD_AUX => Body::Aux(Aux {
            offset: f.u64()?,
            size: f.u64()?,
            flags: f.u64()?,
        }),
        bindings::PERF_RECORD_ITRACE_START => Body::ItraceStart {
            pid: f.u32()?,
            tid: f.u32()?,
        },
        bindings::PERF_RECORD_LOST_SAMPLES => Body::Lost(f.u64()?),
        other => Body::Other(other),
    })
}

fn task(mut f: Fields<'_>) -> Option<Task> {
    Some(Task {
        pid: f.u32()?,
        parent_pid: f.u32()?,
        tid: f.u32()?,
        parent_tid: f.u32()?,
        time_ns: f.u64()?,
    })
}

fn mmap2(misc: u16, mut f: Fields<'_>) -> Option<Mmap> {
    let mut mmap = Mmap {
        pid: f.u32()?,
        tid: f.u32()?,
        start: f.u64()?,
        len: f.u64()?,
        offset: f.u64()?,
        ..Mmap::default()
    };
    let mut file = Fields(f.take(24)?);
    if u32::from(misc) & bindings::PERF_RECORD_MISC_MMAP_BUILD_ID != 0 {
        let size = usize::from(file.take(4)?[0]);
        mmap.build_id = file.take(size.min(20))?.to_vec();
    } else {
        (mmap.dev_major, mmap.dev_minor, mmap.inode) = (file.u32()?, file.u32()?, file.u64()?);
    }
    f.take(8)?; // prot, flags
    mmap.path = f.text();
    Some(mmap)
}

/// A cursor over little-endian fields.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// The rest up to its first 0 byte.
    fn text(&self) -> Vec<u8> {
        self.0.split(|&b| b == 0).next().unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp {
        pid: 7,
        tid: 8,
        time_ns: 1_000_000_007,
        cpu: 3,
    };

    /// A record as the kernel lays it out: header, body, stamp.
    fn record(kind: u32, misc: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let size = u16::try_from(HEADER_BYTES + body.len() + STAMP_BYTES).unwrap();
        let misc = u16::try_from(misc).unwrap();
        [
            &kind.to_le_bytes()[..],
            &misc.to_le_bytes(),
            &size.to_le_bytes(),
            &body,
            &STAMP.pid.to_le_bytes(),
            &STAMP.tid.to_le_bytes(),
            &STAMP.time_ns.to_le_bytes(),
            &STAMP.cpu.to_le_bytes(),
            &[0; 4],
        ]
        .concat()
    }

    fn words(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn longs(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn check(bytes: &[u8], expect: Body) {
        let expect = SideBandRecord {
            stamp: STAMP,
            body: expect,
        };
        assert_eq!(records(bytes).collect::<Vec<_>>(), [Ok(expect)]);
        for len in 1..bytes.len() {
            let cut: Vec<_> = records(&bytes[..len]).collect();
            assert!(matches!(cut[..], [Err(_)]), "cut at {len}: {cut:?}");
        }
        // A size field that lies makes an error, or a record with less in it; never more bytes than there are.
        for size in 0..=u16::try_from(bytes.len()).unwrap() + 8 {
            let mut lying = bytes.to_vec();
            lying[6..8].copy_from_slice(&size.to_le_bytes());
            assert!(records(&lying).count() >= 1, "size {size}");
        }
    }

    fn mapped() -> Mmap {
        Mmap {
            pid: 7,
            tid: 8,
            start: 0x7f00_0000_1000,
            len: 0x2000,
            offset: 0x3000,
            ..Mmap::default()
        }
    }

    #[test]
    fn every_kind_is_read_and_every_cut_is_an_error() {
        let place = [words(&[7, 8]), longs(&[0x7f00_0000_1000, 0x2000, 0x3000])].concat();
        let file = [words(&[8, 1]), longs(&[4711, 1])].concat();
        let path = b"/lib/libc.so.6\0\0";
        check(
            &record(bindings::PERF_RECORD_MMAP2, 2, &[&place, &file, &words(&[5, 2]), path]),
            Body::Mmap(Mmap {
                dev_major: 8,
                dev_minor: 1,
                inode: 4711,
                path: b"/lib/libc.so.6".to_vec(),
                ..mapped()
            }),
        );
        let id = [&[20, 0, 0, 0][..], &[0xab; 20]].concat();
        check(
            &record(
                bindings::PERF_RECORD_MMAP2,
                2 | 1 << 14,
                &[&place, &id, &words(&[5, 2]), b"[vdso]\0\0"],
            ),
            Body::Mmap(Mmap {
                build_id: vec![0xab; 20],
                path: b"[vdso]".to_vec(),
                ..mapped()
            }),
        );
        // A build ID that says it is longer than its field.
        let id = [&[255, 0, 0, 0][..], &[0xcd; 20]].concat();
        check(
            &record(bindings::PERF_RECORD_MMAP2, 1 << 14, &[&place, &id, &words(&[5, 2])]),
            Body::Mmap(Mmap {
                build_id: vec![0xcd; 20],
                ..mapped()
            }),
        );
        let comm = |exec| {
            Body::Comm(Comm {
                pid: 7,
                tid: 8,
                exec,
                name: b"worker".to_vec(),
            })
        };
        check(
            &record(bindings::PERF_RECORD_COMM, 0, &[&words(&[7, 8]), b"worker\0\0"]),
            comm(false),
        );
        check(
            &record(bindings::PERF_RECORD_COMM, 1 << 13, &[&words(&[7, 8]), b"worker\0\0"]),
            comm(true),
        );
        let task = [words(&[7, 1, 8, 1]), longs(&[99])].concat();
        let is = Task {
            pid: 7,
            parent_pid: 1,
            tid: 8,
            parent_tid: 1,
            time_ns: 99,
        };
        check(&record(bindings::PERF_RECORD_FORK, 0, &[&task]), Body::Fork(is));
        check(&record(bindings::PERF_RECORD_EXIT, 0, &[&task]), Body::Exit(is));
        check(
            &record(bindings::PERF_RECORD_LOST, 0, &[&longs(&[1, 12])]),
            Body::Lost(12),
        );
        check(
            &record(bindings::PERF_RECORD_LOST_SAMPLES, 0, &[&longs(&[3])]),
            Body::Lost(3),
        );
        check(
            &record(bindings::PERF_RECORD_AUX, 0, &[&longs(&[4096, 512, 1])]),
            Body::Aux(Aux {
                offset: 4096,
                size: 512,
                flags: 1,
            }),
        );
        check(
            &record(bindings::PERF_RECORD_ITRACE_START, 0, &[&words(&[7, 8])]),
            Body::ItraceStart { pid: 7, tid: 8 },
        );
        check(&record(77, 0, &[&longs(&[3])]), Body::Other(77));
    }

    #[test]
    fn records_follow_each_other_and_stop_at_the_first_error() {
        let one = record(bindings::PERF_RECORD_LOST, 0, &[&longs(&[1, 12])]);
        let bytes = [&one[..], &one, &one[..10]].concat();
        let read: Vec<_> = records(&bytes).collect();
        assert_eq!(read.len(), 3);
        assert!(read[1].is_ok());
        assert_eq!(
            read[2],
            Err(ParseError::Size {
                offset: 2 * one.len(),
                size: one.len(),
                left: 10
            })
        );
    }

    #[test]
    fn fields_that_do_not_fit_are_named() {
        let short = record(bindings::PERF_RECORD_FORK, 0, &[&words(&[1, 2])]);
        assert_eq!(
            records(&short).next(),
            Some(Err(ParseError::Body {
                offset: 0,
                kind: bindings::PERF_RECORD_FORK,
                size: short.len()
            }))
        );
    }
}
