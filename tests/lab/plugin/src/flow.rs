//! One vCPU's control flow: takes blocks and discontinuities as the emulator reports them, gives branches to the
//! tracer and records to the ground truth. Pure.
//!
//! The block that ran last and the block that begins now give a branch its outcome, so a branch is known only when
//! its target begins (or an event hits the target first). An event inside a block means that its last instruction
//! was not executed; whether it was reached is known, since every block notes that it comes to its last instruction.

use std::collections::HashMap;

use exist_lab_truth as truth;
use exist_lab_truth::{Class, Exit, Header, Record, Writer};

use crate::block::Block;
use crate::tracer::Tracer;

/// The guest thread that runs on a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    pub tid: u64,
    pub cr3: u64,
    pub fs_base: u64,
}

/// What ran before.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// The kernel, or nothing that was seen.
    Outside,
    /// This block, from this address.
    Block(&'static Block, u64),
    /// An instruction that the emulation carried out itself: control goes on here.
    Skipped(u64),
}

/// A discontinuity, as the emulator reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Before the instruction at its address; the block before it ran to its end.
    Interrupt,
    /// By the instruction at its address.
    Exception,
}

/// The flow of one vCPU.
#[derive(Debug)]
pub struct Flow {
    pub tracer: Tracer,
    pub truth: Writer,
    before: Before,
    recording: bool,
    thread: Option<Thread>,
    ids: HashMap<(usize, u64), u64>,
    next_id: u64,
    /// Transitions that no rule explains: the packets there are wrong, and a run that has any is not to be trusted.
    pub unexplained: u64,
}

impl Flow {
    /// A flow in which nothing ran yet.
    pub fn new(header: Header, tracer: Tracer) -> Self {
        Self {
            tracer,
            truth: Writer::new(header),
            before: Before::Outside,
            recording: false,
            thread: None,
            ids: HashMap::new(),
            next_id: 0,
            unexplained: 0,
        }
    }

    /// Begins or ends the recording of blocks.
    pub fn record(&mut self, on: bool, now: u64) {
        if self.recording != on {
            self.recording = on;
            self.thread = None;
            self.truth.push(now, if on { &Record::On } else { &Record::Off });
        }
    }

    /// Forgets where control was: no block was seen for a while.
    pub fn lose_track(&mut self) {
        self.before = Before::Outside;
    }

    /// A user-mode block begins at `ip`. `whole` says that the block before it came to its last instruction;
    /// `thread` is asked only when user mode was entered.
    pub fn block(&mut self, block: &'static Block, ip: u64, whole: bool, now: u64, thread: impl FnOnce() -> Thread) {
        match self.before {
            Before::Outside => self.entered(ip, now),
            _ => self.came_to(ip, whole, now),
        }
        if self.recording {
            self.belongs_to(now, thread);
            let id = self.id(block, ip, now);
            self.truth.push(now, &Record::Ran { id });
        }
        if let Some(bytes) = self.tracer.tick(ip, now) {
            self.truth.push(now, &Record::OvfEnd { bytes });
        }
        self.before = Before::Block(block, ip);
    }

    /// The instruction before `next` was carried out by the emulation, which leaves its block there.
    pub fn skipped(&mut self, next: u64, now: u64) {
        if !matches!(self.before, Before::Outside) {
            self.cut(next, now);
            self.before = Before::Skipped(next);
        }
    }

    /// SYSCALL at `from` leaves user mode.
    pub fn syscall(&mut self, from: u64, now: u64) {
        self.tracer.leave_by_branch(now);
        self.left(Exit::Syscall, from, now);
    }

    /// An event takes control from user mode at `from`. `thread` as for a block.
    pub fn event(&mut self, event: Event, from: u64, whole: bool, now: u64, thread: impl FnOnce() -> Thread) {
        match self.before {
            Before::Outside => {
                self.entered(from, now);
                if self.recording {
                    self.belongs_to(now, thread);
                }
            }
            Before::Block(block, start) => {
                let offset = from.wrapping_sub(start);
                let inside = offset < block.code.len() as u64;
                // A fault in the last instruction has reached it without carrying it out.
                let faulted = inside && event == Event::Exception && (!whole || offset == u64::from(block.last));
                if faulted {
                    self.cut(from, now);
                } else {
                    self.came_to(from, whole, now);
                }
            }
            Before::Skipped(_) => self.came_to(from, whole, now),
        }
        self.tracer.leave_by_event(from, now);
        let exit = match event {
            Event::Interrupt => Exit::Interrupt,
            Event::Exception => Exit::Exception,
        };
        self.left(exit, from, now);
    }

    fn entered(&mut self, ip: u64, now: u64) {
        if let Some(bytes) = self.tracer.enter(ip, now) {
            self.truth.push(now, &Record::OvfEnd { bytes });
        }
    }

    /// Asks for the thread if user mode was entered just now.
    fn belongs_to(&mut self, now: u64, thread: impl FnOnce() -> Thread) {
        if self.thread.is_some() && !matches!(self.before, Before::Outside) {
            return;
        }
        let thread = thread();
        if self.thread != Some(thread) {
            self.thread = Some(thread);
            let Thread { tid, cr3, fs_base } = thread;
            self.truth.push(now, &Record::Thread { tid, cr3, fs_base });
        }
    }

    fn left(&mut self, exit: Exit, from: u64, now: u64) {
        self.before = Before::Outside;
        if self.recording {
            self.truth.push(now, &Record::Leave { exit, from });
        }
    }

    /// Control came to `ip`, which has not run yet.
    fn came_to(&mut self, ip: u64, whole: bool, now: u64) {
        let (block, start) = match self.before {
            Before::Block(block, start) => (block, start),
            Before::Skipped(next) if next == ip => return,
            Before::Skipped(from) => return self.unexplained(from, ip, now),
            Before::Outside => return,
        };
        let end = start.wrapping_add(block.code.len() as u64);
        let last_ip = start.wrapping_add(u64::from(block.last));
        let target = block.target.map(|target| start.wrapping_add_signed(target));
        if !whole {
            // The emulator left the block to run an instruction on its own (an atomic one, say).
            return if (start..last_ip).contains(&ip) {
                self.cut(ip, now)
            } else {
                self.unexplained(last_ip, ip, now)
            };
        }
        match block.class {
            Class::Conditional if target == Some(ip) => self.tracer.conditional(true),
            Class::Conditional if ip == end => self.tracer.conditional(false),
            Class::Jump if target == Some(ip) => {}
            Class::Call if target == Some(ip) => {
                if !block.calls_next() {
                    self.tracer.call(end);
                }
            }
            Class::JumpIndirect => self.tracer.indirect(ip),
            Class::CallIndirect => {
                self.tracer.indirect(ip);
                self.tracer.call(end);
            }
            Class::Return => self.tracer.ret(ip),
            Class::Other | Class::Repeat if ip == end => {}
            Class::Repeat if ip == last_ip => {}
            Class::Other if ip == last_ip => self.cut(ip, now),
            _ => self.unexplained(last_ip, ip, now),
        }
    }

    fn cut(&mut self, end: u64, now: u64) {
        if self.recording {
            self.truth.push(now, &Record::Cut { end });
        }
    }

    fn unexplained(&mut self, from: u64, to: u64, now: u64) {
        self.unexplained += 1;
        self.truth.push(now, &Record::Unexplained { from, to });
    }

    fn id(&mut self, block: &Block, ip: u64, now: u64) -> u64 {
        if let Some(id) = self.ids.get(&(block.index, ip)) {
            return *id;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.ids.insert((block.index, ip), id);
        let block = truth::Block {
            start: ip,
            last: block.last,
            class: block.class,
            code: block.code.clone(),
        };
        self.truth.push(now, &Record::Define { id, block });
        id
    }
}

#[cfg(test)]
mod tests;
