//! The handle of a member to the network: start, send, forward, leave.

use crate::acceptor::{Acceptor, Phase, Service};
use crate::config::{ConfigError, PeersConfig};
use crate::control_links::{InboundLinks, LinkEvent, MemberTable, OutboundLinks, SendError};
use crate::counters::Counters;
use crate::data_links::{BodyError, DataLinks, ForwardError, ReplyBody};
use crate::events::Events;
use crate::gossip::{self, Membership};
use crate::handshaker::Handshaker;
use crate::keyring::Keyring;
use crate::member::{Change, LocalMember, Member};
use crate::name::Name;
use crate::secret::ClusterSecrets;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

#[cfg(test)]
pub(crate) mod tests;

/// Maximum attempts to find a port that is free for both TCP and UDP.
const BIND_ATTEMPTS: usize = 16;
/// Maximum wait for aborted connections to be dropped when a member leaves.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the network cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A value of the configuration is out of range.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The address cannot be bound.
    #[error("cannot listen on {address} (TCP and UDP): {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A member's handle to the network. Dropping it closes everything without an announcement, as a crash would.
#[derive(Debug)]
pub struct Network {
    local_addr: SocketAddr,
    local: Arc<LocalMember>,
    membership: Membership,
    links: Arc<DataLinks>,
    outbound: Arc<OutboundLinks>,
    counters: Arc<Counters>,
    keyring: Arc<Keyring>,
    phase: watch::Sender<Phase>,
    drain_timeout: Duration,
    changes_task: AbortHandle,
    acceptor_task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    #[cfg(test)]
    pub(crate) blocked: gossip::BlockedAddresses,
}

impl Network {
    /// Binds the sockets, starts membership, and answers forwarded requests with `service`.
    ///
    /// # Errors
    /// If the config is invalid or the address cannot be bound.
    pub async fn start<S: Service>(config: PeersConfig, service: S) -> Result<(Self, Events), NetworkError> {
        config.check()?;
        let listen = config.listen;
        let failed = |source| NetworkError::Listen { address: listen, source };
        let (listener, socket) = bind(listen).await.map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        let mut address = config.advertise.unwrap_or(local_addr);
        if address.port() == 0 {
            address.set_port(local_addr.port());
        }
        let local = Arc::new(LocalMember::new(config.name.clone(), new_incarnation()));
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(config.secrets.clone(), Arc::clone(&counters));
        #[cfg(test)]
        let blocked = gossip::BlockedAddresses::default();
        let start = gossip::Start {
            local: Arc::clone(&local),
            address,
            keyring: Arc::clone(&keyring),
            seeds: config.seeds.clone(),
            config: config.gossip,
            counters: Arc::clone(&counters),
            #[cfg(test)]
            blocked: Arc::clone(&blocked),
        };
        let (membership, changes) = Membership::start(start, socket).map_err(failed)?;
        let handshaker = Arc::new(Handshaker {
            local: Arc::clone(&local),
            keyring: Arc::clone(&keyring),
            timeout: config.links.connect_timeout,
            counters: Arc::clone(&counters),
        });
        let (link_events, events) = mpsc::channel(config.control.events_max);
        let (table, table_receiver) = watch::channel(MemberTable::default());
        let (phase, phase_receiver) = watch::channel(Phase::Serving);
        let links = Arc::new(DataLinks::new(config.links, Arc::clone(&handshaker)));
        let outbound =
            Arc::new(OutboundLinks::new(config.control, Arc::clone(&handshaker), link_events.clone()));
        let inbound =
            InboundLinks::new(config.control, Arc::clone(&counters), table_receiver, link_events.clone());
        let acceptor = Acceptor {
            config: config.links,
            handshaker,
            inbound: Arc::new(inbound),
            service,
            phase: phase_receiver,
        };
        let acceptor_task = tokio::spawn(acceptor.run(listener));
        let apply = apply_changes(changes, link_events, table, Arc::clone(&links), Arc::clone(&outbound));
        let network = Self {
            local_addr,
            local,
            membership,
            links,
            outbound,
            counters,
            keyring,
            phase,
            drain_timeout: config.links.drain_timeout,
            changes_task: tokio::spawn(apply).abort_handle(),
            acceptor_task: tokio::sync::Mutex::new(Some(acceptor_task)),
            #[cfg(test)]
            blocked,
        };
        Ok((network, Events::new(events)))
    }

    /// The address on which this member listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// This member's name.
    pub fn name(&self) -> &Name {
        &self.local.name
    }

    /// This member's incarnation; see [`Member::incarnation`]. It is raised later if the host's clock has gone back since
    /// the last process of this name.
    pub fn incarnation(&self) -> u64 {
        self.local.incarnation()
    }

    /// The other members now, ordered by name. The events of a change may come later.
    pub fn members(&self) -> Arc<[Member]> {
        self.membership.members()
    }

    /// Forwards a request to a member and waits for the head of the reply, without a time limit. Dropping the future or
    /// the reply's body resets the stream.
    ///
    /// # Errors
    /// If there is no reply. [`ForwardError::may_be_processed`] tells whether the request is safe to send elsewhere.
    pub async fn forward<B>(
        &self,
        to: &Name,
        request: Request<B>,
    ) -> Result<Response<ReplyBody>, ForwardError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        self.links.forward(to, request).await
    }

    /// Queues a message to a member. Messages to one member arrive in order. Does not block.
    ///
    /// # Errors
    /// If there is no link, the link's queue is full, or the message is empty or too long.
    pub fn send(&self, to: &Name, message: Bytes) -> Result<(), SendError> {
        self.outbound.send(to, message)
    }

    /// Queues a message to every member whose link is up, and returns the number of these members. Does not block. A
    /// link whose queue is full is reconnected.
    ///
    /// # Errors
    /// If the message is empty or too long.
    pub fn broadcast(&self, message: &Bytes) -> Result<usize, SendError> {
        self.outbound.broadcast(message)
    }

    /// Replaces the secrets. From now on, this member sends with the first one. Connections that this member opened with
    /// another secret are replaced by new ones; requests in flight on them finish. Connections whose secret is no longer
    /// accepted are closed at once, in both directions.
    pub fn set_secrets(&self, secrets: ClusterSecrets) {
        let accepted = secrets.all().count();
        if self.keyring.set(secrets) {
            tracing::info!(accepted, "cluster secret: replaced");
        }
    }

    #[cfg(test)]
    pub(crate) const fn links(&self) -> &Arc<DataLinks> {
        &self.links
    }

    /// The network's counters.
    pub const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Leaves the cluster: announces it, accepts no more requests, waits up to `drain_timeout` for requests in flight, and
    /// aborts the rest. Requests that this member has forwarded continue until the network is dropped. Returns `true` if
    /// nothing was aborted.
    pub async fn leave(&self) -> bool {
        self.membership.leave().await;
        self.phase.send_replace(Phase::Draining);
        self.outbound.close_all();
        let Some(mut acceptor) = self.acceptor_task.lock().await.take() else { return true };
        if timeout(self.drain_timeout, &mut acceptor).await.is_ok() {
            return true;
        }
        self.phase.send_replace(Phase::Stopped);
        // Aborted connections are dropped when their tasks are next polled.
        let _ = timeout(ABORT_TIMEOUT, acceptor).await;
        false
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.changes_task.abort();
        self.phase.send_replace(Phase::Stopped);
        self.outbound.close_all();
        self.links.abort_all();
        if let Some(acceptor) = self.acceptor_task.get_mut().take() {
            acceptor.abort();
        }
    }
}

/// Returns the incarnation of a process that starts now.
fn new_incarnation() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// Binds TCP and UDP to the same port.
async fn bind(listen: SocketAddr) -> io::Result<(TcpListener, UdpSocket)> {
    let mut attempts = if listen.port() == 0 { BIND_ATTEMPTS } else { 1 };
    loop {
        let listener = TcpListener::bind(listen).await?;
        attempts -= 1;
        match UdpSocket::bind(listener.local_addr()?).await {
            Ok(socket) => return Ok((listener, socket)),
            Err(error) if attempts == 0 => return Err(error),
            Err(_) => {}
        }
    }
}

/// Reports each change of membership as an event, then opens or closes the member's links. A caller that is slow to take
/// events delays links, but not membership.
async fn apply_changes(
    mut changes: mpsc::Receiver<Change>,
    events: mpsc::Sender<LinkEvent>,
    table: watch::Sender<MemberTable>,
    links: Arc<DataLinks>,
    outbound: Arc<OutboundLinks>,
) {
    let mut epoch = 0;
    while let Some(change) = changes.recv().await {
        epoch += 1;
        if events.send(LinkEvent::Membership(change.clone(), epoch)).await.is_err() {
            return;
        }
        match change {
            Change::Joined(member) => {
                table.send_modify(|table| {
                    Arc::make_mut(table).insert(member.id(), epoch);
                });
                links.add(member.clone());
                outbound.add(member);
            }
            Change::Left(member, _) => {
                table.send_modify(|table| {
                    Arc::make_mut(table).remove(&member.id());
                });
                links.remove(&member);
                outbound.remove(&member.name);
            }
        }
    }
}
