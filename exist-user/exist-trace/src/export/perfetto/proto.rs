//! The messages of Perfetto's trace format that are written: protos/perfetto/trace/**, as of v52.
//!
//! Enumerations are plain numbers. Fields of a `oneof` are separate: one of them is set.

use prost::Message;

/// `BuiltinClock`.
pub mod clock {
    pub const REALTIME: u32 = 1;
    pub const MONOTONIC: u32 = 3;
    pub const BOOTTIME: u32 = 6;
}

/// `TracePacket.SequenceFlags`: nothing before this packet of the sequence is needed.
pub const SEQ_INCREMENTAL_STATE_CLEARED: u32 = 1;
/// The same: names are given by numbers that an earlier packet of the sequence has introduced.
pub const SEQ_NEEDS_INCREMENTAL_STATE: u32 = 2;
/// `TrackEvent.Type`.
pub const TYPE_SLICE_BEGIN: i32 = 1;
pub const TYPE_SLICE_END: i32 = 2;
pub const TYPE_INSTANT: i32 = 3;
/// `TaskNewtaskFtraceEvent.clone_flags`: a thread of the same process (include/uapi/linux/sched.h).
pub const CLONE_THREAD: u64 = 0x0001_0000;

#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    #[prost(message, optional, tag = "1")]
    pub ftrace_events: Option<FtraceEventBundle>,
    #[prost(message, optional, tag = "2")]
    pub process_tree: Option<ProcessTree>,
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "45")]
    pub system_info: Option<SystemInfo>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FtraceEventBundle {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(message, repeated, tag = "2")]
    pub event: Vec<FtraceEvent>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    /// Who ran when it happened.
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(message, optional, tag = "4")]
    pub sched_switch: Option<SchedSwitch>,
    #[prost(message, optional, tag = "235")]
    pub task_newtask: Option<TaskNewtask>,
    #[prost(message, optional, tag = "240")]
    pub sched_process_free: Option<SchedProcessFree>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SchedSwitch {
    #[prost(string, optional, tag = "1")]
    pub prev_comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub prev_pid: Option<i32>,
    #[prost(int64, optional, tag = "4")]
    pub prev_state: Option<i64>,
    #[prost(string, optional, tag = "5")]
    pub next_comm: Option<String>,
    #[prost(int32, optional, tag = "6")]
    pub next_pid: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TaskNewtask {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub comm: Option<String>,
    #[prost(uint64, optional, tag = "3")]
    pub clone_flags: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SchedProcessFree {
    #[prost(string, optional, tag = "1")]
    pub comm: Option<String>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<Thread>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Process {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, repeated, tag = "3")]
    pub cmdline: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub tid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub tgid: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SystemInfo {
    #[prost(message, optional, tag = "1")]
    pub utsname: Option<Utsname>,
    #[prost(uint32, optional, tag = "8")]
    pub num_cpus: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Utsname {
    #[prost(string, optional, tag = "1")]
    pub sysname: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub release: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub machine: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub tid: Option<i32>,
}

/// Names that later packets of the sequence mean by their numbers.
#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Interned>,
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Interned>,
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<Interned>,
}

/// `EventName`, `DebugAnnotationName`, `InternedString`: they have the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct Interned {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

impl Interned {
    pub fn new(iid: u64, name: &str) -> Self {
        Self {
            iid: Some(iid),
            name: Some(name.to_owned()),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    #[prost(bool, optional, tag = "2")]
    pub bool_value: Option<bool>,
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
    #[prost(uint64, optional, tag = "17")]
    pub string_value_iid: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (field number, wire type) of each field, in the order in which they are encoded.
    fn fields(message: &impl Message) -> Vec<(u64, u64)> {
        let bytes = message.encode_to_vec();
        let mut rest = bytes.as_slice();
        let mut out = Vec::new();
        while !rest.is_empty() {
            let key = prost::decode_length_delimiter(&mut rest).unwrap() as u64;
            let value = prost::decode_length_delimiter(&mut rest).unwrap();
            if key & 7 == 2 {
                rest = &rest[value..];
            }
            out.push((key >> 3, key & 7));
        }
        out
    }

    fn one<T: Default>() -> Option<T> {
        Some(T::default())
    }

    /// The numbers as they stand in Perfetto's .proto files: 0 varint, 2 length-delimited.
    #[test]
    fn field_numbers_are_perfettos() {
        let packet = TracePacket {
            ftrace_events: one(),
            process_tree: one(),
            clock_snapshot: one(),
            timestamp: one(),
            trusted_packet_sequence_id: one(),
            track_event: one(),
            interned_data: one(),
            sequence_flags: one(),
            system_info: one(),
            track_descriptor: one(),
        };
        assert_eq!(
            fields(&packet),
            [
                (1, 2),
                (2, 2),
                (6, 2),
                (8, 0),
                (10, 0),
                (11, 2),
                (12, 2),
                (13, 0),
                (45, 2),
                (60, 2)
            ]
        );
        assert_eq!(
            fields(&FtraceEventBundle {
                cpu: one(),
                event: vec![FtraceEvent::default()]
            }),
            [(1, 0), (2, 2)]
        );
        let event = FtraceEvent {
            timestamp: one(),
            pid: one(),
            sched_switch: one(),
            task_newtask: one(),
            sched_process_free: one(),
        };
        assert_eq!(fields(&event), [(1, 0), (2, 0), (4, 2), (235, 2), (240, 2)]);
        let switch = SchedSwitch {
            prev_comm: one(),
            prev_pid: one(),
            prev_state: one(),
            next_comm: one(),
            next_pid: one(),
        };
        assert_eq!(fields(&switch), [(1, 2), (2, 0), (4, 0), (5, 2), (6, 0)]);
        assert_eq!(
            fields(&TaskNewtask {
                pid: one(),
                comm: one(),
                clone_flags: one()
            }),
            [(1, 0), (2, 2), (3, 0)]
        );
        assert_eq!(
            fields(&SchedProcessFree {
                comm: one(),
                pid: one()
            }),
            [(1, 2), (2, 0)]
        );
        let tree = ProcessTree {
            processes: vec![Process::default()],
            threads: vec![Thread::default()],
        };
        assert_eq!(fields(&tree), [(1, 2), (2, 2)]);
        assert_eq!(
            fields(&Process {
                pid: one(),
                cmdline: vec![String::new()]
            }),
            [(1, 0), (3, 2)]
        );
        assert_eq!(
            fields(&Thread {
                tid: one(),
                name: one(),
                tgid: one()
            }),
            [(1, 0), (2, 2), (3, 0)]
        );
        assert_eq!(
            fields(&ClockSnapshot {
                clocks: vec![Clock::default()]
            }),
            [(1, 2)]
        );
        assert_eq!(
            fields(&Clock {
                clock_id: one(),
                timestamp: one()
            }),
            [(1, 0), (2, 0)]
        );
        assert_eq!(
            fields(&SystemInfo {
                utsname: one(),
                num_cpus: one()
            }),
            [(1, 2), (8, 0)]
        );
        assert_eq!(
            fields(&Utsname {
                sysname: one(),
                release: one(),
                machine: one()
            }),
            [(1, 2), (3, 2), (4, 2)]
        );
        assert_eq!(
            fields(&TrackDescriptor {
                uuid: one(),
                name: one(),
                thread: one(),
            }),
            [(1, 0), (2, 2), (4, 2)]
        );
        assert_eq!(fields(&ThreadDescriptor { pid: one(), tid: one() }), [(1, 0), (2, 0)]);
        let interned = || vec![Interned::default()];
        let names = InternedData {
            event_names: interned(),
            debug_annotation_names: interned(),
            debug_annotation_string_values: interned(),
        };
        assert_eq!(fields(&names), [(2, 2), (3, 2), (29, 2)]);
        assert_eq!(fields(&Interned::new(0, "")), [(1, 0), (2, 2)]);
        let event = TrackEvent {
            debug_annotations: vec![DebugAnnotation::default()],
            r#type: one(),
            name_iid: one(),
            track_uuid: one(),
            categories: vec![String::new()],
            name: one(),
        };
        assert_eq!(fields(&event), [(4, 2), (9, 0), (10, 0), (11, 0), (22, 2), (23, 2)]);
        let annotation = DebugAnnotation {
            name_iid: one(),
            bool_value: one(),
            uint_value: one(),
            string_value: one(),
            name: one(),
            string_value_iid: one(),
        };
        assert_eq!(fields(&annotation), [(1, 0), (2, 0), (3, 0), (6, 2), (10, 2), (17, 0)]);
    }
}
