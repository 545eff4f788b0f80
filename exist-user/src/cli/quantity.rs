//! Quantities as users write them: `500ms`, `16MiB`, `0-3,7`.

use exist_trace::units::Cpu;

use crate::sys::cpu;

/// A length of time in nanoseconds, from `500ms`, `10s`, `1.5m`; units `us`, `ms`, `s`, `m`, `h`.
pub fn duration_ns(text: &str) -> Result<u64, String> {
    let units = [
        ("us", 1e3),
        ("µs", 1e3),
        ("ms", 1e6),
        ("s", 1e9),
        ("m", 60e9),
        ("h", 3600e9),
    ];
    scaled(text, &units).ok_or_else(|| format!("`{text}` is no length of time; write 500ms, 10s or 2m"))
}

/// Bytes, from `65536`, `64K`, `16MiB`, `2G`: units of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" | "kib" => 1024.0,
        "m" | "mb" | "mib" => 1024.0 * 1024.0,
        "g" | "gb" | "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => 0.0,
    };
    scaled(text, &[(unit, factor)]).ok_or_else(|| format!("`{text}` is no size; write 65536, 64K, 16M or 1G"))
}

/// Two sizes, from `4M-128M`.
pub fn range(text: &str) -> Result<(u64, u64), String> {
    let two = text
        .split_once('-')
        .and_then(|(least, most)| Some((bytes(least).ok()?, bytes(most).ok()?)));
    two.filter(|(least, most)| least <= most)
        .ok_or_else(|| format!("`{text}` is no range of sizes; write 4M-128M"))
}

/// CPUs, from `0-3,7`.
pub fn cpus(text: &str) -> Result<Cpus, String> {
    match cpu::parse_list(text) {
        Some(cpus) if !cpus.is_empty() => Ok(Cpus(cpus.into_iter().map(Cpu).collect())),
        _ => Err(format!("`{text}` is no list of CPUs; write 0-3,7")),
    }
}

/// A list of CPUs that is one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(pub Vec<Cpu>);

/// A positive number with one of the units, in whole base units.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let value = number.parse::<f64>().ok()? * factor;
    (1.0..9e18).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time() {
        let check = |text, expect: Option<u64>| assert_eq!(duration_ns(text).ok(), expect, "{text}");
        check("500ms", Some(500_000_000));
        check("10s", Some(10_000_000_000));
        check("1.5s", Some(1_500_000_000));
        check("2m", Some(120_000_000_000));
        check("20us", Some(20_000));
        check("1h", Some(3_600_000_000_000));
        for bad in [
            "",
            "10",
            "s",
            "-1s",
            "0s",
            "1 s",
            "1e3s",
            "infs",
            "nans",
            "1d",
            "99999999999h",
            "1.2.3s",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn sizes() {
        let check = |text, expect: Option<u64>| assert_eq!(bytes(text).ok(), expect, "{text}");
        check("65536", Some(65536));
        check("64K", Some(65536));
        check("16MiB", Some(16 << 20));
        check("1.5g", Some(3 << 29));
        for bad in ["", "0", "K", "-1", "1x", "1e9", "99999999999G"] {
            check(bad, None);
        }
    }

    #[test]
    fn ranges_of_sizes() {
        assert_eq!(range("32K-4M"), Ok((32 << 10, 4 << 20)));
        for bad in ["4M", "4M-", "-4M", "8M-4M", "4M-8M-16M"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpus("0-2,7"), Ok(Cpus(vec![Cpu(0), Cpu(1), Cpu(2), Cpu(7)])));
        for bad in ["", "a", "3-1", "0-9999999"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
