//! `larder node`: a content node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use larder_handoff::agent::{Agent, RestoredSink};
use larder_node::{
    CooperateConfig, CooperatePolicy, IncomingHandoffs, LateralConfig, Listeners, Node, PeerHandoff,
};
use larder_peers::PeersConfig;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::handoff;
use super::serve::{self, Shutdown};
use crate::admin::NodeAdmin;
use crate::config::{Config, HandoffRole, NodeRole, PeersPolicy, PeersRole, Role};
use crate::demo::cluster::Ready;
use crate::preflight;
pub(crate) use args::NodeArgs;
use args::missing_section;
use reload::{Reloader, SwitchKeys, report_secrets};
use tables::TableFile;

mod args;
pub(crate) mod reload;
mod tables;

/// Most handed-off connections that wait to be served. Further connections are refused.
const RESTORED_MAX: usize = 1_024;
/// Backlog of the listeners. Switches open many connections at the same time.
const BACKLOG: u32 = 4_096;
/// Time for file operations after all connections have ended.
const FILE_WORK_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for connections that were handed off before the switches knew that the node shuts down. A lost first
/// packet is retransmitted after 200 ms by Linux and 300 ms by other systems.
const LAST_CONNECTIONS_TIME: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &NodeArgs) -> anyhow::Result<()> {
    serve::ignore_hangup()?;
    let (written, config) = args.read_config()?;
    let level = super::logging::start(&config.log)?;
    serve::raise_open_files();
    preflight::start(&written, &config.only(Role::Node))?;
    for warning in written.warnings(&config) {
        tracing::warn!(%warning, "config: accepted with a warning");
    }
    let Config { node: Some(role), admin, .. } = config else { return Err(missing_section()) };
    let runtime = serve::runtime(role.node.threads)?;
    let ended = runtime.block_on(async {
        // Signals are registered first, because earlier signals would be lost.
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
        let surface = Arc::new(NodeAdmin::new(Arc::clone(&node), Arc::clone(&reloader)));
        let admin = serve::start_admin(admin, None, surface, shutdown.clone()).await?;
        let (incoming, agent, peer_handoff) = start_handoff(&node, handoff, peers).await?;
        node.start_facts().log();
        tracing::info!(%name, ?listen, "node: ready");
        // Keys of switches change with a reload. Keys of peers are derived from the cluster's secret.
        let switches = |agent: &Agent| SwitchKeys {
            admitted: agent.access_control(),
            outcomes: agent.handshake_counters(),
        };
        reloader.mark_started(agent.as_ref().filter(|_| peer_handoff.is_none()).map(switches));
        args.serve.print_ready_line(&Ready { listen, admin, peers: node.peers_address() })?;
        tokio::spawn(reload::reload_on_hangup(hangup, reloader, shutdown.clone()));
        // A connection is handed off only once.
        let offers = agent.as_ref().filter(|_| peer_handoff.is_none()).map(Agent::offers);
        let leaving = tokio::spawn(leave_peers(shutdown.clone(), Arc::clone(&node)));
        let ending = wait_for_end(shutdown, Arc::clone(&node), agent.as_ref());
        let served =
            Arc::clone(&node).serve_with(listeners, IncomingHandoffs { offers, ..incoming }, ending).await;
        if let Some(agent) = agent {
            agent.stop().await;
        }
        if let Some(peer_handoff) = peer_handoff {
            peer_handoff.end();
        }
        let drained = served.with_context(|| format!("node {name}"))?;
        leaving.await.context("leaving the peers")?;
        if drained.aborted > 0 {
            tracing::warn!(
                connections = drained.aborted,
                "drain: deadline passed, open connections are closed"
            );
        }
        Ok(())
    });
    // The shutdown does not wait for a reload that blocks on a file.
    runtime.shutdown_timeout(FILE_WORK_TIMEOUT);
    ended
}

/// Starts the agent for switches or peers, and joins the peers.
async fn start_handoff(
    node: &Arc<Node>,
    handoff: Option<HandoffRole>,
    peers: Option<PeersRole>,
) -> anyhow::Result<(IncomingHandoffs, Option<Agent>, Option<Arc<PeerHandoff>>)> {
    let (sockets, restored) = mpsc::channel(RESTORED_MAX);
    let mut incoming = IncomingHandoffs { restored, ..IncomingHandoffs::none() };
    let (mut peer_handoff, mut sockets) =
        (None, Some(RestoredSink::new(sockets).with_connection_slots(node.connection_permits())));
    let mut agent = match handoff {
        Some(role) => {
            let lateral = role.lateral;
            incoming.services.clone_from(&role.services);
            let agent = handoff::start(node.name(), role, sockets.take()).await?;
            incoming.lateral =
                lateral.map(|wait| LateralConfig { wait, ..LateralConfig::new(agent.resolver()) });
            Some(agent)
        }
        None => None,
    };
    if let Some(peers) = peers {
        let joined = join(node, peers, sockets.take()).await?;
        if let Some((started, peer_agent)) = joined {
            (peer_handoff, agent, incoming.from_peers) = (Some(started), Some(peer_agent), true);
        }
    }
    Ok((incoming, agent, peer_handoff))
}

/// Binds the addresses for clients with and without TLS, and returns them.
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
    // A node that restarts can bind its address at once.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Joins the cluster of peers. Connections that peers hand off are passed to `sockets`.
async fn join(
    node: &Arc<Node>,
    role: PeersRole,
    sockets: Option<RestoredSink>,
) -> anyhow::Result<Option<(Arc<PeerHandoff>, Agent)>> {
    let PeersRole { name, listen, advertise, secret, seeds, policy, head_timeout, handoff } = role;
    let own = name.to_string();
    let read = serve::secrets("node.peers.secret", &secret)?;
    let network = PeersConfig { advertise, seeds, ..PeersConfig::new(name, listen, read) };
    // A node does not start with an invalid table.
    let (mut file, mut loaded) = (None, None);
    let policy = match policy {
        PeersPolicy::Press(settings) => CooperatePolicy::Press(settings),
        PeersPolicy::Card(settings) => CooperatePolicy::Card(settings),
        PeersPolicy::Ward(ward) => {
            if let Some(unread) = TableFile::new(&ward) {
                let (read, table) = unread.load(node).await;
                (file, loaded) = (Some(read), Some(table.context("node.peers.ward.table")?));
            }
            CooperatePolicy::Ward(tables::ward_config(&ward))
        }
    };
    let joined = match (handoff, sockets) {
        (Some(role), Some(sockets)) => handoff::start_between_peers(&own, role, &network, sockets).await?,
        _ => {
            PeerHandoff::remove_leftovers(&handoff::instance_name(&own));
            None
        }
    };
    let peer_handoff = joined.as_ref().map(|(handoff, _)| Arc::clone(handoff));
    let config = CooperateConfig { network, policy, head_timeout, peer_handoff };
    node.join_peers(config).await.context("node.peers")?;
    if let Some(loaded) = loaded {
        tables::apply_table(node, loaded);
    }
    if let Some(file) = file {
        tokio::spawn(file.watch(Arc::clone(node)));
    }
    Ok(joined)
}

/// Leaves the peers at shutdown, so that they send no more requests. Requests of clients are completed
/// meanwhile.
async fn leave_peers(shutdown: Shutdown, node: Arc<Node>) {
    shutdown.requested().await;
    if !node.leave_peers().await {
        tracing::warn!("drain: deadline passed, replies to peers are aborted");
    }
}

/// Completes when the node should accept no more connections: after a shutdown request, when switches know of
/// the shutdown and their last connections have arrived.
async fn wait_for_end(shutdown: Shutdown, node: Arc<Node>, agent: Option<&Agent>) {
    shutdown.requested().await;
    let Some(agent) = agent else { return };
    node.set_draining(true);
    if agent.announce_shutdown().await > 0 {
        tokio::time::sleep(LAST_CONNECTIONS_TIME).await;
    }
}
