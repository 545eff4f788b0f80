//! What `cargo xtask lab accuracy` runs: the programs, and what happens to them meanwhile.

/// A program, and what happens to it meanwhile.
#[derive(Clone, Copy)]
pub struct Case {
    pub what: &'static str,
    pub workload: &'static str,
    pub arguments: &'static [&'static str],
    pub time: MtcPeriods,
    pub loses: Loses,
    /// Part of the short form.
    pub short: bool,
}

/// Which periods of MTC packets the guest's processor offers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MtcPeriods {
    /// Skylake's, of which exist takes the finest: a recording of a second or two fills its buffers.
    All,
    /// Only a coarse one.
    Coarse,
}

/// What is lost on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loses {
    Nothing,
    /// Packets, now and then as long as the workload runs.
    Overflows,
    /// Everything after a CPU's buffer was full.
    Stops,
}

impl Loses {
    /// How to record it: commands of the guest's shell, with `{work}` for the workload's command line.
    pub fn script(self) -> &'static str {
        match self {
            Self::Nothing => "labctl run exist record --pt on -o trace.exist -- {work} > plain",
            Self::Overflows => {
                "(while true; do sleep 0.02; labctl ovf 300; done) &\n\
                 labctl run exist record --pt on -o trace.exist -- {work} > plain"
            }
            // A recording is over when all buffers are full, and its command with it: so this target is none of its own.
            Self::Stops => {
                "mkdir /sys/fs/cgroup/work\n\
                 exist record --pt on --buffer 256K --cgroup work -o trace.exist & recorder=$!\n\
                 until [ -s trace.exist.$recorder.part ]; do sleep 0.1; kill -0 $recorder || exit 1; done\n\
                 labctl on\n\
                 (echo 0 > /sys/fs/cgroup/work/cgroup.procs; exec {work} > plain)\n\
                 labctl off\n\
                 wait $recorder"
            }
        }
    }
}

/// A program whose losses must stay within the demand, with `MtcPeriods::Coarse`.
const fn case(what: &'static str, workload: &'static str, arguments: &'static [&'static str]) -> Case {
    Case {
        what,
        workload,
        arguments,
        time: MtcPeriods::Coarse,
        loses: Loses::Nothing,
        short: false,
    }
}

pub const CASES: [Case; 9] = [
    case("C, one thread", "single", &["4000"]),
    Case {
        short: true,
        ..case("C, threads", "threads", &["4", "600"])
    },
    case("C++, exceptions, virtual calls, signals, longjmp", "objects", &["60"]),
    Case {
        time: MtcPeriods::All,
        ..case("Rust, threads and channels", "channels", &["300"])
    },
    case("libraries and vDSO", "libraries", &["200"]),
    case("fork and exec", "family", &["20"]),
    Case {
        time: MtcPeriods::All,
        short: true,
        ..case("20 threads that wake each other", "wakers", &["20", "80"])
    },
    Case {
        loses: Loses::Overflows,
        short: true,
        ..case("overflows", "threads", &["4", "3000"])
    },
    Case {
        loses: Loses::Stops,
        ..case("full buffers", "threads", &["4", "3000"])
    },
];
