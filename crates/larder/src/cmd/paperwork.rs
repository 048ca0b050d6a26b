//! `larder completions` and `larder manual`: what packages put beside the binary, made from the command line as it is.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

/// Print what a shell needs to complete larder's commands and options.
///
/// For example: larder completions bash > /usr/share/bash-completion/completions/larder
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Write the manual, a page for each command.
///
/// For example: larder manual /usr/local/share/man/man1
#[derive(Clone, Debug, Args)]
pub(crate) struct ManualArgs {
    /// Folder for the pages; made if it is not there.
    folder: PathBuf,
}

/// Prints what completes `command`.
pub(crate) fn completions(args: CompletionsArgs, mut command: Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "larder", &mut text);
    io::stdout().lock().write_all(&text)?;
    Ok(())
}

/// Writes the pages of `command`.
pub(crate) fn manual(args: &ManualArgs, command: Command) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot make {}", args.folder.display()))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(&args.folder, "larder", command)
}

/// The page of a command and those of the ones below it.
fn pages(folder: &Path, name: &str, command: Command) -> anyhow::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages(folder, &format!("{name}-{}", below.get_name()), below.clone())?;
    }
    let path = folder.join(format!("{name}.1"));
    // A name that lives as long as the command, as clap wants it.
    let man = Man::new(command.display_name(name.to_owned())).title(name.to_uppercase());
    let mut text = Vec::new();
    man.render(&mut text)?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
