//! Where the reference data is.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use exist_trace::pt::Errata;

/// The sub-folder `name` of the captures, or `None` after saying that the test is skipped.
pub fn folder(name: &str) -> Option<PathBuf> {
    let root = env::var_os("EXIST_CAPTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/captures"),
        PathBuf::from,
    );
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    println!(
        "skipped: no captures at {} (EXIST_CAPTURES names their folder)",
        folder.display()
    );
    None
}

/// One assembled test of Intel's decoder library.
pub struct Case {
    pub name: String,
    /// Address of the code.
    pub org: u64,
    pub errata: Errata,
    pub pt: Vec<u8>,
    pub code: Vec<u8>,
    pub packets: Option<String>,
    pub instructions: Option<String>,
}

/// All of them, by name.
pub fn libipt() -> Option<Vec<Case>> {
    let folder = folder("libipt-ptt")?;
    let origins = fs::read_to_string(folder.join("ORIGINS.txt")).unwrap();
    let cases = origins.lines().map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap().to_owned();
        let org = words.next().unwrap().strip_prefix("org=0x").unwrap();
        let cpu = words.nth(1).map_or((0, 0), |cpu| {
            let (family, model) = cpu.split_once('/').unwrap();
            (family.parse().unwrap(), model.parse().unwrap())
        });
        let read = |suffix: &str| fs::read(folder.join(format!("{name}{suffix}"))).ok();
        let text = |suffix: &str| read(suffix).map(|bytes| String::from_utf8(bytes).unwrap());
        Case {
            org: u64::from_str_radix(org, 16).unwrap(),
            errata: Errata::of("GenuineIntel", cpu.0, cpu.1),
            pt: read(".pt").unwrap(),
            code: read(".bin").unwrap(),
            packets: text("-ptdump.exp"),
            instructions: text("-ptxed.exp"),
            name,
        }
    });
    Some(cases.collect())
}
