//! One line of a measurement's result, and where the lines go: JSON as they come, or one aligned table at the end.

use serde::Serialize;

/// One measured figure, perhaps beside a peer's, perhaps with a demand on it.
///
/// ```
/// Row::new("switch of others", "ns").ours(61.0).at_most(70.0)
/// Row::new("redis, p99", "us").ours(210.0).peer(350.0).must("ours is the lowest", 210.0 < 350.0)
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Unit of `ours` and `peer`.
    pub unit: &'static str,
    /// Our figure; `None` when only the peer has one.
    pub ours: Option<f64>,
    /// The peer's figure.
    pub peer: Option<f64>,
    /// `ours / peer`.
    pub ratio: Option<f64>,
    /// The demand in words; `None` when the row only informs.
    pub must: Option<String>,
    /// Whether the demand is met; `true` when there is none.
    pub ok: bool,
    /// How it was measured: pairs, bounds, versions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Row {
    /// A row without figures yet.
    pub fn new(what: impl Into<String>, unit: &'static str) -> Self {
        Self {
            what: what.into(),
            unit,
            ours: None,
            peer: None,
            ratio: None,
            must: None,
            ok: true,
            note: String::new(),
        }
    }

    /// Sets our figure.
    #[must_use]
    pub fn ours(mut self, value: f64) -> Self {
        self.ours = Some(value);
        self.with_ratio()
    }

    /// Sets the peer's figure.
    #[must_use]
    pub fn peer(mut self, value: f64) -> Self {
        self.peer = Some(value);
        self.with_ratio()
    }

    /// Demands `ok`, told as `must`. A second demand joins the first: both have to hold.
    #[must_use]
    pub fn must(mut self, must: impl Into<String>, ok: bool) -> Self {
        self.must = Some(match self.must {
            Some(earlier) => format!("{earlier}; {}", must.into()),
            None => must.into(),
        });
        self.ok &= ok;
        self
    }

    /// Demands that our figure is there and at most `limit`.
    #[must_use]
    pub fn at_most(self, limit: f64) -> Self {
        let ok = self.ours.is_some_and(|ours| ours <= limit);
        let must = format!("≤ {} {}", number(limit), self.unit);
        self.must(must, ok)
    }

    /// Adds how it was measured.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn with_ratio(mut self) -> Self {
        self.ratio = match (self.ours, self.peer) {
            (Some(ours), Some(peer)) if peer != 0.0 => Some(ours / peer),
            _ => None,
        };
        self
    }
}

/// Where the rows of a bench go.
#[derive(Debug)]
pub struct Report {
    json: bool,
    rows: Vec<Row>,
}

impl Report {
    /// `json`: each row is printed when it comes. Otherwise a table at the end.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self { json, rows: Vec::new() }
    }

    /// Takes a row.
    pub fn row(&mut self, row: Row) {
        if self.json {
            let line = serde_json::to_string(&row).expect("a row has only strings, numbers and booleans");
            println!("{line}");
        }
        self.rows.push(row);
    }

    /// Prints the table, if there is to be one. Gives whether every row is `ok` and there is at least one.
    #[must_use]
    pub fn finish(&self) -> bool {
        if !self.json {
            print!("{}", table(&self.rows));
        }
        !self.rows.is_empty() && self.rows.iter().all(|row| row.ok)
    }
}

#[cfg(test)]
impl Report {
    /// Whether the row of this name is `ok`.
    pub fn row_ok(&self, what: &str) -> Option<bool> {
        self.rows.iter().find(|row| row.what == what).map(|row| row.ok)
    }
}

/// Columns padded to the widest cell; text to the left, numbers to the right.
fn table(rows: &[Row]) -> String {
    let head = ["what", "unit", "ours", "peer", "ratio", "ok", "must", "note"].map(String::from);
    let cells: Vec<[String; 8]> = std::iter::once(head).chain(rows.iter().map(line)).collect();
    let width = |column: usize| cells.iter().map(|cell| cell[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut out = String::new();
    for cell in &cells {
        let mut text = String::new();
        for (column, (value, width)) in cell.iter().zip(widths).enumerate() {
            match column {
                2..=4 => text += &format!("{value:>width$}  "),
                _ => text += &format!("{value:<width$}  "),
            }
        }
        out += text.trim_end();
        out.push('\n');
    }
    out
}

fn line(row: &Row) -> [String; 8] {
    let optional = |value: Option<f64>| value.map(number).unwrap_or_default();
    let ok = match (&row.must, row.ok) {
        (None, true) => "",
        (Some(_), true) => "ok",
        (_, false) => "NOT OK",
    };
    [
        row.what.clone(),
        row.unit.to_string(),
        optional(row.ours),
        optional(row.peer),
        row.ratio.map(|ratio| format!("{ratio:.4}")).unwrap_or_default(),
        ok.to_string(),
        row.must.clone().unwrap_or_default(),
        row.note.clone(),
    ]
}

/// Four significant digits, or all digits before the point.
fn number(value: f64) -> String {
    let before = if value.abs() < 1.0 {
        0
    } else {
        value.abs().log10() as usize + 1
    };
    format!("{value:.*}", 4usize.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_follows_both_figures() {
        assert_eq!(Row::new("a", "ns").ours(3.0).ratio, None);
        assert_eq!(Row::new("a", "ns").ours(3.0).peer(2.0).ratio, Some(1.5));
        assert_eq!(Row::new("a", "ns").peer(2.0).ours(3.0).ratio, Some(1.5));
        assert_eq!(Row::new("a", "ns").ours(3.0).peer(0.0).ratio, None);
    }

    #[test]
    fn a_demand_without_a_figure_is_not_met() {
        assert!(!Row::new("a", "ns").at_most(1.0).ok);
        assert!(!Row::new("a", "ns").ours(f64::NAN).at_most(1.0).ok);
        assert!(Row::new("a", "ns").ours(1.0).at_most(1.0).ok);
        assert!(!Row::new("a", "ns").ours(1.0).at_most(1.0).must("and", false).ok);
    }

    #[test]
    fn a_report_is_good_only_with_rows_and_every_row_ok() {
        let finish = |rows: &[Row]| {
            let mut report = Report::new(true);
            rows.iter().cloned().for_each(|row| report.row(row));
            report.finish()
        };
        assert!(!finish(&[]));
        assert!(finish(&[Row::new("a", "")]));
        assert!(!finish(&[Row::new("a", ""), Row::new("b", "").must("never", false)]));
    }

    #[test]
    fn table_aligns_and_numbers_keep_four_digits() {
        let rows = [
            Row::new("a", "ns").ours(61.25).at_most(70.0),
            Row::new("long", "req/s").ours(123_456.7).peer(0.01234),
        ];
        let text = table(&rows);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "what  unit     ours    peer          ratio  ok  must        note"
        );
        assert_eq!(lines[1], "a     ns      61.25                         ok  ≤ 70.00 ns");
        assert_eq!(lines[2], "long  req/s  123457  0.0123  10004594.8136");
    }

    #[test]
    fn json_has_the_agreed_fields() {
        let text = serde_json::to_string(&Row::new("a", "ns").ours(1.0).peer(2.0).must("less", true)).unwrap();
        assert_eq!(
            text,
            r#"{"what":"a","unit":"ns","ours":1.0,"peer":2.0,"ratio":0.5,"must":"less","ok":true}"#
        );
    }
}
