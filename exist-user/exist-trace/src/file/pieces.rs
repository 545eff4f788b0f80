//! A file → its generations in order, with every loss in its place: those that the recorder wrote, and those that
//! reading shows (damage, a cut tail, missing generations, gaps in sequence numbers).
//!
//! Streams: holds one generation at a time. Refuses a file without one readable chunk.

use std::collections::VecDeque;

use super::{
    gaps::{Gap, Gaps},
    layout::FLAG_LAST,
    model::{GENERATION_NS, Generation, Header, Loss, LossKind},
    reader::{Cause, ReadError, Reader},
};
use crate::units::MonoNs;

/// What comes next in a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// A generation, without its losses, and the gaps in its records.
    Generation(Box<Generation>, Vec<Gap>),
    /// Something is missing here. For [`LossKind::FileDamaged`] and [`LossKind::FileCut`]: everything, between its times.
    Loss(Loss),
    /// Switch records of a loss that came before are missing between its times, and no gap shows where.
    Unseen(Loss),
}

/// Iterates over a file. Ends with what only the whole file shows.
#[derive(Debug)]
pub struct Pieces<'a> {
    reader: Reader<'a>,
    queue: VecDeque<Piece>,
    header: Header,
    errors: Vec<ReadError>,
    gaps: Option<Gaps>,
    next_number: Option<u64>,
    end: MonoNs,
    ended: bool,
}

impl<'a> Pieces<'a> {
    /// Reads up to the first good generation.
    ///
    /// # Errors
    /// The first [`ReadError`] of a file that has no readable chunk.
    pub fn new(data: &'a [u8]) -> Result<Self, ReadError> {
        let mut reader = Reader::new(data);
        let mut errors = Vec::new();
        let first = loop {
            match reader.next() {
                Some(Ok(generation)) => break generation,
                Some(Err(error)) => errors.push(error),
                None => {
                    let empty = ReadError {
                        offset: 0,
                        bytes: 0,
                        chunk: None,
                        cause: Cause::NotATrace,
                    };
                    return Err(errors.into_iter().next().unwrap_or(empty));
                }
            }
        };
        let mut pieces = Self {
            reader,
            queue: VecDeque::new(),
            header: first.header.clone(),
            errors,
            gaps: Some(Gaps::default()),
            next_number: None,
            end: first.header.start,
            ended: false,
        };
        pieces.generation(first);
        Ok(pieces)
    }

    /// That of the first good generation.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    fn generation(&mut self, mut g: Generation) {
        let Some(gaps) = &mut self.gaps else { return };
        let expected = self.next_number.unwrap_or(g.number);
        if g.number < expected {
            let reason = format!("chunk {} stands twice or out of order: not used", g.number);
            self.queue.push_back(Piece::Loss(damage(self.end, self.end, reason)));
            return;
        }
        let errors = std::mem::take(&mut self.errors);
        if g.number > expected || !errors.is_empty() {
            gaps.interrupted();
        }
        for error in &errors {
            let loss = damage_of(error, self.end, g.start);
            self.queue.push_back(Piece::Loss(loss));
        }
        if g.number > expected && errors.is_empty() {
            let reason = format!("chunks {expected} to {} are not in the file", g.number - 1);
            self.queue.push_back(Piece::Loss(damage(self.end, g.start, reason)));
        }
        let found = gaps.generation(&g.records, &g.losses, &g.counters);
        self.queue
            .extend(std::mem::take(&mut g.losses).into_iter().map(Piece::Loss));
        self.next_number = g.number.checked_add(1);
        self.end = self.end.max(g.end);
        self.ended |= g.end_of_recording.is_some();
        self.queue.push_back(Piece::Generation(Box::new(g), found));
    }

    fn finish(&mut self, gaps: Gaps) {
        let errors = std::mem::take(&mut self.errors);
        let to = MonoNs(self.end.0.saturating_add(if self.ended { 0 } else { GENERATION_NS }));
        self.queue
            .extend(errors.iter().map(|e| Piece::Loss(damage_of(e, self.end, to))));
        // The last chunk may be there, but damaged or cut.
        let is_said = |e: &ReadError| e.cause == Cause::Cut || e.chunk.is_some_and(|c| c.flags & FLAG_LAST != 0);
        if !self.ended && !errors.iter().any(is_said) {
            self.queue.push_back(Piece::Loss(Loss {
                kind: LossKind::FileCut,
                ..damage(
                    self.end,
                    to,
                    "the recording's end is not in the file: the recorder died, or the file was cut".into(),
                )
            }));
        }
        let (start, end) = (self.header.start, self.end);
        let (unaccounted, unseen) = gaps.finish();
        let within = |l: Loss| Loss {
            from: l.from.max(start),
            to: l.to.min(end).max(start),
            ..l
        };
        for loss in unaccounted {
            let loss = within(loss);
            self.queue.extend([Piece::Loss(loss.clone())]);
            if loss.cpu.is_none() {
                self.queue.push_back(Piece::Unseen(loss));
            }
        }
        self.queue.extend(unseen.into_iter().map(within).map(Piece::Unseen));
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.queue.pop_front() {
                return Some(piece);
            }
            match self.reader.next() {
                Some(Ok(generation)) => self.generation(generation),
                Some(Err(error)) => self.errors.push(error),
                None => {
                    let gaps = self.gaps.take()?;
                    self.finish(gaps);
                }
            }
        }
    }
}

fn damage(from: MonoNs, to: MonoNs, reason: String) -> Loss {
    Loss {
        from,
        to: to.max(from),
        cpu: None,
        kind: LossKind::FileDamaged,
        records: 0,
        bytes: 0,
        reason,
    }
}

/// `from` and `to` are where the neighbours end and begin.
fn damage_of(error: &ReadError, from: MonoNs, to: MonoNs) -> Loss {
    let (from, to) = match (&error.cause, &error.chunk) {
        // Not this recording's time.
        (Cause::OtherRecording { .. }, _) => (from, from),
        // Records may reach back a little before their chunk's start, never beyond the neighbours.
        (Cause::Cut, Some(chunk)) => (from, chunk.end.max(from)),
        _ => (from, to),
    };
    Loss {
        kind: if error.cause == Cause::Cut {
            LossKind::FileCut
        } else {
            LossKind::FileDamaged
        },
        bytes: error.bytes,
        ..damage(from, to, error.to_string())
    }
}
