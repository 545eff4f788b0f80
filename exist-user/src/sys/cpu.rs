//! The node's CPUs and kernel, from `/proc` and `/sys` (the roots can be elsewhere).

use std::{collections::BTreeMap, fs, io, path::Path};

use exist_trace::{
    file::model::{CpuInfo, Node},
    units::Cpu,
};

/// The machine, its kernel and its online CPUs. What a root does not have stays empty.
///
/// # Errors
/// When `sys/devices/system/cpu/online` cannot be read: without it nothing can be recorded.
pub fn node(proc: &Path, sys: &Path) -> io::Result<Node> {
    let cpuinfo = fs::read_to_string(proc.join("cpuinfo")).unwrap_or_default();
    let mut known = parse_cpuinfo(&cpuinfo);
    let kinds = kinds(sys);
    let cpus = online(sys)?
        .into_iter()
        .map(|cpu| CpuInfo {
            cpu: Cpu(cpu),
            kind: kinds.get(&cpu).copied().unwrap_or_default().to_owned(),
            ..known.remove(&cpu).unwrap_or_default()
        })
        .collect();
    let kernel = fs::read_to_string(proc.join("sys/kernel/osrelease"))
        .unwrap_or_default()
        .trim()
        .to_owned();
    Ok(Node {
        kernel,
        machine: std::env::consts::ARCH.to_owned(),
        cpus,
        tsc_khz: super::clock::tsc_khz(),
    })
}

/// Logical CPUs that are online, ascending.
///
/// # Errors
/// When the file cannot be read or says something else.
pub fn online(sys: &Path) -> io::Result<Vec<u32>> {
    let path = sys.join("devices/system/cpu/online");
    let text = fs::read_to_string(&path)?;
    parse_list(text.trim()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: `{}` is not a list of CPUs", path.display(), text.trim()),
        )
    })
}

/// A list as the kernel prints it: `0-3,8,10-11`.
#[must_use]
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    /// More than any kernel is built for (`CONFIG_NR_CPUS` is at most 8192).
    const MOST: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Hybrid processors have a PMU for each kind of core.
fn kinds(sys: &Path) -> BTreeMap<u32, &'static str> {
    [("core", "cpu_core"), ("atom", "cpu_atom"), ("lowpower", "cpu_lowpower")]
        .into_iter()
        .filter_map(|(kind, pmu)| {
            let text = fs::read_to_string(sys.join("devices").join(pmu).join("cpus")).ok()?;
            Some(parse_list(text.trim())?.into_iter().map(move |cpu| (cpu, kind)))
        })
        .flatten()
        .collect()
}

fn parse_cpuinfo(text: &str) -> BTreeMap<u32, CpuInfo> {
    let mut cpus = BTreeMap::new();
    let mut current = None;
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        match (key.trim(), &mut current) {
            ("processor", _) => {
                current = value.parse().ok();
                cpus.extend(current.map(|cpu| {
                    (
                        cpu,
                        CpuInfo {
                            cpu: Cpu(cpu),
                            ..CpuInfo::default()
                        },
                    )
                }));
            }
            (key, Some(cpu)) => {
                if let Some(info) = cpus.get_mut(cpu) {
                    set(info, key, value);
                }
            }
            _ => {}
        }
    }
    cpus
}

fn set(info: &mut CpuInfo, key: &str, value: &str) {
    match key {
        "vendor_id" => value.clone_into(&mut info.vendor),
        "cpu family" => info.family = value.parse().unwrap_or(0),
        "model" => info.model = value.parse().unwrap_or(0),
        "stepping" => info.stepping = value.parse().unwrap_or(0),
        "microcode" => info.microcode = u64::from_str_radix(value.trim_start_matches("0x"), 16).unwrap_or(0),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        let check = |text, expect: Option<&[u32]>| assert_eq!(parse_list(text).as_deref(), expect, "{text}");
        check("0", Some(&[0]));
        check("0-3", Some(&[0, 1, 2, 3]));
        check("0-1,8,10-11", Some(&[0, 1, 8, 10, 11]));
        check("3,1,1-2", Some(&[1, 2, 3]));
        check("", Some(&[]));
        check("3-1", None);
        check("0-4294967295", None);
        check("a", None);
        check("-1", None);
    }

    #[test]
    fn cpuinfo_of_two_processors() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: X: Y\n\
                    stepping\t: 7\nmicrocode\t: 0x5003303\nflags\t\t: fpu\n\nprocessor\t: 5\nvendor_id\t: AuthenticAMD\n";
        let cpus = parse_cpuinfo(text);
        assert_eq!(
            cpus[&0],
            CpuInfo {
                cpu: Cpu(0),
                vendor: "GenuineIntel".into(),
                family: 6,
                model: 85,
                stepping: 7,
                microcode: 0x500_3303,
                kind: String::new()
            }
        );
        assert_eq!(
            (cpus[&5].cpu, cpus[&5].vendor.as_str(), cpus.len()),
            (Cpu(5), "AuthenticAMD", 2)
        );
        assert!(parse_cpuinfo("vendor_id : x\nnonsense\nprocessor : many\nmodel : 3\n").is_empty());
    }

    #[test]
    fn a_hybrid_node_from_another_root() {
        let dir = std::env::temp_dir().join(format!("exist-cpu-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/cpuinfo",
            "processor : 0\nmodel : 151\nprocessor : 1\nmodel : 151\nprocessor : 2\nmodel : 151\n",
        );
        write("proc/sys/kernel/osrelease", "6.1.0-test\n");
        write("sys/devices/system/cpu/online", "0,2\n");
        write("sys/devices/cpu_core/cpus", "0-1\n");
        write("sys/devices/cpu_atom/cpus", "2\n");
        let node = node(&dir.join("proc"), &dir.join("sys")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(node.kernel, "6.1.0-test");
        let kinds: Vec<_> = node.cpus.iter().map(|c| (c.cpu.0, c.model, c.kind.as_str())).collect();
        assert_eq!(kinds, [(0, 151, "core"), (2, 151, "atom")]);
    }
}
