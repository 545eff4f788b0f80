//! Bytes → records, with the time of each.

use std::collections::HashMap;

use crate::record::{Block, Class, Exit, HEADER_BYTES, Header, MAGIC, Record};

/// Why a file cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("not a ground-truth file: it begins with {0:02x?}")]
    Magic(Vec<u8>),
    #[error("the file ends inside the record at offset {0}")]
    Truncated(usize),
    #[error("unknown value {value} at offset {offset}")]
    Unknown { value: u64, offset: usize },
    #[error("block {id} at offset {offset} was never defined")]
    Undefined { id: u64, offset: usize },
}

/// A record and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub tsc: u64,
    pub record: Record,
}

/// Reads one file. An iterator that ends after the first error.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    header: Header,
    bytes: &'a [u8],
    offset: usize,
    tsc: u64,
    blocks: HashMap<u64, Block>,
    failed: bool,
}

impl<'a> Reader<'a> {
    /// Opens the bytes of a file.
    ///
    /// # Errors
    /// `Magic` when they are something else.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        let refuse = || Error::Magic(bytes.iter().copied().take(MAGIC.len()).collect());
        let head = bytes.get(..HEADER_BYTES).ok_or_else(refuse)?;
        if !head.starts_with(MAGIC) {
            return Err(refuse());
        }
        let word = |at: usize| head[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or(0);
        let header = Header {
            cpu: word(8) as u32,
            tsc_hz: word(16),
        };
        Ok(Self {
            header,
            bytes,
            offset: HEADER_BYTES,
            tsc: 0,
            blocks: HashMap::new(),
            failed: false,
        })
    }

    /// The head of the file.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The block that `id` means, as far as the file was read.
    pub fn block(&self, id: u64) -> Option<&Block> {
        self.blocks.get(&id)
    }

    fn read(&mut self) -> Result<Item, Error> {
        let begin = self.offset;
        let head = self.varint(begin)?;
        let delta = self.varint(begin)?;
        self.tsc = self.tsc.wrapping_add(delta);
        let record = if head & 1 == 0 {
            let id = head >> 1;
            if !self.blocks.contains_key(&id) {
                return Err(Error::Undefined { id, offset: begin });
            }
            Record::Ran { id }
        } else {
            self.other(head >> 1, begin)?
        };
        Ok(Item { tsc: self.tsc, record })
    }

    fn other(&mut self, kind: u64, begin: usize) -> Result<Record, Error> {
        Ok(match kind {
            0 => {
                let id = self.varint(begin)?;
                let block = self.define(begin)?;
                self.blocks.insert(id, block.clone());
                Record::Define { id, block }
            }
            1 => Record::Cut {
                end: self.varint(begin)?,
            },
            2 => {
                let (tid, cr3) = (self.varint(begin)?, self.varint(begin)?);
                Record::Thread {
                    tid,
                    cr3,
                    fs_base: self.varint(begin)?,
                }
            }
            3 => {
                let exit = self.byte(begin)?;
                let known = Exit::from_byte(exit);
                let exit = known.ok_or(Error::Unknown {
                    value: exit.into(),
                    offset: begin,
                })?;
                Record::Leave {
                    exit,
                    from: self.varint(begin)?,
                }
            }
            4 => Record::RtitCtl {
                value: self.varint(begin)?,
            },
            5 => Record::Pmi,
            6 => Record::OvfBegin,
            7 => Record::OvfEnd {
                bytes: self.varint(begin)?,
            },
            8 => Record::Mark {
                value: self.varint(begin)?,
            },
            9 => Record::On,
            10 => Record::Off,
            11 => {
                let from = self.varint(begin)?;
                Record::Unexplained {
                    from,
                    to: self.varint(begin)?,
                }
            }
            12 => Record::Stopped,
            value => return Err(Error::Unknown { value, offset: begin }),
        })
    }

    fn define(&mut self, begin: usize) -> Result<Block, Error> {
        let start = self.varint(begin)?;
        let last = self.varint(begin)?;
        let class = self.byte(begin)?;
        let class = Class::from_byte(class).ok_or(Error::Unknown {
            value: class.into(),
            offset: begin,
        })?;
        let length = self.varint(begin)?;
        let length = usize::try_from(length).map_err(|_| Error::Truncated(begin))?;
        let end = self.offset.checked_add(length).ok_or(Error::Truncated(begin))?;
        let code = self
            .bytes
            .get(self.offset..end)
            .ok_or(Error::Truncated(begin))?
            .to_vec();
        if last >= code.len().max(1) as u64 {
            return Err(Error::Unknown {
                value: last,
                offset: begin,
            });
        }
        self.offset = end;
        Ok(Block {
            start,
            last: last as u32,
            class,
            code,
        })
    }

    fn byte(&mut self, begin: usize) -> Result<u8, Error> {
        let byte = *self.bytes.get(self.offset).ok_or(Error::Truncated(begin))?;
        self.offset += 1;
        Ok(byte)
    }

    fn varint(&mut self, begin: usize) -> Result<u64, Error> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(begin)?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Unknown { value, offset: begin })
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Item, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.offset >= self.bytes.len() {
            return None;
        }
        let item = self.read();
        self.failed = item.is_err();
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;

    fn every_record() -> Vec<Item> {
        let block = Block {
            start: 0x40_1000,
            last: 3,
            class: Class::Conditional,
            code: vec![0x90, 0x90, 0x90, 0x75, 0xfb],
        };
        let records = [
            Record::On,
            Record::Thread {
                tid: 77,
                cr3: 0x1_2345_6000,
                fs_base: 0x7f00_0000_1740,
            },
            Record::Define { id: 300, block },
            Record::Ran { id: 300 },
            Record::Cut { end: 0x40_1001 },
            Record::Leave {
                exit: Exit::Exception,
                from: 0x40_1001,
            },
            Record::RtitCtl { value: 0x2508 },
            Record::Pmi,
            Record::OvfBegin,
            Record::OvfEnd { bytes: 9000 },
            Record::Mark { value: u64::MAX },
            Record::Unexplained { from: 1, to: 2 },
            Record::Stopped,
            Record::Off,
        ];
        (0..)
            .zip(records)
            .map(|(at, record)| Item {
                tsc: (1 << 50) + at * 300,
                record,
            })
            .collect()
    }

    fn file(items: &[Item]) -> Vec<u8> {
        let mut writer = Writer::new(Header {
            cpu: 1,
            tsc_hz: 2_445_000_000,
        });
        for item in items {
            writer.push(item.tsc, &item.record);
        }
        writer.bytes().to_vec()
    }

    #[test]
    fn reads_what_was_written() {
        let items = every_record();
        let bytes = file(&items);
        let reader = Reader::new(&bytes).unwrap();
        assert_eq!(
            reader.header(),
            Header {
                cpu: 1,
                tsc_hz: 2_445_000_000
            }
        );
        assert_eq!(reader.map(Result::unwrap).collect::<Vec<_>>(), items);
    }

    #[test]
    fn a_file_cut_anywhere_gives_what_is_whole() {
        let items = every_record();
        let bytes = file(&items);
        for end in 0..bytes.len() {
            let Ok(reader) = Reader::new(&bytes[..end]) else {
                assert!(end < HEADER_BYTES);
                continue;
            };
            let read: Vec<_> = reader.collect();
            let whole = read
                .iter()
                .filter_map(|item| item.as_ref().ok())
                .cloned()
                .collect::<Vec<_>>();
            assert_eq!(whole, items[..whole.len()]);
            assert!(read.len() - whole.len() <= 1);
        }
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let mut bytes = file(&[]);
        bytes.extend([0x08, 0x00]);
        let mut reader = Reader::new(&bytes).unwrap();
        assert_eq!(
            reader.next(),
            Some(Err(Error::Undefined {
                id: 4,
                offset: HEADER_BYTES
            }))
        );
        assert_eq!(reader.next(), None);
        assert!(matches!(
            Reader::new(b"EXISTTRC and so on, long enough"),
            Err(Error::Magic(_))
        ));
    }

    /// The committed samples are whole, hold blocks, and have nothing that the lab could not explain.
    #[test]
    fn the_samples_are_sound() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/lab");
        let mut blocks = 0;
        for folder in std::fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
        {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.extension().is_some_and(|extension| extension == "truth") {
                    let bytes = std::fs::read(&path).unwrap();
                    for item in Reader::new(&bytes).unwrap() {
                        match item
                            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
                            .record
                        {
                            Record::Ran { .. } => blocks += 1,
                            Record::Unexplained { from, to } => panic!("{}: {from:#x} to {to:#x}", path.display()),
                            _ => {}
                        }
                    }
                }
            }
        }
        assert!(blocks > 10_000, "{blocks} blocks in the samples");
    }
}
