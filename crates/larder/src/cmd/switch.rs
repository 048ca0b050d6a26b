//! `larder switch`: the front-end.

pub(crate) mod tables;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use larder_front::{Switch, SwitchHandle};
use tokio::signal::unix::{SignalKind, signal};

use self::tables::Keeper;
use super::serve::{self, ServeArgs};
use crate::admin::SwitchSurface;
use crate::config::{Config, RawHigh, RawLow, RawPeer, RawSwitch, Span, SwitchRole, Texts};
use crate::demo::cluster::Ready;
use crate::outcome::usage;
use crate::roster::Found;

/// Where the admin interface of a switch is unless told otherwise.
const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9900);

/// Accept clients, pick the node that holds the target, relay.
///
/// For example: larder switch --listen 0.0.0.0:8080 --node 10.0.0.1:80 --node 10.0.0.2:80
///
/// The admin interface (127.0.0.1:9900 by default) lists the nodes (/nodes) and where they were found (/discovery),
/// lets nodes join, leave and drain, explains where a target goes and why
/// (/explain?target=HOST/PATH), lists the routes (/routes) and gives metrics (/metrics). SIGTERM and SIGINT drain:
/// requests in flight are finished, then the process ends. SIGHUP opens the access log anew and reads routing tables.
#[derive(Debug, Args)]
pub(crate) struct SwitchArgs {
    /// Where clients connect: ADDRESS:PORT; may be given several times; port 0 takes any free port.
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// A node: HOST:PORT, or NAME=HOST:PORT; give one for each. Replaces the nodes of the config file.
    #[arg(short, long, value_name = "[NAME=]HOST:PORT")]
    node: Vec<String>,
    /// Which node serves a target, such as lard-r; `larder check --policies` lists them.
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
    written.present(&config)?;
    super::logging::start(&config.log)?;
    serve::raise_open_files();
    for warning in written.warnings(&config) {
        tracing::warn!("{warning}");
    }
    let Config { switch: Some(mut role), admin, .. } = config else {
        return Err(usage("there is no [switch] section"));
    };
    let tables = keepers(&mut role)?;
    let effective = serde_json::to_value(&written.raw)?;
    let runtime = serve::runtime(role.threads)?;
    runtime.block_on(async {
        let shutdown = serve::shutdown(&args.serve)?;
        let found = Found::look(std::mem::take(&mut role.switch.nodes), &role.discover, role.follow).await?;
        role.switch.nodes = found.nodes();
        let switch = Switch::bind(role.switch).context("the switch cannot start")?;
        let handle = switch.handle();
        let listen = switch.addresses().to_vec();
        on_hangup(handle.clone(), tables.clone())?;
        for keeper in &tables {
            tokio::spawn(keeper.clone().watch(handle.clone()));
        }
        let roster = found.keep(handle.clone());
        let surface = Arc::new(SwitchSurface::new(handle, effective, tables, roster));
        let admin = serve::start_admin(admin, Some(ADMIN), surface, shutdown.clone()).await?;
        tracing::info!(?listen, "switch serves");
        args.serve.say_ready(&Ready { listen, admin, peers: None })?;
        switch.run(shutdown.requested()).await.context("the switch")
    })
}

/// Reads the routing tables and lays them into the routes that go by them.
fn keepers(role: &mut SwitchRole) -> anyhow::Result<Vec<Arc<Keeper>>> {
    let mut keepers = Vec::with_capacity(role.wards.len());
    for ward in std::mem::take(&mut role.wards) {
        let keeper = Keeper::new(ward).map_err(|error| usage(error.to_string()))?;
        let mut routes = role.switch.routes.iter_mut();
        let settings = match routes.find(|route| route.name == keeper.route()) {
            Some(route) => &mut route.settings,
            None => &mut role.switch.settings,
        };
        settings.table = keeper.table();
        keepers.push(Arc::new(keeper));
    }
    Ok(keepers)
}

/// SIGHUP opens the access log anew, for log rotation, and reads the routing tables again.
fn on_hangup(switch: SwitchHandle, keepers: Vec<Arc<Keeper>>) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            switch.reopen_access_log();
            for keeper in keepers.iter().filter(|keeper| keeper.has_file()) {
                let (keeper, switch) = (keeper.clone(), switch.clone());
                // A failure is logged and shown by the admin interface.
                tokio::task::spawn_blocking(move || drop(keeper.reload(&switch)));
            }
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
        raw.t_low = self.t_low.map_or(raw.t_low, RawLow::Fixed);
        raw.t_high = self.t_high.map_or(raw.t_high, RawHigh::Fixed);
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
