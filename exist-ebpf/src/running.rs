//! What a CPU runs: who came in, who went out, and the records that say so.

use core::sync::atomic::AtomicU64;

use exist_common::{Control, CpuState, NoticeKind, Op, Record, flags};

use crate::{
    emit,
    maps::{CONTROL, CPUS, MOVES},
    target,
    task::{Task, UserIp},
    wait,
};

/// The kernel's half of the epoch: moves that it made.
static MOVE_EPOCH: AtomicU64 = AtomicU64::new(0);

/// This CPU's state beside what user space says.
pub struct Running {
    pub cpu: &'static mut CpuState,
    pub control: &'static Control,
    /// The epoch of now, both halves. 0 never occurs while recording.
    pub epoch: u64,
    /// User space's half.
    pub targets_epoch: u64,
}

impl Running {
    /// `None` while nothing is to be recorded.
    #[inline(always)]
    pub fn recording() -> Option<Self> {
        let control = CONTROL.get(0)?;
        // SAFETY: volatile, as user space writes it meanwhile.
        let epoch = unsafe { core::ptr::read_volatile(&raw const control.epoch) };
        if epoch == 0 {
            return None;
        }
        // SAFETY: volatile, as `count_move` writes it meanwhile.
        let moves = unsafe { core::ptr::read_volatile(MOVE_EPOCH.as_ptr()) };
        Some(Self {
            cpu: this_cpu()?,
            control,
            epoch: epoch + moves,
            targets_epoch: epoch,
        })
    }

    /// After recording has ended.
    #[inline(always)]
    pub fn ended() -> Option<Self> {
        Some(Self {
            cpu: this_cpu()?,
            control: CONTROL.get(0)?,
            epoch: 0,
            targets_epoch: 0,
        })
    }

    /// Makes the state that of the task which really runs here. It may differ in three ways, each of which is recorded:
    /// recording has just begun, the task was moved while it ran, or the kernel did not run the hook at a switch.
    ///
    /// (The last should not happen; but a kernel may keep tracing away from some of its tasks, and then the switch from
    /// such a task is missing.)
    #[inline(always)]
    pub fn catch_up(&mut self, task: Task) {
        if self.cpu.task != task.mark() && self.cpu.epoch != 0 {
            self.missed(task);
        } else if self.cpu.epoch != self.epoch {
            self.judge_again(task);
        }
        self.cpu.task = task.mark();
    }

    #[inline(always)]
    fn missed(&mut self, task: Task) {
        self.cpu.missed += 1;
        self.cpu.epoch = self.epoch;
        let now = emit::now_ns();
        let ran = task.has_run_ns();
        let since = if ran < now { now - ran } else { now };
        let at = self.not_before_last(since);
        if self.cpu.target != 0 {
            let room = emit::reserve::<1>(self.cpu);
            let record = self.goes_out(UserIp::UNKNOWN, at, flags::MISSED, 0);
            emit::write(self.cpu, room, [record]);
        }
        if target::judge(task, self.targets_epoch) {
            // It may have come in before it was moved into the target.
            let moved = self.moved_at(task);
            let (at, why) = if moved > at {
                (moved, flags::MOVED)
            } else {
                (at, flags::MISSED)
            };
            let room = emit::reserve::<1>(self.cpu);
            let record = self.comes_in(task, task.user_ip(), at, why);
            emit::write(self.cpu, room, [record]);
            wait::came_in(self.cpu, task);
        }
    }

    #[inline(always)]
    fn judge_again(&mut self, task: Task) {
        let was = self.cpu.target != 0;
        let is = target::judge(task, self.targets_epoch);
        let (why, at) = if self.cpu.epoch == 0 {
            (flags::START, self.control.start_ns)
        } else {
            (flags::MOVED, self.moved_at(task))
        };
        self.cpu.epoch = self.epoch;
        if was == is {
            return;
        }
        let at = self.not_before_last(at);
        let room = emit::reserve::<1>(self.cpu);
        let record = if is {
            self.comes_in(task, task.user_ip(), at, why)
        } else {
            wait::forget(task);
            self.goes_out(task.user_ip(), at, why, 0)
        };
        emit::write(self.cpu, room, [record]);
    }

    /// A CPU's records never go back in time: what is told late came after the last that was told.
    #[inline(always)]
    fn not_before_last(&self, at: u64) -> u64 {
        if at > self.cpu.last_ns { at } else { self.cpu.last_ns }
    }

    /// The target's task comes in. First things first: if it is the first on this CPU in the period, user space is told.
    #[inline(always)]
    pub fn comes_in(&mut self, task: Task, ip: UserIp, at: u64, why: u8) -> Record {
        let running = task.pid_tid();
        self.cpu.target = 1;
        self.cpu.running = running;
        self.cpu.since_ns = at;
        self.note_seen(at);
        self.record(ip, at, Op::In, why, 0)
    }

    /// The target's task goes out. It has the number that it came in with: a thread that executes a program takes
    /// its process's number, and its records must pair.
    #[inline(always)]
    pub fn goes_out(&mut self, ip: UserIp, at: u64, why: u8, state: u16) -> Record {
        self.cpu.target = 0;
        self.cpu.on_cpu_ns += at - self.cpu.since_ns;
        self.record(ip, at, Op::Out, why, state)
    }

    /// Tells user space if this is the first time in the period that the target is on this CPU.
    #[inline(always)]
    pub fn note_seen(&mut self, at: u64) {
        // SAFETY: volatile, as user space writes it meanwhile.
        let period = unsafe { core::ptr::read_volatile(&raw const self.control.period) };
        if self.cpu.period != period {
            self.cpu.period = period;
            self.cpu.first_seen_ns = at;
            emit::notice(self.cpu, NoticeKind::CpuSeen, self.cpu.running, period);
        }
    }

    #[inline(always)]
    fn record(&mut self, UserIp { ip, flags }: UserIp, at: u64, op: Op, why: u8, state: u16) -> Record {
        let seq = self.cpu.produced as u16;
        self.cpu.produced += 1;
        self.cpu.last_ns = at;
        Record {
            time_ns: at,
            ip,
            pid: (self.cpu.running >> 32) as u32,
            tid: self.cpu.running as u32,
            cpu: emit::cpu_number() as u16,
            op: op as u8,
            flags: why | flags,
            state,
            seq,
        }
    }

    fn moved_at(&self, task: Task) -> u64 {
        let mut at = self.control.change_ns;
        for key in [task.pid(), task.tid()] {
            // SAFETY: a value that changes meanwhile is still a time of a move.
            if let Some(&moved) = unsafe { MOVES.get(&key) } {
                if moved > at {
                    at = moved;
                }
            }
        }
        at
    }
}

/// A task was moved: every CPU is to judge the task that it runs again.
#[inline(always)]
pub fn count_move() {
    let epoch = MOVE_EPOCH.as_ptr();
    // SAFETY: the kernel makes moves one at a time (`cgroup_mutex`), so this is the only writer. Volatile, as other CPUs
    // read it meanwhile (LLVM has no relaxed atomics for BPF).
    unsafe { core::ptr::write_volatile(epoch, core::ptr::read_volatile(epoch) + 1) }
}

/// This CPU's state.
#[inline(always)]
pub fn this_cpu() -> Option<&'static mut CpuState> {
    // SAFETY: no other program that writes it runs on this CPU meanwhile (see `main`).
    CPUS.get_ptr_mut(0).map(|cpu| unsafe { &mut *cpu })
}
