//! Where [`Input`]s come from.

use std::{io, os::fd::OwnedFd, time::Duration};

use anyhow::Context as _;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc::UnboundedReceiver,
};

use super::Input;
use crate::sys::watched::Watched;

/// Everything that is waited for.
pub struct Inputs {
    notices: Watched,
    /// Until the command ends.
    command: Option<Watched>,
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    /// What the threads say.
    inbox: UnboundedReceiver<Input>,
}

impl Inputs {
    /// Waits for these from now on; signals no longer end the process.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new(notices: OwnedFd, command: Option<OwnedFd>, inbox: UnboundedReceiver<Input>) -> anyhow::Result<Self> {
        let new = || -> io::Result<Self> {
            Ok(Self {
                notices: Watched::new(notices)?,
                command: command.map(Watched::new).transpose()?,
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
                hangup: signal(SignalKind::hangup())?,
                inbox,
            })
        };
        new().context("failed to wait for descriptors and signals")
    }

    /// The next one; [`Input::Drain`] when nothing else came for `wait`.
    pub async fn next(&mut self, wait: Duration) -> Input {
        let Self {
            notices,
            command,
            interrupt,
            terminate,
            hangup,
            inbox,
        } = self;
        let input = tokio::select! {
            () = readable(Some(&*notices)) => Input::Notices,
            () = readable(command.as_ref()) => Input::CommandEnded,
            Some(()) = interrupt.recv() => Input::Interrupt,
            Some(()) = terminate.recv() => Input::Interrupt,
            Some(()) = hangup.recv() => Input::Interrupt,
            Some(input) = inbox.recv() => input,
            () = tokio::time::sleep(wait) => Input::Drain,
        };
        if matches!(input, Input::CommandEnded) {
            self.command = None; // its descriptor stays readable
        }
        input
    }
}

/// Waits until there is something to read; for ever when there is no descriptor.
async fn readable(fd: Option<&Watched>) {
    match fd {
        Some(fd) => fd.readable().await,
        None => std::future::pending().await,
    }
}
