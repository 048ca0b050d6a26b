//! Fuzzes parsers of foreign bytes.
//!
//! Fuzzing needs a nightly Rust, because the sanitizers do. It starts from the inputs that are kept in
//! `fuzz/corpus/TARGET.tar.gz`.

use std::process::Command;

use crate::arguments::Arguments;
use crate::failure::{Failure, Result};
use crate::files::{list, make_directory};
use crate::process::{cargo, command_with, find, read, run as run_command, succeeds};
use crate::toolchain::{need_subcommand, root, say, set_up};

const SECONDS_DEFAULT: u32 = 60;
/// Options of libFuzzer.
const MEMORY_MAX: &str = "-rss_limit_mb=2048";
const INPUT_MAX: &str = "-max_len=4096";

/// Runs `cargo xtask fuzz`.
pub(crate) fn run(mut arguments: Arguments) -> Result<()> {
    let (mut seconds, mut keeps) = (SECONDS_DEFAULT, false);
    loop {
        if let Some(value) = arguments.option("--seconds")? {
            let wrong = |_| Failure::Usage(format!("--seconds {value}: not a number of seconds"));
            seconds = value.parse().map_err(wrong)?;
        } else if arguments.flag("--keep") {
            keeps = true;
        } else {
            break;
        }
    }
    let mut targets = arguments.positionals()?;
    set_up("fuzz")?;
    need_nightly()?;
    need_subcommand("fuzz", None)?;
    if targets.is_empty() {
        targets = read(&mut cargo_fuzz(&["list"]))?.lines().map(str::to_owned).collect();
    }
    targets.iter().try_for_each(|target| fuzz(target, seconds, keeps))
}

fn need_nightly() -> Result<()> {
    if find("rustup").is_none() {
        return Err(Failure::Check("fuzzing needs a nightly Rust, and rustup to have one".to_owned()));
    }
    if !succeeds(&mut command_with("rustup", ["run", "nightly", "rustc", "--version"])) {
        let remedy = "rustup toolchain install nightly --profile minimal";
        return Err(Failure::Check(format!("fuzzing needs a nightly Rust: {remedy}")));
    }
    Ok(())
}

fn cargo_fuzz(arguments: &[&str]) -> Command {
    let mut command = cargo(["+nightly", "fuzz"]);
    command.args(arguments).env_remove("RUSTUP_TOOLCHAIN");
    command
}

fn fuzz(target: &str, seconds: u32, keeps: bool) -> Result<()> {
    say(&format!("fuzzing {target} for {seconds} s"));
    let corpus = format!("fuzz/corpus/{target}");
    make_directory(root().join(&corpus))?;
    let archive = format!("{corpus}.tar.gz");
    if root().join(&archive).is_file() {
        let archive = ["--file", &archive, "--directory", &corpus];
        run_command(command_with("tar", ["--extract", "--gzip", "--skip-old-files"]).args(archive))?;
    }
    let time = format!("-max_total_time={seconds}");
    run_command(&mut cargo_fuzz(&["run", target, "--", &time, MEMORY_MAX]))?;
    if keeps { keep(target, &corpus, &archive) } else { Ok(()) }
}

/// Minimises the corpus and archives it. The archive is the same whenever its inputs are.
fn keep(target: &str, corpus: &str, archive: &str) -> Result<()> {
    run_command(&mut cargo_fuzz(&["cmin", target, "--", INPUT_MAX, MEMORY_MAX]))?;
    let mut tar = command_with("tar", ["--create", "--sort=name", "--mtime=@0", "--owner=0", "--group=0"]);
    tar.args(["--numeric-owner", "--mode=644", "--use-compress-program", "gzip --best --no-name"]);
    run_command(tar.args(["--file", archive, "--directory", corpus, "."]))?;
    let size = root().join(archive).metadata().map_err(Failure::file(archive))?.len();
    say(&format!("{target}: {} inputs kept in {size} bytes", list(root().join(corpus))?.len()));
    Ok(())
}
