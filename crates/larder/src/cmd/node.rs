//! `larder node`: a content node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use larder_handoff::agent::{Agent, RestoredSink};
use larder_node::{CooperateConfig, CooperatePolicy, Handed, Handover, LateralConfig, Listeners, Node};
use larder_peers::PeersConfig;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::handoff;
use super::serve::{self, Shutdown};
use crate::admin::NodeSurface;
use crate::config::{Config, HandoffRole, NodeRole, PeersPolicy, PeersRole, Role};
use crate::demo::cluster::Ready;
use crate::preflight;
pub(crate) use args::NodeArgs;
use args::no_section;
use reload::{Reloader, SwitchKeys, report_secrets};
use tables::TableFile;

mod args;
pub(crate) mod reload;
mod tables;

/// Connections that a switch has handed over and that are not yet served, at most; further ones are refused.
const RESTORED_MAX: usize = 1_024;
/// Connections that the kernel may hold before they are accepted. Switches open many at one time.
const BACKLOG: u32 = 4_096;
/// How long work on files may go on once all connections have ended.
const LAST_WORK: Duration = Duration::from_secs(1);
/// Connections that were sent here before the switches knew that the node ends come at the latest so long after: a lost
/// first packet is repeated after 200 ms by Linux, 300 ms by others.
const LAST_ONES: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &NodeArgs) -> anyhow::Result<()> {
    serve::outlive_hangup()?;
    let (written, config) = args.valid()?;
    let level = super::logging::start(&config.log)?;
    serve::raise_open_files();
    preflight::start(&written, &config.only(Role::Node))?;
    for warning in written.warnings(&config) {
        tracing::warn!("{warning}");
    }
    let Config { node: Some(role), admin, .. } = config else { return Err(no_section()) };
    let runtime = serve::runtime(role.node.threads)?;
    let ended = runtime.block_on(async {
        // Before anything that takes time: what comes before is not heard.
        let hangup = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
        let shutdown = serve::shutdown(&args.serve)?;
        let NodeRole { listen, mut node, handoff, peers, report_secret, purge_token, .. } = role;
        node.purge = serve::tokens("node.purge_token", purge_token.as_deref())?;
        node.report.secret = report_secrets(report_secret.as_deref())?;
        let secure = node.tls.as_ref().map(|tls| tls.listen.clone()).unwrap_or_default();
        let name = node.name.clone();
        let node = Node::new(node).with_context(|| format!("node {name} cannot start"))?;
        let (listeners, listen) = bind(listen, &secure)?;
        let reloader = Arc::new(Reloader::new(args.clone(), written.raw, level, Arc::clone(&node)));
        let surface = Arc::new(NodeSurface::new(Arc::clone(&node), Arc::clone(&reloader)));
        let admin = serve::start_admin(admin, None, surface, shutdown.clone()).await?;
        let (handed, agent, between) = deliver(&node, handoff, peers).await?;
        node.start_lines().iter().for_each(|line| tracing::info!("{line}"));
        tracing::info!(%name, ?listen, "node: ready");
        // The keys of switches change with a reload; those of peers are made of the cluster's secret.
        let switches = |agent: &Agent| SwitchKeys {
            admitted: agent.access_control(),
            outcomes: agent.handshake_counters(),
        };
        reloader.started(agent.as_ref().filter(|_| between.is_none()).map(switches));
        args.serve.say_ready(&Ready { listen, admin, peers: node.peers_address() })?;
        tokio::spawn(reload::on_hangup(hangup, reloader, shutdown.clone()));
        // A connection is handed over once.
        let giver = agent.as_ref().filter(|_| between.is_none()).map(Agent::offers);
        let leaving = tokio::spawn(leaving(shutdown.clone(), Arc::clone(&node)));
        let ending = ending(shutdown, Arc::clone(&node), agent.as_ref());
        let served = Arc::clone(&node).serve_with(listeners, Handed { giver, ..handed }, ending).await;
        if let Some(agent) = agent {
            agent.stop().await;
        }
        if let Some(handover) = between {
            handover.end();
        }
        let drained = served.with_context(|| format!("node {name}"))?;
        leaving.await.context("leaving the peers")?;
        if drained.aborted > 0 {
            tracing::warn!(
                connections = drained.aborted,
                "connections reset at shutdown: their replies did not end within drain_timeout"
            );
        }
        Ok(())
    });
    // A reload that waits for a file does not hold up the end.
    runtime.shutdown_timeout(LAST_WORK);
    ended
}

/// Joins whoever hands connections over, switches or peers, and the peers.
async fn deliver(
    node: &Arc<Node>,
    handoff: Option<HandoffRole>,
    peers: Option<PeersRole>,
) -> anyhow::Result<(Handed, Option<Agent>, Option<Arc<Handover>>)> {
    let (sockets, restored) = mpsc::channel(RESTORED_MAX);
    let mut handed = Handed { restored, ..Handed::none() };
    let (mut between, mut sockets) =
        (None, Some(RestoredSink::new(sockets).with_connection_slots(node.places())));
    let mut agent = match handoff {
        Some(role) => {
            let lateral = role.lateral;
            handed.services.clone_from(&role.services);
            let agent = handoff::start(node.name(), role, sockets.take()).await?;
            handed.lateral =
                lateral.map(|wait| LateralConfig { wait, ..LateralConfig::new(agent.resolver()) });
            Some(agent)
        }
        None => None,
    };
    if let Some(peers) = peers {
        let started = join(node, peers, sockets.take()).await?;
        if let Some((handover, its)) = started {
            (between, agent, handed.by_peers) = (Some(handover), Some(its), true);
        }
    }
    Ok((handed, agent, between))
}

/// Takes the addresses for clients, without TLS and with it, and says which they are.
fn bind(clear: Option<SocketAddr>, secure: &[SocketAddr]) -> anyhow::Result<(Listeners, Vec<SocketAddr>)> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for address in clear.iter().chain(secure) {
        let listener = listen(*address).with_context(|| format!("cannot listen on {address}"))?;
        addresses.push(listener.local_addr()?);
        listeners.push(listener);
    }
    let secure = listeners.split_off(usize::from(clear.is_some()));
    Ok((Listeners::new(listeners.pop(), secure), addresses))
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A node that restarts takes its address back at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Joins the cluster of equal nodes. Connections that others hand over come to `sockets`.
async fn join(
    node: &Arc<Node>,
    role: PeersRole,
    sockets: Option<RestoredSink>,
) -> anyhow::Result<Option<(Arc<Handover>, Agent)>> {
    let PeersRole { name, listen, advertise, secret, seeds, policy, head_timeout, handoff } = role;
    let own = name.to_string();
    let read = serve::secrets("node.peers.secret", &secret)?;
    let network = PeersConfig { advertise, seeds, ..PeersConfig::new(name, listen, read) };
    // A node does not start on a table that it cannot use.
    let (mut file, mut loaded) = (None, None);
    let policy = match policy {
        PeersPolicy::Press(settings) => CooperatePolicy::Press(settings),
        PeersPolicy::Card(settings) => CooperatePolicy::Card(settings),
        PeersPolicy::Ward(ward) => {
            if let Some(unread) = TableFile::new(&ward) {
                let (read, table) = unread.load(node).await;
                (file, loaded) = (Some(read), Some(table.context("node.peers.ward.table")?));
            }
            CooperatePolicy::Ward(tables::config(&ward))
        }
    };
    let started = match (handoff, sockets) {
        (Some(role), Some(sockets)) => handoff::between_peers(&own, role, &network, sockets).await?,
        _ => {
            Handover::remove_leftovers(&handoff::instance(&own));
            None
        }
    };
    let handover = started.as_ref().map(|(handover, _)| Arc::clone(handover));
    let config = CooperateConfig { network, policy, head_timeout, handover };
    node.join_peers(config).await.context("node.peers")?;
    if let Some(loaded) = loaded {
        tables::give(node, loaded);
    }
    if let Some(file) = file {
        tokio::spawn(file.watch(Arc::clone(node)));
    }
    Ok(started)
}

/// Tells the peers that this node goes when it is asked to end, so that they send it nothing while its clients are served to
/// the end.
async fn leaving(shutdown: Shutdown, node: Arc<Node>) {
    shutdown.requested().await;
    if !node.leave_peers().await {
        tracing::warn!("replies to peers aborted at shutdown: they did not end in time");
    }
}

/// Returns when the node is to take no connections any more: when it is asked to end, switches know it, and what they sent
/// before has come.
async fn ending(shutdown: Shutdown, node: Arc<Node>, agent: Option<&Agent>) {
    shutdown.requested().await;
    let Some(agent) = agent else { return };
    node.set_draining(true);
    if agent.announce_shutdown().await > 0 {
        tokio::time::sleep(LAST_ONES).await;
    }
}
