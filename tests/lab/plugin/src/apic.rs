//! The performance interrupt: takes a filled region's wish, gives the vCPU an NMI through its own local APIC.
//!
//! The APIC is written through guest physical memory, at the xAPIC's address; the guest runs without x2APIC.

use crate::output::Memory;

const APIC: u64 = 0xfee0_0000;
const LVTPC: u64 = APIC + 0x340;
const ICR_LOW: u64 = APIC + 0x300;
const ICR_HIGH: u64 = APIC + 0x310;
const LVT_MASKED: u32 = 1 << 16;
const DELIVERY_MODE: u32 = 7 << 8;
const NMI: u32 = 4 << 8;
const ASSERT: u32 = 1 << 14;

/// Raises the performance interrupt of the CPU with this APIC ID, if its LVT entry asks for an NMI and is not masked.
/// Says whether it was raised.
pub fn raise(memory: &mut impl Memory, apic_id: u32) -> bool {
    let Some(entry) = register(memory, LVTPC) else {
        return false;
    };
    if entry & LVT_MASKED != 0 || entry & DELIVERY_MODE != NMI {
        return false;
    }
    // The guest may be between its own two writes of the command register: put the destination back.
    let Some(destination) = register(memory, ICR_HIGH) else {
        return false;
    };
    let raised =
        memory.write(ICR_HIGH, &(apic_id << 24).to_le_bytes()) && memory.write(ICR_LOW, &(NMI | ASSERT).to_le_bytes());
    memory.write(ICR_HIGH, &destination.to_le_bytes()) && raised
}

fn register(memory: &impl Memory, address: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes).then(|| u32::from_le_bytes(bytes))
}
