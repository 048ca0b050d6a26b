//! Builds the library as a host gets it, and C programs with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The libraries that the static library needs.
const NEEDED: [&str; 4] = ["-lgcc_s", "-lpthread", "-ldl", "-lm"];

/// Returns the folder with liblarder.so and liblarder.a, built now.
pub(crate) fn library(profile: &str) -> PathBuf {
    larder_testkit::build_library("liblarder", "liblarder.so", profile)
}

/// How a C program gets the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each user of this module takes one or both")]
pub(crate) enum Link {
    Shared,
    Static,
}

/// Compiles a C file with the library, and returns the output of the compiler.
pub(crate) fn compile(
    cc: &Path,
    source: &Path,
    program: &Path,
    flags: &[&str],
    library: &Path,
    link: Link,
) -> Output {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(cc);
    command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_POSIX_C_SOURCE=200809L"]);
    command.args(flags).arg("-I").arg(folder.join("include")).arg(source).arg("-o").arg(program);
    match link {
        Link::Shared => {
            let rpath = format!("-Wl,-rpath,{}", library.display());
            command.arg("-L").arg(library).arg("-l:liblarder.so").arg(rpath).arg("-lpthread");
        }
        Link::Static => {
            command.arg(library.join("liblarder.a")).args(NEEDED);
        }
    }
    command.output().expect("the compiler runs")
}
