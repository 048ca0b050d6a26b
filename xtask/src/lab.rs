//! The experiments of `larder-lab live`, one after another, each into `target/lab` as Markdown and JSON.

use std::fs::File;

use crate::failure::{Failure, Result};
use crate::files::make_directory;
use crate::process::{cargo, command, run};
use crate::toolchain::{root, say, set_up, target_directory};

/// Runs `cargo xtask acceptance lab`, with access logs to replay.
pub(crate) fn run_all(logs: &[String]) -> Result<()> {
    set_up("test")?;
    run(&mut cargo(["build", "--release", "--locked", "-p", "larder", "-p", "larder-lab"]))?;
    make_directory(root().join(DIRECTORY))?;
    experiment("overhead", &[], &[])?;
    experiment("cap", &[], &[])?;
    experiment("hacc", &[], &[])?;
    if !logs.is_empty() {
        experiment("bound", &["--limit", "20000", "--policies", "lard-r,bounded"], logs)?;
    }
    experiment("policies", &["--seconds", "3", "--limit", "20000"], logs)?;
    say(&format!("tables: {DIRECTORY}/*.md"));
    Ok(())
}

const DIRECTORY: &str = "target/lab";

fn experiment(name: &str, arguments: &[&str], logs: &[String]) -> Result<()> {
    let json = root().join(DIRECTORY).join(format!("{name}.json"));
    let mut command = command(target_directory().join("release/larder-lab"));
    command.args(["live", name]).args(arguments).args(logs.iter().flat_map(|log| ["--log", log]));
    command.args(["--json", "--markdown", &format!("{DIRECTORY}/{name}.md")]);
    say(&format!("larder-lab live {name}"));
    run(command.stdout(File::create(&json).map_err(Failure::file(&json))?))
}
