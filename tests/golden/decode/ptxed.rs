//! The walk of Intel's assembled tests, instruction by instruction, against what Intel's `ptxed` lists.

use exist_trace::{
    image::NoCode,
    pt::Packets,
    walk::{Code, Disabled, Event, ExecMode, Place, Start, Step, WalkError, Walker, What},
};

use super::captures::{Case, libipt};

/// Cases where ptxed was told to show addresses with events, or changes of the interrupt flag.
const SHOWS_ADDRESSES: &[&str] = &[
    "exstop_ip-tip_pgd",
    "mwait-pwre-exstop_ip-fup-ovf",
    "mwait-pwre-exstop_ip-pwre-pwrx",
    "psb-fup-ptw-trig",
    "psb-tsx_abort-tip-fup-tip_pgd",
    "ptw-fup",
    "ptxed-resync-nomap-fup-tip",
    "tip_pgd-mwait-pwre-exstop_ip-pwrx",
    "tip_pge-tsx_abort-tip-fup-tip_pgd",
    "trig-fup",
];
const SHOWS_INTERRUPT_FLAG: &[&str] = &["mode-trig-trig", "ptet-mode_exec-if"];

/// Where we differ on purpose or do less, and why.
const DIFFERENT: &[(&str, &str)] = &[
    (
        "bad_cpu",
        "a processor that is not known has no errata; that is no error",
    ),
    (
        "mode-trig-trig",
        "triggers are not placed by their count of instructions",
    ),
    (
        "psb-fup-ptw-trig",
        "triggers are not placed by their count of instructions",
    ),
    (
        "ovf-mnt-fup",
        "an overflow is told where its packet stands, not where it ended",
    ),
    (
        "ptet-evd_cr2-evd_vmxq",
        "data of an event are handed on, whether they fit the event or not",
    ),
    (
        "ptet-evd_vmxr-cfe_rsm",
        "data of an event are handed on, whether they fit the event or not",
    ),
    (
        "ptxed-resync-psb-bad_status-psb",
        "goes on at the PSB that contradicts the walk, not at the one after it",
    ),
    (
        "skl014-call",
        "no address filters are programmed, so none are known to the decoder",
    ),
    (
        "skl014-jmp",
        "no address filters are programmed, so none are known to the decoder",
    ),
];

fn fetch<'a>(case: &'a Case) -> impl FnMut(u64) -> Result<&'a [u8], NoCode> {
    |ip| {
        let offset = usize::try_from(ip.wrapping_sub(case.org)).unwrap();
        case.code
            .get(offset..)
            .filter(|bytes| !bytes.is_empty())
            .ok_or(NoCode::Unmapped)
    }
}

/// Steps as ptxed lists them.
struct Listing<'a> {
    case: &'a Case,
    lines: Vec<String>,
    /// The instruction that is next, when it is known.
    next: Option<u64>,
    resume: Option<u64>,
    addresses: bool,
}

impl Listing<'_> {
    /// The instructions from the next one up to `to`, with or without the one there.
    fn run(&mut self, mode: ExecMode, to: u64, with_last: bool) {
        let Some(mut ip) = self.next else { return };
        let mut code = Code::new(fetch(self.case));
        code.set_mode(mode);
        while ip != to || with_last {
            let last = ip == to;
            let Ok(instruction) = code.instruction(ip) else { break };
            self.lines.push(format!("{ip:016x}"));
            ip = instruction.next_ip();
            if last || ip > to {
                break;
            }
        }
        self.next = Some(ip);
    }

    fn ip(&self, name: &str, ip: Option<u64>) -> String {
        match ip {
            Some(ip) if self.addresses => format!(", {name}: {ip:016x}"),
            _ => String::new(),
        }
    }

    fn step(&mut self, step: &Step, mode: ExecMode) {
        match step.what {
            What::Enabled { ip, why } => {
                if why == Start::Enable {
                    let word = if self.resume == Some(ip) { "resumed" } else { "enabled" };
                    self.lines.push(format!("[{word}{}]", self.ip("ip", Some(ip))));
                }
                self.next = Some(ip);
            }
            What::Branch { from, to, .. } => {
                if self.next.is_some_and(|next| next <= from) {
                    self.run(mode, from, true);
                }
                self.next = Some(to);
            }
            What::Interrupted { at, to } => {
                self.run(mode, at, false);
                self.lines.push(format!(
                    "[interrupt{}{}]",
                    self.ip("from", Some(at)),
                    self.ip("to", Some(to))
                ));
                self.next = Some(to);
            }
            What::Disabled(Disabled {
                at,
                asynchronous,
                resume,
                to,
            }) => {
                if self.next.is_some_and(|next| next <= at) {
                    self.run(mode, at, !asynchronous);
                }
                let at = self.ip("at", asynchronous.then_some(at));
                self.lines.push(format!("[disabled{at}{}]", self.ip("ip", to)));
                (self.next, self.resume) = (None, resume);
            }
            What::Overflow => {
                self.lines.push("[overflow]".to_owned());
                (self.next, self.resume) = (None, None);
            }
            What::Event { event, at } => {
                let ip = match at {
                    Place::Before(ip) => {
                        self.run(mode, ip, false);
                        Some(ip)
                    }
                    Place::At(ip) => {
                        if self.next.is_some_and(|next| next <= ip) {
                            self.run(mode, ip, true);
                        }
                        None
                    }
                    Place::Unknown => None,
                };
                let text = self.event(&event, ip);
                self.lines.extend(text);
            }
            What::Error { ip, error } => {
                if ip != 0 {
                    self.run(mode, ip, matches!(error, WalkError::Mismatch(_)));
                }
                let text = match error {
                    WalkError::NoCode(_) => "no memory mapped at this address",
                    WalkError::Unexpected(_) => "unexpected packet context",
                    WalkError::Mismatch(_) => "trace stream does not match query",
                    WalkError::Status(_) => "bad status update",
                    _ => "other",
                };
                self.lines.push(format!("[{ip:x}: error: {text}]"));
                self.next = None;
            }
            What::End { ip } => {
                self.run(mode, ip, false);
                self.lines.push("[end of trace]".to_owned());
            }
        }
    }

    fn event(&self, event: &Event, ip: Option<u64>) -> Option<String> {
        let at = self.ip("ip", ip);
        let c_state = |n: u8| format!("c{}", (n + 1) & 15);
        Some(match *event {
            Event::ExecMode(mode) => format!(
                "[exec mode: {}]",
                match mode {
                    ExecMode::Bits16 => "16-bit",
                    ExecMode::Bits32 => "32-bit",
                    ExecMode::Bits64 => "64-bit",
                }
            ),
            Event::Interrupts(on) => {
                if !SHOWS_INTERRUPT_FLAG.contains(&self.case.name.as_str()) {
                    return None;
                }
                format!("[interrupts {}]", if on { "enabled" } else { "disabled" })
            }
            Event::Transaction { aborted: true, .. } => format!("[aborted{at}]"),
            Event::Transaction { running: true, .. } => format!("[begin transaction{at}]"),
            Event::Transaction { .. } => format!("[committed{at}]"),
            Event::Paging { cr3, non_root } => {
                format!("[paging, cr3: {cr3:016x}{}]", if non_root { ", nr" } else { "" })
            }
            Event::Vmcs { base } => format!("[vmcs, base: {base:016x}]"),
            Event::Ptwrite { payload } => format!("[ptwrite: {payload:x}{at}]"),
            Event::ExStop => format!("[exstop{at}]"),
            Event::Mwait { hints, extensions } => format!("[mwait {hints:x} {extensions:x}{at}]"),
            Event::Pwre {
                hardware,
                state,
                sub_state,
            } => {
                let hw = if hardware { " hw" } else { "" };
                format!("[pwre {}.{}{hw}]", c_state(state), (sub_state + 1) & 15)
            }
            Event::Pwrx { last, deepest, wake } => {
                let wake = match wake {
                    1 => "int: ",
                    4 => "st: ",
                    8 => "hw: ",
                    _ => "",
                };
                format!("[pwrx {wake}{} ({})]", c_state(last), c_state(deepest))
            }
            Event::Cbr(ratio) => format!("[cbr: {ratio:x}]"),
            Event::Mnt(payload) => format!("[mnt: {payload:x}]"),
            Event::TraceStop => "[stopped]".to_owned(),
            Event::Trigger { kind, .. } => format!("[trig {kind:x}{at}]"),
            Event::ControlFlow {
                kind,
                vector,
                cr2,
                qualification,
                reason,
            } => {
                let hex =
                    |name: &str, value: Option<u64>| value.map_or(String::new(), |v| format!(", {name}: {v:016x}"));
                let name = match kind {
                    1 if cr2.is_none() => "interrupt",
                    1 => return Some(format!("[interrupt {vector}{}]", hex("cr2", cr2))),
                    2 => "iret",
                    3 => "smi",
                    4 => "rsm",
                    5 => return Some(format!("[sipi: {vector:x}]")),
                    6 => "init",
                    7 => "vmentry",
                    8 => return Some(format!("[vmexit{}{}]", hex("vmxr", reason), hex("vmxq", qualification))),
                    9 => {
                        let (reason, qualification) = (hex("vmxr", reason), hex("vmxq", qualification));
                        return Some(format!("[vmexit, intr: {vector}{reason}{qualification}]"));
                    }
                    14 => return Some(format!("[swintr {vector}]")),
                    other => return Some(format!("[event {other}]")),
                };
                format!("[{name}]")
            }
        })
    }
}

fn ours(case: &Case) -> Vec<String> {
    let mut code = Code::new(fetch(case));
    let packets = Packets::new(&case.pt, 0, case.errata);
    let mut listing = Listing {
        case,
        lines: Vec::new(),
        next: None,
        resume: None,
        addresses: SHOWS_ADDRESSES.contains(&case.name.as_str()),
    };
    let mut walker = Walker::new(packets, u64::MAX, &mut code);
    while let Some(step) = walker.next() {
        listing.step(&step, walker.mode());
        // Unless told otherwise ptxed goes on only at the next PSB, and these have none.
        if matches!(step.what, What::Error { .. }) && !case.name.starts_with("ptxed-resync") {
            break;
        }
    }
    listing.lines
}

fn theirs(case: &Case) -> Vec<String> {
    let text = case.instructions.as_deref().unwrap();
    let lines = text.lines().map(|line| line.strip_prefix("? ").unwrap_or(line));
    let shown = lines.filter(|line| !line.starts_with("insn:") && !line.starts_with("blocks:") && *line != "[block]");
    // The place in the trace where an error is found is a decoder's own, and so is what it knows of time.
    shown
        .filter(|line| !line.ends_with("  tick]"))
        .map(|line| match (line.split_once(": error: "), line.split_once("  ")) {
            (Some((place, text)), _) => format!("[{}: error: {text}", place.rsplit(' ').next().unwrap()),
            (None, Some((_time, event))) => format!("[{event}"),
            (None, None) => line.to_owned(),
        })
        .collect()
}

/// The number of instructions, where ptxed was told to print only that.
fn count(case: &Case) -> Option<usize> {
    let text = case.instructions.as_deref().unwrap().lines().next()?;
    text.strip_prefix("insn:")?.trim().strip_suffix('.')?.parse().ok()
}

#[test]
fn instructions_and_events_are_those_of_ptxed() {
    let Some(cases) = libipt() else { return };
    let mut equal = 0;
    let mut unequal = Vec::new();
    let cases: Vec<&Case> = cases.iter().filter(|c| c.instructions.is_some()).collect();
    for case in &cases {
        let (mut ours, mut theirs) = (ours(case), theirs(case));
        if let Some(count) = count(case) {
            ours = vec![ours.iter().filter(|line| !line.starts_with('[')).count().to_string()];
            theirs = vec![count.to_string()];
        }
        let different = DIFFERENT.iter().any(|d| d.0 == case.name);
        match (ours == theirs, different) {
            (true, false) => equal += 1,
            (false, true) => {}
            _ => unequal.push(format!("{}\n  ours   {ours:?}\n  theirs {theirs:?}", case.name)),
        }
    }
    println!(
        "{equal} of {} cases equal, {} different on purpose",
        cases.len(),
        DIFFERENT.len()
    );
    assert!(unequal.is_empty(), "{} unequal:\n{}", unequal.len(), unequal.join("\n"));
}
