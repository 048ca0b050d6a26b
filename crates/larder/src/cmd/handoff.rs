//! What `larder agent` and `larder node` have in common: the node's side of handoff.

use std::sync::Arc;

use anyhow::Context;
use larder_handoff::agent::{Agent, AgentConfig, LinuxKernel, NodeKernel, RestoredSink};
use larder_handoff::channel::Timing;
use larder_handoff::channel::identity::Identity;
use larder_node::{Handover, HandoverConfig};
use larder_peers::PeersConfig;

use crate::config::{HandoffRole, PeersHandoffRole};

/// Longest name of programs in the kernel. Bytes.
const INSTANCE_BYTES_MAX: usize = 32;

/// Starts an agent for the node called `name`, which gives restored connections to `sockets`.
///
/// Where the machine cannot do part of it, the rest is done, and switches are told: without programs in the kernel they
/// relay, without restored connections they hand over by cookie only.
pub(crate) async fn start(
    name: &str,
    role: HandoffRole,
    sockets: Option<RestoredSink>,
) -> anyhow::Result<Agent> {
    let HandoffRole { listen, identity, switches, interface, services, repair, lateral } = role;
    let identity = Identity::load(&identity)?;
    // Without restored connections in this process all are another's.
    let outlived = sockets.is_none();
    let (host, sockets) = host(&instance(name), &interface, sockets.filter(|_| repair));
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
    let forwarding = host
        .map(|host| -> Arc<dyn NodeKernel> { Arc::new(if outlived { host.keep_programs() } else { host }) });
    Agent::start(config, forwarding, sockets).await.context("the agent cannot start")
}

/// This machine's kernel, as far as it goes.
fn host(
    instance: &str,
    interface: &str,
    sockets: Option<RestoredSink>,
) -> (Option<LinuxKernel>, Option<RestoredSink>) {
    if sockets.is_some() {
        match LinuxKernel::start(instance, interface, true) {
            Ok(host) => return (Some(host), sockets),
            Err(error) => tracing::warn!(%error, "handoff: connections cannot be taken with their state"),
        }
    }
    match LinuxKernel::start(instance, interface, false) {
        Ok(host) => (Some(host), None),
        Err(error) => {
            tracing::warn!(%error, "handoff: no connections can be taken, switches relay to this node");
            (None, None)
        }
    }
}

/// Starts to hand connections over between peers, and an agent that gives those that come to `sockets`. `None` where this
/// machine cannot, unless it has to.
pub(crate) async fn between_peers(
    name: &str,
    role: PeersHandoffRole,
    peers: &PeersConfig,
    sockets: RestoredSink,
) -> anyhow::Result<Option<(Arc<Handover>, Agent)>> {
    let PeersHandoffRole { required, min, services, port } = role;
    let config = HandoverConfig { min, services, port, instance: instance(name) };
    match Handover::start(config, peers, sockets).await {
        Ok(started) => Ok(Some(started)),
        Err(error) if required => Err(error).context("node.peers.handoff is \"required\""),
        Err(error) => {
            tracing::warn!(%error, "handoff to peers: not available, requests are relayed");
            Ok(None)
        }
    }
}

/// What a node's programs are called in the kernel: letters, digits, '-' and '_'.
pub(crate) fn instance(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    format!("node-{name}").chars().map(plain).take(INSTANCE_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_kernel_are_plain_and_short() {
        assert_eq!(instance("a.example:80"), "node-a-example-80");
        assert_eq!(instance(&"é".repeat(99)).len(), INSTANCE_BYTES_MAX);
    }
}
