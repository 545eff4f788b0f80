//! labctl: takes a command inside a lab guest, says it to the plugin by a CPUID leaf that no processor has.
//!
//! `labctl setup` tells where the kernel keeps `current`; `on` (or `traced`: only while PT is on) and `off` bound the
//! ground truth, `run COMMAND…` puts them around a command; `ovf BYTES` loses that many bytes of packets on every CPU that traces; `mark NUMBER` leaves a mark; `clock COUNT` reads CLOCK_MONOTONIC once a millisecond and
//! marks what it read, each time after the TSC that the reading was made of.
//! Without the plugin, too: `load` keeps half a CPU busy until it is killed (two for each CPU make 95 %);
//! `locked COMMAND…` runs a command that has neither CAP_IPC_LOCK nor CAP_SYS_RESOURCE.

mod btf;

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// `cpuid::LAB_BASE` of the plugin.
const BASE: u32 = 0x4c41_4200;
const ANSWER: u32 = 0x4c41_4221;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    match command.as_str() {
        "run" => return around(&arguments.collect::<Vec<_>>()),
        "locked" => return Err(locked(&arguments.collect::<Vec<_>>())),
        "load" => load(),
        _ => {}
    }
    let mut number = || -> Result<u32> {
        let text = arguments.next().context("labctl: a number is missing")?;
        text.parse().with_context(|| format!("labctl: {text} is not a number"))
    };
    match command.as_str() {
        "setup" => setup(),
        "on" => say(1, 0),
        "traced" => say(7, 0),
        "off" => say(2, 0),
        "ovf" => say(5, number()?),
        "mark" => say(6, number()?),
        "clock" => clock(number()?),
        _ => bail!(
            "labctl: setup, on, traced, off, run COMMAND…, ovf BYTES, mark NUMBER, clock COUNT, load, locked COMMAND…"
        ),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a command with the ground truth recorded from before its first instruction until after its last.
fn around(command: &[String]) -> Result<ExitCode> {
    let [program, arguments @ ..] = command else {
        bail!("labctl: run what?")
    };
    say(1, 0)?;
    let status = Command::new(program).args(arguments).status();
    say(2, 0)?;
    let status = status.with_context(|| format!("failed to start {program}"))?;
    Ok(ExitCode::from(
        status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
    ))
}

/// The reading is made of one RDTSC in the vDSO, which the truth knows as the cut before the mark.
fn clock(count: u32) -> Result<()> {
    for _ in 0..count {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        say(6, ns as u32)?;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(())
}

/// Busy and asleep, 10 ms together.
fn load() -> ! {
    const BUSY: Duration = Duration::from_micros(4750);
    const ASLEEP: Duration = Duration::from_micros(5250);
    loop {
        let begin = Instant::now();
        while begin.elapsed() < BUSY {
            std::hint::black_box(());
        }
        std::thread::sleep(ASLEEP);
    }
}

/// Becomes a command for which the limit of locked memory holds, and which cannot raise it. Gives why not.
fn locked(command: &[String]) -> anyhow::Error {
    use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

    let [program, arguments @ ..] = command else {
        return anyhow::anyhow!("labctl: locked what?");
    };
    for capability in [CapabilitySet::IPC_LOCK, CapabilitySet::SYS_RESOURCE] {
        if let Err(error) = remove_capability_from_bounding_set(capability) {
            return anyhow::anyhow!("failed to give {capability:?} up: {error}");
        }
    }
    let error = Command::new(program).args(arguments).exec();
    anyhow::anyhow!("failed to start {program}: {error}")
}

/// One request. Fails where there is no lab.
fn say(command: u32, argument: u32) -> Result<()> {
    let answer = core::arch::x86_64::__cpuid_count(BASE + command, argument);
    if answer.ecx != ANSWER {
        bail!("labctl: no lab answers: this is not a lab guest, or it runs without the plugin");
    }
    Ok(())
}

fn setup() -> Result<()> {
    let symbols = std::fs::read_to_string("/proc/kallsyms").context("failed to read /proc/kallsyms")?;
    let current = current_at(&symbols).context("the kernel's symbols have neither pcpu_hot nor current_task")?;
    let types = std::fs::read("/sys/kernel/btf/vmlinux").context("failed to read the kernel's BTF")?;
    let pid = btf::offset_of(&types, "task_struct", "pid").context("the kernel's BTF has no task_struct.pid")?;
    say(3, current as u32)?;
    say(4, pid)
}

/// Where `current` is in the per-CPU area: the first member of `pcpu_hot` (6.2 to 6.14), a variable of its own else.
fn current_at(symbols: &str) -> Option<u64> {
    let find = |name: &str| {
        let line = symbols
            .lines()
            .find(|line| line.split_whitespace().nth(2) == Some(name))?;
        u64::from_str_radix(line.split_whitespace().next()?, 16).ok()
    };
    find("pcpu_hot").or_else(|| find("current_task"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_in_old_middle_and_new_kernels() {
        assert_eq!(
            current_at("0000000000000000 A fixed\n0000000000034b40 A pcpu_hot\n"),
            Some(0x34b40)
        );
        assert_eq!(current_at("000000000001fbc0 A current_task\n"), Some(0x1fbc0));
        assert_eq!(
            current_at("ffffffff8321e000 D current_task\t[x]\n"),
            Some(0xffff_ffff_8321_e000)
        );
        assert_eq!(current_at("ffffffff81000000 T _text\n"), None);
    }
}
