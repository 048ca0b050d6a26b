//! The network as a member uses it.

use crate::config::{ConfigError, LinksConfig, PeersConfig};
use crate::connect::Ends;
use crate::control::{Heard, Inbound, Outbound, SendError, Table};
use crate::counters::Counters;
use crate::events::Events;
use crate::gossip::{self, Membership};
use crate::keyring::Keyring;
use crate::links::{BodyError, ForwardError, Links, ReplyBody};
use crate::member::{Change, Member, Own};
use crate::name::Name;
use crate::port::{Phase, Port, Service};
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

/// Attempts to find a port that is free for TCP and UDP.
const BIND_ATTEMPTS: usize = 16;
/// Time that cut connections get to be dropped when a member leaves.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A value is out of its range. The operator's to mend.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// A member's part of the network. Dropping it ends it without a word, as a crash does.
#[derive(Debug)]
pub struct Network {
    local: SocketAddr,
    own: Arc<Own>,
    membership: Membership,
    links: Arc<Links>,
    outbound: Arc<Outbound>,
    counters: Arc<Counters>,
    keyring: Arc<Keyring>,
    phase: watch::Sender<Phase>,
    drain_timeout: Duration,
    hub: AbortHandle,
    port: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    #[cfg(test)]
    pub(crate) gate: gossip::Gate,
}

impl Network {
    /// Listens, looks for others, and answers what they forward with `service`.
    ///
    /// # Errors
    /// If the config is wrong or the address cannot be listened on.
    pub async fn start<S: Service>(config: PeersConfig, service: S) -> Result<(Self, Events), NetworkError> {
        config.check()?;
        let listen = config.listen;
        let failed = |source| NetworkError::Listen { address: listen, source };
        let (listener, socket) = bind(listen).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        let mut address = config.advertise.unwrap_or(local);
        if address.port() == 0 {
            address.set_port(local.port());
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let incarnation = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
        let own = Arc::new(Own::new(config.name.clone(), incarnation));
        let counters = Arc::<Counters>::default();
        let keyring = Keyring::new(config.secrets.clone(), Arc::clone(&counters));
        #[cfg(test)]
        let gate = gossip::Gate::default();
        let start = gossip::Start {
            own: Arc::clone(&own),
            address,
            keyring: Arc::clone(&keyring),
            seeds: config.seeds.clone(),
            config: config.gossip,
            counters: Arc::clone(&counters),
            #[cfg(test)]
            gate: Arc::clone(&gate),
        };
        let (membership, changes) = Membership::start(start, socket).map_err(failed)?;
        let ends = Arc::new(Ends {
            own: Arc::clone(&own),
            keyring: Arc::clone(&keyring),
            deadline: config.links.connect_timeout,
            counters: Arc::clone(&counters),
        });
        let (heard, events) = mpsc::channel(config.control.events_max);
        let (table, told) = watch::channel(Table::default());
        let (phase, phased) = watch::channel(Phase::Serving);
        let links = Arc::new(Links::new(config.links, Arc::clone(&ends)));
        let outbound = Arc::new(Outbound::new(config.control, Arc::clone(&ends), heard.clone()));
        let inbound = Inbound {
            config: config.control,
            counters: Arc::clone(&counters),
            table: told,
            heard: heard.clone(),
        };
        let port = Port { config: config.links, ends, inbound: Arc::new(inbound), service, phase: phased };
        let port = tokio::spawn(port.run(listener));
        let hub = hub(changes, heard, table, Arc::clone(&links), Arc::clone(&outbound));
        let LinksConfig { drain_timeout, .. } = config.links;
        let network = Self {
            local,
            own,
            membership,
            links,
            outbound,
            counters,
            keyring,
            phase,
            drain_timeout,
            hub: tokio::spawn(hub).abort_handle(),
            port: tokio::sync::Mutex::new(Some(port)),
            #[cfg(test)]
            gate,
        };
        Ok((network, Events::new(events)))
    }

    /// Where this member listens.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// This member's name.
    pub fn name(&self) -> &Name {
        &self.own.name
    }

    /// Which life of its name this is. Another one after a while if this host's clock has gone back.
    pub fn incarnation(&self) -> u64 {
        self.own.incarnation()
    }

    /// The other members, by name, as membership sees them now: events may say so later.
    pub fn members(&self) -> Arc<[Member]> {
        self.membership.members()
    }

    /// Forwards a request to a member and waits for its reply's head, without a limit on time. Dropping the future, or
    /// the reply's body, ends the stream.
    ///
    /// # Errors
    /// If there is no reply; [`ForwardError::sent`] says whether the request may have been worked on.
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

    /// Sends a message to a member, after those sent before. Does not wait.
    ///
    /// # Errors
    /// If there is no link, its queue is full, or the message too long.
    pub fn send(&self, to: &Name, message: Bytes) -> Result<(), SendError> {
        self.outbound.send(to, message)
    }

    /// Sends a message to every member whose link is up; how many those are. Does not wait. A link whose queue is full is
    /// made anew.
    ///
    /// # Errors
    /// If the message is too long.
    pub fn broadcast(&self, message: &Bytes) -> Result<usize, SendError> {
        self.outbound.broadcast(message)
    }

    /// Replaces the secrets. What is sent from now on is sealed with the first one. Connections that this member has made
    /// with another secret are made anew, and requests under way on them go on. Connections whose secret is no longer
    /// accepted end at once, in both directions.
    pub fn set_secrets(&self, secrets: ClusterSecrets) {
        let accepted = secrets.all().count();
        if self.keyring.set(secrets) {
            tracing::info!(accepted, "cluster secrets replaced");
        }
    }

    #[cfg(test)]
    pub(crate) const fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// What there is to count.
    pub const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Leaves in good order: tells the others, takes no more requests, lets those under way end within `drain_timeout`
    /// and cuts the rest. What this member has forwarded goes on until the network is dropped. `true` if nothing was
    /// cut.
    pub async fn leave(&self) -> bool {
        self.membership.leave().await;
        self.phase.send_replace(Phase::Draining);
        self.outbound.end();
        let Some(mut port) = self.port.lock().await.take() else { return true };
        if timeout(self.drain_timeout, &mut port).await.is_ok() {
            return true;
        }
        self.phase.send_replace(Phase::Over);
        // Cut connections are dropped when their tasks are next polled.
        let _ = timeout(CUT_TIMEOUT, port).await;
        false
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.hub.abort();
        self.phase.send_replace(Phase::Over);
        self.outbound.end();
        self.links.end();
        if let Some(port) = self.port.get_mut().take() {
            port.abort();
        }
    }
}

/// Listens with TCP and UDP on the same port.
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

/// Tells the user of each change, then has links made and ended. A user that is slow holds up changes, not membership.
async fn hub(
    mut changes: mpsc::Receiver<Change>,
    heard: mpsc::Sender<Heard>,
    table: watch::Sender<Table>,
    links: Arc<Links>,
    outbound: Arc<Outbound>,
) {
    let mut epoch = 0;
    while let Some(change) = changes.recv().await {
        epoch += 1;
        if heard.send(Heard::Changed(change.clone(), epoch)).await.is_err() {
            return;
        }
        match change {
            Change::Joined(member) => {
                table.send_modify(|table| {
                    Arc::make_mut(table).insert(member.peer(), epoch);
                });
                links.joined(member.clone());
                outbound.joined(member);
            }
            Change::Left(member, _) => {
                table.send_modify(|table| {
                    Arc::make_mut(table).remove(&member.peer());
                });
                links.left(&member);
                outbound.left(&member.name);
            }
        }
    }
}
