//! Offsets and choices, overridden and frozen before load: the verifier reads them as constants.

use exist_common::Frozen;

#[unsafe(no_mangle)]
pub static FROZEN: Frozen = Frozen::from_words([0; Frozen::WORDS]);

/// Reads one word of [`FROZEN`].
macro_rules! frozen {
    ($field:ident) => {
        $crate::frozen::read(|all| &all.$field)
    };
}
pub(crate) use frozen;

#[inline(always)]
pub fn read(word: impl FnOnce(&'static Frozen) -> &'static u32) -> u32 {
    // SAFETY: it is a reference. Volatile: the compiler must not see the value before the loader has set it.
    unsafe { core::ptr::read_volatile(word(&FROZEN)) }
}
