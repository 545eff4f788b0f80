//! Call spans as nested slices on the tracks of their threads.
//!
//! Takes the spans of one thread at a time, gives packets that can stand behind those of [`write`](super::write). A name is
//! written once. Perfetto puts events in order by time, and those of one time in the file's order: so a thread's spans are
//! written as they nest, not as they end.

use std::{
    cmp::Reverse,
    collections::HashMap,
    io::{self, Write},
    sync::Arc,
};

use super::{
    Packets,
    proto::{
        DebugAnnotation, Interned, InternedData, SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE,
        TYPE_SLICE_BEGIN, TYPE_SLICE_END, ThreadDescriptor, TracePacket, TrackDescriptor, TrackEvent,
    },
};
use crate::{
    flow::Span,
    image::{Function, FunctionId},
    units::{MonoNs, Pid, Tid},
};

/// The writer's sequence; names are numbered within it.
const SEQUENCE: u32 = 2;
/// Tracks of threads: this and the thread's number.
const TRACKS: u64 = 1 << 32;

/// Perfetto's trace processor draws no more than this (`kMaxDepth` of its slice tracker).
const MAX_DEPTH: usize = 512;

/// Numbers of the names of annotations.
const MODULE: u64 = 1;
const INFERRED: u64 = 2;

/// Writes calls, a thread at a time.
pub struct Calls<W> {
    to: Packets<W>,
    /// Number of the name of each function, and of the module that it stands in.
    functions: HashMap<FunctionId, (u64, u64)>,
    modules: HashMap<Arc<str>, u64>,
    too_deep: u64,
}

impl<W: Write> Calls<W> {
    /// Appends to a trace.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W) -> io::Result<Self> {
        let mut to = Packets::new(out);
        let name = |iid, name: &str| Interned::new(iid, name);
        to.packet(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(SEQ_INCREMENTAL_STATE_CLEARED),
            interned_data: Some(InternedData {
                debug_annotation_names: vec![name(MODULE, "module"), name(INFERRED, "inferred")],
                ..InternedData::default()
            }),
            ..TracePacket::default()
        })?;
        Ok(Self {
            to,
            functions: HashMap::new(),
            modules: HashMap::new(),
            too_deep: 0,
        })
    }

    /// How many spans were left out because more than 512 others are around them.
    #[must_use]
    pub const fn too_deep(&self) -> u64 {
        self.too_deep
    }

    /// Appends the spans of one thread, in any order. `function` is asked once for each.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn thread(
        &mut self,
        (pid, tid): (Pid, Tid),
        mut spans: Vec<Span>,
        function: impl Fn(FunctionId) -> Function,
    ) -> io::Result<()> {
        let track = TRACKS | u64::from(tid.0);
        self.to.packet(&TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE),
            track_descriptor: Some(TrackDescriptor {
                uuid: Some(track),
                thread: Some(ThreadDescriptor {
                    pid: Some(pid.0.cast_signed()),
                    tid: Some(tid.0.cast_signed()),
                }),
                ..TrackDescriptor::default()
            }),
            ..TracePacket::default()
        })?;
        // Callers before what they called.
        spans.sort_by_key(|span| (span.start, Reverse(span.end), span.depth));
        let mut open: Vec<Span> = Vec::new();
        for span in spans {
            while let Some(top) = open.pop_if(|top| !holds(top, &span)) {
                // What would reach into the next one ends where that begins.
                self.end(track, top.end.min(span.start).max(top.start))?;
            }
            if open.len() == MAX_DEPTH {
                self.too_deep += 1;
                continue;
            }
            self.begin(track, &span, &function)?;
            open.push(span);
        }
        while let Some(top) = open.pop() {
            self.end(track, top.end)?;
        }
        Ok(())
    }

    fn begin(&mut self, track: u64, span: &Span, function: &impl Fn(FunctionId) -> Function) -> io::Result<()> {
        let mut new = InternedData::default();
        let (name, module) = self.names(span.function, function, &mut new);
        let annotations = [
            Some(DebugAnnotation {
                name_iid: Some(MODULE),
                string_value_iid: Some(module),
                ..DebugAnnotation::default()
            }),
            span.inferred.then_some(DebugAnnotation {
                name_iid: Some(INFERRED),
                bool_value: Some(true),
                ..DebugAnnotation::default()
            }),
        ];
        let event = TrackEvent {
            r#type: Some(TYPE_SLICE_BEGIN),
            track_uuid: Some(track),
            name_iid: Some(name),
            debug_annotations: annotations.into_iter().flatten().collect(),
            ..TrackEvent::default()
        };
        self.event(span.start, event, (new != InternedData::default()).then_some(new))
    }

    fn end(&mut self, track: u64, time: MonoNs) -> io::Result<()> {
        let event = TrackEvent {
            r#type: Some(TYPE_SLICE_END),
            track_uuid: Some(track),
            ..TrackEvent::default()
        };
        self.event(time, event, None)
    }

    fn event(&mut self, time: MonoNs, event: TrackEvent, interned_data: Option<InternedData>) -> io::Result<()> {
        self.to.packet(&TracePacket {
            timestamp: Some(time.0),
            trusted_packet_sequence_id: Some(SEQUENCE),
            sequence_flags: Some(SEQ_NEEDS_INCREMENTAL_STATE),
            track_event: Some(event),
            interned_data,
            ..TracePacket::default()
        })
    }

    /// Numbers of a function's name and module; what is new goes to `new`.
    fn names(
        &mut self,
        id: FunctionId,
        function: &impl Fn(FunctionId) -> Function,
        new: &mut InternedData,
    ) -> (u64, u64) {
        if let Some(&known) = self.functions.get(&id) {
            return known;
        }
        let named = function(id);
        let next = self.modules.len() as u64 + 1;
        let module = *self.modules.entry(named.module.clone()).or_insert_with(|| {
            new.debug_annotation_string_values
                .push(Interned::new(next, &named.module));
            next
        });
        let name = self.functions.len() as u64 + 1;
        new.event_names.push(Interned::new(name, &named.name));
        self.functions.insert(id, (name, module));
        (name, module)
    }
}

/// Whether `inner`, which begins no earlier, lies within `outer`. Of two that take no time the deeper one does.
fn holds(outer: &Span, inner: &Span) -> bool {
    let after = inner.start > outer.end || inner.start == outer.end && outer.start < outer.end;
    let beyond = inner.end > outer.end;
    !after && !beyond && (inner.start > outer.start || inner.end < outer.end || inner.depth > outer.depth)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[derive(Clone, PartialEq, prost::Message)]
    struct Trace {
        #[prost(message, repeated, tag = "1")]
        packet: Vec<TracePacket>,
    }

    /// Spans as `function start-end depth`; the slices as they nest: `3 a( 4 b( 5 ) 6 )`.
    fn check(spans: &str, expect: &str) {
        let spans = spans
            .split(", ")
            .map(|span| {
                let words: Vec<&str> = span.split(' ').collect();
                let (start, end) = words[1].split_once('-').unwrap();
                Span {
                    function: FunctionId(u32::from(words[0].as_bytes()[0])),
                    start: MonoNs(start.parse().unwrap()),
                    end: MonoNs(end.parse().unwrap()),
                    depth: words[2].parse().unwrap(),
                    inferred: false,
                    called: true,
                    self_ns: 0,
                    recursive: false,
                }
            })
            .collect();
        let mut bytes = Vec::new();
        let function = |id: FunctionId| Function {
            name: char::from(id.0 as u8).to_string().into(),
            module: "module".into(),
        };
        let mut calls = Calls::new(&mut bytes).unwrap();
        calls.thread((Pid(1), Tid(2)), spans, function).unwrap();
        let mut names = HashMap::new();
        let mut shown = Vec::new();
        for packet in Trace::decode(bytes.as_slice()).unwrap().packet {
            for name in packet.interned_data.unwrap_or_default().event_names {
                assert!(names.insert(name.iid, name.name.unwrap()).is_none(), "a name twice");
            }
            let Some(event) = packet.track_event else { continue };
            let time = packet.timestamp.unwrap();
            shown.push(match event.r#type {
                Some(TYPE_SLICE_BEGIN) => format!("{time} {}(", names[&event.name_iid]),
                _ => format!("{time} )"),
            });
        }
        assert_eq!(shown.join(" "), expect);
    }

    #[test]
    fn spans_nest_in_any_order() {
        check(
            "c 3-4 2, b 2-5 1, d 6-7 1, a 1-8 0",
            "1 a( 2 b( 3 c( 4 ) 5 ) 6 d( 7 ) 8 )",
        );
    }

    #[test]
    fn what_begins_or_ends_together_nests_by_depth() {
        check("b 1-5 1, a 1-5 0", "1 a( 1 b( 5 ) 5 )");
        check("c 1-1 2, b 1-1 1, a 1-5 0", "1 a( 1 b( 1 c( 1 ) 1 ) 5 )");
        check("b 1-3 1, c 3-5 1, a 1-5 0", "1 a( 1 b( 3 ) 3 c( 5 ) 5 )");
        check("b 2-2 1, c 2-2 1, a 1-5 0", "1 a( 2 b( 2 ) 2 c( 2 ) 5 )");
        // Told one too low, since it was found later that there is a caller below.
        check(
            "c 2-3 1, b 1-4 1, d 5-6 1, a 1-7 0",
            "1 a( 1 b( 2 c( 3 ) 4 ) 5 d( 6 ) 7 )",
        );
    }

    #[test]
    fn what_is_too_deep_is_counted() {
        let span = |depth: u32| Span {
            function: FunctionId(0),
            start: MonoNs(u64::from(depth)),
            end: MonoNs(2_000 - u64::from(depth)),
            depth,
            inferred: false,
            called: true,
            self_ns: 0,
            recursive: true,
        };
        let function = |_| Function {
            name: "f".into(),
            module: "m".into(),
        };
        let mut bytes = Vec::new();
        let mut calls = Calls::new(&mut bytes).unwrap();
        calls
            .thread((Pid(1), Tid(2)), (0..600).map(span).collect(), function)
            .unwrap();
        assert_eq!(calls.too_deep(), 88);
        let events = Trace::decode(bytes.as_slice()).unwrap().packet.into_iter();
        assert_eq!(events.filter_map(|packet| packet.track_event).count(), 2 * 512);
    }

    #[test]
    fn what_reaches_into_the_next_is_cut() {
        check("b 2-6 1, c 4-8 1, a 1-9 0", "1 a( 2 b( 4 ) 4 c( 8 ) 9 )");
    }
}
