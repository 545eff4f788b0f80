//! One thing that a node has or lacks, and how the list of them is shown.

use std::io::{self, Write};

use serde::Serialize;

/// One thing that a node has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub state: State,
    /// What cannot be done when it is missing.
    pub needed_for: Need,
    /// What was found.
    pub found: String,
    /// What mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Whether it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    /// It works, less well.
    Limited,
    Missing,
}

/// What needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    Switches,
    ProcessorTrace,
    /// Nothing stops without it.
    Comfort,
}

impl Check {
    pub fn ok(name: &'static str, needed_for: Need, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Ok,
            needed_for,
            found: found.into(),
            remedy: None,
        }
    }

    #[must_use]
    pub fn limited(self, remedy: impl Into<String>) -> Self {
        Self {
            state: State::Limited,
            remedy: Some(remedy.into()),
            ..self
        }
    }

    #[must_use]
    pub fn missing(self, remedy: impl Into<String>) -> Self {
        Self {
            state: State::Missing,
            remedy: Some(remedy.into()),
            ..self
        }
    }
}

/// All of a node.
#[derive(Debug, Serialize)]
pub struct Report {
    pub exist_version: &'static str,
    pub can_record_switches: bool,
    pub can_record_processor_trace: bool,
    pub checks: Vec<Check>,
}

impl Report {
    pub fn new(checks: Vec<Check>) -> Self {
        let lacks = |need| checks.iter().any(|c| c.needed_for == need && c.state == State::Missing);
        let can_record_switches = !lacks(Need::Switches);
        Self {
            exist_version: env!("CARGO_PKG_VERSION"),
            can_record_switches,
            can_record_processor_trace: can_record_switches && !lacks(Need::ProcessorTrace),
            checks,
        }
    }

    /// A line for each check, its remedy below it, then the verdict.
    pub fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = self.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        for check in &self.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Limited => "limited",
                State::Missing => "missing",
            };
            writeln!(out, "{state:<7}  {:<width$}  {}", check.name, check.found)?;
            if let Some(remedy) = &check.remedy {
                writeln!(out, "{:7}  {:width$}  → {remedy}", "", "")?;
            }
        }
        let verdict = |can| if can { "yes" } else { "no" };
        writeln!(out, "\nrecord switches: {}", verdict(self.can_record_switches))?;
        writeln!(
            out,
            "record the processor trace: {}",
            verdict(self.can_record_processor_trace)
        )
    }

    /// Names of the checks that keep switches from being recorded.
    pub fn blockers(&self) -> String {
        let names: Vec<&str> = self
            .checks
            .iter()
            .filter(|c| c.needed_for == Need::Switches && c.state == State::Missing)
            .map(|c| c.name)
            .collect();
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_need_decides_and_is_shown_with_its_remedy() {
        let check = |pt: Check, bpf: Check, can: (bool, bool), text: &str| {
            let report = Report::new(vec![bpf, pt]);
            assert_eq!((report.can_record_switches, report.can_record_processor_trace), can);
            let mut out = Vec::new();
            report.write_text(&mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), text);
        };
        let bpf = || Check::ok("BPF", Need::Switches, "loads");
        let pt = || Check::ok("Intel PT", Need::ProcessorTrace, "here");
        check(
            pt(),
            bpf(),
            (true, true),
            "ok       BPF       loads\nok       Intel PT  here\n\nrecord switches: yes\nrecord the processor trace: yes\n",
        );
        check(
            pt().missing("buy one"),
            bpf().limited("raise it"),
            (true, false),
            "limited  BPF       loads\n                   → raise it\nmissing  Intel PT  here\n                   → buy one\n\
            \nrecord switches: yes\nrecord the processor trace: no\n",
        );
        let report = Report::new(vec![bpf().missing("x"), pt()]);
        assert!(!report.can_record_switches && !report.can_record_processor_trace);
        assert_eq!(report.blockers(), "BPF");
    }
}
