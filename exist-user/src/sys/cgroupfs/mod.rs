//! The cgroup hierarchies: where they are mounted, and cgroups as directories held open.
//!
//! Takes: [`Roots`] and paths. Gives: [`Mounts`] (version 2, version 1, or both on a hybrid host) and [`Cgroup`].
//! Refuses: mounts outside the given root, and a path that leads out of what is mounted.

mod cgroup;
mod mounts;

pub use cgroup::Cgroup;
pub use mounts::{Hierarchy, Mount, Mounts};
