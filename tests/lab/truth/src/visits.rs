//! Records → visits: each stretch of user mode between an entry and the exit that follows it, with its thread.

use std::collections::{BTreeMap, HashMap};

use crate::branches::Branches;
use crate::reader::{Error, Reader};
use crate::record::{Class, Record};

/// A change of control flow: from, to; 0 where user mode was entered or left.
pub type Step = (u64, u64);

/// Packets of at most this many visits wait in the processor when its output stops: 256 bytes, of two bytes a visit or more.
const PENDING_AT_STOP: usize = 128;

/// How much of a visit the tracer put into its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traced {
    /// The tracer was off.
    No,
    Whole,
    /// An overflow or a stop lost packets within.
    Holed,
    /// Packets of it may have waited when the output stopped.
    Pending,
}

/// One stretch of user mode on one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    pub tid: u64,
    /// The address space, by its page table.
    pub cr3: u64,
    /// TSC at the entry and at the exit.
    pub entered: u64,
    pub left: u64,
    pub traced: Traced,
    /// The entry, each taken branch, the exit. Empty when the tracer was off.
    pub steps: Vec<Step>,
    /// How many steps there were.
    pub count: usize,
}

/// What one CPU's user mode did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// In order. One that the recording of the truth began or ended within is left out.
    pub visits: Vec<Visit>,
    /// Overflows that were resolved.
    pub overflows: usize,
    /// When the output stopped, TSC.
    pub stops: Vec<u64>,
    /// Transitions that the lab cannot explain: with one, the run proves nothing.
    pub unexplained: Vec<Step>,
    /// The code that ran, by address space and address of a block.
    pub code: HashMap<u64, BTreeMap<u64, Vec<u8>>>,
    /// Call instructions that ran: address space and address, with the address behind them.
    pub calls: HashMap<(u64, u64), u64>,
}

struct Reading<'a> {
    branches: Branches<'a>,
    out: Visits,
    open: Option<Visit>,
    space: (u64, u64),
    on: bool,
    losing: bool,
}

impl Visits {
    /// Reads one CPU's file.
    ///
    /// # Errors
    /// A file that is not whole.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes)?;
        let mut reading = Reading {
            branches: Branches::new(reader.clone()),
            out: Self::default(),
            open: None,
            space: (0, 0),
            on: false,
            losing: false,
        };
        while let Some(item) = reader.next() {
            let item = item?;
            if let Record::Ran { id } = item.record
                && let Some(block) = reader.block(id)
            {
                let space = reading.space.1;
                if matches!(block.class, Class::Call | Class::CallIndirect) {
                    reading.out.calls.insert((space, block.last_ip()), block.end());
                }
                let code = reading.out.code.entry(space).or_default();
                code.entry(block.start).or_insert_with(|| block.code.clone());
            }
            reading.record(item.tsc, item.record);
        }
        Ok(reading.out)
    }
}

impl Reading<'_> {
    fn record(&mut self, tsc: u64, record: Record) {
        match record {
            Record::Thread { tid, cr3, .. } => self.space = (tid, cr3),
            Record::On | Record::Off => self.open = None,
            Record::RtitCtl { value } => {
                self.on = value & 1 != 0;
                // A tracer that stopped is started again by the next write that enables it.
                self.losing &= !self.on;
            }
            Record::OvfBegin => self.lose(),
            Record::OvfEnd { .. } => {
                self.out.overflows += 1;
                self.losing = false;
            }
            Record::Stopped => {
                self.out.stops.push(tsc);
                self.lose();
                for visit in self.out.visits.iter_mut().rev().take(PENDING_AT_STOP) {
                    if visit.traced == Traced::Whole {
                        visit.traced = Traced::Pending;
                    }
                }
            }
            Record::Unexplained { from, to } => self.out.unexplained.push((from, to)),
            _ => {}
        }
        let leaves = matches!(record, Record::Leave { .. });
        for branch in self.branches.step(tsc, record) {
            if branch.from == 0 {
                self.enter(tsc);
            }
            if let Some(visit) = &mut self.open {
                visit.count += 1;
                if visit.traced != Traced::No {
                    visit.steps.push((branch.from, branch.to));
                }
            }
        }
        if leaves && let Some(visit) = self.open.take() {
            self.out.visits.push(Visit { left: tsc, ..visit });
        }
    }

    fn enter(&mut self, tsc: u64) {
        let (tid, cr3) = self.space;
        let traced = match (self.on, self.losing) {
            (false, _) => Traced::No,
            (true, false) => Traced::Whole,
            (true, true) => Traced::Holed,
        };
        self.open = Some(Visit {
            tid,
            cr3,
            entered: tsc,
            left: tsc,
            traced,
            steps: Vec::new(),
            count: 0,
        });
    }

    fn lose(&mut self) {
        self.losing = true;
        if let Some(visit) = &mut self.open
            && visit.traced == Traced::Whole
        {
            visit.traced = Traced::Holed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Exit, Header, Writer};

    fn check(program: &[Record], expect: &[(u64, Traced, usize)]) {
        let mut writer = Writer::new(Header { cpu: 0, tsc_hz: 1 });
        let block = Block {
            start: 0x1000,
            last: 0,
            class: Class::Jump,
            code: vec![0xeb, 0xfe],
        };
        writer.push(1, &Record::Define { id: 0, block });
        for (tsc, record) in (2..).zip(program) {
            writer.push(tsc, record);
        }
        let found = Visits::read(writer.bytes()).unwrap();
        let rows: Vec<_> = found.visits.iter().map(|v| (v.tid, v.traced, v.count)).collect();
        assert_eq!(rows, expect);
        for visit in &found.visits {
            assert_eq!(
                visit.steps.len(),
                if visit.traced == Traced::No { 0 } else { visit.count }
            );
        }
    }

    const RAN: Record = Record::Ran { id: 0 };
    const LEAVE: Record = Record::Leave {
        exit: Exit::Interrupt,
        from: 0x1000,
    };

    fn thread(tid: u64) -> Record {
        Record::Thread {
            tid,
            cr3: 1,
            fs_base: 0,
        }
    }

    #[test]
    fn a_visit_has_its_thread_and_says_what_was_traced() {
        let on = Record::RtitCtl { value: 1 };
        check(
            &[thread(7), RAN, RAN, LEAVE, on, RAN, LEAVE, thread(8), RAN, RAN],
            &[(7, Traced::No, 4), (7, Traced::Whole, 3)],
        );
    }

    #[test]
    fn losses_touch_the_visits_that_they_meet() {
        let on = Record::RtitCtl { value: 1 };
        let program = [
            &[on, thread(1), RAN, Record::OvfBegin, LEAVE][..],
            &[RAN, LEAVE, RAN, Record::OvfEnd { bytes: 9 }, LEAVE, RAN, LEAVE],
        ];
        let holed = (1, Traced::Holed, 3);
        check(&program.concat(), &[holed, holed, holed, (1, Traced::Whole, 3)]);
        check(
            &[
                Record::RtitCtl { value: 1 },
                thread(1),
                RAN,
                LEAVE,
                Record::Stopped,
                RAN,
                LEAVE,
            ],
            &[(1, Traced::Pending, 3), holed],
        );
    }
}
