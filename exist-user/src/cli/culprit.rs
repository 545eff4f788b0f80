//! `exist culprit`: what distinguishes the slow calls of a function from its typical ones.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::Args;
use exist_trace::analysis::culprit::{self, Finding, Gather, Options, Report, SlowerThan, Stands, Window};

use super::{
    Outcome,
    code::Roots,
    flow::Decoded,
    pieces, quantity, read,
    text::{self, Align, Table},
};

/// Say what distinguishes the slow calls of a function from its typical ones
#[derive(Debug, Args)]
#[command(after_help = "\
Compared are the calls from --slower-than on with those up to the median: the call before on the thread, what other threads were
in when it began, moves between CPUs, and within the call what it called, its branches, waits (best with `record --waits on`) and
neighbours on its CPU. P is Fisher's exact test, corrected for all things looked at (Holm). Association is no proof of a cause: what
stood before the call comes first, and what tells nothing more once another finding is held fixed comes last, with that finding.

Examples:
  exist culprit slow.exist --function Get
  exist culprit /var/spool/exist --function store::Get --slower-than 5ms
  exist culprit slow.exist --function Get --json | jq -r '.findings[0].what'")]
pub struct Culprit {
    /// A trace, or a folder of traces (a spool too)
    path: PathBuf,
    /// The function: its name, or the last part of its path
    #[arg(long, value_name = "NAME")]
    function: String,
    /// Which calls are slow: a percentile of all of them, or a length of time
    #[arg(long, value_name = "P99|TIME", default_value = "p99", value_parser = slower_than)]
    slower_than: SlowerThan,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The folder that holds the recorded machine's files [default: the process', or this machine's]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// `p99`, `p99.9`, or a length of time.
fn slower_than(text: &str) -> Result<SlowerThan, String> {
    let percentile = text
        .strip_prefix(['p', 'P'])
        .and_then(|digits| digits.parse::<f64>().ok());
    match percentile {
        Some(p) if (0.0..100.0).contains(&p) && p > 0.0 => Ok(SlowerThan::Quantile(p / 100.0)),
        Some(_) => Err(format!("`{text}` is no percentile; write p99 or p99.9")),
        None => quantity::duration_ns(text)
            .map(SlowerThan::Ns)
            .map_err(|_| format!("`{text}` is neither a percentile (p99) nor a length of time (5ms)")),
    }
}

impl Culprit {
    pub fn run(&self, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let roots = Roots {
            root: self.root.clone(),
        };
        let (files, is_folder) = files(&self.path)?;
        let mut gather = Gather::new(&self.function);
        let mut unread = 0;
        for file in &files {
            // Of a folder, windows that cannot be read or have no processor trace are told and left out.
            match add(&mut gather, file, &roots) {
                Err(error) if is_folder => {
                    unread += 1;
                    eprintln!("exist: left out: {}", text::plain_lines(&format!("{error:#}")));
                }
                done => done?,
            }
        }
        if unread == files.len() {
            anyhow::bail!("none of the {unread} traces in {} can be read", self.path.display());
        }
        let options = Options {
            slower_than: self.slower_than,
            ..Options::default()
        };
        let calls = gather.calls();
        let report = culprit::culprit(&calls, &self.function, &options)?;
        if self.json {
            serde_json::to_writer(&mut *out, &report)?;
            writeln!(out)?;
        } else {
            print(&report, out)?;
        }
        Ok(Outcome::Done)
    }
}

/// The file itself; or the traces of a folder or a spool, by name.
fn files(path: &Path) -> anyhow::Result<(Vec<PathBuf>, bool)> {
    if !path.is_dir() {
        return Ok((vec![path.to_owned()], false));
    }
    let windows = path.join("windows");
    let folder = if windows.is_dir() { windows } else { path.to_owned() };
    let entries = fs::read_dir(&folder).with_context(|| format!("failed to list {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry
            .with_context(|| format!("failed to list {}", folder.display()))?
            .path();
        if file.extension().is_some_and(|e| e == "exist") {
            files.push(file);
        }
    }
    if files.is_empty() {
        anyhow::bail!("{} holds no trace (NAME.exist)", folder.display());
    }
    files.sort();
    Ok((files, true))
}

fn add(gather: &mut Gather, path: &Path, roots: &Roots) -> anyhow::Result<()> {
    let data = read(path)?;
    let decoded = Decoded::new(&data, path, roots)?;
    let window = Window {
        trace: &decoded.trace,
        pieces: pieces(&data, path)?,
        flow: &decoded.flow,
        image: &decoded.image,
    };
    gather.window(&path.display().to_string(), window);
    Ok(())
}

fn print(r: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(
        out,
        "{} in {}: {} calls in {}; slow: {} of {} or longer; typical: {} up to {}",
        text::plain(&r.function),
        text::plain(&r.module),
        r.calls,
        if r.files == 1 {
            "1 trace".to_owned()
        } else {
            format!("{} traces", r.files)
        },
        r.slow,
        text::duration(r.slow_ns),
        r.typical,
        text::duration(r.median_ns),
    )?;
    if r.compared_slow < r.slow {
        writeln!(
            out,
            "{} slow calls overlap others and are not counted",
            r.slow - r.compared_slow
        )?;
    }
    writeln!(out)?;
    if r.findings.is_empty() {
        writeln!(
            out,
            "nothing distinguishes the slow calls, of {} things looked at",
            r.looked_at
        )?;
    } else {
        table(r, out)?;
    }
    for note in notes(r) {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn table(r: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("", Right),
        ("SLOW", Right),
        ("TYPICAL", Right),
        ("P", Right),
        ("", Left),
        ("WHAT", Left),
    ]);
    let share = |part: u64, whole: usize| format!("{:.1} %", part as f64 / whole.max(1) as f64 * 100.0);
    for (rank, f) in (1..).zip(&r.findings) {
        let explained = f.explained_by.map(|by| format!(" (explained by {})", by + 1));
        table.row([
            rank.to_string(),
            share(f.slow_with, r.compared_slow),
            share(f.typical_with, r.typical),
            p_value(f.p_corrected),
            match f.stands {
                Stands::Before => "before".to_owned(),
                Stands::Within => "within".to_owned(),
            },
            format!("{}{}{}", what(f), same(f), explained.unwrap_or_default()),
        ]);
    }
    table.print("", out)?;
    writeln!(out)?;
    let first = &r.findings[0];
    let example = &first.example;
    writeln!(
        out,
        "1: {} of {} slow calls and {} of {} typical ones; odds ratio {:.1}; P {} before correction for {} things",
        first.slow_with,
        r.compared_slow,
        first.typical_with,
        r.typical,
        first.odds_ratio,
        p_value(first.p),
        r.looked_at
    )?;
    writeln!(
        out,
        "example: {}, thread {}, at {} s, {}",
        text::plain(&example.file),
        example.tid,
        text::since(example.start_ns, example.recording_ns),
        text::duration(example.end_ns - example.start_ns)
    )?;
    Ok(())
}

fn what(f: &Finding) -> String {
    let times = if f.at_least > 1 {
        format!(", {} times or more", f.at_least)
    } else {
        String::new()
    };
    format!("{}{times}", text::plain(&f.what))
}

/// The first of those that the same calls have, and how many more.
fn same(f: &Finding) -> String {
    match f.same.as_slice() {
        [] => String::new(),
        [one] => format!("; the same calls: {}", text::plain(one)),
        [one, rest @ ..] => format!("; the same calls: {} and {} more", text::plain(one), rest.len()),
    }
}

fn p_value(p: f64) -> String {
    match p {
        p if p < 1e-300 => "<1e-300".to_owned(),
        p if p < 0.001 => format!("{p:.0e}"),
        p => format!("{p:.3}"),
    }
}

fn notes(r: &Report) -> Vec<String> {
    let l = &r.left_out;
    let mut notes = Vec::new();
    let mut note = |n: u64, text: &str| {
        if n > 0 {
            notes.push(format!("{n} {text}"));
        }
    };
    note(l.incomplete, "calls without a begin or an end are left out");
    note(l.calls, "calls are left out: there are more than are kept");
    note(l.crowded, "calls have more different things than are kept");
    if l.beside_below_ns > 1000 {
        notes.push(format!(
            "calls of other threads shorter than {} were not looked for beside: there are too many",
            text::duration(l.beside_below_ns)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_lengths() {
        let check = |text, expect: Option<SlowerThan>| assert_eq!(slower_than(text).ok(), expect, "{text}");
        check("p99", Some(SlowerThan::Quantile(0.99)));
        check("p99.5", Some(SlowerThan::Quantile(0.995)));
        check("5ms", Some(SlowerThan::Ns(5_000_000)));
        for bad in ["p0", "p100", "p-1", "99", "", "pnan", "5"] {
            check(bad, None);
        }
    }

    #[test]
    fn a_folder_s_traces_and_a_spool_s() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(files(path).unwrap_err().to_string().contains("holds no trace"));
        for name in ["b.exist", "a.exist", "c.exist.12.part"] {
            fs::write(path.join(name), "").unwrap();
        }
        assert_eq!(
            files(path).unwrap(),
            (vec![path.join("a.exist"), path.join("b.exist")], true)
        );
        fs::create_dir(path.join("windows")).unwrap();
        fs::write(path.join("windows/w.exist"), "").unwrap();
        assert_eq!(files(path).unwrap(), (vec![path.join("windows/w.exist")], true));
        let file = path.join("a.exist");
        assert_eq!(files(&file).unwrap(), (vec![file], false));
    }

    #[test]
    fn p_values_read_well() {
        assert_eq!(
            [0.0, 2.4e-12, 0.0421, 1.0].map(p_value),
            ["<1e-300", "2e-12", "0.042", "1.000"]
        );
    }
}
