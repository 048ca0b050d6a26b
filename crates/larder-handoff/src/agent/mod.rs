//! The node's side of handoff: the agent.
//!
//! It is on no connection's way. It accepts front-ends on the control channel, has done in the kernel what they ask for
//! ([`Forwarding`]), makes sockets of connections that they hand over ([`Restored`]), and tells them which connections
//! have ended and how busy the node is.
//!
//! ```text
//! front-ends --channel--> links --> core: switches (who wants what), stash (packets before their socket),
//!                                         reports (what has ended)  --> Forwarding: programs, stack, sockets
//! ```
//!
//! A front-end that goes away takes nothing with it: listen addresses, keys and connections stay as they are until it
//! comes back and says otherwise, or until its key is revoked (`revoked`).

mod asker;
mod core;
mod ending;
mod forwarding;
mod host;
mod leaving;
mod link;
mod lists;
mod numbers;
mod restored;
mod revoked;
mod stash;
mod switches;
#[cfg(test)]
mod tests;
mod vanished;

pub use asker::{Ask, Asker, QUEUE_MAX, WAITING_MAX};
pub use forwarding::{Forwarding, Moved, Rules, Seen};
pub use host::Host;
pub use leaving::{Giver, LEAVING_MAX, Resting};
pub use restored::{Restored, Sockets, restore};
pub use stash::{ECHO, STASH_BYTES_MAX, STASH_FLOWS_MAX, STASH_PACKETS_MAX, WAIT};

use self::core::Core;
use self::ending::Farewell;
use self::leaving::Leavers;
use crate::channel::Timing;
use crate::channel::identity::{Identity, PublicKey};
use crate::channel::server::{Admitted, Outcomes, SWITCHES_MAX, Server};
use larder_kernel::abi::SERVICES_MAX;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// How long front-ends may take to answer that nothing new comes.
const FAREWELL_WAIT: Duration = Duration::from_secs(1);

/// What an agent is told at its start.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The node's name, for the front-end's logs. At most 256 bytes.
    pub name: String,
    /// Where front-ends connect to.
    pub listen: SocketAddr,
    /// Who the node is.
    pub identity: Identity,
    /// Keys of the front-ends that it works for. 1 to 64.
    pub switches: Vec<PublicKey>,
    /// The interface that takes the clients' packets; `None`: there is none, the node takes no handoffs.
    pub interface: Option<String>,
    /// Listen addresses that front-ends may have it look after; all others are refused. At most 64.
    pub services: Vec<SocketAddr>,
    /// Whether the server in this process fetches what other nodes have: front-ends are told.
    pub lateral: bool,
    /// Times of the control channel.
    pub timing: Timing,
}

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A list is empty or too long.
    #[error("{field}: {expected}")]
    Config {
        /// Which, as in [`AgentConfig`].
        field: &'static str,
        /// What it may hold.
        expected: &'static str,
    },
    /// The control address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The interface is not there.
    #[error("interface {name}")]
    Interface {
        /// Its name.
        name: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// What the kernel tells cannot be waited for, or there is no randomness.
    #[error("the system refuses")]
    System(#[source] io::Error),
}

/// An agent at work. Ends when dropped, but is better stopped.
#[derive(Debug)]
pub struct Agent {
    address: SocketAddr,
    outcomes: Arc<Outcomes>,
    admitted: Admitted,
    asker: Asker,
    giver: Giver,
    farewells: mpsc::Sender<Farewell>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Agent {
    /// Starts to work, on the current tokio runtime. Without `forwarding` the node takes no handoffs and says so: it
    /// reports its load only. Without `sockets` it takes connections by cookie only: there is no server in this process
    /// that restored ones could be given to. A front-end is told that connections are refused while `sockets` has no
    /// room, or no place.
    ///
    /// # Errors
    /// If the config cannot be, or the system refuses something.
    pub async fn start(
        config: AgentConfig,
        forwarding: Option<Arc<dyn Forwarding>>,
        sockets: Option<Sockets>,
    ) -> Result<Self, AgentError> {
        config.check()?;
        let described = config.interface.as_deref().map(|name| {
            let failed = |source| AgentError::Interface { name: name.to_owned(), source };
            larder_kernel::interface::interface(name).map_err(failed)
        });
        let described = described.transpose()?;
        let AgentConfig { name, listen, identity, switches, services, lateral, timing, .. } = config;
        let refused = |source| AgentError::Listen { address: listen, source };
        let server = Server::bind(listen, identity, switches, timing).await.map_err(refused)?;
        let address = server.address().map_err(refused)?;
        let (outcomes, admitted) = (server.outcomes(), server.admitted());
        let mut core =
            Core::new(name, services, timing, described, forwarding, sockets).map_err(AgentError::System)?;
        core.set_lateral(lateral);
        let events = core.events().map_err(AgentError::System)?;
        let (stop, stopped) = oneshot::channel();
        let (asker, asks) = Asker::new();
        let (leavers_in, leavers) = mpsc::channel(leaving::LEAVERS_MAX);
        let (release, released) = watch::channel(0);
        let leavers = Leavers { leavers, release };
        let giver = Giver { leavers: leavers_in, release: released };
        let (farewells, to_tell) = mpsc::channel(1);
        let task = tokio::spawn(core.run(server, events, asks, leavers, to_tell, stopped));
        tracing::info!(%address, "agent: listening");
        Ok(Self { address, outcomes, admitted, asker, giver, farewells, stop: Some(stop), task })
    }

    /// Where front-ends connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Gives connections of the server in this process up, to other nodes.
    pub fn giver(&self) -> Giver {
        self.giver.clone()
    }

    /// How front-ends' attempts to connect ended, and how many channels ended because their key was revoked.
    pub fn outcomes(&self) -> Arc<Outcomes> {
        Arc::clone(&self.outcomes)
    }

    /// The front-ends that it works for: at first those of [`AgentConfig::switches`]. [`Admitted::replace`] revokes keys.
    pub fn admitted(&self) -> Admitted {
        self.admitted.clone()
    }

    /// Asks front-ends who has a target. Lives on when the agent has ended, and then knows nothing.
    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }

    /// Tells all front-ends that the server in this process ends soon, and waits until they have answered that nothing
    /// new comes, 1 s at the most. How many were told. What they sent before that answer may still be on its way.
    pub async fn farewell(&self) -> usize {
        let (all_know, known) = oneshot::channel();
        if self.farewells.send(all_know).await.is_err() {
            return 0;
        }
        match tokio::time::timeout(FAREWELL_WAIT, known).await {
            Ok(told) => told.unwrap_or(0),
            Err(_) => {
                tracing::warn!("switch: drain not acknowledged");
                1
            }
        }
    }

    /// Ends: what has ended on the node is told first. When this returns the agent holds [`Forwarding`] no longer.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        // Fails only if the task has panicked, and then it is over too.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AgentConfig {
    /// Whether every list is within its limits.
    ///
    /// # Errors
    /// The first that is not.
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
