//! Clock rows of `cargo xtask lab accuracy`: how far the file's map of CLOCK_MONOTONIC is from the TSC that a reading was
//! made of, which the ground truth knows.

use std::path::Path;

use anyhow::{Result, bail};
use exist_lab_truth::{Reader, Record};
use exist_trace::units::MonoNs;

use super::{super::Lab, super::decoded, Args, run_name};
use crate::bench::{Report, Row};

/// The clock as it is, and slewed: a row's name and a command of the guest.
pub const CLOCKS: [(&str, &str); 2] = [("clock", "labctl clock 2500"), ("slewed clock", SLEWED)];

/// The most that switch records and packets may be apart, microseconds at p99.9.
const MOST_APART_US: f64 = 2.0;

/// The frequency goes up and down by 200 ppm (in 2^-16 ppm) while the clock is read.
const SLEWED: &str =
    "labctl clock 800; adjtimex -f 13107200; labctl clock 800; adjtimex -f -13107200; labctl clock 900";

/// Records while labctl marks what CLOCK_MONOTONIC was at a TSC, and adds the distribution of the distances.
///
/// # Errors
/// A recording that fails, or holds too few marks.
pub fn run(lab: &Lab, args: &Args, exist: &Path, (what, command): (&str, &str), report: &mut Report) -> Result<()> {
    let name = run_name(args, what);
    let outcome = if args.again {
        lab.last(&name)?
    } else {
        let mut guest = args.guest.clone();
        guest.copy.push(exist.to_path_buf());
        guest.coarse_mtc = true;
        let script = format!("labctl run exist record --pt on -o trace.exist -- sh -c '{command}' > frequency\n");
        lab.run(&guest.plan(script, false), &name)?
    };
    if outcome.code != 0 {
        bail!(
            "exist record ended with {}: {}",
            outcome.code,
            outcome.text("stderr")?.trim()
        );
    }
    // What adjtimex prints when it has set the frequency.
    let changes = outcome.text("frequency")?.matches("13107200").count();
    if changes != command.matches("13107200").count() {
        bail!(
            "the clock's frequency was changed {changes} times: {}",
            outcome.text("stderr")?.trim()
        );
    }
    let decoded = decoded::of(&outcome.file("trace.exist")?, &outcome.folder.join("root"))?;
    let span = (decoded.trace.start.0, decoded.trace.end.0);
    let (mut errors_us, mut outside) = (Vec::new(), 0);
    for bytes in outcome.truths(args.guest.cpus)? {
        let mut cut = None;
        let reader = Reader::new(&bytes)?;
        let hz = reader.header().tsc_hz.max(1);
        for item in reader {
            let item = item?;
            match item.record {
                Record::Cut { .. } => cut = Some(item.tsc),
                Record::Mark { value } => {
                    let Some(tsc) = cut.take() else { continue };
                    // The mark holds the low 32 bits: the recording is shorter than they take to come again.
                    let high = span.0 & !u64::from(u32::MAX);
                    let near = [high, high + (1 << 32)].map(|high| high | value);
                    let Some(mono) = near.into_iter().find(|mono| (span.0..=span.1).contains(mono)) else {
                        continue;
                    };
                    let bracket = decoded.flow.clock.tsc(MonoNs(mono));
                    let middle = bracket.lo.0 + (bracket.hi.0 - bracket.lo.0) / 2;
                    errors_us.push(middle.abs_diff(tsc) as f64 * 1e6 / hz as f64);
                    outside += usize::from(!(bracket.lo.0..=bracket.hi.0).contains(&tsc));
                }
                _ => {}
            }
        }
    }
    if errors_us.len() < 1000 {
        bail!("only {} marks lie in the recording: too few for p99.9", errors_us.len());
    }
    errors_us.sort_by(f64::total_cmp);
    let at = |share: f64| errors_us[((errors_us.len() - 1) as f64 * share).round() as usize];
    let what = |share: &str| format!("{what}: switch records against packets, {share}");
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("longest", 1.0)] {
        report.row(Row::new(what(name), "us").ours(at(share)));
    }
    report.row(
        Row::new(what("p99.9"), "us")
            .ours(at(0.999))
            .at_most(MOST_APART_US)
            .note(format!(
                "{} readings, {outside} outside the bounds that the file states",
                errors_us.len()
            )),
    );
    Ok(())
}
