//! A thread's spans in the order of their ends → for each call of the function: what came before it and what it called.
//!
//! Little is kept, for each depth of the stack: the last calls there, and the sum of what was called.
//!
//! ```text
//!   depth 0  main ───────────────────────────────
//!   depth 1    Flush ─────  Get ──────────────      last[1]: Flush and all it called
//!   depth 2      write ─      find ──  copy ──      inside[2]: find, copy, which are Get's when Get ends
//! ```

use std::collections::{HashMap, VecDeque};

use super::calls::Id;
use crate::flow::Span;

/// More different functions are not kept of one call.
const MOST_FUNCTIONS: usize = 256;
/// So many calls before a call are looked at.
pub const MOST_BEFORE: usize = 8;
/// Branches of calls that did not end are forgotten beyond so many depths.
const MOST_DEPTHS: usize = 4096;

/// Functions with counts; sorted by function.
#[derive(Clone, Debug, Default)]
pub struct Inside {
    functions: Vec<(Id, u32)>,
    pub crowded: bool,
}

impl Inside {
    pub fn iter(&self) -> impl Iterator<Item = (Id, u32)> + '_ {
        self.functions.iter().copied()
    }

    fn add(&mut self, function: Id, count: u32) {
        match self.functions.binary_search_by_key(&function, |f| f.0) {
            Ok(at) => self.functions[at].1 = self.functions[at].1.saturating_add(count),
            Err(at) if self.functions.len() < MOST_FUNCTIONS => self.functions.insert(at, (function, count)),
            Err(_) => self.crowded = true,
        }
    }

    fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(function, count)| self.add(function, count));
        self.crowded |= other.crowded;
    }
}

/// A call that ended at a depth.
#[derive(Clone, Debug)]
pub struct Last {
    pub function: Id,
    pub start: u64,
    pub inside: Inside,
}

/// Branches from one offset to another, counted.
pub type Branches = HashMap<(u64, u64), u32>;

#[derive(Debug, Default)]
struct Depth {
    /// The newest first.
    last: VecDeque<Last>,
    inside: Inside,
    branches: Branches,
}

/// What is known of a span when it ends.
pub struct Known<'a> {
    pub inside: &'a Inside,
    /// The calls before it, the newest first: those at its own depth, then those before its caller, and so on.
    pub before: Vec<&'a Last>,
    pub branches: Branches,
}

/// A thread's stack as its spans end.
#[derive(Debug, Default)]
pub struct Tree {
    depths: Vec<Depth>,
}

impl Tree {
    /// A branch within the call that is at this depth now.
    pub fn branch(&mut self, depth: u32, from: u64, to: u64) {
        let depth = depth as usize;
        if depth < MOST_DEPTHS {
            let count = self.at(depth).branches.entry((from, to)).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// A span ends; `sink` is told what is known of it.
    pub fn ends(&mut self, function: Id, span: &Span, sink: impl FnOnce(Known<'_>)) {
        let depth = (span.depth as usize).min(MOST_DEPTHS);
        self.at(depth + 1);
        let inside = std::mem::take(&mut self.depths[depth + 1].inside);
        let branches = std::mem::take(&mut self.depths[depth].branches);
        self.depths.truncate(depth + 1);
        let before = self
            .depths
            .iter()
            .rev()
            .flat_map(|at| &at.last)
            .take(MOST_BEFORE)
            .collect();
        sink(Known {
            inside: &inside,
            before,
            branches,
        });
        let here = &mut self.depths[depth];
        here.inside.merge(&inside);
        here.inside.add(function, 1);
        here.last.truncate(MOST_BEFORE - 1);
        here.last.push_front(Last {
            function,
            start: span.start.0,
            inside,
        });
    }

    fn at(&mut self, depth: usize) -> &mut Depth {
        if depth >= self.depths.len() {
            self.depths.resize_with(depth + 1, Depth::default);
        }
        &mut self.depths[depth]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{image::FunctionId, units::MonoNs};

    /// Spans as `letter depth`, in the order of their ends; gives `letter<before{inside}` of each.
    fn check(spans: &str, expect: &str) {
        let (mut tree, mut got, mut time) = (Tree::default(), Vec::new(), 0);
        let letter = |id: Id| char::from(b'a' + id.0 as u8);
        for span in spans.split(',').map(str::trim) {
            time += 1;
            let function = Id(u32::from(span.as_bytes()[0] - b'a'));
            let span = Span {
                function: FunctionId(0),
                start: MonoNs(time),
                end: MonoNs(time),
                depth: span[1..].parse().unwrap(),
                inferred: false,
                called: true,
                self_ns: 0,
                recursive: false,
            };
            tree.ends(function, &span, |known| {
                let before: String = known.before.iter().map(|last| letter(last.function)).collect();
                let inside: String = known
                    .inside
                    .iter()
                    .map(|(id, n)| format!("{}{n}", letter(id)))
                    .collect();
                got.push(format!("{}<{before}{{{inside}}}", letter(function)));
            });
        }
        assert_eq!(got.join(" "), expect, "{spans}");
    }

    #[test]
    fn the_call_before_and_those_inside() {
        check(
            "w2, f1, x2, c2, x2, g1, m0",
            "w<{} f<{w1} x<f{} c<xf{} x<cxf{} g<f{c1x2} m<{c1f1g1w1x2}",
        );
    }

    #[test]
    fn the_first_call_of_a_caller_comes_after_what_came_before_the_caller() {
        // loop 0, op 1, Flush or Get 2.
        // No more than the last eight.
        check(
            "a1, b1, c1, d1, e1, f1, g1, h1, i1, j2",
            &format!(
                "{} i<hgfedcba{{}} j<ihgfedcb{{}}",
                "a<{} b<a{} c<ba{} d<cba{} e<dcba{} f<edcba{} g<fedcba{} h<gfedcba{}"
            ),
        );
        check("f2, o1, g2, o1, g2, o1", "f<{} o<{f1} g<o{} o<o{g1} g<oo{} o<oo{g1}");
    }

    #[test]
    fn more_functions_than_are_kept_are_said() {
        let mut inside = Inside::default();
        (0..1000).for_each(|i| inside.add(Id(i), 1));
        assert!(inside.crowded && inside.iter().count() == MOST_FUNCTIONS);
    }
}
