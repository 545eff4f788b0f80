//! What is read from a trace, a file for each question.

pub mod tally;
pub mod observe;
pub mod utilization;

pub mod blockers;
pub mod culprit;
pub mod latency;
pub mod path;
pub mod pressure;
pub mod diagnose;
pub mod report;
pub mod states;
pub mod times;
