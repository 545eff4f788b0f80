//! What the command line says of itself: help with examples, completions, the manual page.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use super::exist;

const COMMANDS: [&str; 7] = ["doctor", "record", "report", "dump", "export", "completions", "man"];

#[test]
fn help_names_every_command_and_every_exit_code() {
    let help = exist(&["--help"]).out;
    for part in COMMANDS
        .iter()
        .chain(&["0 done", "1 failed", "2 wrong usage", "3 something was lost"])
    {
        assert!(help.contains(part), "no {part} in {help}");
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in COMMANDS {
        let ran = exist(&[command, "--help"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        for part in ["Usage: exist ", "Examples:", &format!("exist {command} ")] {
            assert!(ran.out.contains(part), "{command}: no {part:?} in {}", ran.out);
        }
    }
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = exist(&["completions", shell]);
        assert_eq!(ran.code, 0, "{ran:?}");
        for part in COMMANDS.iter().chain(&["container", "strict"]) {
            assert!(ran.out.contains(part), "{shell}: no {part}");
        }
    }
}

/// Bash itself takes them, and completes a command and an option.
#[test]
fn bash_completes() {
    let script = exist(&["completions", "bash"]).out
        + r#"
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _exist exist "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[@]}"; }
try exist rec
try exist record --contai
"#;
    let bash = Command::new("bash")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut bash) = bash else {
        return println!("skipped: bash is not installed");
    };
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "record\n--container\n");
}

#[test]
fn a_manual_page_with_a_section_for_every_command() {
    let ran = exist(&["man"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains(".TH exist 1"), "{}", ran.out);
    for command in COMMANDS {
        let section = format!(".SH \"EXIST {}\"", command.to_uppercase());
        assert!(ran.out.contains(&section), "no {section}");
    }
    // A line of roff that begins with a dot is a request: text must not become one by chance.
    for line in ran.out.lines().filter(|line| line.starts_with('.')) {
        let request: String = line[1..].chars().take_while(char::is_ascii_alphabetic).collect();
        assert!(
            [
                "ie", "el", "TH", "SH", "SS", "TP", "PP", "RS", "RE", "br", "nf", "fi", "IP", "B"
            ]
            .contains(&&*request),
            "{line}"
        );
    }
}
