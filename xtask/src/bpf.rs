//! Compiles the programs for the kernel.
//!
//! Every `*.bpf.c` of a `bpf` directory becomes `prebuilt/*.bpf.o`, and `prebuilt/SOURCES` gets the digests of the sources.
//! The objects are committed, so that a build needs no clang; a test fails when `SOURCES` and sources differ.

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::files::{list, make_directory, write};
use crate::process::{command_with, read, run as run_command};
use crate::toolchain::{root, say};

/// Directories of programs, each with the headers of other directories that they include.
const DIRECTORIES: &[(&str, &[&str])] = &[
    ("crates/larder-kernel/bpf", &[]),
    ("lab/larder-shaper/bpf", &["../../../crates/larder-kernel/bpf/packet.h"]),
];

/// Runs `cargo xtask bpf`.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    arguments.finish()?;
    DIRECTORIES.iter().try_for_each(|(directory, headers)| compile(&root().join(directory), headers))
}

fn compile(directory: &Path, headers: &[&str]) -> Result<()> {
    make_directory(directory.join("prebuilt"))?;
    let mut sources = names(directory, ".c")?;
    for source in sources.iter().filter(|name| name.ends_with(".bpf.c")) {
        compile_program(directory, headers, source)?;
    }
    sources.extend(names(directory, ".h")?);
    let files = sources.iter().map(|name| format!("./{name}")).chain(headers.iter().map(ToString::to_string));
    let digests = read(command_with("sha256sum", files).current_dir(directory))?;
    write(directory.join("prebuilt/SOURCES"), digests + "\n")
}

fn compile_program(directory: &Path, headers: &[&str], source: &str) -> Result<()> {
    let object = format!("prebuilt/{}.o", source.trim_end_matches(".c"));
    let new = format!("{object}.new");
    let here = directory.display();
    // -g is for BTF; the DWARF goes with the strip. The prefix map keeps this machine's paths out.
    let mut clang = command_with("clang", ["-O2", "-g", "-target", "bpf", "-mcpu=v3"]);
    clang.args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]);
    clang.arg(format!("-I/usr/include/{ARCH}-linux-gnu"));
    clang.args(
        headers.iter().filter_map(|header| header.rsplit_once('/')).map(|(path, _)| format!("-I{path}")),
    );
    clang.args([
        &format!("-ffile-prefix-map={here}=."),
        "-fdebug-compilation-dir=.",
        "-c",
        source,
        "-o",
        &new,
    ]);
    run_command(clang.current_dir(directory))?;
    run_command(command_with("llvm-strip", ["-g", &new]).current_dir(directory))?;
    let object = directory.join(object);
    fs::rename(directory.join(new), &object).map_err(Failure::file(&object))?;
    let size = object.metadata().map_err(Failure::file(&object))?.len();
    say(&format!("{}: {size} bytes", object.display()));
    Ok(())
}

/// The names of the files in a directory that end so, in order.
fn names(directory: &Path, ending: &str) -> Result<Vec<String>> {
    let names = list(directory)?.into_iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    Ok(names.filter(|name| name.ends_with(ending)).collect())
}
