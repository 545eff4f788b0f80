//! Packets that say where branches went: TNT and TIP.

use super::{
    code::{Block, Exit},
    step::{BranchKind, Place, Start, WalkError, What},
    walker::{Position, Walker},
};
use crate::{
    image::NoCode,
    pt::{Located, Packet, Tnt},
};

impl<'b, F: FnMut(u64) -> Result<&'b [u8], NoCode>> Walker<'_, '_, F> {
    /// A TNT: all its outcomes belong to branches that come now.
    pub(super) fn outcomes(&mut self, tnt: Tnt) -> Result<(), WalkError> {
        match self.position {
            Position::Lost => return Ok(()),
            Position::Disabled { .. } => return Err(self.on_after_all("TNT while tracing is disabled")),
            Position::At(_) => {}
        }
        self.tnt = tnt;
        while self.tnt.len > 0 {
            let block = self.seek_trace()?;
            match block.exit {
                Exit::Conditional { to } => {
                    if self.tnt.pop() == Some(true) {
                        self.branch(block.last, to, BranchKind::Conditional);
                    } else {
                        self.position = Position::At(block.end);
                    }
                }
                Exit::Return => {
                    let to = self.calls.pop();
                    if self.tnt.pop() != Some(true) {
                        return Err(WalkError::Mismatch("a compressed return that is not taken"));
                    }
                    let to = to.ok_or(WalkError::Mismatch("a compressed return without its call"))?;
                    self.branch(block.last, to, BranchKind::Return);
                }
                // The processor may hold a TIP back until the TNT is full ("Deferred TIPs").
                _ => {
                    self.position = Position::At(block.last);
                    let to = self.deferred_target()?;
                    self.indirect(&block, to)?;
                }
            }
        }
        Ok(())
    }

    /// A packet that shows that tracing is enabled, where the walk knows of nothing that enabled it.
    fn on_after_all(&mut self, packet: &'static str) -> WalkError {
        self.position = Position::Lost;
        WalkError::Unexpected(packet)
    }

    fn deferred_target(&mut self) -> Result<u64, WalkError> {
        loop {
            match self.packets.clone().next() {
                Some(Ok(Located { packet, .. })) if packet.is_timing() => {
                    self.packets.next();
                }
                Some(Ok(Located {
                    packet: Packet::Tip(payload),
                    ..
                })) => {
                    self.packets.next();
                    let ip = self.last_ip.expand(payload);
                    return ip.ok_or(WalkError::Mismatch("a target that is suppressed"));
                }
                _ => return Err(WalkError::Mismatch("an outcome at an indirect branch")),
            }
        }
    }

    /// The block's last instruction went to `to`, as a TIP says.
    fn indirect(&mut self, block: &Block, to: u64) -> Result<(), WalkError> {
        let kind = match block.exit {
            Exit::IndirectJump => BranchKind::IndirectJump,
            Exit::IndirectCall => {
                self.calls.push(block.end);
                BranchKind::IndirectCall
            }
            Exit::Return => {
                self.calls.pop();
                BranchKind::Return
            }
            Exit::Far(far) => BranchKind::Far(far),
            _ => {
                self.position = Position::At(block.last);
                return Err(WalkError::Mismatch("a target at a conditional branch"));
            }
        };
        self.branch(block.last, to, kind);
        Ok(())
    }

    /// A TIP.
    pub(super) fn target(&mut self, ip: Option<u64>) -> Result<(), WalkError> {
        if matches!(self.position, Position::Disabled { .. }) {
            return Err(self.on_after_all("TIP while tracing is disabled"));
        }
        let source = self.source.take();
        let to = ip.ok_or(WalkError::Mismatch("a target that is suppressed"))?;
        match (source, self.position) {
            (Some(at), _) => {
                // Even a walk that cannot reach the source knows it, and the target.
                if let Err(error) = self.reach(at) {
                    self.fail(error);
                }
                self.push(What::Interrupted { at, to });
                self.position = Position::At(to);
            }
            (None, Position::Lost) => self.start(to, Start::Resync),
            (None, _) => {
                let block = self.seek_trace()?;
                self.indirect(&block, to)?;
            }
        }
        self.arrive(Some(to));
        Ok(())
    }

    /// What a TIP brings with it takes effect at its target.
    pub(super) fn arrive(&mut self, at: Option<u64>) {
        let place = at.map_or(Place::Unknown, Place::Before);
        if let Some((mode, interrupts)) = self.next_mode.take() {
            self.change_mode(mode, interrupts, place);
        }
        for event in std::mem::take(&mut self.at_target) {
            self.event(event, place);
        }
    }
}
