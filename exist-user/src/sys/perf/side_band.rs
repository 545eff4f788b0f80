//! Mappings, names, forks and exits of every process on one CPU: the side-band of a dummy event.

use std::io;

use perf_event_open_sys::bindings::{self, perf_event_attr};

use super::{Event, Ring};

/// Data bytes of each CPU's ring: about 2,000 mappings between two drains.
pub const RING_BYTES: usize = 256 << 10;

/// `PERF_FORMAT_LOST`, since 6.0.
const PERF_FORMAT_LOST: u64 = 1 << 4;

/// The side-band of one logical CPU, from the moment it is opened.
#[derive(Debug)]
pub struct SideBand {
    cpu: u32,
    event: Event,
    ring: Ring,
    counts_lost: bool,
}

impl SideBand {
    /// Opens and enables it. Stamps are CLOCK_MONOTONIC. Build IDs come with the mappings where the kernel can (5.12).
    ///
    /// # Errors
    /// EACCES or EPERM without CAP_PERFMON, ENODEV for a CPU that is offline, EPERM when the locked memory is used up.
    pub fn open(cpu: u32, ring_bytes: usize) -> io::Result<Self> {
        let (event, counts_lost) = open_newest(cpu)?;
        let ring = Ring::map(&event, ring_bytes)?;
        event.enable()?;
        Ok(Self {
            cpu,
            event,
            ring,
            counts_lost,
        })
    }

    /// The CPU whose side-band it is.
    #[must_use]
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Appends the records since the last call, for [`super::record::records`].
    pub fn drain_into(&mut self, out: &mut Vec<u8>) {
        self.ring.drain_into(out);
    }

    /// Records that the kernel could not write, in all; `None` where it does not count them (before 6.0).
    /// It also says so by a `PERF_RECORD_LOST`, but only before the next record that fits.
    #[must_use]
    pub fn lost(&self) -> Option<u64> {
        self.counts_lost.then(|| self.event.read_lost().ok()).flatten()
    }
}

/// Opens with what the newest kernels know, then with less: an older one answers EINVAL to a bit it does not know.
fn open_newest(cpu: u32) -> io::Result<(Event, bool)> {
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for (build_id, counts_lost) in [(true, true), (true, false), (false, false)] {
        let mut attr = attr();
        attr.set_build_id(build_id.into());
        attr.read_format = if counts_lost { PERF_FORMAT_LOST } else { 0 };
        match Event::open_on_cpu(&attr, cpu) {
            Ok(event) => return Ok((event, counts_lost)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn attr() -> perf_event_attr {
    let mut attr = perf_event_attr {
        type_: bindings::PERF_TYPE_SOFTWARE,
        config: u64::from(bindings::PERF_COUNT_SW_DUMMY),
        sample_type: u64::from(bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_CPU),
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    attr.set_disabled(1);
    attr.set_mmap(1); // `mmap` without `mmap_data`: executable mappings only
    attr.set_mmap2(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    // We drain by the clock, so no record shall wake us: the watermark is out of reach.
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
    attr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{
        clock,
        perf::record::{Body, records},
    };

    /// Ours: a child that runs a program must show up whole.
    #[test]
    fn a_child_shows_its_fork_name_mappings_and_exit() {
        let online = crate::sys::cpu::online(std::path::Path::new("/sys")).unwrap();
        let mut bands = Vec::new();
        for cpu in online {
            match SideBand::open(cpu, RING_BYTES) {
                Ok(band) => bands.push(band),
                Err(error) => return println!("skipped: perf_event_open on cpu {cpu}: {error}"),
            }
        }
        let before = clock::mono_ns();
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let after = clock::mono_ns();

        let mut bytes = Vec::new();
        bands.iter_mut().for_each(|band| band.drain_into(&mut bytes));
        let mut seen = (0, 0, 0, 0);
        for record in records(&bytes) {
            let record = record.unwrap();
            match &record.body {
                Body::Fork(task) if task.pid == pid => seen.0 += 1,
                Body::Comm(comm) if comm.pid == pid && comm.exec && comm.name == b"true" => seen.1 += 1,
                Body::Mmap(mmap) if mmap.pid == pid && mmap.path.starts_with(b"/") => seen.2 += 1,
                Body::Exit(task) if task.pid == pid => seen.3 += 1,
                _ => continue,
            }
            assert!(
                (before..=after).contains(&record.stamp.time_ns),
                "{record:?} not within {before}..{after}"
            );
        }
        assert!(
            seen.0 == 1 && seen.1 == 1 && seen.2 >= 2 && seen.3 == 1,
            "fork, comm, mmap, exit: {seen:?}"
        );
        bands
            .iter()
            .filter_map(SideBand::lost)
            .for_each(|lost| assert_eq!(lost, 0));
    }
}
