//! What the kernel said about one CPU's AUX area, and what follows: pieces for the file, losses with time and place.

use exist_trace::{
    file::model::{Loss, LossKind, PtBytes},
    units::{Cpu, MonoNs},
};
use perf_event_open_sys::bindings;

use crate::{
    alloc::size,
    sys::perf::record::{Body, records},
};

/// The longest piece of a stream that one generation of the file gets.
pub const PIECE_BYTES: usize = 1 << 20;

/// Bytes that the kernel wrote in one go: from a start of the tracer to its stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    /// When the writing ended.
    time: MonoNs,
    /// In the area.
    start: u64,
    end: u64,
    /// `PERF_AUX_FLAG_*`.
    flags: u64,
}

/// The records of one window, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuxLog {
    spans: Vec<Span>,
    /// Records that the kernel could not write.
    lost: u64,
    /// The first record that could not be read.
    unreadable: Option<String>,
}

/// The window of one CPU's tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub cpu: Cpu,
    pub enabled: MonoNs,
    /// Just before and just after it was stopped.
    pub disabling: MonoNs,
    pub disabled: MonoNs,
    pub buffer_bytes: u64,
}

impl AuxLog {
    /// Takes records as the ring gives them.
    pub fn add(&mut self, bytes: &[u8]) {
        for record in records(bytes) {
            match record {
                Ok(record) => match record.body {
                    Body::Aux(aux) => self.spans.push(Span {
                        time: MonoNs(record.stamp.time_ns),
                        start: aux.offset,
                        end: aux.offset.saturating_add(aux.size),
                        flags: aux.flags,
                    }),
                    Body::Lost(count) => self.lost += count,
                    _ => {}
                },
                Err(error) => {
                    self.unreadable.get_or_insert_with(|| error.to_string());
                }
            }
        }
    }

    /// When the tracer stopped because its buffer of `buffer_bytes` was full. The driver flags it only if the processor
    /// stopped at the very end of the last region (pt.c, `pt_handle_status`); a full area stops the event in any case
    /// (`kernel/events/ring_buffer.c`, `perf_aux_output_begin`).
    #[must_use]
    pub fn full_since(&self, buffer_bytes: u64) -> Option<MonoNs> {
        self.spans
            .iter()
            .find(|span| span.flags & u64::from(bindings::PERF_AUX_FLAG_TRUNCATED) != 0 || span.end >= buffer_bytes)
            .map(|span| span.time)
    }

    /// When the kernel last stopped the tracer.
    #[must_use]
    pub fn stopped(&self) -> Option<MonoNs> {
        self.spans.last().map(|span| span.time)
    }

    /// The area's bytes in pieces of at most [`PIECE_BYTES`], each with the flags of the record that ends at its end.
    /// `base`: offset of the area's first byte in the CPU's stream.
    pub fn pieces<'a>(&'a self, cpu: Cpu, base: u64, area: &'a [u8]) -> impl Iterator<Item = PtBytes> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            if at >= area.len() {
                return None;
            }
            let most = area.len().min(at + PIECE_BYTES);
            let end = self.boundary_after(at).map_or(most, |boundary| boundary.min(most));
            let piece = PtBytes {
                cpu,
                offset: base + at as u64,
                aux_flags: self.flags_at(end as u64),
                bytes: area[at..end].to_vec(),
            };
            at = end;
            Some(piece)
        })
    }

    /// What is missing from the window.
    #[must_use]
    pub fn losses(&self, window: &Window) -> Vec<Loss> {
        let mut losses = Vec::new();
        let mut lose = |kind, from, reason| {
            losses.push(Loss {
                from,
                to: window.disabled,
                cpu: Some(window.cpu),
                kind,
                records: 0,
                bytes: 0,
                reason,
            });
        };
        if let Some(time) = self.full_since(window.buffer_bytes) {
            let reason = format!(
                "the processor trace's buffer of {} was full: a larger --buffer or --budget, or a shorter period",
                size(window.buffer_bytes)
            );
            lose(LossKind::AuxTruncated, time, reason);
        } else if let Some(time) = self.stopped().filter(|&time| time < window.disabling) {
            let reason = "the kernel stopped the tracer by itself: the CPU was offline for a moment".to_owned();
            lose(LossKind::CpuHotplug, time, reason);
        }
        let flags = self.spans.iter().fold(0, |flags, span| flags | span.flags);
        if flags & u64::from(bindings::PERF_AUX_FLAG_PARTIAL) != 0 {
            let reason = "the processor trace has gaps: this processor does not trace while KVM uses VMX; stop the \
                          virtual machines on this node to record without"
                .to_owned();
            lose(LossKind::AuxPartial, window.enabled, reason);
        }
        let known = u64::from(bindings::PERF_AUX_FLAG_TRUNCATED | bindings::PERF_AUX_FLAG_PARTIAL);
        if flags & !known != 0 {
            let reason = format!("the kernel marks the processor trace with flags {:#x}", flags & !known);
            lose(LossKind::AuxPartial, window.enabled, reason);
        }
        if self.lost != 0 || self.unreadable.is_some() {
            let why = self.unreadable.as_deref().unwrap_or("its ring was full");
            let reason = format!(
                "{} records about the processor trace are missing ({why}): it can have gaps that are not marked",
                self.lost
            );
            lose(LossKind::AuxPartial, window.enabled, reason);
        }
        losses
    }

    fn boundary_after(&self, at: usize) -> Option<usize> {
        self.spans
            .iter()
            .filter_map(|span| usize::try_from(span.end).ok())
            .filter(|&end| end > at)
            .min()
    }

    fn flags_at(&self, end: u64) -> u64 {
        self.spans
            .iter()
            .filter(|span| span.end == end)
            .fold(0, |flags, span| flags | span.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{aux_record, lost_record};
    use super::*;

    const CPU: Cpu = Cpu(3);
    const WINDOW: Window = Window {
        cpu: CPU,
        enabled: MonoNs(100),
        disabling: MonoNs(890),
        disabled: MonoNs(900),
        buffer_bytes: 16 << 20,
    };

    fn log(records: &[Vec<u8>]) -> AuxLog {
        let mut log = AuxLog::default();
        log.add(&records.concat());
        log
    }

    /// `(offset, length, flags)` of each piece.
    fn check(records: &[Vec<u8>], area: usize, expect: &[(u64, usize, u64)]) {
        let area: Vec<u8> = (0..area).map(|i| (i % 251) as u8).collect();
        let log = log(records);
        let pieces: Vec<_> = log.pieces(CPU, 7_000_000, &area).collect();
        let shape: Vec<_> = pieces
            .iter()
            .map(|p| (p.offset - 7_000_000, p.bytes.len(), p.aux_flags))
            .collect();
        assert_eq!(shape, expect);
        let joined: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.bytes).collect();
        assert_eq!(joined, area, "every byte once, in order");
    }

    #[test]
    fn pieces_end_at_records_and_at_a_mebibyte() {
        check(&[], 0, &[]);
        check(&[aux_record(5, 0, 100, 0)], 100, &[(0, 100, 0)]);
        check(
            &[aux_record(5, 0, 40, 0), aux_record(6, 40, 60, 1)],
            100,
            &[(0, 40, 0), (40, 60, 1)],
        );
        let mib = PIECE_BYTES as u64;
        check(
            &[aux_record(5, 0, mib + 10, 4)],
            PIECE_BYTES + 10,
            &[(0, PIECE_BYTES, 0), (mib, 10, 4)],
        );
        // A record of no bytes adds its flag to what ends there.
        check(&[aux_record(5, 0, 40, 0), aux_record(6, 40, 0, 1)], 40, &[(0, 40, 1)]);
        // Bytes without a record, records beyond the bytes.
        check(&[aux_record(5, 0, 40, 1)], 100, &[(0, 40, 1), (40, 60, 0)]);
        check(
            &[aux_record(5, 0, u64::MAX, 1), aux_record(5, u64::MAX, 9, 0)],
            100,
            &[(0, 100, 0)],
        );
    }

    fn check_losses(records: &[Vec<u8>], expect: &[(LossKind, u64, &str)]) {
        let losses = log(records).losses(&WINDOW);
        assert_eq!(losses.len(), expect.len(), "{losses:?}");
        for (loss, &(kind, from, says)) in losses.iter().zip(expect) {
            assert_eq!(
                (loss.kind, loss.from, loss.to, loss.cpu),
                (kind, MonoNs(from), MonoNs(900), Some(CPU))
            );
            assert!(loss.reason.contains(says), "{}", loss.reason);
        }
    }

    #[test]
    fn each_flag_is_a_loss_with_its_time() {
        check_losses(&[aux_record(895, 0, 64, 0)], &[]);
        // Nothing ran in user mode: no record.
        check_losses(&[], &[]);
        check_losses(
            &[aux_record(500, 0, 64, 0)],
            &[(LossKind::CpuHotplug, 500, "stopped the tracer by itself")],
        );
        check_losses(
            &[aux_record(500, 0, 64, 1)],
            &[(LossKind::AuxTruncated, 500, "buffer of 16 MiB was full")],
        );
        check_losses(
            &[aux_record(500, 0, 64, 4), aux_record(600, 64, 64, 1)],
            &[
                (LossKind::AuxTruncated, 600, "full"),
                (LossKind::AuxPartial, 100, "KVM"),
            ],
        );
        check_losses(
            &[aux_record(895, 0, 64, 8)],
            &[(LossKind::AuxPartial, 100, "flags 0x8")],
        );
        check_losses(&[lost_record(12)], &[(LossKind::AuxPartial, 100, "12 records")]);
        check_losses(&[vec![1, 2, 3]], &[(LossKind::AuxPartial, 100, "cut at offset 0")]);
    }

    #[test]
    fn the_buffer_is_full_since_the_record_that_says_so() {
        let log = log(&[aux_record(500, 0, 64, 0), aux_record(600, 64, 64, 1)]);
        assert_eq!(
            (log.full_since(1000), log.stopped()),
            (Some(MonoNs(600)), Some(MonoNs(600)))
        );
        // Full to the last byte, though the driver does not say so.
        assert_eq!(log.full_since(64), Some(MonoNs(500)));
        assert_eq!(AuxLog::default().full_since(64), None);
    }
}
