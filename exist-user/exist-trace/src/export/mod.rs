//! A trace in other formats, a file for each.

pub mod ndjson;
pub mod perfetto;
