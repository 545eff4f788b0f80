//! `exist report`: the least CPU that the target had, as text.

use std::io::{self, Write};

use exist_trace::analysis::{report::Report, utilization::WindowRow};

use super::text::{self, Align, Table};

pub fn print(r: &Report, out: &mut dyn Write) -> io::Result<()> {
    use Align::Right;
    if r.utilization.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        ("WINDOW", Right),
        ("LEAST CPUS", Right),
        ("FROM", Right),
        ("2ND", Right),
        ("FROM", Right),
        ("3RD", Right),
        ("FROM", Right),
    ]);
    for row in &r.utilization {
        let mut cells = vec![window(row.window_ns)];
        for at in 0..3 {
            cells.extend(worst(row.worst.get(at), row.window_ns, r.start_ns));
        }
        table.row(cells);
    }
    table.print("", out)?;
    let on_cpu_ns = r.cpus.iter().fold(0u64, |sum, c| sum.saturating_add(c.on_cpu_ns));
    writeln!(
        out,
        "on average {} CPUs; time without work counts like time without a CPU\n",
        cpus(on_cpu_ns, r.period_ns)
    )
}

/// A window's CPUs and its start.
fn worst(window: Option<&WindowRow>, window_ns: u64, start_ns: u64) -> [String; 2] {
    window.map_or_else(
        || ["-".into(), "-".into()],
        |w| {
            [
                cpus(w.on_cpu_ns, window_ns),
                format!("{} s", text::since(w.start_ns, start_ns)),
            ]
        },
    )
}

fn cpus(on_cpu_ns: u64, window_ns: u64) -> String {
    if window_ns == 0 {
        return "-".into();
    }
    format!("{:.3}", on_cpu_ns as f64 / window_ns as f64)
}

/// A length that is a power of ten from 1 ms on.
fn window(ns: u64) -> String {
    match ns / 1_000_000 {
        ms @ 0..1000 => format!("{ms} ms"),
        ms => format!("{} s", ms / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_and_what_ran_in_it() {
        let check = |window_ns, on_cpu_ns, expect: [&str; 2]| {
            let row = WindowRow {
                start_ns: 1_500_000_000,
                on_cpu_ns,
            };
            assert_eq!(worst(Some(&row), window_ns, 1_000_000_000), expect);
        };
        check(1_000_000, 0, ["0.000", "0.500000000 s"]);
        check(10_000_000, 12_345_678, ["1.235", "0.500000000 s"]);
        assert_eq!(worst(None, 1_000_000, 0), ["-", "-"]);
        assert_eq!(
            [1_000_000, 100_000_000, 1_000_000_000, 10_000_000_000].map(window),
            ["1 ms", "100 ms", "1 s", "10 s"]
        );
    }
}
