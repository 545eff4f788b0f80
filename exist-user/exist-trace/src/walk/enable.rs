//! Where packets begin and end: TIP.PGE and TIP.PGD.

use super::{
    code::{Exit, Far},
    overflow::AfterOverflow,
    seek::Goal,
    step::{Disabled, Start, Step, WalkError, What},
    walker::{Position, Walker},
};
use crate::image::NoCode;

impl<'b, F: FnMut(u64) -> Result<&'b [u8], NoCode>> Walker<'_, '_, F> {
    /// A TIP.PGE.
    pub(super) fn enable(&mut self, ip: u64) -> Result<(), WalkError> {
        let was_on = matches!(self.position, Position::At(_));
        // Seen in Skylake captures: a return whose call lies before the last TIP.PGE is never compressed. So no code of
        // the thread that ran before is needed.
        self.calls.clear();
        self.start(ip, Start::Enable);
        self.after_overflow = AfterOverflow::No;
        self.arrive(Some(ip));
        if was_on {
            Err(WalkError::Unexpected("TIP.PGE while tracing is enabled"))
        } else {
            Ok(())
        }
    }

    /// A TIP.PGD.
    pub(super) fn disable(&mut self, to: Option<u64>) -> Result<(), WalkError> {
        if let Position::Disabled { .. } = self.position {
            self.source = None;
            return Err(WalkError::Unexpected("TIP.PGD while tracing is disabled"));
        }
        let result = match self.source.take() {
            Some(at) => {
                // Even a walk that cannot reach the source knows it.
                if let Err(error) = self.reach(at) {
                    self.fail(error);
                }
                let asynchronous = !self.skd022(at);
                Ok(Disabled {
                    at,
                    asynchronous,
                    resume: asynchronous.then_some(at),
                    to,
                })
            }
            None if self.position == Position::Lost => Ok(Disabled {
                at: 0,
                asynchronous: false,
                resume: None,
                to,
            }),
            None => self.seek_disable(to),
        };
        let disabled = result.unwrap_or_else(|error| {
            self.fail(error);
            Disabled {
                at: 0,
                asynchronous: false,
                resume: None,
                to,
            }
        });
        // Whatever the walk found, tracing is off now.
        self.position = Position::Disabled {
            resume: disabled.resume,
        };
        self.push(What::Disabled(disabled));
        self.arrive(None);
        self.source = None;
        Ok(())
    }

    /// SKD022: the FUP before a TIP.PGD of a VM entry is bogus.
    fn skd022(&mut self, at: u64) -> bool {
        self.packets.errata().skd022
            && self
                .code
                .block(at)
                .is_ok_and(|b| b.last == at && b.exit == Exit::Far(Far::VmEntry))
    }

    /// Where a TIP.PGD without FUP belongs: the branch that leaves for `to`, or else the next one that needs a packet.
    fn seek_disable(&mut self, to: Option<u64>) -> Result<Disabled, WalkError> {
        let goal = to.map_or(Goal::Disable, Goal::Ip);
        let before = self.steps.len();
        let (block, reached) = self.seek(goal)?;
        if reached && to.is_some() {
            // A direct branch went out of the traced range: it is in the steps already.
            let at = match self.steps.range(before..).next_back() {
                Some(Step {
                    what: What::Branch { from, .. },
                    ..
                }) => *from,
                _ => block.last,
            };
            return Ok(Disabled {
                at,
                asynchronous: false,
                resume: None,
                to,
            });
        }
        let resume = match block.exit {
            Exit::Far(Far::Syscall | Far::Interrupt | Far::Call) | Exit::IndirectCall => Some(block.end),
            _ => None,
        };
        Ok(Disabled {
            at: block.last,
            asynchronous: false,
            resume,
            to,
        })
    }
}
