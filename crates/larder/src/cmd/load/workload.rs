//! Arguments that generate the script of users.

use std::path::Path;

use anyhow::Context;
use clap::Args;
use larder_load::{ExtractionCounts, PathPrefixes, ProfileExtraction, Script, ScriptError};
use larder_trace::synth::mix::{Mix, MixRecipe, Shares};
use larder_trace::synth::profiles::ProfileKind;
use larder_trace::synth::sessions::{SessionRecipe, Site};
use larder_trace::{LoadOptions, Trace};

use crate::config::Span;
use crate::demo::spinner;
use crate::outcome::usage;

/// Path prefixes and seed of a workload.
#[derive(Debug, Args)]
pub(super) struct MakeArgs {
    /// Path prefix of a kind: KIND is static (default /static), light (/cgi/light), db (/cgi/db), cpu (/cgi/cpu;
    /// ASP scripts of --hacc: /asp) or disk (/cgi/disk; Domino database of --hacc: /domino). May be repeated.
    #[arg(long = "path", value_name = "KIND=PREFIX")]
    paths: Vec<String>,
    /// Seed. The same seed and options give the same workload and manifest.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
}

impl MakeArgs {
    fn paths(&self, mut paths: PathPrefixes) -> anyhow::Result<PathPrefixes> {
        for path in &self.paths {
            let known = path.split_once('=').is_some_and(|(kind, prefix)| paths.set(kind, prefix));
            if !known {
                let kinds = PathPrefixes::DEFAULTS.map(|(kind, usual)| format!("{kind}={usual}")).join(", ");
                return Err(usage(format!("--path '{path}' is not KIND=PREFIX; the defaults are {kinds}")));
            }
        }
        Ok(paths)
    }

    pub(super) fn sessions(&self, recipe: &SessionRecipe) -> anyhow::Result<Script> {
        Script::sessions(recipe, &self.paths(PathPrefixes::default())?, self.seed)
            .map_err(|error| script_error(&error))
    }

    pub(super) fn mix(&self, recipe: &MixRecipe) -> anyhow::Result<Script> {
        Script::mix(recipe, &self.paths(PathPrefixes::default())?, self.seed)
            .map_err(|error| script_error(&error))
    }

    pub(super) fn hacc(&self, kind: ProfileKind) -> anyhow::Result<Script> {
        Script::hacc(kind, &self.paths(PathPrefixes::hacc())?, self.seed)
            .map_err(|error| script_error(&error))
    }
}

fn script_error(error: &ScriptError) -> anyhow::Error {
    usage(error.to_string())
}

/// Returns the recipe of a site of the CAP paper.
pub(super) fn session_recipe(site: &str, documents: Option<u32>) -> anyhow::Result<SessionRecipe> {
    let site: Site = site.parse().map_err(|error| usage(format!("--site '{site}': {error}")))?;
    let usual = SessionRecipe::cap01(site);
    Ok(SessionRecipe { documents: documents.unwrap_or(usual.documents), ..usual })
}

/// Figures of a mix.
#[derive(Debug, Args)]
pub(super) struct MixFigures {
    /// Number of URLs of each kind of program in a mix, all equally likely.
    #[arg(long, value_name = "N", default_value_t = 1)]
    programs: u32,
    /// Unit of the shares of a mix: requests, or pages. With pages, embedded objects are static.
    #[arg(long, value_name = "WHAT", default_value = "requests", value_parser = ["requests", "pages"])]
    shares: String,
}

impl MixFigures {
    pub(super) fn recipe(&self, mix: &str, documents: Option<u32>) -> anyhow::Result<MixRecipe> {
        let mix: Mix = mix.parse().map_err(|error| usage(format!("--mix '{mix}': {error}")))?;
        let usual = MixRecipe::cap01(mix);
        Ok(MixRecipe {
            of: if self.shares == "pages" { Shares::Pages } else { Shares::Requests },
            programs: self.programs,
            documents: documents.unwrap_or(usual.documents),
            ..usual
        })
    }
}

/// Parses a workload of the HACC paper.
pub(super) fn hacc_kind(name: &str) -> anyhow::Result<ProfileKind> {
    name.parse().map_err(|error| usage(format!("--hacc '{name}': {error}")))
}

/// Options of the extraction of profiles from a log.
#[derive(Debug, Args)]
pub(super) struct ExtractArgs {
    /// With --log: a longer pause of a client ends its visit.
    #[arg(long, value_name = "TIME", default_value = "30m")]
    gap: Span,
    /// With --log: number of profiles that are drawn from all visits.
    #[arg(long, value_name = "N", default_value_t = 500)]
    profiles: u32,
    /// With --log: visits with fewer requests are omitted.
    #[arg(long, value_name = "N", default_value_t = 2)]
    requests_min: u32,
    /// With --log: longer visits are truncated.
    #[arg(long, value_name = "N", default_value_t = 200)]
    requests_max: u32,
}

impl ExtractArgs {
    pub(super) fn script(
        &self,
        log: &Path,
        seed: u64,
        quiet: bool,
    ) -> anyhow::Result<(Script, ExtractionCounts)> {
        let spinner = (!quiet).then(|| spinner(&format!("reading {}", log.display())));
        let loaded = Trace::load(log, &LoadOptions::default()).with_context(|| log.display().to_string());
        if let Some(spinner) = spinner {
            spinner.finish_and_clear();
        }
        let extract = ProfileExtraction {
            gap: self.gap.0,
            requests_min: self.requests_min,
            requests_max: self.requests_max,
            profiles: self.profiles,
        };
        let name = log.file_name().unwrap_or(Path::new("log").as_os_str()).to_string_lossy();
        Script::from_trace(&name, &loaded?.0, &extract, seed)
            .map_err(|error| usage(format!("--log {}: {error}", log.display())))
    }
}
