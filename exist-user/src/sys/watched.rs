//! A descriptor that the event loop waits for.

use std::{io, os::fd::OwnedFd};

use tokio::io::{Interest, unix::AsyncFd};

/// Tells when its descriptor has something to read. Owns the descriptor.
#[derive(Debug)]
pub struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Must be called within the event loop.
    ///
    /// # Errors
    /// When the descriptor is of a kind that cannot be waited for.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` stays open, is the same descriptor as long as it lives, and nothing here takes it out.
        Ok(Self(unsafe {
            AsyncFd::register_with_interest(fd, Interest::READABLE)
        }?))
    }

    /// Waits until there is something to read. Whoever is told must read all there is: only what comes later tells again.
    pub async fn readable(&self) {
        match self.0.readable().await {
            Ok(mut ready) => ready.clear_ready(),
            // The event loop is going away, and with it whoever waits.
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, time::Duration};

    use super::*;

    #[test]
    fn it_tells_once_for_what_is_there() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (reader, mut writer) = io::pipe().unwrap();
            let watched = Watched::new(reader.into()).unwrap();
            let soon = Duration::from_millis(50);
            assert!(tokio::time::timeout(soon, watched.readable()).await.is_err());
            writer.write_all(b"x").unwrap();
            assert!(tokio::time::timeout(soon, watched.readable()).await.is_ok());
            assert!(tokio::time::timeout(soon, watched.readable()).await.is_err());
            writer.write_all(b"y").unwrap();
            assert!(tokio::time::timeout(soon, watched.readable()).await.is_ok());
        });
    }
}
