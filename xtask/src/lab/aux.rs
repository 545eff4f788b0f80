//! The AUX bytes in a perf.data file: takes the file's bytes, gives each CPU's PT. Format: the kernel tree's
//! tools/perf/Documentation/perf.data-file-format.txt.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

const MAGIC: &[u8] = b"PERFILE2";
const AUXTRACE: u32 = 71;
const DATA_AT: usize = 40;

/// The PT bytes of each CPU, in the order of the file.
///
/// # Errors
/// A file that is not perf's, or is cut.
pub fn of(file: &[u8]) -> Result<BTreeMap<u32, Vec<u8>>> {
    if !file.starts_with(MAGIC) {
        bail!("not a perf.data file");
    }
    let word = |at: usize| -> Result<u64> {
        let bytes = file.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
        bytes
            .map(|bytes| u64::from_le_bytes(*bytes))
            .with_context(|| format!("perf.data ends at {at}"))
    };
    let (mut at, length) = (word(DATA_AT)? as usize, word(DATA_AT + 8)? as usize);
    let end = at.saturating_add(length).min(file.len());
    let mut cpus: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    while at + 8 <= end {
        let head = word(at)?;
        let (kind, size) = (head as u32, (head >> 48) as usize);
        if size < 8 {
            bail!("perf.data has a record of {size} bytes at {at}");
        }
        let next = at + size;
        if kind != AUXTRACE {
            at = next;
            continue;
        }
        let bytes = word(at + 8)? as usize;
        let cpu = word(at + 40)? as u32;
        let aux = file.get(next..next.saturating_add(bytes));
        let aux = aux.with_context(|| format!("perf.data ends inside the AUX bytes at {next}"))?;
        cpus.entry(cpu).or_default().extend_from_slice(aux);
        at = next + bytes;
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let record =
            |kind: u32, size: u16, body: &[u8]| [&kind.to_le_bytes()[..], &[0, 0], &size.to_le_bytes(), body].concat();
        let aux = |cpu: u32, bytes: &[u8]| {
            let words = [bytes.len() as u64, 0, 0, 0];
            let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            body.extend_from_slice(&cpu.to_le_bytes());
            body.extend_from_slice(&[0; 4]);
            [record(AUXTRACE, 48, &body), bytes.to_vec()].concat()
        };
        let data = [
            record(3, 16, &[0; 8]),
            aux(1, b"first"),
            aux(0, b"zero"),
            aux(1, b"second"),
        ]
        .concat();
        let mut head = MAGIC.to_vec();
        head.resize(DATA_AT, 0);
        head.extend_from_slice(&104u64.to_le_bytes());
        head.extend_from_slice(&(data.len() as u64).to_le_bytes());
        head.resize(104, 0);
        [head, data].concat()
    }

    #[test]
    fn bytes_by_cpu_in_order() {
        let found = of(&file()).unwrap();
        assert_eq!(
            found,
            BTreeMap::from([(0, b"zero".to_vec()), (1, b"firstsecond".to_vec())])
        );
    }

    #[test]
    fn a_cut_file_is_refused() {
        assert!(of(&file()[..170]).is_err());
        assert!(of(b"PERFFILE").is_err());
    }
}
