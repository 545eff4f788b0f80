//! Images: ip and time → code bytes and symbols.
//!
//! Takes the mappings of processes and, through a closure, the bytes of the files behind them.
//! Gives code to walk and names to show. Refuses to guess: code that is not at hand has a reason.

mod space;
mod symbols;

use std::fmt;

pub use space::{File, Image, Section, Space};
pub use symbols::{Function, FunctionId, Place, Symbols, build_id};

/// How the path of a virtual CPU's mapping begins, which every user of KVM has (`virt/kvm/kvm_main.c`, `create_vcpu_fd`).
/// No code is in it: it says that a guest's code may run in the process' time.
pub const VIRTUAL_CPU: &str = "anon_inode:kvm-vcpu:";

/// Why there is no code at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoCode {
    /// The process had nothing mapped there.
    Unmapped,
    /// Memory without a file: code made at run time, a just-in-time compiler's most often.
    Anonymous,
    /// The file is gone, was replaced, or may not be read.
    FileMissing,
    /// The file at hand is not the one that ran: its build ID differs.
    FileChanged,
    /// The mapping goes beyond the end of the file.
    BeyondFile,
    /// The process runs virtual machines and maps nothing there: a guest's own code, which no file here holds.
    Guest,
}

impl NoCode {
    /// A short name for counting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmapped => "unmapped",
            Self::Anonymous => "anonymous",
            Self::FileMissing => "file_missing",
            Self::FileChanged => "file_changed",
            Self::BeyondFile => "beyond_file",
            Self::Guest => "guest",
        }
    }
}

impl fmt::Display for NoCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmapped => "nothing is mapped at the address",
            Self::Anonymous => "code without a file (made at run time)",
            Self::FileMissing => "the mapped file cannot be read",
            Self::FileChanged => "the mapped file is not the one that ran",
            Self::BeyondFile => "the mapping goes beyond the end of its file",
            Self::Guest => "the code of a virtual machine's guest",
        })
    }
}
