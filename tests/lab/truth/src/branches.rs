//! Records → the branches that were taken, in order, with their thread.

use std::collections::HashMap;

use crate::reader::{Error, Reader};
use crate::record::{Block, Class, Exit, Record};

/// How control came to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edge {
    /// A branch instruction of this class was taken.
    Taken(Class),
    /// User mode was left at `from`; `to` is 0.
    Leave(Exit),
    /// User mode was entered at `to`; `from` is 0.
    Enter,
}

/// A change of control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    pub tsc: u64,
    pub tid: u64,
    pub from: u64,
    pub to: u64,
    pub edge: Edge,
}

/// The branches of one vCPU's file: an iterator that ends after the first error.
///
/// A block that comes back to its own repeated instruction, and one that ended without a branch, give none.
#[derive(Clone, Debug)]
pub struct Branches<'a> {
    reader: Reader<'a>,
    blocks: HashMap<u64, Block>,
    tid: u64,
    at: At,
}

#[derive(Clone, Debug)]
enum At {
    /// In the kernel, or the recording has just begun.
    Out,
    /// After this block.
    Block(u64),
    /// A block was cut: what runs next comes without a branch.
    Cut,
}

impl<'a> Branches<'a> {
    /// The branches of a reader that has not been advanced.
    pub fn new(reader: Reader<'a>) -> Self {
        Self {
            reader,
            blocks: HashMap::new(),
            tid: 0,
            at: At::Out,
        }
    }

    fn ran(&mut self, tsc: u64, id: u64) -> Option<Branch> {
        let to = self.blocks.get(&id)?.start;
        let branch = |from, edge| {
            Some(Branch {
                tsc,
                tid: self.tid,
                from,
                to,
                edge,
            })
        };
        let found = match self.at {
            At::Out => branch(0, Edge::Enter),
            At::Cut => None,
            At::Block(before) => self.blocks.get(&before).and_then(|before| match before.class {
                Class::Other | Class::Repeat => None,
                Class::Conditional if before.end() == to => None,
                class => branch(before.last_ip(), Edge::Taken(class)),
            }),
        };
        self.at = At::Block(id);
        found
    }

    /// The branches that a record tells of.
    pub(crate) fn step(&mut self, tsc: u64, record: Record) -> Vec<Branch> {
        match record {
            Record::Define { id, block } => {
                self.blocks.insert(id, block);
            }
            Record::Ran { id } => return self.ran(tsc, id).into_iter().collect(),
            Record::Cut { .. } => self.at = At::Cut,
            Record::Thread { tid, .. } => self.tid = tid,
            Record::On | Record::Off => self.at = At::Out,
            Record::Leave { exit, from } => return self.leave(tsc, exit, from),
            _ => {}
        }
        Vec::new()
    }

    fn leave(&mut self, tsc: u64, exit: Exit, from: u64) -> Vec<Branch> {
        let tid = self.tid;
        let mut found = Vec::new();
        // An event can come before the target of the last branch has run at all.
        match self.at {
            At::Out => found.push(Branch {
                tsc,
                tid,
                from: 0,
                to: from,
                edge: Edge::Enter,
            }),
            At::Block(id) if exit != Exit::Syscall => {
                if let Some(before) = self.blocks.get(&id) {
                    let taken = match before.class {
                        Class::Other | Class::Repeat | Class::Far => false,
                        Class::Conditional => before.end() != from,
                        // Also to the next address: an entry of the PLT that is not bound yet jumps there.
                        _ => true,
                    };
                    if taken {
                        let edge = Edge::Taken(before.class);
                        found.push(Branch {
                            tsc,
                            tid,
                            from: before.last_ip(),
                            to: from,
                            edge,
                        });
                    }
                }
            }
            _ => {}
        }
        found.push(Branch {
            tsc,
            tid,
            from,
            to: 0,
            edge: Edge::Leave(exit),
        });
        self.at = At::Out;
        found
    }
}

impl Branches<'_> {
    /// Calls `each` with every branch, in order.
    ///
    /// # Errors
    /// The reader's, at the first record that cannot be read.
    pub fn for_each(mut self, mut each: impl FnMut(Branch)) -> Result<(), Error> {
        while let Some(item) = self.reader.next() {
            let item = item?;
            self.step(item.tsc, item.record).into_iter().for_each(&mut each);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, Writer};

    const CALL: Class = Class::Call;

    /// Blocks are named by their place here: (start, length, offset of the last instruction, class).
    const BLOCKS: [(u64, usize, u32, Class); 5] = [
        (0x1000, 6, 4, Class::Conditional),
        (0x1006, 5, 0, CALL),
        (0x2000, 4, 3, Class::Return),
        (0x100b, 2, 0, Class::Far),
        (0x100d, 2, 0, Class::Repeat),
    ];

    fn check(program: &[Record], expect: &[(u64, u64, Edge)]) {
        let mut writer = Writer::new(Header { cpu: 0, tsc_hz: 1 });
        for (id, (start, length, last, class)) in BLOCKS.into_iter().enumerate() {
            let block = Block {
                start,
                last,
                class,
                code: vec![0; length],
            };
            writer.push(1, &Record::Define { id: id as u64, block });
        }
        for record in program {
            writer.push(1, record);
        }
        let mut found = Vec::new();
        let reader = Reader::new(writer.bytes()).unwrap();
        Branches::new(reader)
            .for_each(|b| found.push((b.from, b.to, b.edge)))
            .unwrap();
        assert_eq!(found, expect);
    }

    fn ran(id: u64) -> Record {
        Record::Ran { id }
    }

    #[test]
    fn only_taken_branches() {
        let taken = |class| Edge::Taken(class);
        check(
            &[
                ran(0),
                ran(1),
                ran(2),
                ran(3),
                Record::Leave {
                    exit: Exit::Syscall,
                    from: 0x100b,
                },
                ran(4),
                ran(4),
                ran(0),
                ran(0),
            ],
            &[
                (0, 0x1000, Edge::Enter),
                (0x1006, 0x2000, taken(CALL)),
                (0x2003, 0x100b, taken(Class::Return)),
                (0x100b, 0, Edge::Leave(Exit::Syscall)),
                (0, 0x100d, Edge::Enter),
                (0x1004, 0x1000, taken(Class::Conditional)),
            ],
        );
    }

    #[test]
    fn an_interrupt_after_a_branch_to_the_next_address() {
        let at = |from| Record::Leave {
            exit: Exit::Interrupt,
            from,
        };
        check(
            &[ran(1), at(0x100b), ran(0), at(0x1006)],
            &[
                (0, 0x1006, Edge::Enter),
                (0x1006, 0x100b, Edge::Taken(CALL)),
                (0x100b, 0, Edge::Leave(Exit::Interrupt)),
                (0, 0x1000, Edge::Enter),
                (0x1006, 0, Edge::Leave(Exit::Interrupt)),
            ],
        );
    }

    #[test]
    fn an_interrupt_after_the_branch_and_a_fault_before_it() {
        let interrupt = Record::Leave {
            exit: Exit::Interrupt,
            from: 0x2000,
        };
        let fault = [
            Record::Cut { end: 0x1000 },
            Record::Leave {
                exit: Exit::Exception,
                from: 0x1000,
            },
        ];
        let [cut, leave] = fault;
        check(
            &[ran(1), interrupt, ran(0), cut, leave, ran(0)],
            &[
                (0, 0x1006, Edge::Enter),
                (0x1006, 0x2000, Edge::Taken(CALL)),
                (0x2000, 0, Edge::Leave(Exit::Interrupt)),
                (0, 0x1000, Edge::Enter),
                (0x1000, 0, Edge::Leave(Exit::Exception)),
                (0, 0x1000, Edge::Enter),
            ],
        );
    }
}
