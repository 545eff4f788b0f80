//! Spans → a row for each function.

use std::collections::HashMap;

use serde::Serialize;

use super::spans::Span;
use crate::image::{FunctionId, Symbols};

/// How often a function was called and how long it took, over all threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionRow {
    /// Demangled name.
    pub name: String,
    /// The file that holds it.
    pub module: String,
    /// Calls that were seen to begin.
    pub calls: u64,
    /// Time in it, without the functions that it called; waiting included.
    pub self_ns: u64,
    /// Time from its entry to its end; of calls within a call of the same function only the outermost counts.
    pub total_ns: u64,
}

/// Sums spans by function.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    sums: HashMap<FunctionId, (u64, u64, u64)>,
}

impl Functions {
    pub fn add(&mut self, span: &Span) {
        let (calls, own, total) = self.sums.entry(span.function).or_default();
        *calls += u64::from(span.called);
        *own += span.self_ns;
        if !span.recursive {
            *total += span.end.0 - span.start.0;
        }
    }

    /// The rows, by time in the function itself, longest first.
    #[must_use]
    pub fn rows(&self, symbols: &Symbols) -> Vec<FunctionRow> {
        let mut rows: Vec<FunctionRow> = self
            .sums
            .iter()
            .map(|(&id, &(calls, self_ns, total_ns))| {
                let function = symbols.function(id);
                let (name, module) = (function.name.to_string(), function.module.to_string());
                FunctionRow {
                    name,
                    module,
                    calls,
                    self_ns,
                    total_ns,
                }
            })
            .collect();
        rows.sort_by(|a, b| {
            b.self_ns
                .cmp(&a.self_ns)
                .then_with(|| a.name.cmp(&b.name))
                .then_with(|| a.module.cmp(&b.module))
        });
        rows
    }
}
