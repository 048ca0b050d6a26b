//! The files of a package, in the directory from which it is packed.

use std::path::Path;

use super::Binary;
use crate::failure::Result;
use crate::files::{install, list, make_directory, read_text, write};
use crate::process::{command_with, run};
use crate::toolchain::root;

/// Directories that distributions place differently, from the root of the file system.
pub(super) struct Layout {
    pub(super) units: &'static str,
    pub(super) zsh: &'static str,
}

/// Installs the binary without its debug information, which is many times as large as the code.
pub(crate) fn stage_program(binary: &Binary, to: &Path) -> Result<()> {
    install("755", binary.path(), to)?;
    run(command_with("strip", ["--strip-debug"]).arg(to))
}

/// Installs everything that a distribution's package has.
pub(super) fn stage_system(binary: &Binary, stage: &Path, layout: &Layout) -> Result<()> {
    stage_program(binary, &stage.join("usr/bin/larder"))?;
    for unit in ["larder-switch.service", "larder-node.service"] {
        install("644", root().join("packaging/systemd").join(unit), stage.join(layout.units).join(unit))?;
    }
    stage_manual(binary, &stage.join("usr/share/man/man1"))?;
    let share = stage.join("usr/share");
    write(share.join("bash-completion/completions/larder"), completions(binary, "bash")?)?;
    write(stage.join(layout.zsh).join("_larder"), completions(binary, "zsh")?)?;
    write(share.join("fish/vendor_completions.d/larder.fish"), completions(binary, "fish")?)?;
    stage_documents(&share.join("doc/larder"))?;
    make_directory(stage.join("etc/larder"))
}

fn stage_manual(binary: &Binary, directory: &Path) -> Result<()> {
    binary.print(&["manual", &directory.to_string_lossy()])?;
    run(command_with("gzip", ["-9n"]).args(list(directory)?))
}

fn stage_documents(directory: &Path) -> Result<()> {
    let copyright = read_text(root().join("NOTICE"))? + &read_text(root().join("LICENSE"))?;
    write(directory.join("copyright"), copyright)?;
    for example in list(root().join("examples"))? {
        if let Some(name) = example.file_name().filter(|_| example.extension().is_some_and(|it| it == "toml"))
        {
            install("644", &example, directory.join("examples").join(name))?;
        }
    }
    Ok(())
}

/// The completions of a shell.
pub(crate) fn completions(binary: &Binary, shell: &str) -> Result<String> {
    Ok(binary.print(&["completions", shell])? + "\n")
}
