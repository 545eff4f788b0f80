//! Return addresses of calls, for compressed returns (SDM volume 3, "Indirect Transfer Compression for Returns").

/// The processor keeps the youngest 64.
const DEPTH: usize = 64;

/// A ring of return addresses.
#[derive(Clone, Debug)]
pub(super) struct ReturnStack {
    addresses: [u64; DEPTH],
    top: usize,
    len: usize,
}

impl ReturnStack {
    pub(super) const fn new() -> Self {
        Self {
            addresses: [0; DEPTH],
            top: 0,
            len: 0,
        }
    }

    /// A near call. (Calls to the next instruction are not counted by the processor; the caller leaves them out.)
    pub(super) fn push(&mut self, address: u64) {
        self.top = (self.top + 1) % DEPTH;
        self.addresses[self.top] = address;
        self.len = (self.len + 1).min(DEPTH);
    }

    /// A near return, compressed or not.
    pub(super) fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        let address = self.addresses[self.top];
        self.top = (self.top + DEPTH - 1) % DEPTH;
        Some(address)
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_youngest_64() {
        let mut stack = ReturnStack::new();
        (0..100).for_each(|n| stack.push(n));
        let popped: Vec<u64> = std::iter::from_fn(|| stack.pop()).collect();
        assert_eq!(popped, (36..100).rev().collect::<Vec<_>>());
        assert_eq!(stack.pop(), None);
        stack.push(7);
        assert_eq!(stack.pop(), Some(7));
    }
}
