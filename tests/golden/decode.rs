//! Decoding checked against the ground truth of the PT lab, and against other decoders' results on real and reference data.
//!
//! The real and reference data is third-party and not part of the project: `EXIST_CAPTURES` names its folder, else
//! `../shared/captures` beside the workspace is tried; without it a test says that it is skipped.

#![allow(clippy::unwrap_used)]

#[path = "decode/captures.rs"]
mod captures;
#[path = "decode/lab.rs"]
mod lab;
#[path = "decode/ptdump.rs"]
mod ptdump;
#[path = "decode/ptxed.rs"]
mod ptxed;
#[path = "decode/real.rs"]
mod real;
#[path = "decode/switches.rs"]
mod switches;
