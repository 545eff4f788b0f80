//! The threads of a recording, told apart when the kernel uses a number again.

use std::{collections::HashMap, sync::Arc};

use super::state::TaskState;
use crate::{
    file::model::Record,
    units::{Cpu, MonoNs, Pid, Tid},
};

/// Number of a thread in [`Threads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadIx(pub u32);

/// One thread, from its creation to its exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    pub pid: Pid,
    pub tid: Tid,
    /// The last name it had; empty when unknown.
    pub name: Arc<str>,
    /// When it was created, if within the recording, and by whom.
    pub born: Option<MonoNs>,
    pub parent: Option<(Pid, Tid)>,
    /// When it was switched out for the last time.
    pub exited: Option<MonoNs>,
    /// It executed a program and took its process's number: this one ends when it is next switched out.
    is_renamed: bool,
    first: Option<MonoNs>,
    last_in: Option<(Cpu, MonoNs)>,
    last_out: Option<MonoNs>,
}

/// All of them, in the order in which they were first seen.
#[derive(Clone, Debug, Default)]
pub struct Threads {
    all: Vec<Thread>,
    /// The latest bearer of each number.
    by_tid: HashMap<u32, ThreadIx>,
}

impl Threads {
    pub fn iter(&self) -> impl Iterator<Item = (ThreadIx, &Thread)> {
        (0..).map(ThreadIx).zip(&self.all)
    }

    #[must_use]
    pub fn get(&self, thread: ThreadIx) -> &Thread {
        &self.all[thread.0 as usize]
    }

    fn of(&mut self, thread: ThreadIx) -> &mut Thread {
        &mut self.all[thread.0 as usize]
    }

    /// The latest thread with this number, if it is of this process.
    fn latest(&self, pid: Pid, tid: Tid) -> Option<ThreadIx> {
        self.by_tid.get(&tid.0).copied().filter(|&t| self.get(t).pid == pid)
    }

    fn add(&mut self, pid: Pid, tid: Tid) -> ThreadIx {
        let thread = ThreadIx(self.all.len() as u32);
        self.all.push(Thread {
            pid,
            tid,
            name: Arc::default(),
            born: None,
            parent: None,
            exited: None,
            is_renamed: false,
            first: None,
            last_in: None,
            last_out: None,
        });
        self.by_tid.insert(tid.0, thread);
        thread
    }

    /// A generation lists it as alive. (It may lag: a thread that exited is not born again by this.)
    pub(super) fn listed(&mut self, pid: Pid, tid: Tid, name: &Arc<str>) -> ThreadIx {
        let thread = self.latest(pid, tid).unwrap_or_else(|| self.add(pid, tid));
        let entry = self.of(thread);
        if entry.name.is_empty() {
            entry.name = name.clone();
        }
        thread
    }

    pub(super) fn named(&mut self, pid: Pid, tid: Tid, name: &Arc<str>) {
        let thread = self.latest(pid, tid).unwrap_or_else(|| self.add(pid, tid));
        self.of(thread).name = name.clone();
    }

    pub(super) fn comes_in(&mut self, r: &Record, time: MonoNs) -> ThreadIx {
        let (pid, tid) = (Pid(r.pid), Tid(r.tid));
        // Who exited does not come back: the number is used again, and the record of the fork is missing.
        let alive = self
            .latest(pid, tid)
            .filter(|&t| self.get(t).exited.is_none_or(|at| time <= at));
        let thread = alive.unwrap_or_else(|| self.add(pid, tid));
        let entry = self.of(thread);
        entry.first.get_or_insert(time);
        entry.last_in = Some((Cpu(r.cpu.into()), time));
        thread
    }

    pub(super) fn goes_out(&mut self, r: &Record, time: MonoNs) -> ThreadIx {
        let (pid, tid) = (Pid(r.pid), Tid(r.tid));
        let thread = self.latest(pid, tid).unwrap_or_else(|| self.add(pid, tid));
        let entry = self.of(thread);
        entry.first.get_or_insert(time);
        entry.last_out = entry.last_out.max(Some(time));
        // Between the record of its exit and this it may be switched out some times more.
        if entry.is_renamed || TaskState::from_raw(r.state) == TaskState::Dead {
            entry.exited = Some(time);
        }
        thread
    }

    pub(super) fn forked(&mut self, r: &Record, time: MonoNs) {
        let (pid, tid) = (Pid(r.pid), Tid(r.tid));
        // A record of its own run may have come first: the two travel on different ways.
        let same = self.latest(pid, tid).filter(|&t| {
            let known = self.get(t);
            known.born.is_none() && known.exited.is_none() && known.first.is_none_or(|first| time <= first)
        });
        let parent = (Pid(r.parent().0), Tid(r.parent().1));
        let name = self
            .latest(parent.0, parent.1)
            .map(|p| self.get(p).name.clone())
            .unwrap_or_default();
        let thread = same.unwrap_or_else(|| self.add(pid, tid));
        let entry = self.of(thread);
        (entry.born, entry.parent) = (Some(time), Some(parent));
        if entry.name.is_empty() {
            entry.name = name;
        }
    }

    /// The process executes another program: its one thread takes the process's number (fs/exec.c, `de_thread()`).
    /// `here` is who runs on the CPU.
    pub(super) fn executed(&mut self, r: &Record, time: MonoNs, here: Option<ThreadIx>) {
        let (pid, tid) = (Pid(r.pid), Tid(r.tid));
        let thread = self.latest(pid, tid).unwrap_or_else(|| self.add(pid, tid));
        let entry = self.of(thread);
        (entry.exited, entry.is_renamed) = (None, false);
        entry.first.get_or_insert(time);
        if let Some(here) = here.filter(|&h| h != thread && self.get(h).pid == pid) {
            // Its going out still has the old number; after that nobody has it.
            self.of(here).is_renamed = true;
        }
    }

    pub(super) fn exits(&mut self, r: &Record, time: MonoNs) {
        let (pid, tid) = (Pid(r.pid), Tid(r.tid));
        let thread = self.latest(pid, tid).unwrap_or_else(|| self.add(pid, tid));
        self.of(thread).first.get_or_insert(time);
    }

    /// How long the thread, on `cpu` in this time, was on another CPU too, by the stamps.
    pub(super) fn overlap_ns(&self, thread: ThreadIx, cpu: Cpu, from: MonoNs, to: MonoNs) -> Option<u64> {
        let (other, since) = self.get(thread).last_in?;
        (other != cpu && from <= since && since < to).then(|| to.0 - since.0)
    }
}
