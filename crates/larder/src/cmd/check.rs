//! `larder check`: says whether a config is right and what it means.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use larder_front::SwitchConfig;
use larder_node::StoreConfig;

use crate::config::{self, AdminListen, Config, NodeRole, Size, Span, SwitchRole, Written};
use crate::outcome::usage;

/// Check a config file, or print what a config file may say.
///
/// A wrong file ends with exit code 2 and an error that names the file, the line, the key and what would be right. A
/// right one is printed back as understood.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The config file.
    #[arg(required_unless_present_any = ["schema", "defaults"])]
    file: Option<PathBuf>,
    /// Print the JSON Schema of the config file, for editors, and nothing else.
    #[arg(long, conflicts_with_all = ["file", "defaults", "effective"])]
    schema: bool,
    /// Print a config file with every key, its meaning and its default, and nothing else.
    #[arg(long, conflicts_with_all = ["file", "effective"])]
    defaults: bool,
    /// Print the effective config as TOML instead of a summary.
    #[arg(long)]
    effective: bool,
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.schema {
        serde_json::to_writer_pretty(&mut out, &config::schema())?;
        writeln!(out)?;
    } else if args.defaults {
        out.write_all(config::defaults()?.as_bytes())?;
    } else {
        let path = args.file.as_deref().ok_or_else(|| usage("name a config file"))?;
        let written = Written::read(path)?;
        let config = written.validate()?;
        if args.effective {
            out.write_all(toml::to_string(&written.raw)?.as_bytes())?;
        } else {
            summary(&config, &mut out)?;
            writeln!(out, "{}: ok", path.display())?;
        }
    }
    out.flush()?;
    Ok(())
}

fn summary(config: &Config, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(SwitchRole { switch, .. }) = &config.switch {
        let settings = &switch.settings;
        let listen: Vec<String> = switch.listen.iter().map(ToString::to_string).collect();
        writeln!(out, "switch: listens on {}, policy {}", listen.join(" and "), settings.policy)?;
        writeln!(
            out,
            "  T_low {}, T_high {}, replication decays after {}, {} targets remembered",
            settings.t_low,
            settings.t_high,
            Span(settings.replication_decay),
            settings.targets_max
        )?;
        let dispatcher = dispatcher(switch)?;
        writeln!(
            out,
            "  admits {} requests at once, {} more wait up to {}",
            dispatcher.admission_limit(),
            settings.queue_max,
            Span(settings.queue_timeout)
        )?;
        for peer in &switch.nodes {
            let (name, weight) = (&peer.spec.name, peer.spec.weight);
            let at = if *name == peer.address { String::new() } else { format!(" at {}", peer.address) };
            let cache = match peer.spec.cache {
                larder_core::Bytes::ZERO => "unknown".to_owned(),
                known => Size(known).to_string(),
            };
            writeln!(out, "  node {name}{at}: weight {weight}, cache {cache}")?;
        }
    }
    if let Some(NodeRole { listen, node, .. }) = &config.node {
        let content = match &node.store {
            StoreConfig::Directory { root, bypass_page_cache } => {
                let past = if *bypass_page_cache { ", past the page cache" } else { "" };
                format!("the directory {}{past}", root.display())
            }
            StoreConfig::Model { manifest, disk, .. } => {
                format!(
                    "a modelled store of {} ({} disks, {} times 1998 speed)",
                    manifest.display(),
                    disk.disks,
                    disk.speed
                )
            }
        };
        let (name, cache) = (&node.name, &node.cache);
        writeln!(
            out,
            "node {name}: listens on {listen}, {} of cache ({}), content from {content}",
            Size(cache.bytes),
            cache.kind
        )?;
    }
    if config.switch.is_none() && config.node.is_none() {
        writeln!(out, "neither [switch] nor [node]: this file starts nothing")?;
    }
    let admin = match config.admin {
        AdminListen::Unset => "as the role's default".to_owned(),
        AdminListen::Off => "off".to_owned(),
        AdminListen::At(address) => address.to_string(),
    };
    writeln!(out, "admin interface: {admin}; log level {}", config.log)?;
    Ok(())
}

/// Building the dispatcher proves the settings as the switch itself would.
fn dispatcher(switch: &SwitchConfig) -> anyhow::Result<larder_core::Dispatcher> {
    let specs: Vec<_> = switch.nodes.iter().map(|peer| peer.spec.clone()).collect();
    Ok(larder_core::Dispatcher::new(switch.settings.clone(), &specs)?)
}
