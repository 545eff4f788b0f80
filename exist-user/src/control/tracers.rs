//! Which CPU's tracer is held by how many periods, and what it does.
//!
//! ```text
//!           hold: Enable          full
//!   absent ─────────────▶ on ───────────▶ full
//!     ▲                   │ │ EnableFailed  │
//!     │ last release:     │ └──▶ failed     │ offline: Abandon (from on, full)
//!     │ Disable           │        │        ▼
//!     └───────────────────┴────────┴──── offline ──▶ online: Enable ──▶ on
//! ```

use std::collections::{BTreeMap, BTreeSet};

use exist_trace::units::Cpu;

use super::Command;

/// What must happen to a tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Enable(Cpu),
    Disable(Cpu),
    Abandon(Cpu),
}

impl Change {
    pub fn command(self) -> Command {
        match self {
            Self::Enable(cpu) => Command::Enable(cpu),
            Self::Disable(cpu) => Command::Disable(cpu),
            Self::Abandon(cpu) => Command::Abandon(cpu),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    On,
    Full,
    /// Could not be enabled; tried again when all its holders are gone.
    Failed,
    Offline,
}

#[derive(Debug)]
struct Tracer {
    state: State,
    holders: u32,
}

/// The tracers that at least one period holds.
#[derive(Debug, Default)]
pub struct Tracers {
    held: BTreeMap<Cpu, Tracer>,
}

impl Tracers {
    pub fn hold(&mut self, cpu: Cpu) -> Option<Change> {
        let tracer = self.held.entry(cpu).or_insert(Tracer {
            state: State::On,
            holders: 0,
        });
        tracer.holders += 1;
        (tracer.holders == 1).then_some(Change::Enable(cpu))
    }

    pub fn release(&mut self, cpu: Cpu) -> Option<Change> {
        let tracer = self.held.get_mut(&cpu)?;
        tracer.holders -= 1;
        if tracer.holders > 0 {
            return None;
        }
        let state = self.held.remove(&cpu)?.state;
        matches!(state, State::On | State::Full).then_some(Change::Disable(cpu))
    }

    pub fn failed(&mut self, cpu: Cpu) {
        self.change(cpu, &[State::On, State::Full], State::Failed);
    }

    pub fn full(&mut self, cpu: Cpu) {
        self.change(cpu, &[State::On], State::Full);
    }

    pub fn offline(&mut self, cpu: Cpu) -> Option<Change> {
        let tracer = self.held.get_mut(&cpu)?;
        let was = std::mem::replace(&mut tracer.state, State::Offline);
        matches!(was, State::On | State::Full).then_some(Change::Abandon(cpu))
    }

    pub fn online(&mut self, cpu: Cpu) -> Option<Change> {
        let tracer = self
            .held
            .get_mut(&cpu)
            .filter(|tracer| tracer.state == State::Offline)?;
        tracer.state = State::On;
        Some(Change::Enable(cpu))
    }

    /// Whether at least one of these has a full buffer and none is still running.
    pub fn all_full(&self, cpus: &BTreeSet<Cpu>) -> bool {
        let is = |state| move |tracer: &&Tracer| tracer.state == state;
        let of = || cpus.iter().filter_map(|cpu| self.held.get(cpu));
        of().any(|tracer| is(State::Full)(&tracer)) && !of().any(|tracer| is(State::On)(&tracer))
    }

    fn change(&mut self, cpu: Cpu, from: &[State], to: State) {
        if let Some(tracer) = self.held.get_mut(&cpu).filter(|tracer| from.contains(&tracer.state)) {
            tracer.state = to;
        }
    }
}
