//! Which CPUs may be recorded.

use std::{collections::BTreeSet, fs, io, path::Path};

use exist_trace::units::Cpu;

use super::AllocError;
use crate::sys::cpu;

/// The machine's CPUs as `/sys/devices/system/cpu` lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSets {
    pub online: BTreeSet<u32>,
    /// Taken from the scheduler at boot (`isolcpus`).
    pub isolated: BTreeSet<u32>,
    /// Without a periodic tick (`nohz_full`).
    pub nohz_full: BTreeSet<u32>,
}

impl CpuSets {
    /// Reads them below `sys`, where `/sys` is mounted.
    ///
    /// # Errors
    /// When the list of online CPUs cannot be read. The other two are absent on many kernels.
    pub fn read(sys: &Path) -> io::Result<Self> {
        let list = |name: &str| {
            let text = fs::read_to_string(sys.join("devices/system/cpu").join(name)).unwrap_or_default();
            // `nohz_full` says "(null)" where there is none.
            cpu::parse_list(text.trim()).unwrap_or_default().into_iter().collect()
        };
        Ok(Self {
            online: cpu::online(sys)?.into_iter().collect(),
            isolated: list("isolated"),
            nohz_full: list("nohz_full"),
        })
    }
}

/// The CPUs to record, and notes about those left out. Without `asked`, isolated and nohz_full ones are left alone: an
/// interrupt there is what their owner wants to avoid. With it, exactly those, if they are online.
///
/// # Errors
/// [`AllocError::NoCpu`], for an asked CPU that is not online, and when none is left.
pub fn choose(sets: &CpuSets, asked: Option<&[Cpu]>) -> Result<(Vec<Cpu>, Vec<String>), AllocError> {
    if let Some(asked) = asked {
        if let Some(absent) = asked.iter().find(|cpu| !sets.online.contains(&cpu.0)) {
            return Err(AllocError::NoCpu(format!("CPU {absent} of --cpus is not online")));
        }
        let cpus: Vec<_> = asked.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        if cpus.is_empty() {
            return Err(AllocError::NoCpu("--cpus names none".to_owned()));
        }
        return Ok((cpus, Vec::new()));
    }
    let quiet: BTreeSet<u32> = &sets.isolated | &sets.nohz_full;
    let cpus: Vec<_> = sets.online.difference(&quiet).copied().map(Cpu).collect();
    let left_out: Vec<_> = sets.online.intersection(&quiet).map(u32::to_string).collect();
    if cpus.is_empty() {
        return Err(AllocError::NoCpu(
            "every online CPU is isolated or nohz_full; name those to record with --cpus".to_owned(),
        ));
    }
    let notes = (!left_out.is_empty())
        .then(|| {
            format!(
                "no processor trace on CPU {}: isolated or nohz_full; name them with --cpus to record them too",
                left_out.join(",")
            )
        })
        .into_iter()
        .collect();
    Ok((cpus, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(online: &str, isolated: &str, nohz_full: &str, asked: Option<&str>, expect: Result<&str, &str>) {
        let set = |text| cpu::parse_list(text).unwrap().into_iter().collect();
        let sets = CpuSets {
            online: set(online),
            isolated: set(isolated),
            nohz_full: set(nohz_full),
        };
        let asked: Option<Vec<Cpu>> = asked.map(|text| cpu::parse_list(text).unwrap().into_iter().map(Cpu).collect());
        match (choose(&sets, asked.as_deref()), expect) {
            (Ok((cpus, notes)), Ok(expect)) => {
                let cpus: Vec<_> = cpus.iter().map(|cpu| cpu.0).collect();
                assert_eq!(cpus, cpu::parse_list(expect).unwrap());
                let quiet_left_out = asked.is_none() && !(isolated.is_empty() && nohz_full.is_empty());
                assert_eq!(!notes.is_empty(), quiet_left_out, "{notes:?}");
            }
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (got, expect) => panic!("{got:?} is not {expect:?}"),
        }
    }

    #[test]
    fn isolated_cpus_only_when_named() {
        check("0-3", "", "", None, Ok("0-3"));
        check("0-3", "2", "3", None, Ok("0-1"));
        check("0-3", "2", "3", Some("1-3"), Ok("1-3"));
        check("0-3", "", "", Some("4"), Err("CPU 4 of --cpus is not online"));
        check("0-3", "", "", Some(""), Err("names none"));
        check("0-1", "0", "1", None, Err("name those to record with --cpus"));
    }

    #[test]
    fn this_machine_has_its_cpus() {
        let sets = CpuSets::read(Path::new("/sys")).unwrap();
        assert!(!sets.online.is_empty());
        assert!(CpuSets::read(Path::new("/nonexistent")).is_err());
    }
}
