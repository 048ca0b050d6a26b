//! `cargo xtask`: everything that is done with the repository besides editing it. `cargo xtask help` lists the tasks.
//!
//! Besides the standard library the crate uses only `serde` and `toml`, for records of claims, so it builds in seconds.
//! `scripts/setup.sh` installs the packages that a build needs; the Makefile runs it first.

mod acceptance;
mod arguments;
mod audit;
mod book;
mod bpf;
mod claims;
mod demo;
mod failure;
mod files;
mod fuzz;
mod gate;
mod interface;
mod lab;
mod package;
mod process;
mod release;
mod static_binary;
mod temporary;
mod toolchain;

use std::process::ExitCode;

use arguments::Arguments;
use failure::{Failure, Result};

/// A subcommand.
struct Task {
    name: &'static str,
    /// Arguments as the usage line shows them.
    arguments: &'static str,
    summary: &'static str,
    run: fn(Arguments) -> Result<()>,
}

impl Task {
    fn usage(&self) -> String {
        [self.name, self.arguments].join(" ").trim_end().to_owned()
    }
}

const TASKS: &[Task] = &[
    Task {
        name: "test",
        arguments: "[-p PACKAGE]... [fmt|clippy|test|doc|book|release]...",
        summary: "the gate: all its steps or the named ones, of the whole workspace or of some packages",
        run: gate::run,
    },
    Task {
        name: "demo",
        arguments: "[ARGUMENT]...",
        summary: "builds larder and runs `larder demo` with the arguments",
        run: demo::run,
    },
    Task {
        name: "book",
        arguments: "",
        summary: "builds the documentation as a book into target/book/html, checks its links, and prints its first page",
        run: book::task,
    },
    Task {
        name: "fuzz",
        arguments: "[--seconds N] [--keep] [TARGET]...",
        summary: "fuzzes parsers for 60 or N seconds each, all unless some are named; --keep adds to the corpora",
        run: fuzz::run,
    },
    Task {
        name: "bpf",
        arguments: "",
        summary: "compiles the kernel's programs into bpf/prebuilt (needs clang, llvm-strip and libbpf-dev)",
        run: bpf::run,
    },
    Task {
        name: "package",
        arguments: "deb|rpm|wheel|root BINARY OUTPUT",
        summary: "packs a built binary; OUTPUT is a file, or a directory for wheel and root",
        run: package::run,
    },
    Task {
        name: "release",
        arguments: "[--binary FILE] [DIRECTORY]",
        summary: "makes and verifies all files of a release, by default in target/dist",
        run: release::run,
    },
    Task {
        name: "claims",
        arguments: "list | page [--check] | run ID [--PARAMETER VALUE]... | where",
        summary: "lists claims, writes docs/reference/claims.md, runs the commands of a claim, or lists its documents anew",
        run: claims::run,
    },
    Task {
        name: "acceptance",
        arguments: "[NAME [ARGUMENT]...]",
        summary: "a long run of the release checklist; without a name, the list of them",
        run: acceptance::run,
    },
];

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !matches!(failure, Failure::Reported) {
                eprintln!("xtask: {failure}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn start() -> Result<()> {
    let mut arguments = Arguments::from_environment()?;
    if arguments.is_empty() || arguments.flag("--help") || arguments.flag("-h") {
        print!("{}", usage());
        return Ok(());
    }
    let name = arguments.positional("TASK")?;
    if name == "help" {
        print!("{}", usage());
        return Ok(());
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        return Err(Failure::Usage(format!("there is no task '{name}'; `cargo xtask help` lists them")));
    };
    (task.run)(arguments).map_err(|failure| match failure {
        Failure::Usage(problem) => Failure::Usage(format!("{problem}\nusage: cargo xtask {}", task.usage())),
        other => other,
    })
}

fn usage() -> String {
    let mut text = "usage: cargo xtask TASK [ARGUMENT]...\n".to_owned();
    for task in TASKS {
        text += &format!("\n  {}\n      {}\n", task.usage(), task.summary);
    }
    text
}
