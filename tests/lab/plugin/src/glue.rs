//! QEMU's call-backs: takes raw pointers and vCPU indices, calls the safe rooms.
//!
//! Each vCPU has its own host thread, and its state is touched only in its own call-backs; what one vCPU asks of all
//! goes through `Switches`, which each follows at its next call-back.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use exist_lab_truth::{Header, Record};

use crate::block::{Block, Special, special};
use crate::clock::Clock;
use crate::cpuid::{self, MtcPeriods, Request};
use crate::ffi::{self, Api, Insn, PerVcpu, Tb};
use crate::flow::{Event, Flow, Thread};
use crate::machine::{Handles, Machine, Reg};
use crate::packet::IpForms;
use crate::tracer::{Options, TntForms, Tracer};
use crate::vcpu::Vcpu;

/// QEMU looks for this name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "QEMU's name")]
pub static qemu_plugin_version: c_int = ffi::VERSION;

const MOST_VCPUS: usize = 64;
const LMA: u64 = 1 << 10;

struct Lab {
    api: Api,
    clock: Clock,
    options: Options,
    mtc_periods: MtcPeriods,
    truth: PathBuf,
    /// Not 0 while a vCPU's user-mode blocks must be seen.
    active: PerVcpu,
    /// 1 once the running block came to its last instruction.
    whole: PerVcpu,
    vcpus: [Slot; MOST_VCPUS],
    tracing: [AtomicBool; MOST_VCPUS],
    /// How many vCPUs there are.
    started: AtomicU32,
    blocks: AtomicUsize,
    switches: Switches,
}

/// No block is recorded; every user-mode block is; those are that run while PT is on.
const OFF: u32 = 0;
const ALL: u32 = 1;
const TRACED: u32 = 2;

/// What a guest program asked of every vCPU.
#[derive(Default)]
struct Switches {
    epoch: AtomicU64,
    /// `OFF`, `ALL` or `TRACED`.
    recording: AtomicU32,
    overflow_bytes: AtomicU32,
    current_at: AtomicU64,
    pid_at: AtomicU64,
}

/// A vCPU's state, used by that vCPU's thread alone.
struct Slot(UnsafeCell<Option<(Vcpu, Handles)>>);

// SAFETY: QEMU calls back for a vCPU on that vCPU's thread only (and at exit, when they are all stopped); each slot is
// reached by its own index alone. The pointers in `Lab` are QEMU's own, valid for the life of the process.
unsafe impl Sync for Lab {}
// SAFETY: as above.
unsafe impl Send for Lab {}

static LAB: OnceLock<Lab> = OnceLock::new();

impl Lab {
    /// This vCPU's state, once in a call-back. `None` before its init call-back.
    #[allow(clippy::mut_from_ref, reason = "the slot is this thread's own, see `Slot`")]
    fn vcpu(&self, index: c_uint) -> Option<(&mut Vcpu, Machine<'_>)> {
        let slot = self.vcpus.get(index as usize)?;
        // SAFETY: see `Slot`: this is the vCPU's thread, and no call-back nests in another.
        let (vcpu, handles) = unsafe { (*slot.0.get()).as_mut()? };
        Some((
            vcpu,
            Machine {
                api: &self.api,
                handles: *handles,
            },
        ))
    }

    /// Lets a vCPU follow what was asked of all.
    fn follow(&self, vcpu: &mut Vcpu, now: u64) {
        let epoch = self.switches.epoch.load(Ordering::Acquire);
        if epoch == vcpu.epoch {
            return;
        }
        vcpu.epoch = epoch;
        if !vcpu.traces() {
            vcpu.flow.lose_track();
        }
        vcpu.flow
            .record(self.switches.recording.load(Ordering::Relaxed) != OFF, now);
        let bytes = self.switches.overflow_bytes.load(Ordering::Relaxed);
        if bytes > 0 && vcpu.traces() {
            vcpu.flow.tracer.overflow(bytes.into());
            vcpu.flow.truth.push(now, &Record::OvfBegin);
        }
    }

    /// Makes a vCPU's blocks seen, or not.
    fn set_active(&self, index: c_uint) {
        let traces = self.tracing[index as usize].load(Ordering::Relaxed);
        let active = traces || self.switches.recording.load(Ordering::Relaxed) == ALL;
        // SAFETY: the scoreboard is ours and has an entry for each vCPU.
        unsafe { (self.api.u64_set)(self.active, index, active.into()) };
    }

    fn take_whole(&self, index: c_uint) -> bool {
        // SAFETY: as in `set_active`.
        unsafe {
            let whole = (self.api.u64_get)(self.whole, index) != 0;
            (self.api.u64_set)(self.whole, index, 0);
            whole
        }
    }

    /// The guest's `current->pid`, CR3 and FS base, with user mode about to run.
    fn thread(&self, machine: Machine) -> Thread {
        let current_at = self.switches.current_at.load(Ordering::Relaxed);
        let pid_at = self.switches.pid_at.load(Ordering::Relaxed);
        let current = machine.get(Reg::KernelGsBase).wrapping_add(current_at);
        let task = (pid_at != 0).then(|| machine.read_virtual(current, 8)).flatten();
        let tid = task
            .and_then(|task| machine.read_virtual(task.wrapping_add(pid_at), 4))
            .unwrap_or(0);
        Thread {
            tid,
            cr3: machine.get(Reg::Cr3),
            fs_base: machine.get(Reg::FsBase),
        }
    }

    /// Carries out a guest program's request; gives CPUID's answer.
    fn request(&self, vcpu: &mut Vcpu, request: Request, now: u64) -> [u32; 4] {
        let switches = &self.switches;
        switches.overflow_bytes.store(0, Ordering::Relaxed);
        match request {
            Request::Probe => {}
            Request::RecordAll => switches.recording.store(ALL, Ordering::Relaxed),
            Request::RecordTraced => switches.recording.store(TRACED, Ordering::Relaxed),
            Request::RecordOff => switches.recording.store(OFF, Ordering::Relaxed),
            Request::CurrentAt(at) => switches.current_at.store(i64::from(at) as u64, Ordering::Relaxed),
            Request::PidAt(at) => switches.pid_at.store(at.into(), Ordering::Relaxed),
            Request::Overflow(bytes) => switches.overflow_bytes.store(bytes, Ordering::Relaxed),
            Request::Mark(value) => vcpu.flow.truth.push(now, &Record::Mark { value: value.into() }),
        }
        switches.epoch.fetch_add(1, Ordering::Release);
        if matches!(request, Request::RecordAll | Request::RecordTraced | Request::RecordOff) {
            for index in 0..self.started.load(Ordering::Relaxed) {
                self.set_active(index);
            }
        }
        [1, vcpu.index, 0x4c41_4221, 0]
    }
}

/// The host's TSC, which is the guest's too.
fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has RDTSC.
    unsafe { core::arch::x86_64::_rdtsc() }
}

fn tsc_hz() -> u64 {
    let (begin, first) = (Instant::now(), tsc());
    std::thread::sleep(Duration::from_millis(60));
    let (elapsed, last) = (begin.elapsed(), tsc());
    (u128::from(last - first) * 1_000_000_000 / elapsed.as_nanos().max(1)) as u64
}

/// The plugin's entry.
///
/// # Safety
/// QEMU calls it, with its own `info` and `argc` strings in `argv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const ffi::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU's promise.
    let (version, arguments) = unsafe {
        let arguments = (0..argc as usize).map(|at| CStr::from_ptr(*argv.add(at)).to_string_lossy().into_owned());
        ((*info).version_cur, arguments.collect::<Vec<_>>())
    };
    match install(id, version, &arguments) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("lab-plugin: {reason}");
            1
        }
    }
}

fn install(id: u64, version: c_int, arguments: &[String]) -> Result<(), String> {
    if version < ffi::VERSION {
        return Err(format!(
            "this QEMU has plugin API {version}, the lab needs {}: use QEMU 11.1",
            ffi::VERSION
        ));
    }
    let api = Api::load().map_err(|name| format!("this QEMU has no {name}: use QEMU 11.1"))?;
    let mut truth = None;
    let mut options = Options::default();
    let mut mtc_periods = MtcPeriods::default();
    for argument in arguments {
        match argument.split_once('=') {
            Some(("truth", path)) => truth = Some(PathBuf::from(path)),
            Some(("ip", "all")) => options.ip_forms = IpForms::All,
            Some(("tnt", "long")) => options.tnt = TntForms::Long,
            Some(("mtc", "coarse")) => mtc_periods = MtcPeriods::Coarse,
            _ => {
                return Err(format!(
                    "unknown argument {argument}: truth=FOLDER, ip=all, tnt=long, mtc=coarse"
                ));
            }
        }
    }
    let truth = truth.ok_or("the argument truth=FOLDER is missing")?;
    let per_vcpu = || PerVcpu {
        // SAFETY: a plain allocation by QEMU, which lives as long as the process.
        scoreboard: unsafe { (api.scoreboard_new)(8) },
        offset: 0,
    };
    let (active, whole) = (per_vcpu(), per_vcpu());
    let lab = Lab {
        api,
        clock: Clock { tsc_hz: tsc_hz() },
        options,
        mtc_periods,
        truth,
        active,
        whole,
        vcpus: [const { Slot(UnsafeCell::new(None)) }; MOST_VCPUS],
        tracing: [const { AtomicBool::new(false) }; MOST_VCPUS],
        started: AtomicU32::new(0),
        blocks: AtomicUsize::new(0),
        switches: Switches::default(),
    };
    let lab = LAB.get_or_init(|| lab);
    let none = std::ptr::null_mut();
    // SAFETY: the call-backs have the types of API version 7 and live as long as the process.
    unsafe {
        (lab.api.register_vcpu_init_cb)(id, on_vcpu_init, none);
        (lab.api.register_vcpu_idle_cb)(id, on_idle, none);
        (lab.api.register_vcpu_resume_cb)(id, on_resume, none);
        (lab.api.register_tb_trans_cb)(id, on_translate, none);
        (lab.api.register_discon_cb)(id, ffi::DISCON_INTERRUPT | ffi::DISCON_EXCEPTION, on_event, none);
        (lab.api.register_atexit_cb)(id, on_exit, none);
    }
    Ok(())
}

extern "C" fn on_vcpu_init(index: c_uint, _: *mut c_void) {
    let Some(lab) = LAB.get() else { return };
    let Some(slot) = lab.vcpus.get(index as usize) else {
        eprintln!("lab-plugin: vCPU {index} is one too many: at most {MOST_VCPUS}");
        std::process::exit(1);
    };
    let path = lab.truth.join(format!("truth.{index}"));
    let opened = File::create(&path).map_err(|error| format!("cannot write {}: {error}", path.display()));
    let handles = Handles::find(&lab.api).map_err(|name| format!("this QEMU has no register {name}"));
    match opened.and_then(|file| handles.map(|handles| (file, handles))) {
        Ok((file, handles)) => {
            let header = Header {
                cpu: index,
                tsc_hz: lab.clock.tsc_hz,
            };
            let flow = Flow::new(header, Tracer::new(lab.clock, lab.options));
            let vcpu = Vcpu::new(index, flow, lab.clock.ratio(), file);
            // SAFETY: see `Slot`: the vCPU's own thread, before any other call-back of it.
            unsafe { *slot.0.get() = Some((vcpu, handles)) };
            lab.started.fetch_max(index + 1, Ordering::Relaxed);
        }
        Err(reason) => {
            eprintln!("lab-plugin: {reason}");
            std::process::exit(1);
        }
    }
}

extern "C" fn on_idle(index: c_uint, _: *mut c_void) {
    if let Some((vcpu, _)) = LAB.get().and_then(|lab| lab.vcpu(index)) {
        vcpu.flow.tracer.sleep(tsc());
    }
}

extern "C" fn on_resume(index: c_uint, _: *mut c_void) {
    if let Some((vcpu, _)) = LAB.get().and_then(|lab| lab.vcpu(index)) {
        vcpu.flow.tracer.wake(tsc());
    }
}

/// What a special instruction's call-back must know.
struct Site {
    special: Special,
    kernel: bool,
    block_at: u64,
    at: u64,
    length: u64,
}

extern "C" fn on_translate(tb: *mut Tb, _: *mut c_void) {
    let Some(lab) = LAB.get() else { return };
    let api = &lab.api;
    // SAFETY: `tb` is valid during this call-back, and so are its instructions.
    unsafe {
        let (start, count) = ((api.tb_vaddr)(tb), (api.tb_n_insns)(tb));
        let kernel = start >> 63 != 0;
        let mut code = Vec::new();
        let mut last = (0, std::ptr::null_mut());
        for at in 0..count {
            let insn = (api.tb_get_insn)(tb, at);
            let mut bytes = [0; 16];
            let length = (api.insn_data)(insn, bytes.as_mut_ptr(), bytes.len());
            last = (code.len() as u32, insn);
            code.extend_from_slice(&bytes[..length]);
            if let Some(special) = special(&bytes[..length]) {
                watch(
                    lab,
                    insn,
                    Site {
                        special,
                        kernel,
                        block_at: start,
                        at: (api.insn_vaddr)(insn),
                        length: length as u64,
                    },
                );
            }
        }
        if kernel || last.1.is_null() {
            return;
        }
        let index = lab.blocks.fetch_add(1, Ordering::Relaxed);
        let block: &'static Block = Box::leak(Box::new(Block::new(index, code, last.0)));
        let data = std::ptr::from_ref(block).cast_mut().cast();
        (api.register_tb_exec_cond_cb)(tb, on_block, ffi::CB_R_REGS, ffi::COND_NE, lab.active, 0, data);
        (api.register_insn_exec_inline)(last.1, ffi::INLINE_STORE_U64, lab.whole, 1);
    }
}

/// Registers the call-back of a special instruction.
///
/// # Safety
/// `insn` is being translated.
unsafe fn watch(lab: &Lab, insn: *mut Insn, site: Site) {
    let (special, kernel) = (site.special, site.kernel);
    let data = std::ptr::from_mut(Box::leak(Box::new(site))).cast();
    // SAFETY: the caller's promise; the site is never freed.
    unsafe {
        match special {
            Special::Syscall if !kernel => {
                (lab.api.register_insn_exec_cond_cb)(
                    insn,
                    on_syscall,
                    ffi::CB_R_REGS,
                    ffi::COND_NE,
                    lab.active,
                    0,
                    data,
                );
            }
            Special::Cpuid | Special::Rdtsc => {
                (lab.api.register_insn_exec_cb)(insn, on_special, ffi::CB_RW_REGS_PC, data)
            }
            Special::Rdmsr | Special::Wrmsr if kernel => {
                (lab.api.register_insn_exec_cb)(insn, on_special, ffi::CB_RW_REGS_PC, data);
            }
            _ => {}
        }
    }
}

impl Site {
    /// Where the instruction really is. One translation serves every mapping of its page, and inside a block RIP may
    /// still be that of its first instruction.
    fn address(&self, rip: u64) -> u64 {
        const PAGE: u64 = 0xfff;
        if rip & PAGE == self.block_at & PAGE {
            rip.wrapping_sub(self.block_at).wrapping_add(self.at)
        } else {
            rip
        }
    }
}

extern "C" fn on_block(index: c_uint, block: *mut c_void) {
    let Some(lab) = LAB.get() else { return };
    let Some((vcpu, machine)) = lab.vcpu(index) else { return };
    // SAFETY: `on_translate` registered this call-back with a block that is never freed.
    let block: &'static Block = unsafe { &*block.cast() };
    let now = tsc();
    lab.follow(vcpu, now);
    let (ip, whole) = (machine.get(Reg::Rip), lab.take_whole(index));
    vcpu.flow.block(block, ip, whole, now, || lab.thread(machine));
    vcpu.settle(machine, now);
    if !vcpu.traces() {
        lab.tracing[index as usize].store(false, Ordering::Relaxed);
        lab.set_active(index);
    }
}

extern "C" fn on_syscall(index: c_uint, site: *mut c_void) {
    let Some(lab) = LAB.get() else { return };
    let Some((vcpu, machine)) = lab.vcpu(index) else { return };
    // SAFETY: `watch` registered this call-back with a site that is never freed.
    let site: &Site = unsafe { &*site.cast() };
    let now = tsc();
    vcpu.flow.syscall(site.address(machine.get(Reg::Rip)), now);
    vcpu.settle(machine, now);
}

extern "C" fn on_event(index: c_uint, kind: c_int, from: u64, to: u64, _: *mut c_void) {
    let Some(lab) = LAB.get() else { return };
    let Some((vcpu, machine)) = lab.vcpu(index) else { return };
    // QEMU 11.1 reports an exception twice: first as one that goes nowhere, from an address that may be its block's
    // first; then as an interrupt, from the right one to the handler.
    if kind == ffi::DISCON_EXCEPTION && from == to {
        vcpu.excepted = true;
        return;
    }
    let excepted = std::mem::take(&mut vcpu.excepted);
    let seen = vcpu.traces() || lab.switches.recording.load(Ordering::Relaxed) == ALL;
    if from >> 63 != 0 || !seen {
        return;
    }
    let now = tsc();
    lab.follow(vcpu, now);
    let event = if excepted || kind == ffi::DISCON_EXCEPTION {
        Event::Exception
    } else {
        Event::Interrupt
    };
    let whole = lab.take_whole(index);
    vcpu.flow.event(event, from, whole, now, || lab.thread(machine));
    vcpu.settle(machine, now);
}

extern "C" fn on_special(index: c_uint, site: *mut c_void) {
    let Some(lab) = LAB.get() else { return };
    // SAFETY: `watch` registered this call-back with a site that is never freed.
    let site: &'static Site = unsafe { &*site.cast() };
    if let Some(next) = answer(lab, index, site) {
        // SAFETY: the call-back may write the PC. The call does not come back, and no value that needs dropping lives.
        unsafe { (lab.api.set_pc)(next) };
    }
}

/// Carries out a special instruction; gives where control goes on, or `None` when QEMU is to do it.
fn answer(lab: &Lab, index: c_uint, site: &Site) -> Option<u64> {
    let (vcpu, machine) = lab.vcpu(index)?;
    let now = tsc();
    let low = |reg| machine.get(reg) as u32;
    if !site.kernel && (machine.get(Reg::Efer) & LMA == 0 || low(Reg::Cs) & 3 != 3) {
        return None;
    }
    let next = || site.address(machine.get(Reg::Rip)).wrapping_add(site.length);
    let pair = |value: u64| {
        machine.set(Reg::Rax, value & 0xffff_ffff);
        machine.set(Reg::Rdx, value >> 32);
    };
    match site.special {
        Special::Rdtsc => {
            let next = next();
            pair(now);
            vcpu.flow.skipped(next, now);
            Some(next)
        }
        Special::Cpuid => {
            let (leaf, subleaf) = (low(Reg::Rax), low(Reg::Rcx));
            let next = next();
            let request = Request::from_cpuid(leaf, subleaf).filter(|_| !site.kernel);
            let values = match request {
                Some(request) => lab.request(vcpu, request, now),
                None if site.kernel => cpuid::answer(leaf, subleaf, lab.mtc_periods)?,
                None => return None,
            };
            for (reg, value) in [Reg::Rax, Reg::Rbx, Reg::Rcx, Reg::Rdx].into_iter().zip(values) {
                machine.set(reg, value.into());
            }
            vcpu.flow.skipped(next, now);
            Some(next)
        }
        Special::Rdmsr => {
            pair(vcpu.read_msr(low(Reg::Rcx))?);
            Some(next())
        }
        Special::Wrmsr => {
            let value = u64::from(low(Reg::Rdx)) << 32 | u64::from(low(Reg::Rax));
            if !vcpu.write_msr(low(Reg::Rcx), value, machine, now) {
                return None;
            }
            lab.tracing[index as usize].store(vcpu.traces(), Ordering::Relaxed);
            lab.set_active(index);
            Some(next())
        }
        Special::Syscall => None,
    }
}

extern "C" fn on_exit(_: *mut c_void) {
    let Some(lab) = LAB.get() else { return };
    for index in 0..MOST_VCPUS as c_uint {
        if let Some((vcpu, _)) = lab.vcpu(index) {
            vcpu.store();
            let (counts, unexplained) = (vcpu.counts, vcpu.flow.unexplained);
            eprintln!("lab-plugin: vCPU {index}: {counts:?}, unexplained {unexplained}");
        }
    }
}
