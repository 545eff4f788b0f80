//! Trace files on disk, and the folder that keeps many of them.
//!
//! Takes: paths and bytes, a folder and a quota. Gives: files that are whole or not there, windows, requests, and what
//! was removed for want of room. Refuses: to replace anything but a regular file, names that lead out of the folder, a
//! new window when everything is held.
//!
//! ```text
//!  DIR/windows/NAME.exist            a finished window
//!  DIR/windows/NAME.exist.PID.part   one that is being written; unlocked: left by a process that was killed
//!  DIR/requests/NAME.json            what somebody wants recorded (a session), put there by a rename
//!  DIR/done/NAME.json                the same file once it is carried out; its window is windows/NAME.exist
//!  DIR/done/NAME.error               why there is no window
//!  DIR/fills/KEY.json                what the last windows of a target showed of its CPUs, for the next one's plan
//! ```
//!
//! The two folders are the only border to whatever ships traces elsewhere: it writes requests, reads what is done, and
//! removes `done/NAME.json` when it has the window. A window is held while an entry of its name stands in either; what
//! nobody holds is removed, the oldest first, when the quota asks for it.
//!
//! A request is carried out in two renames: the window gets its name, then the request goes from `requests` to `done`. A
//! process killed between them leaves a request whose window is there: it is only moved. So a request has one window,
//! whatever happens, and its name must not be used for another.

mod disk;
mod fills;
mod folder;
mod name;
mod part;
mod quota;
mod request;

#[cfg(test)]
mod tests;

pub use folder::{Spool, SpoolError, Swept};
pub use name::Name;
pub use part::PartFile;
pub use quota::{Entry, Kind, Quota};

use std::path::Path;

use exist_trace::session::Target;

use crate::alloc::Earlier;

/// What the windows of a target in the folder `root` showed of its CPUs; nothing where there is no such folder.
#[must_use]
pub fn earlier(root: &Path, target: &Target) -> Earlier {
    fills::earlier(&root.join(FILLS), target)
}

const FILLS: &str = "fills";
