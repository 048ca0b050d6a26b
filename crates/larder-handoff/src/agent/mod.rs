//! The node's side of handoff: the agent.
//!
//! The agent is not in the data path. It accepts switches on the control channel, applies their settings in the kernel
//! ([`NodeKernel`]), restores the connections that they hand off ([`RestoredConnection`]), and reports closed
//! connections and the node's load.
//!
//! ```text
//! switches --channel--> links --> core: switches (settings of each switch), stash (packets before their socket),
//!                                       reports (closed connections)  --> NodeKernel: programs, stack, sockets
//! ```
//!
//! If a switch disconnects, its listen addresses, keys and connections stay until it reconnects with other settings, or
//! until its key is revoked (`revocation`).

mod core;
mod first_seqs;
mod kernel;
mod link;
mod linux;
mod listing;
mod outgoing;
mod reports;
mod resolver;
mod restore;
mod revocation;
mod shutdown;
mod stale;
mod stash;
mod switches;
#[cfg(test)]
mod tests;

pub use kernel::{KernelEvent, NodeKernel, RestoreRequest, ServiceRules};
pub use linux::LinuxKernel;
pub use outgoing::{HandoffOffers, IdleConnection, OUTGOING_MAX};
pub use resolver::{HOLDER_PENDING_MAX, HOLDER_QUEUE_MAX, HolderRequest, HolderResolver};
pub use restore::{RestoredConnection, RestoredSink, restore};
pub use stash::{LATE_EVENT_WINDOW, STASH_BYTES_MAX, STASH_FLOWS_MAX, STASH_PACKETS_MAX, STASH_WAIT};

use self::core::Core;
use self::outgoing::OfferQueue;
use self::shutdown::ShutdownAck;
use crate::channel::Timing;
use crate::channel::identity::{Identity, PublicKey};
use crate::channel::server::{AccessControl, HandshakeCounters, SWITCHES_MAX, Server};
use larder_kernel::abi::SERVICES_MAX;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// Maximum time that switches have to acknowledge the node's shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The node's name, for the logs of the switches. 1 to 256 bytes.
    pub name: String,
    /// Address on which the agent accepts switches.
    pub listen: SocketAddr,
    /// The node's key pair.
    pub identity: Identity,
    /// Keys of the switches that may connect. 1 to 64.
    pub switches: Vec<PublicKey>,
    /// The interface that receives the clients' packets. `None` if there is none; the node then takes no handoffs.
    pub interface: Option<String>,
    /// Listen addresses that switches may use. The agent refuses all others. At most 64.
    pub services: Vec<SocketAddr>,
    /// Whether the server in this process fetches contents from other nodes. Switches are told.
    pub lateral: bool,
    /// Timeouts and intervals of the control channel.
    pub timing: Timing,
}

/// Reason why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A setting is out of range.
    #[error("{field}: {expected}")]
    Config {
        /// The field of [`AgentConfig`].
        field: &'static str,
        /// The values that it allows.
        expected: &'static str,
    },
    /// The agent cannot listen on its control address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The control address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The interface cannot be read.
    #[error("cannot read interface {name}")]
    Interface {
        /// The interface's name.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Kernel events cannot be waited for, or random numbers are not available.
    #[error("system error")]
    System(#[source] io::Error),
}

/// A running agent. Prefer [`Agent::stop`] to dropping it.
#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    counters: Arc<HandshakeCounters>,
    access: AccessControl,
    resolver: HolderResolver,
    offers: HandoffOffers,
    shutdown_acks: mpsc::Sender<ShutdownAck>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Agent {
    /// Starts an agent on the current tokio runtime.
    ///
    /// Without `kernel` the node takes no handoffs, tells the switches so, and reports only its load. Without
    /// `restored` it accepts connections by cookie only, because no server in this process could take restored ones.
    /// While `restored` is full or has no free slot, handoffs are refused.
    ///
    /// # Errors
    ///
    /// If the config is invalid, the control address or the interface is not available, or the system reports an error.
    pub async fn start(
        config: AgentConfig,
        kernel: Option<Arc<dyn NodeKernel>>,
        restored: Option<RestoredSink>,
    ) -> Result<Self, AgentError> {
        config.check()?;
        let interface = config.interface.as_deref().map(|name| {
            let failed = |source| AgentError::Interface { name: name.to_owned(), source };
            larder_kernel::interface::interface(name).map_err(failed)
        });
        let interface = interface.transpose()?;
        let AgentConfig { name, listen, identity, switches, services, lateral, timing, .. } = config;
        let refused = |source| AgentError::Listen { address: listen, source };
        let server = Server::bind(listen, identity, switches, timing).await.map_err(refused)?;
        let address = server.address().map_err(refused)?;
        let (counters, access) = (server.handshake_counters(), server.access_control());
        let mut core =
            Core::new(name, services, timing, interface, kernel, restored).map_err(AgentError::System)?;
        core.set_lateral(lateral);
        let events = core.events().map_err(AgentError::System)?;
        let (stop, stopped) = oneshot::channel();
        let (resolver, requests) = HolderResolver::new();
        let (offers_sender, offers) = mpsc::channel(outgoing::OFFER_QUEUE_MAX);
        let (release, release_requests) = watch::channel(0);
        let queue = OfferQueue { offers, release };
        let offers = HandoffOffers { offers: offers_sender, release: release_requests };
        let (shutdown_acks, shutdown_requests) = mpsc::channel(1);
        let task = tokio::spawn(core.run(server, events, requests, queue, shutdown_requests, stopped));
        tracing::info!(%address, "agent: listening");
        Ok(Self { address, counters, access, resolver, offers, shutdown_acks, stop: Some(stop), task })
    }

    /// Returns the address on which the agent accepts switches.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a handle that offers connections of the server in this process to other nodes.
    pub fn offers(&self) -> HandoffOffers {
        self.offers.clone()
    }

    /// Returns the counters of switches' attempts to connect and of revoked channels.
    pub fn handshake_counters(&self) -> Arc<HandshakeCounters> {
        Arc::clone(&self.counters)
    }

    /// Returns the list of switches that may connect, initially [`AgentConfig::switches`].
    /// [`AccessControl::set_allowed_and_revoke`] revokes keys.
    pub fn access_control(&self) -> AccessControl {
        self.access.clone()
    }

    /// Returns a handle that asks switches which nodes hold a target. It may outlive the agent, and then finds nothing.
    pub fn resolver(&self) -> HolderResolver {
        self.resolver.clone()
    }

    /// Tells all switches that the server in this process shuts down, and waits at most 1 s for their acknowledgements.
    /// Returns the number of switches that were told. Connections that they sent before their acknowledgement may still
    /// arrive.
    pub async fn announce_shutdown(&self) -> usize {
        let (ack, acknowledged) = oneshot::channel();
        if self.shutdown_acks.send(ack).await.is_err() {
            return 0;
        }
        match tokio::time::timeout(SHUTDOWN_TIMEOUT, acknowledged).await {
            Ok(count) => count.unwrap_or(0),
            Err(_) => {
                tracing::warn!(timeout = ?SHUTDOWN_TIMEOUT, "drain: switch did not acknowledge in time");
                1
            }
        }
    }

    /// Reports the remaining closed connections and stops. After that the agent no longer holds the [`NodeKernel`].
    pub async fn stop(mut self) {
        drop(self.stop.take());
        // An error means that the task has panicked, so it has ended too.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AgentConfig {
    /// Checks that every list is within its limits.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), AgentError> {
        let ensure = |holds: bool, field, expected| match holds {
            true => Ok(()),
            false => Err(AgentError::Config { field, expected }),
        };
        let (name, switches, services) = (self.name.len(), self.switches.len(), self.services.len());
        ensure((1..=256).contains(&name), "name", "1 to 256 bytes")?;
        ensure((1..=SWITCHES_MAX).contains(&switches), "switches", "1 to 64 keys")?;
        ensure(services <= usize::from(SERVICES_MAX), "services", "at most 64 addresses")
    }
}
