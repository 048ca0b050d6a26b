//! The command line of `larder node`, which overrides the config.

use clap::Args;

use crate::cmd::serve::ServeArgs;
use crate::config::{Config, ModelSection, NodeSection, Size, Texts, Written};
use crate::outcome::usage;

/// Serve a directory or an HTTP origin from a memory cache of bounded size (cache server).
///
/// For example: larder node --root /srv/www --listen 127.0.0.1:9001 --name a --cache 1GB
///
/// In front of an application: larder node --origin http://127.0.0.1:8000 --listen 127.0.0.1:9001
///
/// Cache-Status in every reply says whether it came from memory. SIGTERM and SIGINT end the node after the replies
/// in flight. SIGHUP, and POST /reload on the admin interface, read the config file again, keep the memory, and
/// reopen the access log. If a changed key needs a restart, the log names it.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeArgs {
    /// Address that accepts requests: ADDRESS:PORT; port 0 takes any free port.
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Name of the node in Cache-Status and logs.
    #[arg(short, long)]
    name: Option<String>,
    /// Directory to serve.
    #[arg(short, long, value_name = "DIR", conflicts_with_all = ["manifest", "disk_speed", "disks", "processor_speed"])]
    root: Option<String>,
    /// HTTP origin to serve instead of a directory: http://HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "URL", conflicts_with_all = ["root", "manifest", "bypass_page_cache"])]
    origin: Option<String>,
    /// Memory for content, such as 64MB or 1GiB.
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,
    /// Cache policy: gds, gds-packets or lru.
    #[arg(long, value_name = "KIND")]
    cache_kind: Option<String>,
    /// Read files without the page cache of the operating system.
    #[arg(long)]
    bypass_page_cache: bool,
    /// Serve a modelled store instead of a directory; the file has a line `size<TAB>target` for each target.
    #[arg(long, value_name = "FILE")]
    manifest: Option<String>,
    /// Speed of the modelled disk relative to a disk of 1998.
    #[arg(long, value_name = "FACTOR", requires = "manifest")]
    disk_speed: Option<f64>,
    /// Number of modelled disks.
    #[arg(long, value_name = "N", requires = "manifest")]
    disks: Option<u16>,
    /// Also model the processor, with this speed relative to a processor of 1998.
    #[arg(long, value_name = "FACTOR", requires = "manifest")]
    processor_speed: Option<f64>,
    /// File to append the access log to, or "-" for stdout.
    #[arg(long, value_name = "FILE")]
    access_log: Option<String>,
    #[command(flatten)]
    pub(super) serve: ServeArgs,
}

pub(super) fn missing_section() -> anyhow::Error {
    usage(
        "the config has no [node] section: add one with listen and root or origin, or start the role that the config has",
    )
}

impl NodeArgs {
    /// Reads the config file, applies the options, validates, and checks that all required files exist.
    pub(super) fn read_config_and_files(&self) -> anyhow::Result<(Written, Config)> {
        let (written, config) = self.read_config()?;
        written.present(&config)?;
        Ok((written, config))
    }

    /// Reads the config file, applies the options, and validates.
    pub(super) fn read_config(&self) -> anyhow::Result<(Written, Config)> {
        let mut written = self.serve.read_config()?;
        if written.raw.node.is_none() && self.serve.config.is_none() && self.listen.is_none() {
            return Err(usage(
                "the node cannot start without content and an address: give --root DIR or --origin URL, and --listen 127.0.0.1:9001; or --config FILE",
            ));
        }
        self.apply_options(written.raw.node.get_or_insert_default());
        let config = written.validate()?;
        Ok((written, config))
    }

    /// Applies the options to the config.
    fn apply_options(&self, raw: &mut NodeSection) {
        if let Some(listen) = &self.listen {
            raw.listen = Texts(vec![listen.clone()]);
        }
        if let Some(name) = &self.name {
            raw.name.clone_from(name);
        }
        if let Some(root) = &self.root {
            (raw.root, raw.model, raw.origin) = (Some(root.clone()), None, None);
        }
        if let Some(url) = &self.origin {
            (raw.root, raw.model) = (None, None);
            raw.origin.get_or_insert_default().url.clone_from(url);
        }
        if let Some(manifest) = &self.manifest {
            let (manifest, processor_speed) = (manifest.clone(), self.processor_speed);
            let (speed, disks) = (self.disk_speed.unwrap_or(1.0), self.disks.unwrap_or(1));
            (raw.root, raw.origin) = (None, None);
            let (turn, programs) = (None, Vec::new());
            raw.model = Some(ModelSection {
                manifest,
                speed,
                disks,
                processor_speed,
                turn,
                programs,
                preload: false,
            });
        }
        if let Some(cache) = self.cache {
            raw.cache.size = cache;
        }
        if let Some(kind) = &self.cache_kind {
            raw.cache.kind.clone_from(kind);
        }
        raw.bypass_page_cache |= self.bypass_page_cache;
        if let Some(file) = &self.access_log {
            raw.access_log.file = Some(file.clone());
        }
        if let Some(threads) = self.serve.threads {
            raw.threads = threads;
        }
    }
}
