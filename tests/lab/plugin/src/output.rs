//! Where packets go: takes bytes, writes them through the guest's ToPA tables or into its single range, gives what the
//! regions that were filled ask for. SDM vol. 3, "Trace Output".
//!
//! ```text
//! ToPA entry  63…12 region or next table · 9…6 size (4 KiB << n) · 4 STOP · 2 INT · 0 END (the entry is a table)
//! ```

use crate::msr::Msrs;

/// The guest's physical memory.
pub trait Memory {
    /// Reads at a physical address; says whether it is there.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;
    /// Writes at a physical address; says whether it is there.
    fn write(&mut self, address: u64, bytes: &[u8]) -> bool;
}

/// What a write led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// A region with INT was filled.
    pub interrupt: bool,
    /// A region with STOP was filled; the rest of the bytes is lost.
    pub stopped: bool,
    /// A table or region cannot be used.
    pub error: bool,
}

const END: u64 = 1 << 0;
const INT: u64 = 1 << 2;
const STOP: u64 = 1 << 4;
const ADDRESS: u64 = !0xfff;
const ENTRY_BYTES: u64 = 8;
/// A chain of END entries longer than this is a loop.
const TABLES_MOST: usize = 64;

/// Writes `bytes` through the ToPA tables and moves the pointers on.
pub fn write_topa(msrs: &mut Msrs, memory: &mut impl Memory, mut bytes: &[u8]) -> Effects {
    let mut effects = Effects::default();
    while !bytes.is_empty() {
        let Some(entry) = region(msrs, memory) else {
            effects.error = true;
            return effects;
        };
        let size = 0x1000u64 << (entry >> 6 & 0xf);
        let offset = msrs.output_mask >> 32;
        let room = size.saturating_sub(offset).min(bytes.len() as u64);
        let (now, rest) = bytes.split_at(room as usize);
        if !now.is_empty() && !memory.write((entry & ADDRESS) + offset, now) {
            effects.error = true;
            return effects;
        }
        bytes = rest;
        set_offset(msrs, offset + room);
        if offset + room >= size {
            effects.interrupt |= entry & INT != 0;
            if entry & STOP != 0 {
                // The pointers stay at the end of this region: the driver's pt_handle_status() looks for that.
                effects.stopped = true;
                return effects;
            }
            set_offset(msrs, 0);
            set_index(msrs, index(msrs) + 1);
        }
    }
    effects
}

/// Writes `bytes` round and round the single range.
pub fn write_range(msrs: &mut Msrs, memory: &mut impl Memory, bytes: &[u8]) -> Effects {
    let mask = msrs.output_mask & 0xffff_ffff | 0x7f;
    let mut offset = msrs.output_mask >> 32;
    for piece in bytes.chunks(64) {
        for byte in piece {
            if !memory.write((msrs.output_base & !0x7f) + (offset & mask), &[*byte]) {
                return Effects {
                    error: true,
                    ..Effects::default()
                };
            }
            offset = (offset + 1) & mask;
        }
    }
    set_offset(msrs, offset);
    Effects::default()
}

/// The entry that output goes to, after following END entries to their tables.
fn region(msrs: &mut Msrs, memory: &impl Memory) -> Option<u64> {
    for _ in 0..TABLES_MOST {
        let mut entry = [0; 8];
        let at = (msrs.output_base & ADDRESS) + index(msrs) * ENTRY_BYTES;
        if !memory.read(at, &mut entry) {
            return None;
        }
        let entry = u64::from_le_bytes(entry);
        if entry & END == 0 {
            return Some(entry);
        }
        msrs.output_base = entry & ADDRESS;
        set_index(msrs, 0);
    }
    None
}

fn index(msrs: &Msrs) -> u64 {
    (msrs.output_mask & 0xffff_ffff) >> 7
}

fn set_index(msrs: &mut Msrs, index: u64) {
    msrs.output_mask = msrs.output_mask & !0xffff_ffff | index << 7 | 0x7f;
}

fn set_offset(msrs: &mut Msrs, offset: u64) {
    msrs.output_mask = msrs.output_mask & 0xffff_ffff | offset << 32;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ram(Vec<u8>);

    impl Memory for Ram {
        fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
            let at = address as usize;
            let Some(from) = self.0.get(at..at + bytes.len()) else {
                return false;
            };
            bytes.copy_from_slice(from);
            true
        }

        fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
            let at = address as usize;
            let Some(to) = self.0.get_mut(at..at + bytes.len()) else {
                return false;
            };
            to.copy_from_slice(bytes);
            true
        }
    }

    fn msrs(output_base: u64, output_mask: u64) -> Msrs {
        let mut msrs = Msrs::default();
        (msrs.output_base, msrs.output_mask) = (output_base, output_mask);
        msrs
    }

    /// A table at 0x1000 of `entries`.
    fn guest(entries: &[u64]) -> (Msrs, Ram) {
        let mut ram = Ram(vec![0; 0x8000]);
        for (at, entry) in entries.iter().enumerate() {
            ram.write(0x1000 + at as u64 * 8, &entry.to_le_bytes());
        }
        (msrs(0x1000, 0x7f), ram)
    }

    #[test]
    fn fills_regions_in_order_and_follows_the_end_entry() {
        let (mut msrs, mut ram) = guest(&[0x2000 | INT, 0x4000, 0x1000 | END]);
        let bytes: Vec<u8> = (0..0x2800).map(|at| (at % 251) as u8).collect();
        let effects = write_topa(&mut msrs, &mut ram, &bytes[..0xfff]);
        assert_eq!(effects, Effects::default());
        let effects = write_topa(&mut msrs, &mut ram, &bytes[0xfff..]);
        assert_eq!(
            effects,
            Effects {
                interrupt: true,
                ..Effects::default()
            }
        );
        assert_eq!((msrs.output_mask >> 32, index(&msrs)), (0x800, 0));
        assert_eq!(ram.0[0x4000..0x5000], bytes[0x1000..0x2000]);
        assert_eq!(ram.0[0x2000..0x2800], bytes[0x2000..0x2800]);
        assert_eq!(ram.0[0x2800..0x3000], bytes[0x800..0x1000]);
    }

    #[test]
    fn stops_at_the_end_of_the_region() {
        let (mut msrs, mut ram) = guest(&[0x2000 | STOP | INT, 0x1000 | END]);
        let effects = write_topa(&mut msrs, &mut ram, &[7; 0x1100]);
        assert_eq!(
            effects,
            Effects {
                interrupt: true,
                stopped: true,
                error: false
            }
        );
        assert_eq!((msrs.output_mask >> 32, index(&msrs)), (0x1000, 0));
    }

    #[test]
    fn a_table_that_is_not_there_or_points_to_itself_is_an_error() {
        let (mut msrs, mut ram) = guest(&[0x1000 | END]);
        assert!(write_topa(&mut msrs, &mut ram, &[1]).error);
        msrs.output_base = 1 << 40;
        assert!(write_topa(&mut msrs, &mut ram, &[1]).error);
    }

    #[test]
    fn the_single_range_wraps() {
        let mut ram = Ram(vec![0; 0x8000]);
        let mut msrs = msrs(0x2000, 0xfff | 0xffe << 32);
        assert_eq!(write_range(&mut msrs, &mut ram, &[1, 2, 3]), Effects::default());
        assert_eq!((ram.0[0x2ffe], ram.0[0x2fff], ram.0[0x2000]), (1, 2, 3));
        assert_eq!(msrs.output_mask >> 32, 1);
    }
}
