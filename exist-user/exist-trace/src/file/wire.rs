//! Integers, strings and sections of a payload, in both directions.
//!
//! Integers are LEB128 (7 bits a byte, low first); signed ones and differences are zigzag first.
//! Reading checks every length and count against the bytes that are there before anything is allocated.

/// Why a section cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at offset {offset}: {value}")]
pub struct Malformed {
    /// Offset in the file.
    pub offset: u64,
    pub what: &'static str,
    /// The value found.
    pub value: u64,
}

/// Appends integers and bytes.
pub trait Put {
    fn uint(&mut self, value: u64);
    fn bytes(&mut self, bytes: &[u8]);

    /// `value - base`, also when it is negative or wraps.
    fn diff(&mut self, base: u64, value: u64) {
        let d = value.wrapping_sub(base).cast_signed();
        self.uint((d << 1 ^ d >> 63).cast_unsigned());
    }
}

impl Put for Vec<u8> {
    fn uint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.uint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }
}

/// Reads from a slice whose first byte stands at `base` in the file.
#[derive(Clone, Copy, Debug)]
pub struct Get<'a> {
    rest: &'a [u8],
    at: u64,
}

impl<'a> Get<'a> {
    pub const fn new(bytes: &'a [u8], base: u64) -> Self {
        Self { rest: bytes, at: base }
    }

    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Offset of the next byte in the file.
    pub const fn offset(&self) -> u64 {
        self.at
    }

    pub const fn malformed(&self, what: &'static str, value: u64) -> Malformed {
        Malformed {
            offset: self.at,
            what,
            value,
        }
    }

    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let Some((head, rest)) = self.rest.split_at_checked(n) else {
            return Err(self.malformed("length beyond the section", n as u64));
        };
        self.rest = rest;
        self.at += n as u64;
        Ok(head)
    }

    /// The rest of the section.
    pub fn remainder(&mut self) -> &'a [u8] {
        let all = self.rest;
        self.at += all.len() as u64;
        self.rest = &[];
        all
    }

    pub fn uint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (i, &b) in self.rest.iter().take(10).enumerate() {
            let bits = u64::from(b & 0x7f);
            if i == 9 && bits > 1 {
                break;
            }
            value |= bits << (7 * i);
            if b < 0x80 {
                self.rest = &self.rest[i + 1..];
                self.at += i as u64 + 1;
                return Ok(value);
            }
        }
        Err(self.malformed("integer without an end", self.rest.len().min(10) as u64))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let at = *self;
        let value = self.uint()?;
        u32::try_from(value).map_err(|_| at.malformed("integer above 32 bits", value))
    }

    /// The counterpart of [`Put::diff`].
    pub fn diff(&mut self, base: u64) -> Result<u64, Malformed> {
        let z = self.uint()?;
        Ok(base.wrapping_add(z >> 1 ^ 0u64.wrapping_sub(z & 1)))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let at = *self;
        let len = self.uint()?;
        let len = usize::try_from(len).map_err(|_| at.malformed("length beyond the section", len))?;
        self.take(len)
    }

    pub fn str(&mut self) -> Result<&'a str, Malformed> {
        let at = *self;
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|e| at.malformed("text that is not UTF-8", e.valid_up_to() as u64))
    }

    /// A count of items, each of which takes at least `min_bytes`.
    pub fn count(&mut self, min_bytes: usize) -> Result<usize, Malformed> {
        let at = *self;
        let n = self.uint()?;
        match usize::try_from(n) {
            Ok(items) if items <= self.rest.len() / min_bytes => Ok(items),
            _ => Err(at.malformed("count beyond the section", n)),
        }
    }

    /// `count` items read by `item`.
    pub fn list<T>(
        &mut self,
        min_bytes: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let n = self.count(min_bytes)?;
        let mut out = Vec::with_capacity(n);
        for _ in 0..n {
            out.push(item(self)?);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_round_trip_in_as_few_bytes_as_they_need() {
        for (value, len) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (16_383, 2),
            (16_384, 3),
            (u64::MAX >> 1, 9),
            (u64::MAX, 10),
        ] {
            let mut out = Vec::new();
            out.uint(value);
            assert_eq!(out.len(), len, "{value}");
            assert_eq!(Get::new(&out, 0).uint(), Ok(value));
        }
    }

    #[test]
    fn differences_round_trip_also_backwards_and_around() {
        for base in [0, 1, 1 << 40, u64::MAX] {
            for value in [0, 1, (1 << 40) - 5, u64::MAX - 1, u64::MAX] {
                let mut out = Vec::new();
                out.diff(base, value);
                assert_eq!(Get::new(&out, 0).diff(base), Ok(value));
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_offset() {
        fn check(bytes: &[u8], read: fn(&mut Get) -> Result<u64, Malformed>, what: &str, value: u64) {
            let err = read(&mut Get::new(bytes, 100)).unwrap_err();
            assert_eq!((err.offset, err.what, err.value), (100, what, value), "{bytes:?}");
        }
        check(&[], |g| g.uint(), "integer without an end", 0);
        check(&[0x80; 9], |g| g.uint(), "integer without an end", 9);
        check(&[0xff; 11], |g| g.uint(), "integer without an end", 10);
        check(
            &[0xff, 0xff, 0xff, 0xff, 0x10],
            |g| g.u32().map(u64::from),
            "integer above 32 bits",
            (1 << 32) + (1 << 28) - 1,
        );
        check(
            &[3, 1, 2],
            |g| g.count(1).map(|n| n as u64),
            "count beyond the section",
            3,
        );
        check(
            &[2, 0xff, 0xff],
            |g| g.str().map(|s| s.len() as u64),
            "text that is not UTF-8",
            0,
        );
        let err = Get::new(&[5, 1, 2], 100).bytes().unwrap_err();
        assert_eq!((err.offset, err.what, err.value), (101, "length beyond the section", 5));
    }
}
