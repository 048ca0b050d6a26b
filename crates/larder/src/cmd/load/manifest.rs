//! `larder load manifest`: lists the targets of a workload for the server.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use larder_load::{ManifestScope, Script};

use super::workload::{ExtractArgs, MakeArgs, MixFigures, hacc_kind, session_recipe};
use crate::outcome::usage;

/// List what a workload asks for: a line `size<TAB>path` each.
///
/// A node's modelled store reads its targets from such a list. Give the same figures and seed as to the load.
#[derive(Debug, Args)]
pub(super) struct ManifestArgs {
    /// A site of `larder load sessions`.
    #[arg(long, value_name = "SITE", group = "of")]
    site: Option<String>,
    /// A mix of `larder load mix`.
    #[arg(long, value_name = "MIX", group = "of")]
    mix: Option<String>,
    /// A workload of the HACC paper: baseline, fas, domino or asp.
    #[arg(long, value_name = "WORKLOAD", group = "of")]
    hacc: Option<String>,
    /// Profiles of an access log's clients.
    #[arg(long, value_name = "FILE", group = "of")]
    log: Option<PathBuf>,
    /// Documents of a site or mix, if not its default.
    #[arg(long, value_name = "N")]
    documents: Option<u32>,
    #[command(flatten)]
    figures: MixFigures,
    #[command(flatten)]
    extract: ExtractArgs,
    #[command(flatten)]
    make: MakeArgs,
    /// Also list what programs make, with the bytes that it takes in a server's memory: for nodes without programs,
    /// which then answer a query with what it is made from. Such replies have another size than the load expects of
    /// programs, which it does not check.
    #[arg(long)]
    everything: bool,
    /// Write to this file instead of stdout.
    #[arg(short, long, alias = "out", value_name = "FILE")]
    output: Option<PathBuf>,
}

impl ManifestArgs {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let script = self.script()?;
        let scope = if self.everything { ManifestScope::All } else { ManifestScope::Documents };
        match &self.output {
            None => script.write_manifest(scope, io::stdout().lock())?,
            Some(path) => {
                let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
                script
                    .write_manifest(scope, io::BufWriter::new(file))
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        Ok(())
    }

    fn script(&self) -> anyhow::Result<Script> {
        if let Some(site) = &self.site {
            return self.make.sessions(&session_recipe(site, self.documents)?);
        }
        if let Some(mix) = &self.mix {
            return self.make.mix(&self.figures.recipe(mix, self.documents)?);
        }
        if let Some(name) = &self.hacc {
            return self.make.hacc(hacc_kind(name)?);
        }
        if let Some(log) = &self.log {
            return Ok(self.extract.script(log, self.make.seed, true)?.0);
        }
        Err(usage("of which workload? Give one of --site, --mix, --hacc and --log"))
    }
}
