//! One decoded trace file → its part of the calls.

use std::{collections::HashMap, sync::Arc};

use super::{calls::Name, gather::Gather};
use crate::{
    file::{Pieces, Trace},
    flow::{Flow, Sched, Step, Told, state::TaskState},
    image::{FunctionId, Image, Symbols, build_id},
    units::{MonoNs, Tid},
};

/// A file, read and decoded: the inputs of [`Gather::window`].
pub struct Window<'a> {
    pub trace: &'a Trace,
    /// The same file's pieces, for its switches.
    pub pieces: Pieces<'a>,
    pub flow: &'a Flow,
    pub image: &'a Image,
}

impl Gather {
    /// Adds a file, called `name` in examples.
    pub fn window(&mut self, name: &str, window: Window<'_>) {
        let asked = self.function().to_owned();
        let mut file = self.file(name, window.trace.header.start);
        let (mut symbols, mut ids, mut builds) = (Symbols::default(), HashMap::new(), HashMap::new());
        for tid in window.flow.threads() {
            file.thread(tid);
            let wanted = |function: &crate::image::Function| name_of(function).is_meant(&asked);
            window
                .flow
                .spans_and_jumps(tid, window.image, &mut symbols, wanted, |symbols, told| match told {
                    Told::Jump { depth, from, to } => file.branch(depth, from, to),
                    Told::Span(span) => {
                        let id = *ids
                            .entry(span.function)
                            .or_insert_with(|| file.name(&name_of(symbols.function(span.function))));
                        let build = match file.is_meant(id) {
                            true => build(&mut builds, symbols, span.function, window.image),
                            false => Arc::default(),
                        };
                        file.span(id, &span, &build);
                    }
                });
        }
        // Without records of waits, the state at switch-out is the reason.
        let waits = &window.trace.waits;
        for wait in waits {
            file.off(Tid(wait.tid), MonoNs(wait.off_ns), wait.kind().as_str());
        }
        let mut sched = Sched::default();
        let mut stays = Vec::new();
        let mut take = |step| {
            if let Step::Ran {
                thread,
                cpu,
                from,
                to,
                state,
            } = step
            {
                stays.push((thread, cpu, from, to, state));
            }
        };
        window.pieces.for_each(|piece| sched.piece(&piece, &mut take));
        let (threads, _) = sched.finish(&mut take);
        for (_, thread) in threads.iter() {
            file.thread_name(thread.tid, &thread.name);
        }
        for (thread, cpu, from, to, state) in stays {
            let tid = threads.get(thread).tid;
            file.stay(tid, cpu, from, to);
            if waits.is_empty() {
                file.off(tid, to, state_name(state));
            }
        }
        file.finish();
    }
}

fn name_of(function: &crate::image::Function) -> Name {
    Name {
        function: function.name.clone(),
        module: function.module.clone(),
    }
}

/// The build ID of the file that holds a function, in hexadecimal; empty when it has none.
fn build(
    builds: &mut HashMap<FunctionId, Arc<str>>,
    symbols: &Symbols,
    function: FunctionId,
    image: &Image,
) -> Arc<str> {
    let find = || {
        let module = &*symbols.function(function).module;
        let is_it = |path: &str| path.rsplit('/').next() == Some(module);
        let file = image.files().iter().find(|file| is_it(&file.path))?;
        build_id(file.bytes.as_ref().ok()?)
    };
    let hex = |id: Vec<u8>| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into();
    builds
        .entry(function)
        .or_insert_with(|| find().map(hex).unwrap_or_default())
        .clone()
}

const fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Runnable => "preempted",
        TaskState::Sleeping | TaskState::Idle => "sleeping",
        TaskState::DiskSleep => "disk sleep",
        TaskState::Stopped | TaskState::Traced | TaskState::Parked => "stopped",
        TaskState::Dead | TaskState::Zombie => "ended",
    }
}
