//! Packets that change no flow of their own: what they tell, and the addresses and instructions that they bind to.

use super::{
    code::{ExecMode, Exit, Special},
    seek::Goal,
    step::{Event, Place, Start, WalkError},
    walker::{Position, Walker},
};
use crate::{image::NoCode, pt::Packet};

impl<'b, F: FnMut(u64) -> Result<&'b [u8], NoCode>> Walker<'_, '_, F> {
    /// A FUP: the address of an asynchronous event, of an overflow's end or of events that wait for it.
    pub(super) fn fup(&mut self, ip: Option<u64>) -> Result<(), WalkError> {
        if self.overflow_ends(ip) {
            return Ok(());
        }
        let events = std::mem::take(&mut self.bound);
        let mode = self.next_mode.take();
        let unbound = events.is_empty() && mode.is_none() || std::mem::take(&mut self.also_source);
        let mut place = ip.map_or(Place::Unknown, Place::Before);
        let mut restart = None;
        if let (Some(ip), true, false) = (ip, self.enabled(), events.is_empty() && mode.is_none()) {
            place = self.reach_event(ip, &events);
            restart = (place != Place::Before(ip) && place != Place::At(ip)).then_some(ip);
        }
        for event in events {
            self.event(event, place);
        }
        if let Some(ip) = restart {
            self.start(ip, Start::Resync);
        }
        if let Some((mode, interrupts)) = mode {
            // MODE.Exec with a FUP, not a TIP: only the interrupt flag changed (event trace).
            self.change_mode(mode, interrupts, place);
        }
        if unbound {
            self.source = ip;
            if ip.is_none() {
                return Err(WalkError::Unexpected("FUP without an address"));
            }
        }
        Ok(())
    }

    /// Goes on to the place of `events`: before `ip` or at the instruction there; elsewhere when that cannot be reached.
    fn reach_event(&mut self, ip: u64, events: &[Event]) -> Place {
        let aborted = events
            .iter()
            .any(|e| matches!(e, Event::Transaction { aborted: true, .. }));
        let (position, steps) = (self.position, self.steps.len());
        match (self.reach(ip), position) {
            (Ok(()), _) if events.iter().all(Event::is_of_instruction) && !events.is_empty() => {
                if let Ok(block) = self.code.block(ip)
                    && block.last == ip
                    && let Exit::Next(_) = block.exit
                {
                    self.position = Position::At(block.end);
                }
                Place::At(ip)
            }
            (Ok(()), _) => Place::Before(ip),
            // BDM64: the branch before an abort may have a wrong target, so that the abort cannot be reached.
            (Err(_), Position::At(at)) if aborted && self.packets.errata().bdm64 => {
                self.steps.truncate(steps);
                Place::Before(at)
            }
            (Err(error), _) => {
                self.fail(error);
                self.start(ip, Start::Resync);
                Place::Before(ip)
            }
        }
    }

    /// Packets that change no flow of their own.
    pub(super) fn side(&mut self, packet: Packet) -> Result<(), WalkError> {
        match packet {
            Packet::ModeExec { cs_l, cs_d, interrupts } => {
                self.next_mode = Some((ExecMode::new(cs_l, cs_d), interrupts));
            }
            Packet::ModeTsx { in_tx, abort } => {
                let event = Event::Transaction {
                    running: in_tx,
                    aborted: abort,
                };
                if self.enabled() {
                    self.also_source |= abort;
                    self.bound.push(event);
                } else {
                    self.event(event, Place::Unknown);
                }
            }
            Packet::Pip { cr3, non_root } => {
                let event = Event::Paging { cr3, non_root };
                self.bind_to_instruction(event, Goal::BindsToPip)?;
            }
            Packet::Vmcs { base } => self.bind_to_instruction(Event::Vmcs { base }, Goal::BindsToVmcs)?,
            Packet::Ptw { ip, payload, .. } => {
                let event = Event::Ptwrite { payload };
                if ip {
                    self.bound.push(event);
                } else {
                    self.bind_to_instruction(event, Goal::Ptwrite)?;
                }
            }
            Packet::ExStop { ip } => {
                let mwait = self.mwait.take();
                if ip {
                    self.bound.extend(mwait);
                    self.bound.push(Event::ExStop);
                } else {
                    for event in mwait.into_iter().chain([Event::ExStop]) {
                        self.event(event, Place::Unknown);
                    }
                }
            }
            Packet::Mwait { hints, extensions } => self.mwait = Some(Event::Mwait { hints, extensions }),
            Packet::Pwre {
                hardware,
                state,
                sub_state,
            } => {
                let earlier = self.pwre.replace(Event::Pwre {
                    hardware,
                    state,
                    sub_state,
                });
                earlier.into_iter().for_each(|e| self.event(e, Place::Unknown));
            }
            Packet::Pwrx { last, deepest, wake } => {
                let entry = self.pwre.take();
                for event in entry.into_iter().chain([Event::Pwrx { last, deepest, wake }]) {
                    self.event(event, Place::Unknown);
                }
            }
            Packet::Cbr { ratio } => self.event(Event::Cbr(ratio), Place::Unknown),
            Packet::Mnt(payload) => self.event(Event::Mnt(payload), Place::Unknown),
            Packet::TraceStop => self.event(Event::TraceStop, Place::Unknown),
            Packet::Trig {
                ip, kind, instructions, ..
            } => {
                let event = Event::Trigger { kind, instructions };
                if ip {
                    self.bound.push(event);
                } else {
                    self.event(event, Place::Unknown);
                }
            }
            // 0: CR2, 1: exit qualification, 2: exit reason (SDM, "Event Data (EVD) Packet").
            Packet::Evd { kind, payload } => {
                if let Some(slot) = self.event_data.get_mut(usize::from(kind)) {
                    *slot = Some(payload);
                }
            }
            Packet::Cfe { ip, kind, vector } => self.control_flow_event(ip, kind, vector)?,
            _ => {}
        }
        Ok(())
    }

    fn control_flow_event(&mut self, ip: bool, kind: u8, vector: u8) -> Result<(), WalkError> {
        let [cr2, qualification, reason] = std::mem::take(&mut self.event_data);
        let event = Event::ControlFlow {
            kind,
            vector,
            cr2,
            qualification,
            reason,
        };
        if ip {
            self.bound.push(event);
        } else if !self.enabled() {
            self.event(event, Place::Unknown);
        } else {
            // Without IP: kinds that come with the FUP of an asynchronous event, and those that bind to an instruction.
            match kind {
                2 => self.bind_to_instruction(event, Goal::InterruptReturn)?,
                7 => self.bind_to_instruction(event, Goal::VmEntry)?,
                13 => self.bind_to_instruction(event, Goal::UserInterruptReturn)?,
                _ => {
                    self.also_source = true;
                    self.bound.push(event);
                }
            }
        }
        Ok(())
    }

    /// An event of the next instruction of some kind; with a FUP pending, of the target of its TIP.
    fn bind_to_instruction(&mut self, event: Event, goal: Goal) -> Result<(), WalkError> {
        let paging = matches!(event, Event::Paging { .. } | Event::Vmcs { .. });
        match self.position {
            Position::At(_) if self.source.is_some() && paging => {
                // VMCS before paging, whatever the order of their packets.
                let at = if matches!(event, Event::Vmcs { .. }) {
                    0
                } else {
                    self.at_target.len()
                };
                self.at_target.insert(at, event);
            }
            Position::At(_) => {
                let (block, reached) = self.seek(goal)?;
                if !reached {
                    return Err(WalkError::Mismatch("an event whose instruction does not come"));
                }
                self.event(event, Place::At(block.last));
                if let Exit::Next(special) = block.exit
                    && special != Special::None
                {
                    self.position = Position::At(block.end);
                }
            }
            _ => self.event(event, Place::Unknown),
        }
        Ok(())
    }

    /// Events that wait for a packet that does not come any more.
    pub(super) fn flush_power(&mut self) {
        let bound = std::mem::take(&mut self.bound);
        for event in bound.into_iter().chain(self.mwait.take()).chain(self.pwre.take()) {
            self.event(event, Place::Unknown);
        }
    }
}
