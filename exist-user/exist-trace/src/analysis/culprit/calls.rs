//! The calls of one function, and the things that each of them has.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::Hash,
    sync::Arc,
};

use crate::units::{MonoNs, Tid};

/// A small number that stands for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

/// Gives equal values the same number.
#[derive(Clone, Debug)]
pub(super) struct Interner<T> {
    ids: HashMap<T, Id>,
    all: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            ids: HashMap::new(),
            all: Vec::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    pub fn id(&mut self, value: &T) -> Id {
        if let Some(id) = self.ids.get(value) {
            return *id;
        }
        let id = Id(self.all.len() as u32);
        self.all.push(value.clone());
        self.ids.insert(value.clone(), id);
        id
    }

    pub fn get(&self, id: Id) -> &T {
        &self.all[id.0 as usize]
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

/// A function, the same in every window: different builds of a file have the same names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Demangled.
    pub function: Arc<str>,
    /// The file that holds it.
    pub module: Arc<str>,
}

impl Name {
    /// Whether a user means it with `text`: its whole name, or the last part of its path, without types in brackets.
    #[must_use]
    pub fn is_meant(&self, text: &str) -> bool {
        let plain = without_types(&self.function);
        &*self.function == text || plain == text || plain.rsplit("::").next() == Some(text)
    }
}

/// Up to the parameters of a C++ function.
fn without_types(function: &str) -> &str {
    match function.find('(') {
        Some(at) if at > 0 => &function[..at],
        _ => function,
    }
}

/// Something that a call has or has not, or has several times.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Thing {
    /// One of the last so many calls on the thread before it was of this function, or made a call of it.
    After { function: Id, within: u8 },
    /// When it began, another thread was in this function.
    Beside(Id),
    /// When it began, the thread was on another CPU than when the call so many before it began.
    MovedBefore { within: u8 },
    /// It made calls of this function.
    Calls(Id),
    /// It branched, within itself, from this offset to that one; of the file with this build.
    Branch { build: Arc<str>, from: u64, to: u64 },
    /// It waited, or was kept off the CPU, for this reason.
    Off(&'static str),
    /// It moved to another CPU.
    Moved,
    /// A thread of the target with this name ran on the call's CPU while the call was off it.
    Neighbour(Arc<str>),
}

/// Where a thing stands towards the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stands {
    /// It was so when the call began: it can be a cause, and the call's length cannot have made it.
    Before,
    /// It happened in the call: it can be how the time went, or come of the call's length.
    Within,
}

impl Thing {
    #[must_use]
    pub const fn stands(&self) -> Stands {
        match self {
            Self::After { .. } | Self::Beside(_) | Self::MovedBefore { .. } => Stands::Before,
            Self::Calls(_) | Self::Branch { .. } | Self::Off(_) | Self::Moved | Self::Neighbour(_) => Stands::Within,
        }
    }

    /// Of how many calls before it this is true; 0 of what has no such number.
    #[must_use]
    pub const fn within(&self) -> u8 {
        match self {
            Self::After { within, .. } | Self::MovedBefore { within } => *within,
            _ => 0,
        }
    }

    /// The name in JSON.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::After { .. } => "after",
            Self::Beside(_) => "beside",
            Self::MovedBefore { .. } => "moved_before",
            Self::Calls(_) => "calls",
            Self::Branch { .. } => "branch",
            Self::Off(_) => "off",
            Self::Moved => "moved",
            Self::Neighbour(_) => "neighbour",
        }
    }
}

/// A call, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of its file, and of its thread within all files.
    pub file: u32,
    pub thread: u32,
    pub tid: Tid,
    pub start: MonoNs,
    pub end: MonoNs,
    /// Each thing once, with how often the call has it.
    pub things: Vec<(Id, u32)>,
}

impl Call {
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }
}

/// The calls of one function in one or many windows.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    pub(super) names: Interner<Name>,
    pub(super) things: Interner<Thing>,
    /// How often a thing was itself the call before, and not made by it.
    pub(super) direct: HashMap<Id, u64>,
    pub(super) calls: Vec<Call>,
    /// Name, and when the recording began.
    pub(super) files: Vec<(String, MonoNs)>,
    /// The function, what it calls, and what calls it: of these beside a call nothing can be said (see the module).
    pub(super) kin: HashSet<Id>,
    /// Functions that the user may mean, of which there are calls.
    pub(super) meant: Vec<Id>,
    pub(super) left_out: LeftOut,
}

/// What is not looked at, for the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// Calls whose begin or end was not seen.
    pub incomplete: u64,
    /// Calls for which there was no room.
    pub calls: u64,
    /// Shorter calls of other threads were not looked for beside the calls, nanoseconds.
    pub beside_below_ns: u64,
    /// Calls that have more different things than are kept.
    pub crowded: u64,
}

impl Calls {
    /// Whether a thing is compared: in a function of the kin, another thread's slow call shows as such, whatever made it slow.
    pub(super) fn is_compared(&self, thing: Id) -> bool {
        match self.things.get(thing) {
            Thing::Beside(function) => !self.kin.contains(function),
            _ => true,
        }
    }

    /// A thing in words.
    #[must_use]
    pub fn words(&self, thing: &Thing) -> String {
        let name = |id: Id| &*self.names.get(id).function;
        let within = |n: u8| match n {
            1 => String::new(),
            n => format!(" (within {n} calls)"),
        };
        match thing {
            Thing::After { function, within: n } => format!("after {}{}", name(*function), within(*n)),
            Thing::Beside(id) => format!("while another thread is in {}", name(*id)),
            Thing::MovedBefore { within: n } => format!("after a move to another CPU{}", within(*n)),
            Thing::Calls(id) => format!("calls {}", name(*id)),
            Thing::Branch { from, to, .. } => format!("branches from +{from:#x} to +{to:#x}"),
            Thing::Off(reason) => format!("off the CPU: {reason}"),
            Thing::Moved => "moves to another CPU".to_owned(),
            Thing::Neighbour(name) => format!("{name} runs on its CPU in between"),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.function, self.module)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_meant_by_its_name_or_the_last_part_of_it() {
        let check = |function: &str, text: &str, expect: bool| {
            let name = Name {
                function: function.into(),
                module: "m".into(),
            };
            assert_eq!(name.is_meant(text), expect, "{function} {text}");
        };
        check("Get", "Get", true);
        check("store::Get", "Get", true);
        check("store::Get(std::string const&)", "Get", true);
        check("store::Get(std::string const&)", "store::Get", true);
        check("store::GetAll", "Get", false);
        check("BudGet", "Get", false);
        check("(anonymous namespace)::Get", "x", false);
    }
}
