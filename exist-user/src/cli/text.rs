//! Text for people: units and aligned tables, at most 100 columns wide for tables of usual content.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

/// Nanoseconds in the unit that keeps three to six digits: `1.234 ms`.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.3} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

/// Bytes in a binary unit: `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A time of the trace, in seconds since the recording began, to the nanosecond.
pub fn since(t_ns: u64, start_ns: u64) -> String {
    let (sign, ns) = if t_ns < start_ns {
        ("-", start_ns - t_ns)
    } else {
        ("", t_ns - start_ns)
    };
    format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// CLOCK_REALTIME as a date, to the second.
pub fn utc(realtime_ns: u64) -> String {
    let seconds = realtime_ns / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, so that the leap day is the last: 146,097 days in each 400 of them.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (h, m, s) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

/// CPUs or the like as ranges: `0-3,7`.
pub fn ranges(sorted: &[u32]) -> String {
    let mut out = String::new();
    let mut rest = sorted;
    while let Some(&first) = rest.first() {
        let n = rest.iter().zip(first..).take_while(|(a, b)| **a == *b).count();
        let comma = if out.is_empty() { "" } else { "," };
        let _ = match n {
            1 => write!(out, "{comma}{first}"),
            _ => write!(out, "{comma}{first}-{}", rest[n - 1]),
        };
        rest = &rest[n..];
    }
    out
}

/// Text that cannot steer a terminal, nor show other than it is: names and paths come from strangers.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
}

/// The same for text of several lines.
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(plain).collect();
    lines.join("\n")
}

/// Control characters, and what turns the direction of writing or ends a line.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows that are printed once all are known, each column as wide as its widest cell.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn print(&self, indent: &str, out: &mut dyn Write) -> io::Result<()> {
        let head: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                self.rows
                    .iter()
                    .chain([&head])
                    .map(|r| r.get(i).map_or(0, |c| width(c)))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in [&head].into_iter().chain(&self.rows) {
            let mut line = indent.to_owned();
            for ((cell, (_, align)), width_of) in row.iter().zip(&self.columns).zip(&widths) {
                let pad = " ".repeat(width_of - width(cell));
                match align {
                    Align::Left => line.extend([cell, &*pad, "  "]),
                    Align::Right => line.extend([&*pad, cell, "  "]),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_that_people_read() {
        assert_eq!(
            [0, 999, 1_500, 12_345_678, 61_000_000_000].map(duration),
            ["0 ns", "999 ns", "1.500 µs", "12.346 ms", "61.000 s"]
        );
        assert_eq!(
            [0, 1023, 1536, 5 << 30].map(bytes),
            ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
        );
        assert_eq!(
            [since(5, 2), since(3_000_000_001, 0), since(2, 5)],
            ["0.000000003", "3.000000001", "-0.000000003"]
        );
        assert_eq!(
            [ranges(&[]), ranges(&[3]), ranges(&[0, 1, 2, 7, 9, 10])],
            ["", "3", "0-2,7,9-10"]
        );
        let dates = [0, 951_782_400, 951_868_799, 1_735_689_599, 1_796_083_200];
        assert_eq!(
            dates.map(|s| utc(s * 1_000_000_000)),
            [
                "1970-01-01 00:00:00 UTC",
                "2000-02-29 00:00:00 UTC",
                "2000-02-29 23:59:59 UTC",
                "2024-12-31 23:59:59 UTC",
                "2026-12-01 00:00:00 UTC"
            ]
        );
        assert_eq!(plain("a\x1b[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
        assert_eq!(plain("exe\u{202e}gpj.é漢"), "exe\u{fffd}gpj.é漢");
        assert_eq!(plain_lines("a\x07:\n  b\r\n"), "a\u{fffd}:\n  b\u{fffd}\n");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("NAME", Align::Left), ("N", Align::Right)]);
        table.row(["ä".into(), "10".into()]);
        table.row(["longer".into(), "7".into()]);
        let mut out = Vec::new();
        table.print(" ", &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            " NAME     N\n ä       10\n longer   7\n"
        );
    }
}
