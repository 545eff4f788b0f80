//! Walk: packets + code → executed branches, in program order.
//!
//! Takes a stream (or a piece of it that starts at a PSB or at a TIP.PGE) and the code of one address
//! space. Gives [`Step`]s. Refuses to guess: what the packets do not settle is an error in the stream,
//! after which the walk starts again at the next packet that says where execution is.
//!
//! ```text
//!            TNT  ┌────────────┐ TIP
//!         ┌──────▶│  walking   │◀──────┐         every packet that is not allowed in a state,
//!         └───────└─┬────────▲─┘───────┘         and every answer that the code cannot give
//!       TIP.PGD, OVF│        │TIP.PGE                        │
//!                 ┌─▼────────┴─┐          TIP, FUP, PSB+ ┌───▼────┐
//!                 │  disabled  │◀────────────────────────│  lost  │
//!                 └────────────┘   TIP.PGD, OVF          └────────┘
//! ```

mod code;
mod enable;
mod events;
mod header;
mod overflow;
mod seek;
mod stack;
mod step;
mod targets;
#[cfg(test)]
mod tests;
mod walker;

pub use code::{Block, Code, ExecMode, Exit, Far, NoBlock, Special};
pub use step::{BranchKind, Disabled, Event, Place, Start, Step, WalkError, What};
pub use walker::{Resume, Walker};
