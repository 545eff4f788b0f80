//! `exist completions` and `exist man`: the command line's description of itself.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::Shell;

use super::Outcome;

/// Print the completions for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  exist completions bash > /etc/bash_completion.d/exist
  exist completions zsh > ~/.zfunc/_exist")]
pub struct Completions {
    shell: Shell,
}

impl Completions {
    pub fn run(&self, command: &mut Command, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, command, "exist", &mut text);
        out.write_all(&text)?;
        Ok(Outcome::Done)
    }
}

/// Print the manual page (roff), with a section for each command
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  exist man | man -l -
  exist man > /usr/local/share/man/man1/exist.1")]
pub struct Man {}

impl Man {
    pub fn run(&self, mut command: Command, out: &mut dyn Write) -> anyhow::Result<Outcome> {
        command.build();
        clap_mangen::Man::new(command.clone()).render(out)?;
        for subcommand in command.get_subcommands().filter(|c| c.get_name() != "help") {
            let name = subcommand.get_name().to_uppercase();
            writeln!(out, ".SH \"EXIST {name}\"")?;
            let page = clap_mangen::Man::new(subcommand.clone());
            page.render_synopsis_section(out)?;
            page.render_description_section(out)?;
            page.render_options_section(out)?;
            page.render_extra_section(out)?;
        }
        Ok(Outcome::Done)
    }
}
