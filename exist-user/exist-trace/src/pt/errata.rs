//! Known defects of processors that change what the packets mean, chosen by family and model.
//!
//! Sources: Intel's specification updates for the models named; the work-arounds need no more than
//! what is said at each field. Without them real traces of these processors do not decode.

/// Work-arounds to apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errata {
    /// BDM70 (SKD024, SKL021, KBL021): a PSB+ just before a TIP.PGE may hold FUP and MODE.Exec although tracing is disabled.
    pub bdm70: bool,
    /// BDM64: the packet of a branch just before a transactional abort may hold a wrong target.
    pub bdm64: bool,
    /// SKD007 (SKL049, KBL041): an OVF may come after the first byte of a longer CYC, in place of its other bytes.
    pub skd007: bool,
    /// SKD022 (SKL024, KBL023): a VM entry that clears TraceEn may put a FUP before its TIP.PGD.
    pub skd022: bool,
    /// SKD010 (SKD014, SKL033, KBL030): the FUP or TIP.PGE after an OVF may be missing.
    pub skd010: bool,
    /// SKL014 (KBL014): a TIP.PGD of a direct branch that leaves the filter may lack its IP.
    pub skl014: bool,
    /// APL11: an OVF may be followed by TIP.PGD.
    pub apl11: bool,
    /// APL12: an OVF may be followed by a FUP although tracing is disabled.
    pub apl12: bool,
    /// SKL168: a CYC, and an MTC with it, may be missing just before a PSB.
    pub skl168: bool,
    /// SKZ84: a TMA may hold nonsense and be followed by one stray byte.
    pub skz84: bool,
}

impl Errata {
    /// The errata of one processor. `vendor` as in CPUID (`GenuineIntel`); an unknown model has none.
    ///
    /// No erratum known to matter here depends on the stepping.
    #[must_use]
    pub fn of(vendor: &str, family: u32, model: u32) -> Self {
        let none = Self::default();
        if vendor != "GenuineIntel" {
            return none;
        }
        match (family, model) {
            // Broadwell
            (6, 0x3d | 0x47 | 0x4f | 0x56) => Self {
                bdm70: true,
                bdm64: true,
                ..none
            },
            // Skylake, Kaby Lake, Comet Lake (client)
            (6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => Self {
                bdm70: true,
                skd007: true,
                skd022: true,
                skd010: true,
                skl014: true,
                skl168: true,
                ..none
            },
            // Skylake, Cascade Lake, Ice Lake (server)
            (6, 0x55 | 0x6a | 0x6c) => Self {
                bdm70: true,
                skl014: true,
                skd022: true,
                skz84: true,
                ..none
            },
            // Sapphire Rapids, Emerald Rapids, Granite Rapids; Diamond Rapids
            (6, 0x8f | 0xcf | 0xad | 0xae) | (0x13, 0x01) => Self {
                bdm70: true,
                skd022: true,
                skz84: true,
                ..none
            },
            // Cannon Lake, Ice Lake, Tiger Lake, Rocket Lake (client)
            (6, 0x66 | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 | 0xa8) => Self {
                bdm70: true,
                skl014: true,
                skd022: true,
                ..none
            },
            // Hybrid client processors
            (6, 0x97 | 0x9a | 0xba | 0xb7 | 0xbf | 0xc5 | 0xc6 | 0xb5 | 0xaa | 0xac | 0xbd | 0xcc | 0xd5)
            | (0x12, 0x01 | 0x03) => Self {
                bdm70: true,
                skd022: true,
                apl11: true,
                ..none
            },
            // Goldmont
            (6, 0x5c | 0x5f) => Self {
                apl12: true,
                apl11: true,
                ..none
            },
            // Goldmont Plus, Tremont, Gracemont and later atoms
            (6, 0x7a | 0x86 | 0x96 | 0x9c | 0xb6 | 0xaf | 0xdd) => Self { apl11: true, ..none },
            _ => none,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Errata;

    #[test]
    fn chosen_by_vendor_family_and_model() {
        assert!(Errata::of("GenuineIntel", 6, 0x4e).skd010);
        assert!(Errata::of("GenuineIntel", 6, 0x55).skz84);
        assert!(!Errata::of("GenuineIntel", 6, 0x55).skd010);
        assert!(Errata::of("GenuineIntel", 6, 0x3d).bdm64);
        assert_eq!(Errata::of("AuthenticAMD", 6, 0x4e), Errata::default());
        assert_eq!(Errata::of("GenuineIntel", 15, 0x4e), Errata::default());
    }
}
