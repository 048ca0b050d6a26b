//! Commands that are now in `larder-lab`. The old commands fail and name the new command.

use clap::Args;

use crate::outcome::usage;

/// Moved to larder-lab.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct MovedArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Returns the error that names the new command in place of the old command.
pub(crate) fn moved(old: &str, new: &str, args: &MovedArgs) -> anyhow::Error {
    let words: Vec<&str> = [new].into_iter().chain(args.arguments.iter().map(String::as_str)).collect();
    usage(format!(
        "`{old}` has moved to a program of its own: run `{}` (`cargo build --release -p larder-lab` builds it)",
        words.join(" ")
    ))
}
