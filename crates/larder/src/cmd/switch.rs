//! `larder switch`: the front-end.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use larder_front::{Switch, SwitchHandle};
use tokio::signal::unix::{SignalKind, signal};

use super::serve::{self, ServeArgs};
use crate::admin::SwitchSurface;
use crate::config::{Config, RawPeer, RawSwitch, Span, Texts};
use crate::outcome::usage;

/// Where the admin interface of a switch is unless told otherwise.
const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9900);

/// Accept clients, pick the node that holds the target, relay.
///
/// For example: larder switch --listen 0.0.0.0:8080 --node 10.0.0.1:80 --node 10.0.0.2:80
///
/// The admin interface (127.0.0.1:9900 by default) lists the nodes (/nodes), explains where a target goes and why
/// (/explain?target=HOST/PATH) and gives metrics (/metrics). SIGTERM and SIGINT drain: requests in flight are
/// finished, then the process ends. SIGHUP opens the access log anew.
#[derive(Debug, Args)]
pub(crate) struct SwitchArgs {
    /// Where clients connect: ADDRESS:PORT; may be given several times; port 0 takes any free port.
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// A node: HOST:PORT, or NAME=HOST:PORT; give one for each. Replaces the nodes of the config file.
    #[arg(short, long, value_name = "[NAME=]HOST:PORT")]
    node: Vec<String>,
    /// Which node serves a target: lard-r, lard, hash, wrr, rr, least-conn or random.
    #[arg(short, long)]
    policy: Option<String>,
    /// Seed of the policies that draw lots.
    #[arg(long)]
    seed: Option<u64>,
    /// T_low: below this load a node has room to spare.
    #[arg(long, value_name = "REQUESTS")]
    t_low: Option<u32>,
    /// T_high: above this load a node is relieved.
    #[arg(long, value_name = "REQUESTS")]
    t_high: Option<u32>,
    /// K of lard-r: a server set that did not change for this long shrinks by one, such as 20s.
    #[arg(long, value_name = "TIME")]
    replication_decay: Option<Span>,
    /// File to append the access log to, or "-" for stdout.
    #[arg(long, value_name = "FILE")]
    access_log: Option<String>,
    /// File to record decisions in, for `larder sim replay`; replaced if it exists.
    #[arg(long, value_name = "FILE")]
    record: Option<String>,
    /// File for the recorded decisions as text, one line each; replaced if it exists. Needs a record.
    #[arg(long, value_name = "FILE")]
    record_log: Option<String>,
    #[command(flatten)]
    serve: ServeArgs,
}

pub(crate) fn run(args: &SwitchArgs) -> anyhow::Result<()> {
    let mut written = args.serve.written()?;
    if written.raw.switch.is_none() && args.listen.is_empty() && args.node.is_empty() {
        return Err(usage(
            "a switch needs an address and nodes: --listen 0.0.0.0:8080 --node 10.0.0.1:80, or --config FILE",
        ));
    }
    args.overlay(written.raw.switch.get_or_insert_default());
    let config = written.validate()?;
    super::logging::start(&config.log)?;
    serve::raise_open_files();
    let Config { switch: Some(role), admin, .. } = config else {
        return Err(usage("there is no [switch] section"));
    };
    let effective = serde_json::to_value(&written.raw)?;
    let runtime = serve::runtime(role.threads)?;
    runtime.block_on(async {
        let shutdown = serve::shutdown(&args.serve)?;
        let switch = Switch::bind(role.switch).context("the switch cannot start")?;
        let handle = switch.handle();
        let listen = switch.addresses().to_vec();
        reopen_on_hangup(handle.clone())?;
        let surface = Arc::new(SwitchSurface::new(handle, effective));
        let admin = serve::start_admin(admin, Some(ADMIN), surface, shutdown.clone()).await?;
        tracing::info!(?listen, "switch serves");
        args.serve.say_ready(listen, admin)?;
        switch.run(shutdown.requested()).await.context("the switch")
    })
}

/// SIGHUP opens the access log anew, for log rotation.
fn reopen_on_hangup(switch: SwitchHandle) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            switch.reopen_access_log();
        }
    });
    Ok(())
}

impl SwitchArgs {
    /// Lays the options over the config.
    fn overlay(&self, raw: &mut RawSwitch) {
        if !self.listen.is_empty() {
            raw.listen = Texts(self.listen.clone());
        }
        if !self.node.is_empty() {
            raw.nodes = self.node.iter().map(|text| peer(text)).collect();
        }
        if let Some(policy) = &self.policy {
            raw.policy.clone_from(policy);
        }
        raw.seed = self.seed.unwrap_or(raw.seed);
        raw.t_low = self.t_low.unwrap_or(raw.t_low);
        raw.t_high = self.t_high.unwrap_or(raw.t_high);
        raw.replication_decay = self.replication_decay.unwrap_or(raw.replication_decay);
        raw.threads = self.serve.threads.unwrap_or(raw.threads);
        if let Some(file) = &self.access_log {
            raw.access_log = Some(file.clone());
        }
        if let Some(file) = &self.record {
            raw.record = Some(file.clone());
        }
        if let Some(file) = &self.record_log {
            raw.record_log = Some(file.clone());
        }
    }
}

fn peer(text: &str) -> RawPeer {
    match text.split_once('=') {
        Some((name, address)) => RawPeer { name: Some(name.to_owned()), ..RawPeer::from(address) },
        None => RawPeer::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_be_named() {
        let named = peer("a=10.0.0.1:80");
        assert_eq!((named.name.as_deref(), named.address.as_str()), (Some("a"), "10.0.0.1:80"));
        assert_eq!(peer("10.0.0.1:80").name, None);
    }
}
