//! The root of a container, without a container engine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Binary;
use super::stage::stage_program;
use crate::failure::Result;
use crate::files::{install, make_public};
use crate::process::{command, command_with, read, run, succeeds};

/// Makes the root; `output` is the directory.
pub(crate) fn make(binary: &Binary, output: &Path) -> Result<()> {
    stage_program(binary, &output.join("usr/bin/larder"))?;
    let mut directories = BTreeSet::from([output.join("usr")]);
    if !binary.is_static()? {
        // The loader and the libraries, where the binary looks for them.
        for library in libraries(&read(command("ldd").arg(binary.path()))?) {
            install("755", &library, output.join(&library[1..]))?;
            directories.extend(library.split('/').nth(1).map(|first| output.join(first)));
        }
    }
    directories.iter().map(PathBuf::as_path).try_for_each(make_public)?;
    run(command_with("install", ["-d", "-m", "755"]).arg(output))?;
    run(command_with("install", ["-d", "-m", "1777"]).arg(output.join("tmp")))?;
    let empty = ["etc", "etc/larder", "dev", "proc"].map(|name| output.join(name));
    run(command_with("install", ["-d", "-m", "755"]).args(empty))?;
    // An engine of containers would mount it. Only root may make it, and larder does without.
    let null = output.join("dev/null");
    if !null.exists() && succeeds(command_with("mknod", ["-m", "666"]).arg(&null).args(["c", "1", "3"])) {
        run(command_with("chmod", ["666"]).arg(&null))?;
    }
    Ok(())
}

/// The paths in the output of `ldd`.
fn libraries(text: &str) -> Vec<String> {
    let words = text.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')'));
    words.filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibelf.so.1 => /lib/x86_64-linux-gnu/libelf.so.1 (0x00007f88)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f89)\n";
        assert_eq!(libraries(text), ["/lib/x86_64-linux-gnu/libelf.so.1", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
