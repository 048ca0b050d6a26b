//! `larder purge`: removes objects from the memory of nodes.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use larder_edge::{Purge, Tokens};
use serde_json::Value;

use super::serve;
use crate::ask::{AdminClient, admin_address};
use crate::outcome::usage;

/// Remove objects from the memory of nodes, by URL, prefix or tag.
///
/// For example: larder purge --token /etc/larder/purge.token --tag product-17
///
/// The command asks the admin interface of a switch, which sends the purge to all its nodes, or the admin
/// interfaces of nodes. Exit code 1: at least one node may still have the objects.
#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    #[command(flatten)]
    what: PurgeTarget,
    /// File with the purge token: the file of switch.purge_token or node.purge_token.
    #[arg(long, value_name = "FILE")]
    token: PathBuf,
    /// Address of an admin interface: HOST:PORT, or a port of this machine; may be repeated.
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:9900")]
    admin: Vec<String>,
    /// Print the replies as JSON, one per line.
    #[arg(long)]
    json: bool,
}

/// The objects.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct PurgeTarget {
    /// URL as clients request it.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Beginning of URLs: scheme, host, and the beginning of the path.
    #[arg(long, value_name = "URL")]
    prefix: Option<String>,
    /// Tag in Cache-Tag or Surrogate-Key of replies.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
}

pub(crate) fn run(args: &PurgeArgs) -> anyhow::Result<()> {
    let PurgeTarget { url, prefix, tag } = &args.what;
    let named = [("url", url), ("prefix", prefix), ("tag", tag)];
    let purge = Purge::from_parameters(|kind| named.iter().find(|(name, _)| *name == kind)?.1.clone())
        .map_err(|bad| usage(bad.to_string()))?;
    let tokens = Tokens::load(&args.token).map_err(|error| usage(format!("--token: {error}")))?;
    let addresses: anyhow::Result<Vec<_>> = args.admin.iter().map(|admin| admin_address(admin)).collect();
    let addresses = addresses.map_err(|error| usage(format!("--admin: {error:#}")))?;
    let (path, mut failed) = (format!("/purge?{}", purge.query()), 0);
    let runtime = serve::runtime(1)?;
    let mut out = std::io::stdout().lock();
    for (name, address) in addresses {
        let answer = runtime.block_on(AdminClient::new(address).post_with_token(&path, tokens.first()));
        let text = match answer {
            Ok((succeeded, answer)) => {
                failed += usize::from(!succeeded);
                if args.json { answer.to_string() } else { format_reply(&name, &answer) }
            }
            Err(error) => {
                failed += 1;
                let error = format!("{error:#}");
                if args.json {
                    serde_json::json!({ "error": error }).to_string()
                } else {
                    format!("{name}: {error}")
                }
            }
        };
        writeln!(out, "{}", text.trim_end())?;
    }
    if failed > 0 {
        anyhow::bail!("{purge}: failed at {failed} of the given admin interfaces; repeat the purge");
    }
    Ok(())
}

/// Formats the reply of a switch or a node, or its error.
fn format_reply(address: &str, answer: &Value) -> String {
    if let Some(error) = answer["error"].as_str() {
        return format!("{address}: {error}: {}", answer["hint"].as_str().unwrap_or_default());
    }
    let Some(nodes) = answer["nodes"].as_array() else {
        return format!("{address}: {} removed", answer["removed"]);
    };
    let node = |node: &Value| {
        let name = node["node"].as_str().unwrap_or_default();
        match node["error"].as_str() {
            Some(error) => format!("{name}: not done: {error}"),
            None => format!("{name}: {} removed", node["removed"]),
        }
    };
    nodes.iter().map(node).collect::<Vec<_>>().join("\n")
}
