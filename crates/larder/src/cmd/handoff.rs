//! The node's side of handoff, which `larder agent` and `larder node` share.

use std::sync::Arc;

use anyhow::Context;
use larder_handoff::agent::{Agent, AgentConfig, LinuxKernel, NodeKernel, RestoredSink};
use larder_handoff::channel::Timing;
use larder_handoff::channel::identity::Identity;
use larder_node::{PeerHandoff, PeerHandoffConfig};
use larder_peers::PeersConfig;

use crate::config::{HandoffRole, PeersHandoffRole};

/// Longest name of BPF programs, bytes.
const INSTANCE_BYTES_MAX: usize = 32;

/// Starts the agent of the node `name`. The agent passes restored connections to `sockets`.
///
/// If the machine lacks a feature, the agent starts without it and informs the switches. Without BPF programs
/// switches relay to this node. Without restored connections they use only the cookie mechanism.
pub(crate) async fn start(
    name: &str,
    role: HandoffRole,
    sockets: Option<RestoredSink>,
) -> anyhow::Result<Agent> {
    let HandoffRole { listen, identity, switches, interface, services, repair, lateral } = role;
    let identity = Identity::load(&identity)?;
    // Without `sockets`, another process serves the connections, so the programs must outlive this process.
    let keep_programs = sockets.is_none();
    let (host, sockets) = start_kernel(&instance_name(name), &interface, sockets.filter(|_| repair));
    let config = AgentConfig {
        name: name.to_owned(),
        listen,
        identity,
        switches,
        interface: Some(interface),
        services,
        lateral: lateral.is_some(),
        timing: Timing::default(),
    };
    let forwarding = host.map(|host| -> Arc<dyn NodeKernel> {
        Arc::new(if keep_programs { host.keep_programs() } else { host })
    });
    Agent::start(config, forwarding, sockets).await.context("the agent cannot start")
}

/// Loads the BPF programs, with or without support for restored connections.
fn start_kernel(
    instance_name: &str,
    interface: &str,
    sockets: Option<RestoredSink>,
) -> (Option<LinuxKernel>, Option<RestoredSink>) {
    if sockets.is_some() {
        match LinuxKernel::start(instance_name, interface, true) {
            Ok(host) => return (Some(host), sockets),
            Err(error) => tracing::warn!(%error, "handoff: repair not available, only cookie is used"),
        }
    }
    match LinuxKernel::start(instance_name, interface, false) {
        Ok(host) => (Some(host), None),
        Err(error) => {
            tracing::warn!(%error, "handoff: no connections can be taken, switches relay to this node");
            (None, None)
        }
    }
}

/// Starts the handoff between peers, with an agent that passes received connections to `sockets`. Returns
/// `None` if this machine does not support handoff and the config does not require it.
pub(crate) async fn start_between_peers(
    name: &str,
    role: PeersHandoffRole,
    peers: &PeersConfig,
    sockets: RestoredSink,
) -> anyhow::Result<Option<(Arc<PeerHandoff>, Agent)>> {
    let PeersHandoffRole { required, min, services, port } = role;
    let config = PeerHandoffConfig { min, services, port, instance: instance_name(name) };
    match PeerHandoff::start(config, peers, sockets).await {
        Ok(started) => Ok(Some(started)),
        Err(error) if required => Err(error).context("node.peers.handoff is \"required\""),
        Err(error) => {
            tracing::warn!(%error, "handoff to peer: not available, requests are relayed");
            Ok(None)
        }
    }
}

/// Returns the name of a node's BPF programs, which consists of letters, digits, '-' and '_'.
pub(crate) fn instance_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    format!("node-{name}").chars().map(plain).take(INSTANCE_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_names_are_plain_and_short() {
        assert_eq!(instance_name("a.example:80"), "node-a-example-80");
        assert_eq!(instance_name(&"é".repeat(99)).len(), INSTANCE_BYTES_MAX);
    }
}
