//! What each capability is for: `exist record` with those that deploy/README.md names as the least, with each of them left
//! out in turn, and with one more where the table says that one helps. Prints the table as measured. Needs root.

#![allow(clippy::unwrap_used)]

mod recording;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use exist_trace::file::{Trace, model::SwitchOp};
use exist_user::sys::privileges::{self, CapSet, Capability};
use recording::{Cgroup, EXIST, Recording};

const README: &str = include_str!("../../deploy/README.md");
const LEAST: [&str; 4] = ["BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH"];
/// `nobody`, whose process is recorded.
const OTHER: u32 = 65534;

/// How a recording went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Went {
    Refused,
    Recorded {
        /// Build IDs that are known.
        build_ids: BuildIds,
        /// Of the thread that drains.
        is_preferred: bool,
    },
}

/// Of files that are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BuildIds {
    /// While it is recorded: the kernel tells it (`PERF_RECORD_MISC_MMAP_BUILD_ID`, since 5.12).
    new: bool,
    /// Before, and everyone may read it.
    old: bool,
    /// Before, and only its owner may.
    owners: bool,
}

const ALL: BuildIds = BuildIds {
    new: true,
    old: true,
    owners: true,
};

/// Recorded; not preferred.
const fn recorded(build_ids: BuildIds) -> Went {
    Went::Recorded {
        build_ids,
        is_preferred: false,
    }
}

/// The process of another user that is recorded: a shell that only its owner may read runs a program that all may.
struct Target {
    cgroup: Cgroup,
    running: recording::Running,
    folder: tempfile::TempDir,
    programs: [PathBuf; 2],
}

impl Target {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let program = |name: &str, from: &str, mode| {
            let path = folder.path().join(name);
            fs::copy(from, &path).unwrap();
            chown(&path, Some(OTHER), Some(OTHER)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let programs = [
            program("for-all", "/bin/sleep", 0o755),
            program("for-owner", "/bin/sh", 0o700),
        ];
        let cgroup = Cgroup::new("least");
        let script = format!("while :; do {} 0.01; done", programs[0].display());
        let user = OTHER.to_string();
        let running = cgroup.start(
            &[
                "setpriv",
                "--reuid",
                &user,
                "--regid",
                &user,
                "--clear-groups",
                programs[1].to_str().unwrap(),
                "-c",
                &script,
            ],
            &[],
        );
        Self {
            cgroup,
            running,
            folder,
            programs,
        }
    }

    /// Records it with these capabilities and no others.
    fn record(&self, capabilities: &[&str], folder: &Path) -> (Went, String) {
        let set: String = capabilities
            .iter()
            .map(|cap| format!(",+{}", cap.to_lowercase()))
            .collect();
        let mut command = Command::new("setpriv");
        // A bounding set is what root has after it executes a program.
        command
            .arg(format!("--bounding-set=-all{set}"))
            .arg("--inh-caps=-all")
            .arg(EXIST);
        let out = folder.join("x.exist");
        let recording = Recording::start_with(
            command,
            &out,
            &["--cgroup", &self.cgroup.name, "--pt", "off", "--for", "1s"],
        );
        let niceness = niceness_while_recording(&recording);
        let (code, said) = recording.wait();
        if code != Some(0) {
            assert_eq!(code, Some(1), "{said}");
            assert!(!out.exists(), "{said}");
            return (Went::Refused, said);
        }
        let trace = Trace::read(&fs::read(&out).unwrap()).unwrap();
        fs::remove_file(&out).unwrap();
        // Switches are whole in any case.
        let outs = trace.records.iter().filter(|r| r.op() == Some(SwitchOp::Out)).count();
        assert!(outs > 50, "{capabilities:?}: {outs} switch-outs: {said}");
        assert_eq!(trace.losses, [], "{capabilities:?}");
        // One that was mapped while it was recorded will do: the same program may have run when that began.
        let has = |pid: Option<u32>, is_file: &dyn Fn(&str) -> bool| {
            let mapped = trace
                .mappings
                .iter()
                .filter(|m| pid.is_none_or(|pid| m.pid.0 == pid) && is_file(&m.path));
            let known: Vec<bool> = mapped.map(|m| !m.build_id.is_empty()).collect();
            assert!(!known.is_empty(), "{capabilities:?}: {:?}", trace.mappings);
            known.contains(&true)
        };
        let [new, owners] = &self.programs;
        let shell = Some(self.running.pid());
        let build_ids = BuildIds {
            new: has(None, &|path| Path::new(path) == new),
            old: has(shell, &|path| path.contains("/libc.so")),
            owners: has(shell, &|path| Path::new(path) == owners),
        };
        let is_preferred = niceness.is_some_and(|nice| nice < 0);
        (
            Went::Recorded {
                build_ids,
                is_preferred,
            },
            said,
        )
    }
}

/// Of the thread that drains, once the file holds something; `None` when the recording ends before.
fn niceness_while_recording(recording: &Recording) -> Option<i32> {
    loop {
        let stat = fs::read_to_string(format!("/proc/{}/stat", recording.pid())).ok()?;
        // State and niceness are fields 3 and 19 (proc_pid_stat(5)); the name may hold blanks.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        if fields.next()? == "Z" {
            return None;
        }
        if fs::metadata(recording.part()).is_ok_and(|part| part.len() > 0) {
            return fields.nth(15)?.parse().ok();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The row of deploy/README.md's table on a capability.
fn row(capability: &str) -> &'static str {
    let start = format!("| `CAP_{capability}`");
    let row = README.lines().find(|line| line.starts_with(&start));
    row.unwrap_or_else(|| panic!("deploy/README.md has no row on CAP_{capability}"))
}

#[test]
fn each_capability_is_for_what_the_table_says() {
    if let Some(why) = recording::cannot() {
        return println!("skipped: {why}");
    }
    let used = [
        Capability::Bpf,
        Capability::Perfmon,
        Capability::SysPtrace,
        Capability::DacReadSearch,
        Capability::SysAdmin,
        Capability::DacOverride,
        Capability::SysNice,
        Capability::IpcLock,
        Capability::Kill,
        Capability::Setpcap,
    ];
    let have = privileges::effective().unwrap();
    if !CapSet::of(&used).is_within(have) {
        return println!("skipped: it has to give these away itself: {}", CapSet::of(&used));
    }
    let target = Target::start();
    let folder = tempfile::tempdir().unwrap();
    let others = target.folder.path().join("out");
    fs::create_dir(&others).unwrap();
    chown(&others, Some(OTHER), Some(OTHER)).unwrap();
    fs::set_permissions(&others, fs::Permissions::from_mode(0o755)).unwrap();

    let check = |what: &str, capabilities: &[&str], to: &Path, expect: Went| {
        let (went, said) = target.record(capabilities, to);
        println!("{what}: {went:?}");
        assert_eq!(went, expect, "{what}: {said}");
        said
    };
    let without = |left_out: &str| LEAST.into_iter().filter(|cap| *cap != left_out).collect::<Vec<_>>();
    let plain = folder.path();

    check("the least", &LEAST, plain, recorded(ALL));
    for (capability, expect, told) in [
        ("BPF", Went::Refused, "refused"),
        ("PERFMON", Went::Refused, "refused"),
        (
            "SYS_PTRACE",
            recorded(BuildIds {
                old: false,
                owners: false,
                ..ALL
            }),
            "no build IDs of what was mapped before",
        ),
        (
            "DAC_READ_SEARCH",
            recorded(BuildIds { owners: false, ..ALL }),
            "those build IDs are missing",
        ),
    ] {
        let said = check(
            &format!("without CAP_{capability}"),
            &without(capability),
            plain,
            expect,
        );
        assert!(row(capability).contains(told), "{}", row(capability));
        if expect == Went::Refused {
            // The reason and the remedy.
            assert!(said.contains("not permitted") || said.contains("CAP_"), "{said}");
        }
    }
    // What an engine that does not know the newer two has instead.
    let stands_for = ["SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH"];
    check(
        "CAP_SYS_ADMIN for CAP_BPF and CAP_PERFMON",
        &stands_for,
        plain,
        recorded(ALL),
    );
    assert!(row("SYS_ADMIN").contains("standing for `CAP_BPF` and `CAP_PERFMON`"));

    check("into another user's folder", &LEAST, &others, Went::Refused);
    let with = |more: &'static str| [&LEAST[..], &[more]].concat();
    check(
        "the same with CAP_DAC_OVERRIDE",
        &with("DAC_OVERRIDE"),
        &others,
        recorded(ALL),
    );
    assert!(row("DAC_OVERRIDE").contains("refused only there"));
    let preferred = Went::Recorded {
        build_ids: ALL,
        is_preferred: true,
    };
    check("with CAP_SYS_NICE", &with("SYS_NICE"), plain, preferred);
    assert!(row("SYS_NICE").contains("priority"));
    // Nothing comes of the others where there is no processor trace and no command.
    for more in ["IPC_LOCK", "KILL", "SETPCAP"] {
        check(&format!("with CAP_{more}"), &with(more), plain, recorded(ALL));
    }
}
