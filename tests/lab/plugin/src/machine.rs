//! The vCPU that a call-back runs on: its registers and memory through QEMU's API, as safe functions.
//!
//! Only valid inside a call-back of that vCPU: `Machine` is made there and does not outlive it.

use std::ffi::CStr;

use crate::ffi::{Api, GArray, HWADDR_OK, Register, RegisterDescriptor};
use crate::output::Memory;

/// The registers the emulation uses, by QEMU's names; their handles differ by version and are looked up by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    Rax,
    Rbx,
    Rcx,
    Rdx,
    Rip,
    Cs,
    FsBase,
    KernelGsBase,
    Cr3,
    Efer,
}

const NAMES: [(Reg, &str); 10] = [
    (Reg::Rax, "rax"),
    (Reg::Rbx, "rbx"),
    (Reg::Rcx, "rcx"),
    (Reg::Rdx, "rdx"),
    (Reg::Rip, "rip"),
    (Reg::Cs, "cs"),
    (Reg::FsBase, "fs_base"),
    (Reg::KernelGsBase, "k_gs_base"),
    (Reg::Cr3, "cr3"),
    (Reg::Efer, "efer"),
];

/// One vCPU's register handles and a buffer for what passes through the API.
#[derive(Clone, Copy)]
pub struct Handles {
    registers: [*mut Register; NAMES.len()],
    buffer: *mut GArray,
}

impl Handles {
    /// Looks the registers up; in the vCPU's init call-back.
    ///
    /// # Errors
    /// The name of a register that QEMU does not have.
    pub fn find(api: &Api) -> Result<Self, &'static str> {
        let mut registers = [std::ptr::null_mut(); NAMES.len()];
        // SAFETY: called in a vCPU's context; the array is ours to free, its elements are descriptors.
        unsafe {
            let list = (api.get_registers)();
            let descriptors =
                std::slice::from_raw_parts((*list).data.cast::<RegisterDescriptor>(), (*list).len as usize);
            for (reg, name) in NAMES {
                let found = descriptors
                    .iter()
                    .find(|d| CStr::from_ptr(d.name).to_bytes() == name.as_bytes());
                registers[reg as usize] = found.ok_or(name)?.handle;
            }
            (api.array_free)(list, 1);
            Ok(Self {
                registers,
                buffer: (api.byte_array_new)(),
            })
        }
    }
}

/// The vCPU of the running call-back.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    pub api: &'a Api,
    pub handles: Handles,
}

impl Machine<'_> {
    /// A register's value, zero-extended; 0 when QEMU refuses.
    pub fn get(&self, reg: Reg) -> u64 {
        // SAFETY: the handle and the buffer are this vCPU's, and this is its thread.
        let read = unsafe {
            (self.api.byte_array_set_size)(self.handles.buffer, 0);
            (self.api.read_register)(self.handles.registers[reg as usize], self.handles.buffer)
        };
        if read { word(self.bytes()) } else { 0 }
    }

    /// Sets a register; in a call-back that may write registers.
    pub fn set(&self, reg: Reg, value: u64) {
        self.fill(&value.to_le_bytes());
        // SAFETY: the handle and the buffer are this vCPU's; the buffer holds the eight bytes of a 64-bit register.
        unsafe { (self.api.write_register)(self.handles.registers[reg as usize], self.handles.buffer) };
    }

    /// A little-endian word of `bytes` bytes (at most 8) at a virtual address.
    pub fn read_virtual(&self, address: u64, bytes: usize) -> Option<u64> {
        // SAFETY: the buffer is this vCPU's; QEMU sizes it.
        let read = unsafe {
            (self.api.byte_array_set_size)(self.handles.buffer, 0);
            (self.api.read_memory_vaddr)(address, self.handles.buffer, bytes)
        };
        read.then(|| word(self.bytes()))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: GLib keeps `len` bytes at `data`, and nothing resizes the buffer while the slice lives: every
        // caller is done with it before the next call.
        unsafe {
            let buffer = &*self.handles.buffer;
            if buffer.data.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(buffer.data, buffer.len as usize)
            }
        }
    }

    fn fill(&self, bytes: &[u8]) {
        // SAFETY: the buffer is this vCPU's, `bytes` is readable for its length.
        unsafe {
            (self.api.byte_array_set_size)(self.handles.buffer, 0);
            (self.api.byte_array_append)(self.handles.buffer, bytes.as_ptr(), bytes.len() as u32);
        }
    }
}

impl Memory for Machine<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        // SAFETY: the buffer is this vCPU's; QEMU sizes it.
        let result = unsafe {
            (self.api.byte_array_set_size)(self.handles.buffer, 0);
            (self.api.read_memory_hwaddr)(address, self.handles.buffer, bytes.len())
        };
        let read = self.bytes();
        let whole = result == HWADDR_OK && read.len() >= bytes.len();
        if whole {
            bytes.copy_from_slice(&read[..bytes.len()]);
        }
        whole
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        self.fill(bytes);
        // SAFETY: the buffer is this vCPU's and holds what is to be written.
        unsafe { (self.api.write_memory_hwaddr)(address, self.handles.buffer) == HWADDR_OK }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .take(8)
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}
