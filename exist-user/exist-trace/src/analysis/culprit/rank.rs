//! Calls → the things that distinguish the slow ones, with what each is worth when another is held fixed.

use std::collections::HashMap;

use super::{
    calls::{Calls, Id, Stands, Thing},
    exact::{Factorials, Table, holm},
};

/// Findings that are compared with each other: the likeliest ones.
const MOST_COMPARED: usize = 64;
/// A thing explains another when, with it held fixed, the other's p-value is above this, and the reverse is not so.
const EXPLAINED: f64 = 0.05;

/// The calls that are compared: indices into [`Calls`].
#[derive(Clone, Debug, Default)]
pub struct Sides {
    pub slow: Vec<usize>,
    pub typical: Vec<usize>,
}

/// A thing that distinguishes.
#[derive(Clone, Debug)]
pub struct Ranked {
    pub thing: Id,
    /// It is there when a call has it so many times at the least.
    pub at_least: u32,
    pub table: Table,
    /// Natural logarithms.
    pub ln_p: f64,
    pub ln_corrected: f64,
    /// Others that exactly the same calls have.
    pub same: Vec<Id>,
    /// Rank of the finding that explains it, and what is left of it then (a natural logarithm).
    pub explained: Option<(usize, f64)>,
    /// One bit for each compared call, the slow ones first.
    has: Vec<u64>,
}

/// The findings in order, and how many things were looked at.
#[derive(Clone, Debug, Default)]
pub struct Ranking {
    pub findings: Vec<Ranked>,
    pub looked_at: usize,
}

/// Ranks all things of the calls. A finding has a corrected p-value of at most `level`. In order: what stood before the call
/// and nothing explains; what happened within it and nothing explains; what is explained. Among these by p-value.
#[must_use]
pub fn rank(calls: &Calls, sides: &Sides, level: f64) -> Ranking {
    let (slow, all) = (sides.slow.len(), sides.slow.len() + sides.typical.len());
    let mut columns: HashMap<Id, Vec<(usize, u32)>> = HashMap::new();
    for (at, call) in sides.slow.iter().chain(&sides.typical).enumerate() {
        for (thing, count) in &calls.calls[*call].things {
            columns.entry(*thing).or_default().push((at, *count));
        }
    }
    let factorials = Factorials::up_to(all as u64);
    let mut found: Vec<Ranked> = columns
        .into_iter()
        .filter(|(thing, _)| calls.is_compared(*thing))
        .filter_map(|(thing, column)| {
            let at_least = usual(&column, all)?;
            let with = |is_slow: bool| {
                let of_side = column
                    .iter()
                    .filter(|(at, n)| *n >= at_least && (*at < slow) == is_slow);
                of_side.count() as u64
            };
            let table = Table {
                slow_with: with(true),
                slow: slow as u64,
                typical_with: with(false),
                typical: (all - slow) as u64,
            };
            Some(Ranked {
                thing,
                at_least,
                table,
                ln_p: factorials.fisher(&table),
                ln_corrected: 0.0,
                same: Vec::new(),
                explained: None,
                has: bits(&column, at_least, all),
            })
        })
        .collect();
    let looked_at = found.len();
    found.sort_by(|a, b| a.ln_p.total_cmp(&b.ln_p).then(a.thing.cmp(&b.thing)));
    let corrected = holm(&found.iter().map(|f| f.ln_p).collect::<Vec<_>>(), looked_at);
    found.iter_mut().zip(corrected).for_each(|(f, ln)| f.ln_corrected = ln);
    found.retain(|f| f.ln_corrected <= level.ln());
    let mut found = merged(calls, found);
    found.truncate(MOST_COMPARED);
    let explained = explanations(calls, &found, &factorials, slow, all);
    found.iter_mut().zip(explained).for_each(|(f, by)| f.explained = by);
    Ranking {
        findings: ordered(calls, found),
        looked_at,
    }
}

/// How many times a call must have it to differ from the usual one: more than the median; or, when nothing has more, the
/// median. `None`: all calls are alike in this.
fn usual(column: &[(usize, u32)], all: usize) -> Option<u32> {
    let mut counts: Vec<u32> = column.iter().map(|(_, n)| *n).collect();
    counts.sort_unstable();
    // Calls without it come first.
    let median = (all / 2).checked_sub(all - counts.len()).map_or(0, |at| counts[at]);
    let most = *counts.last()?;
    let at_least = if most > median { median + 1 } else { median };
    let with = counts.len() - counts.partition_point(|n| *n < at_least);
    (with > 0 && with < all).then_some(at_least)
}

fn bits(column: &[(usize, u32)], at_least: u32, all: usize) -> Vec<u64> {
    let mut bits = vec![0; all.div_ceil(64)];
    for (at, _) in column.iter().filter(|(_, n)| *n >= at_least) {
        bits[at / 64] |= 1 << (at % 64);
    }
    bits
}

/// Things that exactly the same calls have become one: it is called by what stands before the call, and was itself the call
/// before most often.
fn merged(calls: &Calls, found: Vec<Ranked>) -> Vec<Ranked> {
    let key = |id: Id| {
        let direct = calls.direct.get(&id).copied().unwrap_or(0);
        let thing = calls.things.get(id);
        (thing.stands(), thing.within(), std::cmp::Reverse(direct), id)
    };
    let mut groups: Vec<Ranked> = Vec::new();
    let mut by_bits: HashMap<Vec<u64>, usize> = HashMap::new();
    for one in found {
        match by_bits.get(&one.has) {
            Some(&at) => groups[at].same.push(one.thing),
            None => {
                by_bits.insert(one.has.clone(), groups.len());
                groups.push(one);
            }
        }
    }
    for group in &mut groups {
        group.same.push(group.thing);
        group.same.sort_by_key(|id| key(*id));
        group.thing = group.same.remove(0);
    }
    groups
}

/// For each finding the one that explains it best, and the logarithm of the p-value that is left.
fn explanations(
    calls: &Calls,
    found: &[Ranked],
    factorials: &Factorials,
    slow: usize,
    all: usize,
) -> Vec<Option<(usize, f64)>> {
    let stands = |f: &Ranked| calls.things.get(f.thing).stands();
    let left: Vec<Vec<f64>> = found
        .iter()
        .map(|one| {
            found
                .iter()
                .map(|by| factorials.given(&split(one, by, slow, all)))
                .collect()
        })
        .collect();
    (0..found.len())
        .map(|one| {
            let explains = |by: &usize| {
                // The same thing, looked at in another number of calls: the number that tells most.
                if same_but_within(calls, found[*by].thing, found[one].thing) {
                    return found[*by].ln_p < found[one].ln_p;
                }
                // What happened in the call is no explanation of what was before it.
                let before = stands(&found[*by]) <= stands(&found[one]);
                let ln = EXPLAINED.ln();
                *by != one && before && left[one][*by] > ln && left[*by][one] <= ln
            };
            let best = (0..found.len())
                .filter(explains)
                .min_by(|a, b| found[*a].ln_p.total_cmp(&found[*b].ln_p));
            best.map(|by| (by, left[one][by]))
        })
        .collect()
}

/// Whether two things differ only in how many calls before the call are looked at.
fn same_but_within(calls: &Calls, a: Id, b: Id) -> bool {
    match (calls.things.get(a), calls.things.get(b)) {
        (Thing::After { function: a, within: m }, Thing::After { function: b, within: n }) => a == b && m != n,
        (Thing::MovedBefore { within: m }, Thing::MovedBefore { within: n }) => m != n,
        _ => false,
    }
}

/// The tables of `one` for the calls that have `by`, and for those that have not.
fn split(one: &Ranked, by: &Ranked, slow: usize, all: usize) -> [Table; 2] {
    let mut tables = [Table::default(); 2];
    let is_slow = |word: usize| match slow.saturating_sub(word * 64) {
        0 => 0,
        n if n >= 64 => u64::MAX,
        n => (1 << n) - 1,
    };
    let real = |word: usize| match all - word * 64 {
        n if n >= 64 => u64::MAX,
        n => (1_u64 << n) - 1,
    };
    for (word, (one, by)) in one.has.iter().zip(&by.has).enumerate() {
        for (table, of) in tables.iter_mut().zip([*by, !*by & real(word)]) {
            let count = |bits: u64| u64::from(bits.count_ones());
            table.slow_with += count(one & of & is_slow(word));
            table.slow += count(of & is_slow(word));
            table.typical_with += count(one & of & !is_slow(word));
            table.typical += count(of & !is_slow(word));
        }
    }
    tables
}

fn ordered(calls: &Calls, found: Vec<Ranked>) -> Vec<Ranked> {
    let mut order: Vec<usize> = (0..found.len()).collect();
    let key = |f: &Ranked| (f.explained.is_some(), calls.things.get(f.thing).stands());
    order.sort_by(|a, b| {
        let (a, b) = (&found[*a], &found[*b]);
        key(a).cmp(&key(b)).then(a.ln_p.total_cmp(&b.ln_p))
    });
    let mut rank = vec![0; found.len()];
    order.iter().enumerate().for_each(|(to, from)| rank[*from] = to);
    let take = |at: &usize| Ranked {
        explained: found[*at].explained.map(|(by, ln)| (rank[by], ln)),
        ..found[*at].clone()
    };
    order.iter().map(take).collect()
}

impl Ranked {
    /// Whether it is before or within.
    #[must_use]
    pub fn stands(&self, calls: &Calls) -> Stands {
        calls.things.get(self.thing).stands()
    }

    /// Whether the compared call at this place has it.
    #[must_use]
    pub fn has(&self, at: usize) -> bool {
        self.has.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_is_not_looked_at() {
        let check = |counts: &[u32], all: usize, expect: Option<u32>| {
            let column: Vec<_> = counts.iter().copied().enumerate().collect();
            assert_eq!(usual(&column, all), expect, "{counts:?} of {all}");
        };
        check(&[1, 1], 10, Some(1));
        check(&[1; 10], 10, None);
        // Nearly all call it once: the one without it differs.
        check(&[1; 9], 10, Some(1));
        // A loop's rounds: more than the usual ones.
        check(&[3, 3, 3, 3, 3, 9, 8], 7, Some(4));
        check(&[1], 1, None);
    }
}
