//! Fields of kernel structs, by plain loads at frozen offsets.
//!
//! The pointers come from tracepoint arguments or `bpf_get_current_task_btf`, so the verifier knows their
//! types and makes each load safe (a bad address reads as 0): no probe-read helper is called.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_task_btf, bpf_task_pt_regs, generated::bpf_probe_read_kernel},
    programs::BtfTracePointContext,
};
use exist_common::flags;

use crate::frozen::frozen;

/// `PF_KTHREAD`, include/linux/sched.h.
const PF_KTHREAD: u32 = 0x0020_0000;

/// Loads a field of a kernel struct.
///
/// # Safety
/// `base` must be a pointer whose type the verifier knows.
#[inline(always)]
pub unsafe fn load<T: Copy>(base: *const c_void, offset: u32) -> T {
    // SAFETY: the verifier checks offset and size against the type, and catches a fault.
    unsafe { *base.cast::<u8>().add(offset as usize).cast::<T>() }
}

/// The `n`th argument of a BTF tracepoint, as a word.
#[inline(always)]
pub fn argument(ctx: &BtfTracePointContext, n: usize) -> u64 {
    // SAFETY: the context is an array of words, one for each argument; the verifier refuses one too many.
    unsafe { *ctx.as_ptr().cast::<u64>().add(n) }
}

/// Reads kernel memory whose type the verifier does not know; 0 when that fails.
#[inline(always)]
fn probe<T: Copy + Default>(address: u64) -> T {
    let mut value = T::default();
    // SAFETY: the destination is ours and as large as is said; the helper zeroes it when it fails.
    unsafe {
        bpf_probe_read_kernel((&raw mut value).cast(), size_of::<T>() as u32, address as *const c_void);
    }
    value
}

/// A `task_struct`.
#[derive(Clone, Copy)]
pub struct Task(*const c_void);

impl Task {
    /// From a tracepoint's argument of type `struct task_struct *`.
    #[inline(always)]
    pub fn argument(ctx: &BtfTracePointContext, n: usize) -> Self {
        Self(argument(ctx, n) as *const c_void)
    }

    /// The task that runs here.
    #[inline(always)]
    pub fn current() -> Self {
        // SAFETY: the helper has no conditions.
        Self(unsafe { bpf_get_current_task_btf() }.cast_const().cast())
    }

    /// What users call the thread.
    #[inline(always)]
    pub fn tid(self) -> u32 {
        // SAFETY: a task is typed.
        unsafe { load(self.0, frozen!(task_pid)) }
    }

    /// What users call the process.
    #[inline(always)]
    pub fn pid(self) -> u32 {
        // SAFETY: a task is typed.
        unsafe { load(self.0, frozen!(task_tgid)) }
    }

    /// Process and thread in one word.
    #[inline(always)]
    pub fn pid_tid(self) -> u64 {
        u64::from(self.pid()) << 32 | u64::from(self.tid())
    }

    /// `__state`.
    #[inline(always)]
    pub fn state(self) -> u32 {
        // SAFETY: a task is typed.
        unsafe { load(self.0, frozen!(task_state)) }
    }

    /// The `css_set` that says in which cgroups it is.
    #[inline(always)]
    pub fn cgroups(self) -> *const c_void {
        // SAFETY: a task is typed.
        unsafe { load(self.0, frozen!(task_cgroups)) }
    }

    /// Its address, to tell it from others: a thread that executes a program may change its number, not its place.
    #[inline(always)]
    pub fn mark(self) -> u64 {
        self.0 as u64
    }

    /// For how long it has run since it came in, by the fair scheduler's accounts (`set_next_entity` notes the sum that it
    /// starts with, `put_prev_entity` has brought the sum up to date when it goes out).
    #[inline(always)]
    pub fn has_run_ns(self) -> u64 {
        // SAFETY: a task is typed.
        let (sum, before): (u64, u64) = unsafe {
            (
                load(self.0, frozen!(task_sum_exec)),
                load(self.0, frozen!(task_prev_sum_exec)),
            )
        };
        sum - before
    }

    /// Whether it is a thread of the kernel.
    #[inline(always)]
    pub fn is_kernel(self) -> bool {
        // SAFETY: a task is typed.
        let task_flags: u32 = unsafe { load(self.0, frozen!(task_flags)) };
        task_flags & PF_KTHREAD != 0
    }

    /// `throttled`, where the kernel has it.
    #[inline(always)]
    pub fn throttled(self) -> bool {
        // SAFETY: a task is typed.
        frozen!(task_throttled) != 0 && unsafe { load::<u8>(self.0, frozen!(task_throttled)) } & 1 != 0
    }

    /// The system call that it is in, if any (low 16 bits of `orig_ax`), and its first argument. Not for kernel threads.
    #[inline(always)]
    pub fn syscall(self) -> (u16, u64) {
        // SAFETY: the helper takes a task and gives typed registers.
        unsafe {
            let regs = bpf_task_pt_regs(self.0.cast_mut().cast()) as *const c_void;
            let number: u64 = load(regs, frozen!(regs_orig_ax));
            let arg0: u64 = load(regs, frozen!(regs_di));
            (number as u16, arg0)
        }
    }

    /// Type of the file behind a descriptor (`i_mode >> 12`); 0 when there is none.
    #[inline(always)]
    pub fn file_type(self, fd: u64) -> u8 {
        // SAFETY: `fdt` is typed; what an array of pointers leads to is not, so it is read with the helper, which
        // refuses bad addresses.
        unsafe {
            let files: *const c_void = load(self.0, frozen!(task_files));
            let fdt: *const c_void = load(files, frozen!(files_fdt));
            let most: u32 = load(fdt, frozen!(fdtable_max_fds));
            let fd = fd & 0xffff_ffff;
            if fd >= u64::from(most) {
                return 0;
            }
            let table: u64 = load(fdt, frozen!(fdtable_fd));
            let file = probe::<u64>(table + fd * 8);
            if file == 0 {
                return 0;
            }
            let inode = probe::<u64>(file + u64::from(frozen!(file_inode)));
            (probe::<u16>(inode + u64::from(frozen!(inode_mode))) >> 12) as u8
        }
    }

    /// Where it left user mode, or will resume.
    #[inline(always)]
    pub fn user_ip(self) -> UserIp {
        // SAFETY: a task is typed.
        let task_flags: u32 = unsafe { load(self.0, frozen!(task_flags)) };
        if task_flags & PF_KTHREAD != 0 {
            return UserIp::NONE;
        }
        // SAFETY: the helper takes a task and gives typed registers.
        let ip: u64 = unsafe {
            let regs = bpf_task_pt_regs(self.0.cast_mut().cast()) as *const c_void;
            load(regs, frozen!(regs_ip))
        };
        if ip == 0 { UserIp::NONE } else { UserIp { ip, flags: 0 } }
    }
}

/// A user-mode instruction pointer as a record tells it.
#[derive(Clone, Copy)]
pub struct UserIp {
    pub ip: u64,
    pub flags: u8,
}

impl UserIp {
    /// Of a task that has no user mode: a kernel thread, and a worker that a process has in the kernel, whose instruction
    /// pointer `copy_thread` sets to 0.
    const NONE: Self = Self {
        ip: 0,
        flags: flags::KERNEL,
    };
    /// Nobody can say.
    pub const UNKNOWN: Self = Self { ip: 0, flags: 0 };
}
