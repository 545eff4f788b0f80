//! One CPU: its stream, its segments and whose they are.

use std::collections::HashMap;

use super::{
    attribution::{Counts, Owner, Switch, attribute},
    segments::{Segment, Segments},
};
use crate::{
    file::model::{Record, SwitchOp},
    image::Image,
    pt::{Errata, Packets, TimeLine, TimeSettings},
    units::{ClockMap, Cpu, Pid, TscBracket},
    walk::{Code, Step, Walker, What},
};

/// What one CPU recorded, put in order.
#[derive(Debug)]
pub struct CpuFlow {
    pub cpu: Cpu,
    pub bytes: Vec<u8>,
    pub errata: Errata,
    pub line: TimeLine,
    pub segments: Segments,
    /// One for each segment.
    pub owners: Vec<Owner>,
    pub counts: Counts,
}

/// What is needed beside the stream.
pub struct Context<'a> {
    pub image: &'a Image,
    pub clock: &'a ClockMap,
    pub time: TimeSettings,
}

impl CpuFlow {
    /// From a CPU's whole stream and its records, in its order.
    #[must_use]
    pub fn new(cpu: Cpu, bytes: Vec<u8>, errata: Errata, records: &[Record], context: &Context<'_>) -> Self {
        let packets = Packets::new(&bytes, 0, errata);
        let line = TimeLine::read(packets.clone(), u64::MAX, &context.time);
        let segments = Segments::read(packets, &line);
        let (switches, loss) = switches(records, context.clock);
        let mut flow = Self {
            cpu,
            bytes,
            errata,
            line,
            segments,
            owners: Vec::new(),
            counts: Counts::default(),
        };
        let mut known = HashMap::new();
        let (owners, counts) = attribute(&flow.segments.segments, &switches, &loss, &mut |segment, pid| {
            *known
                .entry((segment, pid))
                .or_insert_with(|| flow.resume_of(segment, pid, context))
        });
        (flow.owners, flow.counts) = (owners, counts);
        flow
    }

    /// Where user mode would go on after a segment, if `pid` executed it.
    fn resume_of(&self, segment: usize, pid: Pid, context: &Context<'_>) -> Option<u64> {
        let segment = self.segments.segments.get(segment)?;
        let space = context.image.space(pid, context.clock.mono(segment.entered.lo))?;
        let mut code = Code::new(|ip| space.bytes(ip));
        let last = self.walk(segment, &mut code).last()?;
        match last.what {
            What::Disabled(disabled) => disabled.resume,
            _ => None,
        }
    }

    /// What was executed in a segment.
    pub fn walk<'w, 'b, F>(
        &'w self,
        segment: &Segment,
        code: &'w mut Code<F>,
    ) -> impl Iterator<Item = Step> + use<'w, 'b, F>
    where
        F: FnMut(u64) -> Result<&'b [u8], crate::image::NoCode>,
    {
        let packets = Packets::new(&self.bytes, segment.start, self.errata);
        match segment.entry {
            super::segments::Entry::Sync => Walker::new(packets, segment.end, code),
            _ => Walker::resume(packets, segment.end, code, segment.resume),
        }
    }
}

/// Switches with their time, and whether records are missing before each.
fn switches(records: &[Record], clock: &ClockMap) -> (Vec<Switch>, Vec<bool>) {
    let (mut switches, mut losses) = (Vec::new(), Vec::new());
    let mut expected: Option<u16> = None;
    let mut lost = false;
    for record in records {
        // Only these are numbered (`Record::seq`); those of a thread's life travel apart.
        if let Some(SwitchOp::In | SwitchOp::Out) = record.op() {
            lost |= expected.is_some_and(|seq| seq != record.seq);
            expected = Some(record.seq.wrapping_add(1));
            let time: TscBracket = clock.tsc(crate::units::MonoNs(record.time_ns));
            switches.push(Switch { record: *record, time });
            losses.push(std::mem::take(&mut lost));
        }
    }
    (switches, losses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        file::model::flags,
        units::{ClockPair, MonoNs, Tsc},
    };

    /// Records as (operation, number, flags); gives which switches come after missing records.
    fn check(records: &[(SwitchOp, u16, u8)], expect: &[bool]) {
        let records: Vec<Record> = (1..)
            .zip(records)
            .map(|(time_ns, &(op, seq, flags))| Record {
                time_ns,
                ip: 0,
                pid: 1,
                tid: 1,
                cpu: 0,
                op: op as u8,
                flags,
                state: 0,
                seq,
            })
            .collect();
        let pair = ClockPair {
            mono: MonoNs(0),
            tsc_before: Tsc(0),
            tsc_after: Tsc(0),
        };
        let clock = ClockMap::new(&[pair], 1_000_000).unwrap();
        assert_eq!(switches(&records, &clock).1, expect);
    }

    #[test]
    fn only_switches_are_numbered() {
        use SwitchOp::{Exec, Exit, Fork, In, Out};
        check(
            &[
                (In, 65534, flags::START),
                (Fork, 0, 0),
                (Exec, 0, 0),
                (Out, 65535, 0),
                (In, 0, 0),
                (Exit, 0, 0),
                (Out, 1, 0),
            ],
            &[false; 4],
        );
        check(
            &[(In, 4, 0), (Out, 5, 0), (In, 7, 0), (Out, 8, flags::END)],
            &[false, false, true, false],
        );
    }
}
