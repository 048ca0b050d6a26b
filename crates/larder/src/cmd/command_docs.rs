//! `larder completions` and `larder manual`: files for packages, generated from the command line.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

/// Print a shell completion script for larder's commands and options.
///
/// For example: larder completions bash > /usr/share/bash-completion/completions/larder
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Write the manual pages, one for each command.
///
/// For example: larder manual /usr/local/share/man/man1
#[derive(Clone, Debug, Args)]
pub(crate) struct ManualArgs {
    /// Directory for the pages; created if it does not exist.
    folder: PathBuf,
}

/// Prints the shell completions of `command`.
pub(crate) fn completions(args: CompletionsArgs, mut command: Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "larder", &mut text);
    io::stdout().lock().write_all(&text)?;
    Ok(())
}

/// Writes the manual pages of `command`.
pub(crate) fn manual(args: &ManualArgs, command: Command) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot create {}", args.folder.display()))?;
    let mut written = Ok(());
    visit_commands(command, &mut |name, command| {
        if written.is_ok() {
            written = write_page(&args.folder, name, command);
        }
    });
    written
}

/// Calls `visit` for the command and all its subcommands that are not hidden, with full names such as
/// `larder keys new`.
pub(crate) fn visit_commands(command: Command, visit: &mut impl FnMut(&str, &Command)) {
    fn descend(name: &str, command: &Command, visit: &mut impl FnMut(&str, &Command)) {
        visit(name, command);
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            descend(&format!("{name} {}", subcommand.get_name()), subcommand, visit);
        }
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    descend("larder", &command, visit);
}

/// Writes the page of a command.
fn write_page(folder: &Path, name: &str, command: &Command) -> anyhow::Result<()> {
    let name = name.replace(' ', "-");
    let path = folder.join(format!("{name}.1"));
    // clap requires a name that lives as long as the command.
    let man = Man::new(command.clone().display_name(name.clone())).title(name.to_uppercase());
    let mut text = Vec::new();
    man.render(&mut text)?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
