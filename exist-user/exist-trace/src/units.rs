//! Newtypes for clocks, CPUs, processes, threads and addresses.

mod clock;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use clock::{ClockMap, ClockPair, TscBracket};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

unit! {
    /// CLOCK_MONOTONIC, nanoseconds: the time line of every reader.
    MonoNs(u64)
}
unit! {
    /// The processor's time stamp counter, in ticks.
    Tsc(u64)
}
unit! {
    /// A logical CPU, as the kernel numbers them.
    Cpu(u32)
}
unit! {
    /// A process (the kernel's `tgid`) in the initial PID namespace.
    Pid(u32)
}
unit! {
    /// A thread (the kernel's `pid`) in the initial PID namespace.
    Tid(u32)
}

/// An instruction pointer; shown in hexadecimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ip(pub u64);

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
