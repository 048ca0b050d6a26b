//! `larder keys`: the key pairs that identify switches and nodes.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use larder_handoff::channel::identity::Identity;

/// Create and show the key pairs with which switches and nodes authenticate each other.
///
/// A secret key stays in its file, which only the owner may read. The command prints the public key, which the
/// config of the other side needs.
///
/// For example: larder keys new /etc/larder/switch.key
#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Create a secret key and print its public key. An existing file is not changed.
    New {
        /// File with the secret key.
        file: PathBuf,
    },
    /// Print the public key of a secret key.
    Show {
        /// File with the secret key.
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
