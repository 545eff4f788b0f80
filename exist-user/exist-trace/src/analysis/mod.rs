//! What is read from a trace, a file for each question.

pub mod utilization;

pub mod culprit;
pub mod report;
pub mod waits;
