//! `/proc/PID/stat` and `/proc/PID/schedstat`.

use super::decimal;

/// What is used of `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: u32,
    /// The name, any bytes.
    pub comm: Vec<u8>,
    /// `R`, `S`, `D`, `Z`, …
    pub state: u8,
    pub ppid: u32,
    /// `PF_*`.
    pub flags: u64,
    /// Start, in clock ticks since boot: with the PID it names a process for ever.
    pub start_ticks: u64,
    /// The CPU it last ran on.
    pub cpu: u32,
}

/// `schedstat`: what the scheduler counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a CPU.
    pub on_cpu_ns: u64,
    /// Time runnable and waiting for one.
    pub wait_ns: u64,
    /// How often it was given a CPU.
    pub timeslices: u64,
}

/// Reads `stat`. The name stands between the first `(` and the last `)`, since it may hold both.
#[must_use]
pub fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let open = bytes.iter().position(|&b| b == b'(')?;
    let close = bytes.iter().rposition(|&b| b == b')')?;
    let fields: Vec<&[u8]> = bytes
        .get(close + 1..)?
        .split(|b| b.is_ascii_whitespace())
        .filter(|f| !f.is_empty())
        .collect();
    // proc(5) counts from 1 and the name is field 2.
    let field = |number: usize| fields.get(number - 3).copied();
    let small = |number| u32::try_from(decimal(field(number)?)?).ok();
    let [state] = *field(3)? else { return None };
    Some(Stat {
        pid: u32::try_from(decimal(bytes[..open].trim_ascii())?).ok()?,
        comm: bytes.get(open + 1..close)?.to_vec(),
        state,
        ppid: small(4)?,
        flags: decimal(field(9)?)?,
        start_ticks: decimal(field(22)?)?,
        cpu: small(39)?,
    })
}

/// Reads `schedstat`: three numbers.
#[must_use]
pub fn parse_schedstat(bytes: &[u8]) -> Option<SchedStat> {
    let mut fields = bytes.split(|b| b.is_ascii_whitespace()).filter(|f| !f.is_empty());
    let mut next = || decimal(fields.next()?);
    Some(SchedStat {
        on_cpu_ns: next()?,
        wait_ns: next()?,
        timeslices: next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(comm: &str) -> Vec<u8> {
        let rest = "S 1 7 7 0 -1 4194304 100 0 0 0 5 6 0 0 20 0 1 0 987654 1000 50 18446744073709551615 1 1 0 0 0 0 0 0 0 1 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0";
        format!("7 ({comm}) {rest}\n").into_bytes()
    }

    #[test]
    fn the_name_may_hold_anything() {
        for comm in ["sh", "", "a) S 9 (b", "))((", "x\ny"] {
            let got = parse_stat(&stat(comm)).unwrap();
            assert_eq!(
                (got.pid, got.comm.as_slice(), got.state, got.ppid),
                (7, comm.as_bytes(), b'S', 1)
            );
            assert_eq!((got.flags, got.start_ticks, got.cpu), (4_194_304, 987_654, 3));
        }
    }

    #[test]
    fn cut_short_it_is_refused_or_the_same() {
        let whole = stat("a (b)");
        let full = parse_stat(&whole).unwrap();
        for cut in 0..whole.len() {
            if let Some(got) = parse_stat(&whole[..cut]) {
                assert_eq!(
                    (got.pid, &got.comm, got.start_ticks),
                    (full.pid, &full.comm, full.start_ticks),
                    "{cut}"
                );
            }
        }
        assert_eq!(parse_stat(b")("), None);
        assert_eq!(parse_stat(b"1 )x( S"), None);
    }

    #[test]
    fn schedstat_is_three_numbers() {
        let expect = SchedStat {
            on_cpu_ns: 5,
            wait_ns: 6,
            timeslices: 7,
        };
        assert_eq!(parse_schedstat(b"5 6 7\n"), Some(expect));
        for bad in [&b""[..], b"5 6", b"5 x 7", b"-5 6 7"] {
            assert_eq!(parse_schedstat(bad), None);
        }
    }
}
