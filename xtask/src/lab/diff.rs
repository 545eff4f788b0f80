//! The shortest edit between two sequences: Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), the basic
//! algorithm. Takes two slices, gives the places where they differ.

use std::ops::Range;

/// Elements of the first that are replaced by elements of the second; one of the two can be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hunk {
    pub first: Range<usize>,
    pub second: Range<usize>,
}

/// The places where two sequences differ, in order. `None` when they differ in more than `most` elements: time and
/// memory grow with its square.
pub fn diff<T: Eq>(first: &[T], second: &[T], most: usize) -> Option<Vec<Hunk>> {
    let furthest = furthest(first, second, most)?;
    // Back from the end: where each diagonal's path came from.
    let (mut x, mut y) = (first.len(), second.len());
    let mut hunks: Vec<Hunk> = Vec::new();
    for edits in (1..furthest.len()).rev() {
        let before = &furthest[edits - 1];
        let k = x as isize - y as isize;
        let down = came_down(before, k, edits);
        let from = if down { k + 1 } else { k - 1 };
        let from_x = before[index(from, edits - 1)];
        let from_y = (from_x as isize - from) as usize;
        let edit = Hunk {
            first: from_x..from_x + usize::from(!down),
            second: from_y..from_y + usize::from(down),
        };
        match hunks.last_mut() {
            Some(next) if next.first.start == edit.first.end && next.second.start == edit.second.end => {
                (next.first.start, next.second.start) = (edit.first.start, edit.second.start);
            }
            _ => hunks.push(edit),
        }
        (x, y) = (from_x, from_y);
    }
    hunks.reverse();
    Some(slid(hunks, first, second))
}

/// In a repetition, what is missing or added can stand at several places: at the first, joined with what differs there.
fn slid<T: Eq>(hunks: Vec<Hunk>, first: &[T], second: &[T]) -> Vec<Hunk> {
    let mut out: Vec<Hunk> = Vec::new();
    for mut hunk in hunks {
        let least = out.last().map_or(0, |before| before.first.end);
        let side = |hunk: &Hunk| {
            let (slice, range) = if hunk.second.is_empty() {
                (first, &hunk.first)
            } else {
                (second, &hunk.second)
            };
            range.start > 0 && slice[range.start - 1] == slice[range.end - 1]
        };
        while hunk.first.is_empty() != hunk.second.is_empty() && hunk.first.start > least && side(&hunk) {
            hunk.first = hunk.first.start - 1..hunk.first.end - 1;
            hunk.second = hunk.second.start - 1..hunk.second.end - 1;
        }
        match out.last_mut() {
            Some(before) if before.first.end == hunk.first.start => {
                (before.first.end, before.second.end) = (hunk.first.end, hunk.second.end);
            }
            _ => out.push(hunk),
        }
    }
    out
}

/// For each number of edits, how far each diagonal comes: diagonals -edits, -edits + 2, … edits.
fn furthest<T: Eq>(first: &[T], second: &[T], most: usize) -> Option<Vec<Vec<usize>>> {
    let slide = |mut x: usize, k: isize| {
        while let (Some(a), Some(b)) = (first.get(x), second.get((x as isize - k) as usize)) {
            if a != b {
                break;
            }
            x += 1;
        }
        x
    };
    let mut all: Vec<Vec<usize>> = Vec::new();
    for edits in 0..=most.min(first.len() + second.len()) {
        let mut row = Vec::with_capacity(edits + 1);
        for k in (-(edits as isize)..=edits as isize).step_by(2) {
            let x = match all.last() {
                None => 0,
                Some(before) if came_down(before, k, edits) => before[index(k + 1, edits - 1)],
                Some(before) => before[index(k - 1, edits - 1)] + 1,
            };
            row.push(slide(x, k));
            if row.last() == Some(&first.len()) && first.len() as isize - k == second.len() as isize {
                row.resize(edits + 1, 0);
                all.push(row);
                return Some(all);
            }
        }
        all.push(row);
    }
    None
}

/// Where diagonal `k` stands in the row of this many edits.
fn index(k: isize, edits: usize) -> usize {
    ((k + edits as isize) / 2) as usize
}

/// Whether diagonal `k` is reached with the last of `edits` by an element of the second.
fn came_down(before: &[usize], k: isize, edits: usize) -> bool {
    let edits = edits as isize;
    k == -edits || k != edits && before[index(k - 1, edits as usize - 1)] < before[index(k + 1, edits as usize - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hunks as `first>second`, by position; and applied, they make the second of the first.
    fn check(first: &str, second: &str, expect: &str) {
        let (a, b) = (first.as_bytes(), second.as_bytes());
        let hunks = diff(a, b, 100).unwrap();
        let text: Vec<_> = hunks
            .iter()
            .map(|hunk| format!("{}>{}", &first[hunk.first.clone()], &second[hunk.second.clone()]))
            .collect();
        assert_eq!(text.join(" "), expect);
        let (mut made, mut at) = (Vec::new(), 0);
        for hunk in &hunks {
            made.extend_from_slice(&a[at..hunk.first.start]);
            made.extend_from_slice(&b[hunk.second.clone()]);
            at = hunk.first.end;
        }
        made.extend_from_slice(&a[at..]);
        assert_eq!(made, b);
    }

    #[test]
    fn insertions_deletions_and_replacements() {
        check("abc", "abc", "");
        check("", "", "");
        check("", "ab", ">ab");
        check("ab", "", "ab>");
        check("abcd", "acd", "b>");
        check("acd", "abcd", ">b");
        check("abcdef", "abxyef", "cd>xy");
        check("abcabba", "cbabac", "ab> >b b> >c");
    }

    #[test]
    fn in_a_repetition_the_first_place_counts() {
        check("abababcd", "abcd", "abab>");
        check("xabababcd", "yabcd", "xabab>y");
        check("xabcd", "yabababcd", "x>yabab");
    }

    #[test]
    fn too_many_differences_are_not_looked_for() {
        assert_eq!(diff(b"abcdef", b"uvwxyz", 5), None);
        assert!(diff(b"abcdef", b"abcdez", 2).is_some());
    }
}
