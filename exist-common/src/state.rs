//! What the programs and user space keep in maps: one [`Control`], and a [`CpuState`] for each CPU.

use crate::words::words;

words! {
    /// Written by user space only, each time as a whole.
    pub struct Control: u64 {
        /// 0: record nothing. Otherwise user space's half of the epoch: a new value makes every CPU judge
        /// the task that it runs again.
        epoch,
        /// Number of the period, from 1. The first switch-in of the target on a CPU in a period gives a notice.
        period,
        /// CLOCK_MONOTONIC when recording began: the time of [`flags::START`](crate::flags::START) records.
        start_ns,
        /// When user space last changed the set of targets: the time of [`flags::MOVED`](crate::flags::MOVED)
        /// records that this change caused.
        change_ns,
        /// CLOCK_MONOTONIC when recording ended: the time of [`flags::END`](crate::flags::END) records.
        end_ns,
    }
}

words! {
    /// One CPU's state and counters; only programs on that CPU write it.
    ///
    /// The task that comes in is judged once; as the one that goes out at the next switch it keeps that
    /// judgement, so that each `In` is followed by its `Out`. Only when the epoch has changed since
    /// (a task or the set of targets moved) is the running task judged again.
    pub struct CpuState: u64 {
        /// Epoch in which the running task was judged; 0: not yet, or recording has ended.
        epoch,
        /// The running task: its address, as a mark only. The next switch must be of it.
        task,
        /// Whether the running task is the target's.
        target,
        /// `tgid << 32 | pid` of the running task, as of its `In` record. Only for the target's.
        running,
        /// Time of its `In` record.
        since_ns,
        /// Records that this CPU produced, dropped ones included.
        produced,
        /// Records dropped because the CPU's ring was full, or there was none.
        dropped,
        /// Records whose room user space had given back when this CPU last looked.
        read,
        /// Time that the target ran here, up to the last `Out`.
        on_cpu_ns,
        /// Time of the last record.
        last_ns,
        /// The last period in which the target was seen here.
        period,
        /// When it was first seen here in that period.
        first_seen_ns,
        /// [`Op::Fork`](crate::Op::Fork) and other records of life dropped on this CPU because their ring was full.
        life_dropped,
        /// Cgroups below the target that could not be added because the map of targets was full.
        targets_full,
        /// Notices dropped because their ring was full.
        notices_dropped,
        /// Switches at which the kernel did not run the hook, as the next one showed.
        missed,
        /// Waits that are not told: their ring was full.
        waits_dropped,
        /// Threads whose waits are not told: the map of threads was full.
        waiting_full,
        /// Waits that are not told: the kernel did not run the hook when they began.
        waits_missed,
    }
}
