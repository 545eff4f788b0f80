//! QEMU's plugin API, version 7, as much of it as the lab uses: takes nothing from a header (no Debian package ships
//! one), finds the functions in the process that loaded the plugin, and says which is missing.
//!
//! All unsafe code of the plugin is here and in `glue`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The API version this was written for.
pub const VERSION: c_int = 7;

/// Opaque: a block being translated.
#[repr(C)]
pub struct Tb(c_void);
/// Opaque: an instruction of it.
#[repr(C)]
pub struct Insn(c_void);
/// Opaque: a register of a vCPU.
#[repr(C)]
pub struct Register(c_void);
/// Opaque: one entry for each vCPU.
#[repr(C)]
pub struct Scoreboard(c_void);

/// `qemu_info_t`.
#[repr(C)]
pub struct Info {
    pub target_name: *const c_char,
    pub version_min: c_int,
    pub version_cur: c_int,
    pub system_emulation: bool,
    pub smp_vcpus: c_int,
    pub max_vcpus: c_int,
}

/// `qemu_plugin_u64`: a 64-bit value for each vCPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PerVcpu {
    pub scoreboard: *mut Scoreboard,
    pub offset: usize,
}

/// `qemu_plugin_reg_descriptor`.
#[repr(C)]
pub struct RegisterDescriptor {
    pub handle: *mut Register,
    pub name: *const c_char,
    pub feature: *const c_char,
    pub is_readonly: bool,
}

/// GLib's `GArray` and `GByteArray`.
#[repr(C)]
pub struct GArray {
    pub data: *mut u8,
    pub len: c_uint,
}

pub const CB_NO_REGS: c_int = 0;
pub const CB_R_REGS: c_int = 1;
pub const CB_RW_REGS_PC: c_int = 3;
pub const COND_NE: c_int = 3;
pub const INLINE_STORE_U64: c_int = 1;
pub const DISCON_INTERRUPT: c_int = 1;
pub const DISCON_EXCEPTION: c_int = 2;
/// `QEMU_PLUGIN_HWADDR_OPERATION_OK`.
pub const HWADDR_OK: c_int = 0;

pub type UserCb = extern "C" fn(*mut c_void);
pub type VcpuCb = extern "C" fn(c_uint, *mut c_void);
pub type TransCb = extern "C" fn(*mut Tb, *mut c_void);
pub type DisconCb = extern "C" fn(c_uint, c_int, u64, u64, *mut c_void);

macro_rules! api {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The functions, by the names they have in QEMU and GLib without their prefix.
        pub struct Api { $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)* }

        impl Api {
            /// Finds every function.
            ///
            /// # Errors
            /// The name of the first that the process does not have.
            pub fn load() -> Result<Self, &'static str> {
                Ok(Self { $($field: {
                    let name = concat!($symbol, "\0");
                    let name = CStr::from_bytes_with_nul(name.as_bytes()).map_err(|_| $symbol)?;
                    // SAFETY: a lookup by name in the process; `name` ends with NUL.
                    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
                    if found.is_null() {
                        return Err($symbol);
                    }
                    // SAFETY: QEMU's API version was checked, and this is that version's type of the function.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(found) }
                },)* })
            }
        }
    };
}

api! {
    register_vcpu_init_cb = "qemu_plugin_register_vcpu_init_cb": fn(u64, VcpuCb, *mut c_void);
    register_vcpu_idle_cb = "qemu_plugin_register_vcpu_idle_cb": fn(u64, VcpuCb, *mut c_void);
    register_vcpu_resume_cb = "qemu_plugin_register_vcpu_resume_cb": fn(u64, VcpuCb, *mut c_void);
    register_tb_trans_cb = "qemu_plugin_register_vcpu_tb_trans_cb": fn(u64, TransCb, *mut c_void);
    register_discon_cb = "qemu_plugin_register_vcpu_discon_cb": fn(u64, c_int, DisconCb, *mut c_void);
    register_atexit_cb = "qemu_plugin_register_atexit_cb": fn(u64, UserCb, *mut c_void);
    register_tb_exec_cond_cb = "qemu_plugin_register_vcpu_tb_exec_cond_cb":
        fn(*mut Tb, VcpuCb, c_int, c_int, PerVcpu, u64, *mut c_void);
    register_insn_exec_cb = "qemu_plugin_register_vcpu_insn_exec_cb": fn(*mut Insn, VcpuCb, c_int, *mut c_void);
    register_insn_exec_cond_cb = "qemu_plugin_register_vcpu_insn_exec_cond_cb":
        fn(*mut Insn, VcpuCb, c_int, c_int, PerVcpu, u64, *mut c_void);
    register_insn_exec_inline = "qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu": fn(*mut Insn, c_int, PerVcpu, u64);
    tb_n_insns = "qemu_plugin_tb_n_insns": fn(*const Tb) -> usize;
    tb_get_insn = "qemu_plugin_tb_get_insn": fn(*const Tb, usize) -> *mut Insn;
    tb_vaddr = "qemu_plugin_tb_vaddr": fn(*const Tb) -> u64;
    insn_data = "qemu_plugin_insn_data": fn(*const Insn, *mut u8, usize) -> usize;
    insn_vaddr = "qemu_plugin_insn_vaddr": fn(*const Insn) -> u64;
    get_registers = "qemu_plugin_get_registers": fn() -> *mut GArray;
    read_register = "qemu_plugin_read_register": fn(*mut Register, *mut GArray) -> bool;
    write_register = "qemu_plugin_write_register": fn(*mut Register, *mut GArray) -> bool;
    set_pc = "qemu_plugin_set_pc": fn(u64);
    read_memory_vaddr = "qemu_plugin_read_memory_vaddr": fn(u64, *mut GArray, usize) -> bool;
    read_memory_hwaddr = "qemu_plugin_read_memory_hwaddr": fn(u64, *mut GArray, usize) -> c_int;
    write_memory_hwaddr = "qemu_plugin_write_memory_hwaddr": fn(u64, *mut GArray) -> c_int;
    scoreboard_new = "qemu_plugin_scoreboard_new": fn(usize) -> *mut Scoreboard;
    u64_get = "qemu_plugin_u64_get": fn(PerVcpu, c_uint) -> u64;
    u64_set = "qemu_plugin_u64_set": fn(PerVcpu, c_uint, u64);
    byte_array_new = "g_byte_array_new": fn() -> *mut GArray;
    byte_array_set_size = "g_byte_array_set_size": fn(*mut GArray, c_uint) -> *mut GArray;
    byte_array_append = "g_byte_array_append": fn(*mut GArray, *const u8, c_uint) -> *mut GArray;
    array_free = "g_array_free": fn(*mut GArray, c_int) -> *mut u8;
}
