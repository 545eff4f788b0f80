//! Which files go when room is needed. Pure.

use std::{
    cmp::Reverse,
    time::{Duration, SystemTime},
};

use super::Name;

/// What a folder may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// All files together.
    pub bytes: u64,
    /// Older ones go even when there is room.
    pub age: Duration,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A finished window that nobody holds.
    Window,
    /// Left by a process that was killed: what it wrote so far can be read.
    Leftover,
    /// A finished window that a request holds.
    Held,
    /// Being written.
    Live,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Name,
    pub file: std::path::PathBuf,
    pub bytes: u64,
    /// When it was last written.
    pub modified: SystemTime,
    pub kind: Kind,
}

impl Quota {
    /// Those to remove, in this order: what is too old; then, as long as there is too much, leftovers and then windows,
    /// the oldest first. Never what is held or live, nor the window `keep`.
    #[must_use]
    pub fn excess<'a>(&self, entries: &'a [Entry], now: SystemTime, keep: Option<&Name>) -> Vec<&'a Entry> {
        let mut total: u64 = entries.iter().map(|entry| entry.bytes).sum();
        let mut free: Vec<_> = entries
            .iter()
            .filter(|entry| matches!(entry.kind, Kind::Window | Kind::Leftover))
            .filter(|entry| entry.kind == Kind::Leftover || Some(&entry.name) != keep)
            .collect();
        // A time in the future is not old.
        let is_old = |entry: &Entry| now.duration_since(entry.modified).is_ok_and(|age| age > self.age);
        free.sort_by_key(|entry| (Reverse(is_old(entry)), Reverse(entry.kind), entry.modified, &entry.name));
        free.into_iter()
            .take_while(|entry| {
                let goes = is_old(entry) || total > self.bytes;
                total -= if goes { entry.bytes } else { 0 };
                goes
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries as `name kind bytes age`, what goes as names; quota: 100 bytes, age 50 s; `k` is kept.
    fn check(entries: &str, expect: &str) {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let entries: Vec<_> = entries
            .split(", ")
            .map(|entry| {
                let [name, kind, bytes, age] = entry.split(' ').collect::<Vec<_>>()[..] else {
                    panic!("{entry}")
                };
                Entry {
                    name: Name::new(name).unwrap(),
                    file: name.into(),
                    bytes: bytes.parse().unwrap(),
                    modified: now - Duration::from_secs(age.parse().unwrap()),
                    kind: match kind {
                        "w" => Kind::Window,
                        "l" => Kind::Leftover,
                        "h" => Kind::Held,
                        _ => Kind::Live,
                    },
                }
            })
            .collect();
        let quota = Quota {
            bytes: 100,
            age: Duration::from_secs(50),
        };
        let gone: Vec<_> = quota
            .excess(&entries, now, Name::new("k").as_ref())
            .into_iter()
            .map(|entry| entry.name.as_str())
            .collect();
        assert_eq!(gone.join(" "), expect, "{entries:?}");
    }

    #[test]
    fn the_oldest_that_nobody_holds_goes_first() {
        check("a w 50 1, b w 50 2", "");
        check("a w 50 1, b w 51 2", "b");
        check("a w 50 1, b w 50 2, c w 50 3", "c");
        check("a w 50 1, b w 50 2, c w 101 3", "c");
        check("a w 101 1, b w 1 2, c w 1 3", "c b a");
        // Held and live ones count, but stay.
        check("a h 90 9, b w 20 1, c w 5 2", "c b");
        check("a h 200 9, b x 20 1", "");
        // Leftovers go before windows.
        check("a w 60 9, b l 50 1", "b");
        check("a w 60 9, b l 10 1, c w 60 2", "b a");
        // Age alone is enough, and nothing makes what is held too old.
        check("a w 1 51, b w 1 50, c h 1 99, d l 1 60", "d a");
        // What was just written stays, even when it is too large by itself.
        check("k w 300 0, a w 10 1", "a");
    }
}
