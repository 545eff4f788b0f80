//! The model-specific registers of PT and of the performance monitor: takes reads and writes, gives values and effects.
//! Pure. Everything else is QEMU's.

use std::collections::HashMap;

pub const RTIT_OUTPUT_BASE: u32 = 0x560;
pub const RTIT_OUTPUT_MASK: u32 = 0x561;
pub const RTIT_CTL: u32 = 0x570;
pub const RTIT_STATUS: u32 = 0x571;
const RTIT_CR3_MATCH: u32 = 0x572;
const PLATFORM_INFO: u32 = 0xce;
const PERF_GLOBAL_STATUS: u32 = 0x38e;
const PERF_GLOBAL_OVF_CTRL: u32 = 0x390;

/// IA32_PERF_GLOBAL_STATUS.Trace_ToPA_PMI.
pub const STATUS_TOPA_PMI: u64 = 1 << 55;
/// IA32_RTIT_STATUS.Error and .Stopped.
pub const RTIT_ERROR: u64 = 1 << 4;
pub const RTIT_STOPPED: u64 = 1 << 5;
const PACKET_BYTES_SHIFT: u32 = 32;
const PACKET_BYTES_MASK: u64 = 0x1_ffff;

/// One logical processor's registers.
#[derive(Debug, Default)]
pub struct Msrs {
    pub output_base: u64,
    /// MaskOrTableOffset (low half) and OutputOffset (high half).
    pub output_mask: u64,
    pub ctl: u64,
    /// Error and Stopped only; PacketByteCnt lives in the tracer while it is on.
    pub status: u64,
    pub global_status: u64,
    /// Counters and controls that the driver reads back at start-up; they count nothing.
    stored: HashMap<u32, u64>,
}

impl Msrs {
    /// PacketByteCnt of a status value.
    pub fn packet_bytes(status: u64) -> u64 {
        status >> PACKET_BYTES_SHIFT & PACKET_BYTES_MASK
    }

    /// Puts PacketByteCnt into the status.
    pub fn set_packet_bytes(&mut self, bytes: u64) {
        self.status &= !(PACKET_BYTES_MASK << PACKET_BYTES_SHIFT);
        self.status |= bytes.min(PACKET_BYTES_MASK) << PACKET_BYTES_SHIFT;
    }

    /// The value of a register, or `None` when it is QEMU's.
    pub fn read(&self, register: u32, ratio: u8) -> Option<u64> {
        Some(match register {
            RTIT_OUTPUT_BASE => self.output_base,
            // The low seven bits read as ones, SDM "IA32_RTIT_OUTPUT_MASK_PTRS".
            RTIT_OUTPUT_MASK => self.output_mask | 0x7f,
            RTIT_CTL => self.ctl,
            RTIT_STATUS => self.status,
            PLATFORM_INFO => u64::from(ratio) << 8,
            PERF_GLOBAL_STATUS => self.global_status,
            PERF_GLOBAL_OVF_CTRL => 0,
            register if is_stored(register) => self.stored.get(&register).copied().unwrap_or(0),
            _ => return None,
        })
    }

    /// Writes a register other than IA32_RTIT_CTL; says whether it is one of these.
    pub fn write(&mut self, register: u32, value: u64) -> bool {
        match register {
            RTIT_OUTPUT_BASE => self.output_base = value,
            RTIT_OUTPUT_MASK => self.output_mask = value | 0x7f,
            RTIT_STATUS => self.status = value,
            PERF_GLOBAL_STATUS | PLATFORM_INFO => {}
            PERF_GLOBAL_OVF_CTRL => self.global_status &= !value,
            register if is_stored(register) => {
                self.stored.insert(register, value);
            }
            _ => return false,
        }
        true
    }
}

fn is_stored(register: u32) -> bool {
    matches!(register, RTIT_CR3_MATCH
        | 0x580..=0x587
        | 0xc1..=0xc8
        | 0x186..=0x18d
        | 0x309..=0x30b
        | 0x345
        | 0x38d
        | 0x38f
        | 0x3f1
        | 0x3f6
        | 0x1a6..=0x1a7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_was_written_and_leaves_the_rest() {
        let mut msrs = Msrs::default();
        for register in [0x186, 0xc1, 0x38f] {
            assert!(msrs.write(register, 0xabcd));
            assert_eq!(msrs.read(register, 24), Some(0xabcd));
        }
        assert_eq!((msrs.write(0xc000_0080, 1), msrs.read(0xc000_0080, 24)), (false, None));
        assert_eq!(msrs.read(PLATFORM_INFO, 24), Some(24 << 8));
        assert!(msrs.write(RTIT_OUTPUT_MASK, 0));
        assert_eq!(msrs.read(RTIT_OUTPUT_MASK, 24), Some(0x7f));
    }

    #[test]
    fn the_interrupt_bit_is_cleared_by_the_control_register() {
        let mut msrs = Msrs {
            global_status: STATUS_TOPA_PMI | 1,
            ..Msrs::default()
        };
        assert!(msrs.write(PERF_GLOBAL_OVF_CTRL, STATUS_TOPA_PMI));
        assert_eq!(msrs.read(PERF_GLOBAL_STATUS, 24), Some(1));
        msrs.set_packet_bytes(300);
        assert_eq!(Msrs::packet_bytes(msrs.status), 300);
    }
}
