//! Where [`Input`]s come from.

use std::{io, os::fd::OwnedFd, process, time::Instant};

use anyhow::Context as _;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::UnboundedReceiver,
};

use super::Input;
use crate::sys::{procfs::Process, roots::Roots, watched::Watched};

/// Everything that is waited for.
pub struct Inputs {
    notices: Watched,
    /// Until the command ends.
    command: Option<Watched>,
    signals: Signals,
    /// What the threads say.
    inbox: UnboundedReceiver<Input>,
}

/// Those that end a recording, and no longer the process.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Unless it is to be ignored, as `nohup` has it.
    hangup: Option<Signal>,
}

impl Signals {
    /// From now on; what comes before it is waited for is kept. Must be called within the event loop.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn listen() -> io::Result<Self> {
        let status = Process::new(&Roots::default(), process::id())
            .status()
            .unwrap_or_default();
        Ok(Self {
            // Also where it is ignored: a script starts what runs beside it so, and may still end it by this signal.
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: match status.ignores(SignalKind::hangup().as_raw_value()) {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            Some(()) = self.interrupt.recv() => {}
            Some(()) = self.terminate.recv() => {}
            () = received(&mut self.hangup) => {}
        }
    }
}

impl Inputs {
    /// Waits for these from now on.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new(
        notices: OwnedFd,
        command: Option<OwnedFd>,
        signals: Signals,
        inbox: UnboundedReceiver<Input>,
    ) -> anyhow::Result<Self> {
        let new = || -> io::Result<Self> {
            Ok(Self {
                notices: Watched::new(notices)?,
                command: command.map(Watched::new).transpose()?,
                signals,
                inbox,
            })
        };
        new().context("failed to wait for descriptors")
    }

    /// The next one; [`Input::Drain`] from `due` on. A time and not a length: others that come without a pause do not put
    /// it off.
    pub async fn next(&mut self, due: Instant) -> Input {
        let Self {
            notices,
            command,
            signals,
            inbox,
        } = self;
        let input = tokio::select! {
            () = readable(Some(&*notices)) => Input::Notices,
            () = readable(command.as_ref()) => Input::CommandEnded,
            () = signals.next() => Input::Interrupt,
            Some(input) = inbox.recv() => input,
            () = tokio::time::sleep_until(due.into()) => Input::Drain,
        };
        if matches!(input, Input::CommandEnded) {
            self.command = None; // its descriptor stays readable
        }
        input
    }
}

/// Waits for the signal; for ever when it is ignored.
async fn received(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

/// Waits until there is something to read; for ever when there is no descriptor.
async fn readable(fd: Option<&Watched>) {
    match fd {
        Some(fd) => fd.readable().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_drain_is_due_also_while_notices_never_pause() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            // Readable for ever.
            let (notices, mut writer) = io::pipe().unwrap();
            io::Write::write_all(&mut writer, b"x").unwrap();
            let (_said, inbox) = tokio::sync::mpsc::unbounded_channel();
            let mut inputs = Inputs::new(notices.into(), None, Signals::listen().unwrap(), inbox).unwrap();
            let due = Instant::now() + Duration::from_millis(5);
            let mut notices = 0;
            loop {
                match inputs.next(due).await {
                    Input::Drain => break,
                    Input::Notices => notices += 1,
                    _ => unreachable!("nobody sends anything else"),
                }
                assert!(
                    due.elapsed() < Duration::from_secs(2),
                    "{notices} notices, and no drain"
                );
                // As if it had been read, and another came.
                io::Write::write_all(&mut writer, b"x").unwrap();
            }
            assert!(notices > 0 && Instant::now() >= due);
        });
    }
}
