//! Where time went, in one pass: the states of threads and groups, and the scheduler's latency.

use super::{
    latency::{self, Latency},
    observe::{Observed, observe},
    states::{self, States},
};
use crate::file::Pieces;

/// Reads a file to its end. Of one without waits only the time on CPU is there.
#[must_use]
pub fn times(pieces: Pieces<'_>) -> (States, Latency) {
    let (mut states, mut latency) = (states::Collect::default(), latency::Collect::default());
    let mut split = latency::Split::default();
    let (threads, _) = observe(pieces, |observed| {
        states.take(observed);
        match (split.take(observed), observed) {
            (Some(queued), _) => latency.queued(&queued),
            (None, Observed::Wait(_)) => latency.unseen(),
            (None, Observed::Ran(_)) => {}
        }
    });
    (states.finish(&threads), latency.finish())
}
