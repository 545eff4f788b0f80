//! Windows from the switches of a trace of `exist record`.

use std::collections::BTreeMap;

use exist_trace::{
    file::Pieces,
    flow::{Sched, Step},
};
use exist_user::alloc::Use;

use super::{LOOK_BACK, loads::Window};

/// Windows of 50 ms from a trace's switches, at 300 MB/s a busy CPU; `None`: too short to judge.
pub fn recorded(path: &str) -> Result<Option<Vec<Window>>, String> {
    const SLOT_NS: u64 = 50_000_000;
    let data = std::fs::read(path).map_err(|error| format!("failed to read {path}: {error}"))?;
    let pieces = Pieces::new(&data).map_err(|error| format!("failed to read {path}: {error}"))?;
    let cpus = pieces
        .header()
        .node
        .cpus
        .iter()
        .map(|cpu| cpu.cpu.0 as usize + 1)
        .max()
        .unwrap_or(0);
    let start = pieces.header().start.0;
    let mut slots: BTreeMap<u64, Window> = BTreeMap::new();
    let mut ran = |step: Step| {
        let Step::Ran { cpu, from, to, .. } = step else { return };
        let mut at = from.0.max(start);
        while at < to.0 {
            let slot = (at - start) / SLOT_NS;
            let until = to.0.min(start + (slot + 1) * SLOT_NS);
            let window = slots.entry(slot).or_insert_with(|| vec![Use::default(); cpus]);
            if let Some(cpu) = window.get_mut(cpu.0 as usize) {
                cpu.on_cpu_ns += (until - at) as f64;
                cpu.bytes += (until - at) as f64 * 0.3;
            }
            at = until;
        }
    };
    let mut sched = Sched::default();
    pieces.for_each(|piece| sched.piece(&piece, &mut ran));
    sched.finish(&mut ran);
    let last = slots.keys().max().copied().unwrap_or(0);
    let windows: Vec<_> = (0..=last)
        .map(|slot| slots.remove(&slot).unwrap_or_else(|| vec![Use::default(); cpus]))
        .collect();
    Ok((windows.len() > LOOK_BACK).then_some(windows))
}
