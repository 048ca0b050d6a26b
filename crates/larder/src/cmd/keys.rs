//! `larder keys`: the key pairs that identify switches and nodes.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use larder_handoff::channel::identity::Identity;

/// Make and show the secret keys by which switches and nodes know each other.
///
/// A secret key stays in its file, which only its owner may read. Its public key is printed; it stands in the config of
/// the other side.
#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Make a new secret key and print its public key. A file that exists is left as it is.
    New {
        /// Where the secret key is kept.
        file: PathBuf,
    },
    /// Print the public key of a secret key.
    Show {
        /// Where the secret key is kept.
        file: PathBuf,
    },
}

pub(crate) fn run(args: &KeysArgs) -> anyhow::Result<()> {
    let identity = match &args.command {
        KeysCommand::New { file } => {
            let identity = Identity::generate()?;
            identity.save(file)?;
            identity
        }
        KeysCommand::Show { file } => Identity::load(file)?,
    };
    writeln!(io::stdout(), "{}", identity.public())?;
    Ok(())
}
