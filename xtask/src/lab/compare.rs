//! The truth against what was decoded, CPU by CPU: takes both as steps, gives the counts or the first difference outside
//! the losses that the truth itself tells of.

use anyhow::{Context, Result, bail};
use exist_lab_truth::{Branches, Reader, Record};

/// A change of control flow as both sides tell it: from, to; 0 where user mode was entered or left.
pub type Step = (u64, u64);

/// What is pending when a loss begins is lost with it: at most the bits of one TNT packet, and what lies between them.
const EDGE: usize = 96;

/// What one CPU's user mode did while the truth was recorded, cut where packets were lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    /// Never empty; between two of them is a loss.
    pieces: Vec<Vec<Step>>,
    /// Steps that ran while packets were lost.
    lost: usize,
}

impl Truth {
    /// How often packets were lost.
    pub fn losses(&self) -> usize {
        self.pieces.len().saturating_sub(1)
    }
}

/// Reads one CPU's truth.
///
/// # Errors
/// A file that is not whole; transitions that the lab cannot explain.
pub fn of_truth(bytes: &[u8]) -> Result<Truth> {
    let losses = losses(bytes)?;
    let mut truth = Truth {
        pieces: vec![Vec::new()],
        lost: 0,
    };
    let mut first = true;
    let each = |branch: exist_lab_truth::Branch| {
        // Where the recording began, no one entered user mode.
        if std::mem::take(&mut first) {
            return;
        }
        let step = (branch.from, branch.to);
        let ended = losses.iter().take_while(|loss| loss.1 < branch.tsc).count();
        if losses.get(ended).is_some_and(|loss| loss.0 <= branch.tsc) {
            truth.lost += 1;
        } else {
            truth.pieces.resize_with(ended + 1, Vec::new);
            truth.pieces[ended].push(step);
        }
    };
    Branches::new(Reader::new(bytes)?).for_each(each)?;
    Ok(truth)
}

/// When packets were lost: first and last time, in order.
fn losses(bytes: &[u8]) -> Result<Vec<(u64, u64)>> {
    let mut losses = Vec::new();
    let mut begun = None;
    for item in Reader::new(bytes)? {
        let item = item.context("failed to read the ground truth")?;
        match item.record {
            Record::OvfBegin | Record::Stopped => begun = begun.or(Some(item.tsc)),
            Record::OvfEnd { .. } => losses.extend(begun.take().map(|begin| (begin, item.tsc))),
            Record::RtitCtl { value } if value & 1 != 0 => losses.extend(begun.take().map(|begin| (begin, item.tsc))),
            Record::Unexplained { from, to } => {
                bail!("the lab cannot explain how control came from {from:#x} to {to:#x}: the run proves nothing");
            }
            _ => {}
        }
    }
    losses.extend(begun.map(|begin| (begin, u64::MAX)));
    Ok(losses)
}

/// Both sides, CPU by CPU: each piece of the truth is in what was decoded, in order and whole, but for the last steps
/// before a loss.
///
/// # Errors
/// The first difference; a truth without steps.
pub fn compare(truth: &[Truth], decoded: &[Vec<Step>]) -> Result<String> {
    let mut out = String::new();
    for (cpu, truth) in truth.iter().enumerate() {
        let mut decoded = decoded.get(cpu).map(Vec::as_slice).unwrap_or_default();
        let (mut exact, mut lost) = (0, truth.lost);
        for (n, piece) in truth.pieces.iter().enumerate() {
            let whole = n == truth.losses();
            let enough = if whole {
                piece.len()
            } else {
                piece.len().saturating_sub(EDGE).max(piece.len().div_ceil(2))
            };
            let (at, same) = longest(piece, decoded, enough);
            let missing = &piece[same..];
            if let Some((from, to)) = missing.first().filter(|_| same < enough) {
                bail!(
                    "CPU {cpu}: after {same} of {} steps the program went from {from:#x} to {to:#x}, which is not decoded there",
                    piece.len(),
                );
            }
            exact += same;
            lost += missing.len();
            decoded = &decoded[at + same..];
        }
        out += &format!(
            "cpu {cpu}: {exact} branches, exits to and returns from the kernel: 0 differences; {lost} lost in "
        );
        out += &format!("{} losses\n", truth.losses());
    }
    if truth.iter().flat_map(|truth| &truth.pieces).all(Vec::is_empty) {
        bail!("the ground truth is empty");
    }
    Ok(out)
}

/// The first place where `enough` of the truth was decoded in a row from its first step on, else where most was; and how
/// much.
fn longest(truth: &[Step], decoded: &[Step], enough: usize) -> (usize, usize) {
    let mut best = (0, 0);
    for at in 0..decoded.len() {
        let same = truth
            .iter()
            .zip(&decoded[at..])
            .take_while(|(truth, decoded)| truth == decoded)
            .count();
        if same > best.1 {
            best = (at, same);
        }
        if same >= enough {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use exist_lab_truth::{Block, Class, Header, Writer};

    use super::*;

    const TRUTH: [Step; 4] = [(0, 1), (1, 2), (2, 3), (3, 0)];

    fn check(pieces: &[&[Step]], decoded: &[Step]) -> Result<String> {
        let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
        compare(&[Truth { pieces, lost: 5 }], &[decoded.to_vec()])
    }

    #[test]
    fn a_difference_and_a_missing_step_are_found() {
        let decoded = [(0, 1), (1, 2), (9, 9), (0, 1), (1, 2), (2, 3), (3, 0), (0, 7)];
        assert!(check(&[&TRUTH], &decoded).unwrap().contains("4 branches"));
        let error = check(&[&TRUTH], &[(0, 1), (1, 2), (2, 4), (3, 0)]).unwrap_err();
        assert!(error.to_string().contains("after 2 of 4"));
        assert!(check(&[&TRUTH], &TRUTH[..2]).is_err());
        assert!(check(&[&[]], &[]).is_err());
    }

    #[test]
    fn only_the_end_of_a_piece_before_a_loss_may_be_missing() {
        let decoded = [&TRUTH[..3], &[(7, 7)], &TRUTH[..]].concat();
        assert!(check(&[&TRUTH, &TRUTH], &decoded).unwrap().contains("7 branches"));
        assert!(
            check(&[&TRUTH, &TRUTH], &TRUTH).is_err(),
            "the second piece was not decoded"
        );
        let long: Vec<Step> = (0..EDGE as u64 * 2).map(|at| (at, at)).collect();
        assert!(check(&[&long, &TRUTH], &[&long[..10], &TRUTH].concat()).is_err());
    }

    #[test]
    fn the_truth_is_cut_at_an_overflow() {
        let mut writer = Writer::new(Header { cpu: 0, tsc_hz: 1 });
        let block = Block {
            start: 0x1000,
            last: 0,
            class: Class::Jump,
            code: vec![0xeb, 0xfe],
        };
        writer.push(1, &Record::Define { id: 0, block });
        for tsc in 1..=3 {
            writer.push(tsc, &Record::Ran { id: 0 });
        }
        writer.push(3, &Record::OvfBegin);
        writer.push(4, &Record::Ran { id: 0 });
        writer.push(5, &Record::Ran { id: 0 });
        writer.push(5, &Record::OvfEnd { bytes: 9 });
        writer.push(6, &Record::Ran { id: 0 });
        let step = (0x1000, 0x1000);
        let truth = of_truth(writer.bytes()).unwrap();
        assert_eq!(
            truth,
            Truth {
                pieces: vec![vec![step], vec![step]],
                lost: 3
            }
        );
    }
}
