//! What the last windows of each target showed of its CPUs, for the plan of the next one: `DIR/fills/KEY.json`.
//!
//! Only a hint: a file that is missing or damaged is as if there had been no window, and says so to nobody.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use exist_trace::session::Target;
use serde::{Deserialize, Serialize};

use super::{PartFile, disk};
use crate::{
    alloc::{Earlier, WindowFill},
    sys::regular,
};

/// More targets are not remembered: the one that was recorded longest ago goes.
const MOST_TARGETS: usize = 64;
/// A larger file is none of ours.
const MOST_BYTES: u64 = 1 << 20;

/// One target's file.
#[derive(Debug, Serialize, Deserialize)]
struct Fills {
    /// As the user named it.
    target: Target,
    earlier: Earlier,
}

/// The target's earlier windows, below `folder`.
pub fn earlier(folder: &Path, target: &Target) -> Earlier {
    let read = || {
        let mut bytes = Vec::new();
        regular::open(&path(folder, target))?
            .take(MOST_BYTES)
            .read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let fills = read()
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Fills>(&bytes).ok());
    fills
        .filter(|fills| fills.target == *target)
        .map_or_else(Earlier::default, |fills| fills.earlier)
}

/// Adds the window that has just ended.
///
/// # Errors
/// As the system gives them.
pub fn remember(folder: &Path, target: &Target, window: WindowFill) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut earlier = earlier(folder, target);
    earlier.push(window);
    let fills = Fills {
        target: target.clone(),
        earlier,
    };
    let bytes = serde_json::to_vec(&fills)?;
    let mut file = PartFile::create(&path(folder, target))?;
    match file.write_all(&bytes) {
        Ok(()) => file.finish()?,
        Err(error) => {
            file.discard();
            return Err(error);
        }
    }
    forget(folder)
}

/// Removes what is too much; and what killed processes have left, since a part is written within an instant.
fn forget(folder: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, PathBuf)> = fs::read_dir(folder)?
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    let over = files.len().saturating_sub(MOST_TARGETS);
    for (_, file) in files.into_iter().take(over) {
        match disk::remove(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// Named by a number (FNV-1a), as a target can be any text.
fn path(folder: &Path, target: &Target) -> PathBuf {
    let text = serde_json::to_vec(target).unwrap_or_default();
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    folder.join(format!("{hash:016x}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(period_ns: u64) -> WindowFill {
        WindowFill {
            period_ns,
            cpus: Vec::new(),
        }
    }

    #[test]
    fn windows_of_each_target_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("fills");
        let (a, b) = (Target::Pid(1), Target::Container("4f2a".into()));
        assert_eq!(earlier(&folder, &a), Earlier::default());
        remember(&folder, &a, window(1)).unwrap();
        remember(&folder, &a, window(2)).unwrap();
        remember(&folder, &b, window(3)).unwrap();
        assert_eq!(earlier(&folder, &a).windows, [window(1), window(2)]);
        assert_eq!(earlier(&folder, &b).windows, [window(3)]);
        assert_eq!(earlier(&folder, &Target::OnlyPid(1)), Earlier::default());
    }

    #[test]
    fn a_damaged_file_is_none_and_their_number_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let target = Target::Pid(7);
        fs::write(path(folder, &target), b"{\"target\":").unwrap();
        assert_eq!(earlier(folder, &target), Earlier::default());
        for pid in 0..MOST_TARGETS as u32 + 9 {
            remember(folder, &Target::Pid(pid), window(1)).unwrap();
        }
        assert_eq!(fs::read_dir(folder).unwrap().count(), MOST_TARGETS);
    }
}
