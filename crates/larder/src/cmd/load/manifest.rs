//! `larder load manifest`: lists the targets of a workload for the server.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use larder_load::{ManifestScope, Script};

use super::workload::{ExtractArgs, MakeArgs, MixFigures, hacc_kind, session_recipe};
use crate::outcome::usage;

/// List the targets of a workload: one line `size<TAB>path` for each.
///
/// A node's modelled store reads its targets from this list ([node.model] manifest). Give the same options and seed
/// as for the load.
///
/// For example: larder load manifest --site commerce-a --output site.manifest
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
    /// Extract profiles from this access log.
    #[arg(long, value_name = "FILE", group = "of")]
    log: Option<PathBuf>,
    /// Number of documents of the site or mix. Default: that of the workload.
    #[arg(long, value_name = "N")]
    documents: Option<u32>,
    #[command(flatten)]
    figures: MixFigures,
    #[command(flatten)]
    extract: ExtractArgs,
    #[command(flatten)]
    make: MakeArgs,
    /// Also list the replies of programs, with their size in a server's memory, for nodes without programs. Such a
    /// node answers a query with a reply of this size. It differs from the size that the load expects, which is not
    /// checked for programs.
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
        Err(usage("no workload is given: add one of --site, --mix, --hacc and --log"))
    }
}
