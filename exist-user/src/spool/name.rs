//! Names of windows and requests.

use std::fmt;

/// A name without an ending: 1 to 128 of letters, digits, `-`, `_` and `.`, the first of them no `.`. It leads nowhere
/// but into its folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// `None`: it has other characters, or none, or too many.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        ((1..=128).contains(&text.len()) && !text.starts_with('.') && text.chars().all(is_plain))
            .then(|| Self(text.to_owned()))
    }

    /// Of a window that nobody has named: it started at this time, recorded by process `pid`. Sorts by time.
    #[must_use]
    pub fn of_window(realtime_ns: u64, pid: u32) -> Self {
        Self(format!("{realtime_ns:020}-{pid}"))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere() {
        for good in ["a", "req-7_b.2", &"x".repeat(128)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".a", "a/b", "a\0", "a b", "é", "a\n", &"x".repeat(129)] {
            assert_eq!(Name::new(bad), None, "{bad:?}");
        }
        let (early, late) = (Name::of_window(9, 400), Name::of_window(10, 3));
        assert!(early < late && Name::new(early.as_str()).is_some());
    }
}
