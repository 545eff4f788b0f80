//! A thread's branches → call spans.
//!
//! A frame is pushed by a call and popped by the return to the address behind that call. What breaks the order is
//! settled by where control goes on: a return or jump into a function that is still on the stack (longjmp, an
//! exception's landing pad) unwinds to it; a jump to the start of another function is a tail call and replaces the
//! frame; a signal's handler is pushed and goes when the interrupted address is entered again. A frame whose begin or
//! end was not seen as a call or a return is marked inferred.

use crate::{
    image::{FunctionId, Place},
    units::MonoNs,
    walk::BranchKind,
};

/// A call of a function, from its entry to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub function: FunctionId,
    pub start: MonoNs,
    pub end: MonoNs,
    /// Frames below it.
    pub depth: u32,
    /// Its begin or end was not seen as a call or a return.
    pub inferred: bool,
    /// Whether it began with a call (or tail call) that was seen.
    pub called: bool,
    /// Time in the function itself, without those that it called.
    pub self_ns: u64,
    /// The function stands further down in the stack too.
    pub recursive: bool,
}

struct Frame {
    function: FunctionId,
    named: bool,
    /// Where its return goes; `None`: the call was not seen.
    returns_to: Option<u64>,
    start: MonoNs,
    inferred: bool,
    called: bool,
    children_ns: u64,
}

/// Deeper frames than this are not kept apart: the deepest ones are merged into their caller.
const MAX_DEPTH: usize = 65_536;

/// The call stack of one thread as its branches come.
#[derive(Default)]
pub struct Stack {
    frames: Vec<Frame>,
    /// Interrupted addresses and the depth below their signal's handler.
    signals: Vec<(u64, usize)>,
    over: usize,
}

impl Stack {
    /// Execution begins, or goes on after something was lost.
    pub fn restart(&mut self, place: Place, time: MonoNs, out: &mut impl FnMut(Span)) {
        match self.find(place.function) {
            Some(at) => {
                self.pop_to(at + 1, time, true, out);
                self.frames[at].inferred = true;
            }
            None => self.push(place, None, time, Origin::Unseen),
        }
        self.signals.clear();
    }

    /// User mode is entered at `ip` again, where it was expected at `resume`.
    pub fn resume(&mut self, ip: u64, resume: u64, place: Place, time: MonoNs, out: &mut impl FnMut(Span)) {
        // A restarted system call is entered at its instruction.
        if ip == resume || ip == resume.wrapping_sub(2) {
            return;
        }
        if let Some(at) = self.signals.iter().rposition(|s| s.0 == ip) {
            let depth = self.signals[at].1;
            self.signals.truncate(at);
            return self.pop_to(depth, time, false, out);
        }
        if place.entry || !place.named && self.find(place.function).is_none() {
            self.signals.push((resume, self.frames.len()));
            return self.push(place, None, time, Origin::Call);
        }
        self.restart(place, time, out);
    }

    /// A branch at `from` to `to`; `after` is the address behind it, where a call returns to.
    pub fn branch(&mut self, branch: Branch, to: Place, time: MonoNs, out: &mut impl FnMut(Span)) {
        match branch.kind {
            BranchKind::Call | BranchKind::IndirectCall => {
                // A call to the next instruction only reads the address.
                if branch.to != branch.after {
                    self.push(to, Some(branch.after), time, Origin::Call);
                }
            }
            BranchKind::Return => self.returned(branch.to, to, time, out),
            _ => self.jumped(to, time, out),
        }
    }

    fn returned(&mut self, ip: u64, to: Place, time: MonoNs, out: &mut impl FnMut(Span)) {
        if let Some(at) = self.frames.iter().rposition(|f| f.returns_to == Some(ip)) {
            let unwound = at + 1 < self.frames.len();
            if unwound {
                self.pop_to(at + 1, time, true, out);
            }
            self.pop_to(at, time, false, out);
        } else if let Some(depth) = self.signals.last().map(|s| s.1)
            && self.frames.len() == depth + 1
        {
            // A signal's handler returns into the C library, which asks the kernel to restore what was interrupted.
            self.pop_to(depth, time, false, out);
            return self.push(to, None, time, Origin::Call);
        } else if let Some(at) = self.find(to.function) {
            // A landing pad, or a call that was lost.
            self.pop_to(at + 1, time, true, out);
        } else {
            // Into a caller from before the trace: it has been running since the first of what it called.
            let start = self.frames.first().map_or(time, |f| f.start);
            let children: u64 = self.frames.first().map_or(0, |f| time.0.saturating_sub(f.start.0));
            self.pop_all_below_new_base(time, out);
            self.push(to, None, start, Origin::Unseen);
            if let Some(base) = self.frames.last_mut() {
                base.children_ns = children;
            }
        }
        self.drop_signals();
    }

    fn jumped(&mut self, to: Place, time: MonoNs, out: &mut impl FnMut(Span)) {
        let Some(top) = self.frames.last() else {
            return self.push(to, None, time, Origin::Unseen);
        };
        if top.function == to.function {
            return;
        }
        let returns_to = top.returns_to;
        // A stub (PLT) on the way to the function that was meant. Code whose begin was not seen is none: a function that it
        // jumps to the start of begins there, as a program does when the dynamic linker is done.
        let is_stub = !top.named && (top.called || !to.entry);
        if !to.entry
            && to.named
            && let Some(at) = self.find(to.function)
        {
            // A landing pad, or longjmp, which itself may have no symbol.
            self.pop_to(at + 1, time, true, out);
            self.drop_signals();
        } else if let Some(top) = self.frames.last_mut().filter(|_| is_stub) {
            (top.function, top.named) = (to.function, to.named);
        } else if to.entry || !to.named {
            // A stub jumped to is part of the call that follows it.
            self.pop_to(self.frames.len() - 1, time, false, out);
            self.push(to, returns_to, time, Origin::Call);
        } else {
            // A part of the function that stands elsewhere (`.cold`), or a jump that nothing explains.
        }
    }

    /// Ends every frame: the thread ends, executes another program, or the trace ends.
    pub fn end(&mut self, time: MonoNs, out: &mut impl FnMut(Span)) {
        self.pop_to(0, time, true, out);
        self.signals.clear();
        self.over = 0;
    }

    /// The depth of the call that is being executed, as its span will have it.
    pub fn depth(&self) -> Option<u32> {
        self.frames.len().checked_sub(1).map(|depth| depth as u32)
    }

    fn find(&self, function: FunctionId) -> Option<usize> {
        self.frames.iter().rposition(|f| f.function == function)
    }

    fn drop_signals(&mut self) {
        let depth = self.frames.len();
        self.signals.retain(|s| s.1 < depth);
    }

    fn push(&mut self, place: Place, returns_to: Option<u64>, time: MonoNs, origin: Origin) {
        if self.frames.len() >= MAX_DEPTH {
            self.over += 1;
            return;
        }
        self.frames.push(Frame {
            function: place.function,
            named: place.named,
            returns_to,
            start: time,
            inferred: origin == Origin::Unseen,
            called: origin == Origin::Call,
            children_ns: 0,
        });
    }

    fn pop_all_below_new_base(&mut self, time: MonoNs, out: &mut impl FnMut(Span)) {
        // They stand one deeper than was known.
        let mut deeper = |span: Span| {
            out(Span {
                depth: span.depth + 1,
                ..span
            })
        };
        let unwound = self.frames.len() > 1;
        self.pop_to(1.min(self.frames.len()), time, unwound, &mut deeper);
        self.pop_to(0, time, false, &mut deeper);
    }

    fn pop_to(&mut self, depth: usize, time: MonoNs, inferred: bool, out: &mut impl FnMut(Span)) {
        while self.frames.len() > depth {
            let Some(frame) = self.frames.pop() else { return };
            let total = time.0.saturating_sub(frame.start.0);
            if let Some(caller) = self.frames.last_mut() {
                caller.children_ns = caller.children_ns.saturating_add(total);
            }
            out(Span {
                function: frame.function,
                start: frame.start,
                end: time.max(frame.start),
                depth: self.frames.len() as u32,
                inferred: frame.inferred || inferred,
                called: frame.called,
                self_ns: total.saturating_sub(frame.children_ns),
                recursive: self.find(frame.function).is_some(),
            });
        }
    }
}

/// A branch as the stack needs it.
#[derive(Clone, Copy, Debug)]
pub struct Branch {
    pub kind: BranchKind,
    pub to: u64,
    /// The address behind the branch instruction.
    pub after: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Call,
    Unseen,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Functions are the letters `a` (0x1000), `b` (0x2000) …; `p` has no symbol.
    fn place(ip: u64) -> Place {
        Place {
            function: FunctionId((ip >> 12) as u32),
            entry: ip & 0xfff == 0,
            named: ip >> 12 != 16,
            offset: ip & 0xfff,
        }
    }

    fn ip(text: &str) -> u64 {
        let letter = u64::from(text.as_bytes()[0] - b'a' + 1);
        letter << 12 | text[1..].parse::<u64>().unwrap_or(0)
    }

    fn letter(span: &Span) -> char {
        char::from(b'a' + (span.function.0 - 1) as u8)
    }

    /// Spans as `function start-end depth`, `?` when inferred.
    fn check(program: &str, expect: &str) {
        let mut spans = Vec::new();
        run(program, |s| {
            let inferred = if s.inferred { "?" } else { "" };
            spans.push(format!("{}{inferred} {}-{} {}", letter(&s), s.start, s.end, s.depth));
        });
        assert_eq!(spans.join(", "), expect, "{program}");
    }

    /// `a1 call b`, `b5 ret a2`, `b1 jump c`, `start a`, `leave a5`, `enter s`, `lost`: one a nanosecond.
    fn run(program: &str, mut sink: impl FnMut(Span)) {
        let mut stack = Stack::default();
        let mut resume = 0;
        let mut time = 0;
        for line in program.split(',').map(str::trim) {
            time += 1;
            let now = MonoNs(time);
            let words: Vec<&str> = line.split(' ').collect();
            let kind = |kind, from: &str, to: &str| Branch {
                kind,
                to: ip(to),
                after: ip(from) + 1,
            };
            match words[..] {
                ["start", at] => stack.restart(place(ip(at)), now, &mut sink),
                ["leave", at] => resume = ip(at),
                ["enter", at] => stack.resume(ip(at), resume, place(ip(at)), now, &mut sink),
                [from, "call", to] => stack.branch(kind(BranchKind::Call, from, to), place(ip(to)), now, &mut sink),
                [from, "ret", to] => stack.branch(kind(BranchKind::Return, from, to), place(ip(to)), now, &mut sink),
                [from, "jump", to] => {
                    stack.branch(kind(BranchKind::IndirectJump, from, to), place(ip(to)), now, &mut sink)
                }
                ["end"] => stack.end(now, &mut sink),
                _ => panic!("{line}"),
            }
        }
    }

    #[test]
    fn calls_and_returns_nest() {
        check(
            "start a, a1 call b, b1 call c, c5 ret b2, b5 ret a2, end",
            "c 3-4 2, b 2-5 1, a? 1-6 0",
        );
    }

    #[test]
    fn a_return_into_a_caller_from_before_the_trace_makes_it_the_base() {
        check(
            "start b, b1 call c, c1 ret b2, b3 ret a7, a8 call d, d1 ret a9, end",
            "c 2-3 1, b? 1-4 1, d 5-6 1, a? 1-7 0",
        );
    }

    #[test]
    fn a_tail_call_replaces_the_frame() {
        check(
            "start a, a1 call b, b1 jump c, c5 ret a2, end",
            "b 2-3 1, c 3-4 1, a? 1-5 0",
        );
    }

    #[test]
    fn a_stub_is_the_function_that_it_jumps_to() {
        check("start a, a1 call p4, p5 jump c, c5 ret a2, end", "c 2-4 1, a? 1-5 0");
    }

    /// How often each function was called.
    fn check_calls(program: &str, expect: &[(char, usize)]) {
        let mut calls = BTreeMap::new();
        run(program, |span| {
            *calls.entry(letter(&span)).or_default() += usize::from(span.called)
        });
        assert_eq!(calls.into_iter().collect::<Vec<_>>(), expect, "{program}");
    }

    #[test]
    fn a_jump_back_from_code_without_a_name_is_no_call() {
        // longjmp of a library without symbols.
        let program = "start a, a1 call b, b1 call p4, p5 jump a5, a6 call p4, p5 jump a5, end";
        check(program, "p? 3-4 2, b? 2-4 1, p? 5-6 1, a? 1-7 0");
        check_calls(program, &[('a', 0), ('b', 1), ('p', 2)]);
        // The same through its stub.
        check_calls(
            "start a, a1 call b, b1 call p4, p5 jump p9, p9 jump a5, end",
            &[('a', 0), ('b', 1), ('p', 1)],
        );
    }

    #[test]
    fn a_program_begins_where_the_dynamic_linker_jumps_to() {
        let program = "start p3, p4 call c, c1 ret p5, p6 jump a, a1 call b, end";
        check(program, "c 2-3 1, p? 1-4 0, b? 5-6 1, a? 4-6 0");
        check_calls(program, &[('a', 1), ('b', 1), ('c', 1), ('p', 0)]);
    }

    #[test]
    fn longjmp_and_exceptions_unwind_to_the_frame_that_catches() {
        check(
            "start a, a1 call b, b1 call c, c1 call d, d9 jump a5, a6 call b, b2 ret a7, end",
            "d? 4-5 3, c? 3-5 2, b? 2-5 1, b 6-7 1, a? 1-8 0",
        );
        check(
            "start a, a1 call b, b1 call c, c1 call d, d9 ret b7, b8 ret a2, end",
            "d? 4-5 3, c? 3-5 2, b 2-6 1, a? 1-7 0",
        );
    }

    #[test]
    fn a_jump_within_a_function_or_to_its_cold_part_keeps_the_frame() {
        check(
            "start a, a1 call b, b1 jump b9, b9 jump z7, z8 ret a2, end",
            "b 2-5 1, a? 1-6 0",
        );
    }

    #[test]
    fn a_signal_s_handler_ends_when_the_interrupted_address_is_entered_again() {
        check(
            "start a, a1 call b, leave b5, enter h, h1 call c, c1 ret h2, h3 ret r9, leave r10, enter b5, b6 ret a2, end",
            "c 5-6 3, h 4-7 2, r 7-9 2, b 2-10 1, a? 1-11 0",
        );
    }

    #[test]
    fn a_system_call_that_goes_on_or_is_restarted_changes_nothing() {
        check(
            "start a, a1 call b, leave b5, enter b5, leave b9, enter b7, b8 ret a2, end",
            "b 2-7 1, a? 1-8 0",
        );
    }

    #[test]
    fn after_a_loss_the_stack_is_kept_as_far_as_it_can_hold() {
        check(
            "start a, a1 call b, b1 call c, start b4, b5 ret a2, end",
            "c? 3-4 2, b? 2-5 1, a? 1-6 0",
        );
        check(
            "start a, a1 call b, start e4, e5 ret b9, b9 ret a2, end",
            "e? 3-4 2, b 2-5 1, a? 1-6 0",
        );
    }

    #[test]
    fn self_time_is_total_without_callees() {
        let mut stack = Stack::default();
        let mut own = Vec::new();
        let mut sink = |s: Span| own.push((s.function.0, s.self_ns, s.recursive));
        let call = |to| Branch {
            kind: BranchKind::Call,
            to,
            after: 0x1005,
        };
        stack.restart(place(0x1000), MonoNs(0), &mut sink);
        stack.branch(call(0x2000), place(0x2000), MonoNs(10), &mut sink);
        stack.branch(call(0x2000), place(0x2000), MonoNs(30), &mut sink);
        stack.end(MonoNs(100), &mut sink);
        assert_eq!(own, [(2, 70, true), (2, 20, false), (1, 10, false)]);
    }
}
