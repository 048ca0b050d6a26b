//! Peer switches: exchanges load and server sets with other switches in front of the same nodes. An endpoint picker with several
//! replicas uses the same protocol.
//!
//! [`larder_core::switches`] is the state machine, and [`larder_peers`] the network: membership by SWIM, messages
//! over encrypted links. One task carries events and messages between them. If the network cannot be joined, the
//! switch serves alone and tries again. A process that replaces another has the same name with a newer incarnation,
//! and takes the port once the other has released it.

mod config;
mod status;

pub use config::SwitchesConfig;
/// The types of [`SwitchesConfig::network`].
pub use larder_peers::{ClusterSecret, GossipConfig, PeersConfig};
pub use status::{PeerSwitchStatus, SetsStatus, SwitchesStatus};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Empty;
use larder_core::chain::SharedChains;
use larder_core::dispatch::SettingsError;
use larder_core::switches::{PeerSwitchSummary, Switches, SwitchesCounts, SwitchesOutput};
use larder_core::{DequeuedRequest, Dispatcher, RouteId, Time};
use larder_peers::{CounterValues, Event, Events, LeaveReason, LinkDirection, Name, Network, SendError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Pause between two attempts to bind the network's port, which an earlier process may still hold.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_LATER: Duration = Duration::from_secs(1);
/// Number of attempts after which an error is logged.
const TELL_AFTER: u32 = 100;
/// Timeout of telling the peers that this switch leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// A program that has a dispatcher.
pub trait DispatcherHost: Send + Sync + 'static {
    /// Returns the time of the dispatcher's clock.
    fn now(&self) -> Time;

    /// Returns the dispatcher.
    fn dispatcher(&self) -> &Dispatcher;

    /// Delivers requests that were queued and could start.
    fn deliver(&self, now: Time, started: Vec<DequeuedRequest>);
}

/// Wanted state of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkState {
    /// Joined.
    On,
    /// Released, for another process of this name.
    Off,
    /// Left, after telling the peers.
    Left,
}

/// This switch's view of its peers.
#[derive(Debug)]
pub struct PeerSwitches {
    config: SwitchesConfig,
    machine: Mutex<Switches>,
    wanted: watch::Sender<NetworkState>,
    /// The network, while it is joined.
    network: Mutex<Option<Arc<Network>>>,
    ended: watch::Sender<bool>,
}

impl PeerSwitches {
    /// Creates the view, without peers. `routes` are the names of the dispatcher's routes, which all peers must use; `chains`
    /// are the chain dispatchers of some of them.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(
        config: SwitchesConfig,
        now: Time,
        routes: Vec<(RouteId, String)>,
        chains: Vec<(RouteId, Arc<SharedChains>)>,
        dispatcher: &Dispatcher,
    ) -> Result<Self, SettingsError> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let life = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
        let name = Arc::from(config.network.name.as_str());
        let mut machine = Switches::new(now, (name, life), config.settings, routes, dispatcher)?;
        chains.into_iter().for_each(|(route, chains)| machine.share_chains(route, chains));
        Ok(Self {
            config,
            machine: Mutex::new(machine),
            wanted: watch::Sender::new(NetworkState::On),
            network: Mutex::default(),
            ended: watch::Sender::new(false),
        })
    }

    /// Releases the network for another process of this name.
    pub fn release(&self) {
        self.wanted.send_replace(NetworkState::Off);
    }

    /// Joins the network again, because the other process did not start.
    pub fn resume(&self) {
        self.wanted.send_replace(NetworkState::On);
    }

    /// Tells the peers that this switch leaves, unless another process has replaced it.
    pub async fn leave(&self) {
        let off = *self.wanted.borrow() == NetworkState::Off;
        if off {
            return;
        }
        self.wanted.send_replace(NetworkState::Left);
        let mut ended = self.ended.subscribe();
        // If the task was aborted, the peers were not told.
        let _ = timeout(LEAVE_TIMEOUT, ended.wait_for(|ended| *ended)).await;
    }

    fn machine(&self) -> MutexGuard<'_, Switches> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn network(&self) -> MutexGuard<'_, Option<Arc<Network>>> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters of the network; zeros while it is not joined.
    pub fn network_counts(&self) -> CounterValues {
        self.network().as_ref().map(|network| network.counters().read()).unwrap_or_default()
    }

    /// Returns the peers and the counters of messages.
    pub fn peers_and_counts(&self, now: Time) -> (Vec<PeerSwitchSummary>, SwitchesCounts) {
        let machine = self.machine();
        (machine.statuses(now), machine.counts())
    }
}

/// Exchanges messages with the peers until this switch leaves.
pub async fn run(host: Arc<impl DispatcherHost>, peer_switches: Arc<PeerSwitches>) {
    let mut wanted = peer_switches.wanted.subscribe();
    let mut attempts = 0;
    loop {
        let now = *wanted.borrow_and_update();
        match now {
            NetworkState::Left => break,
            NetworkState::Off => _ = wanted.changed().await,
            NetworkState::On => {
                match Network::start(peer_switches.config.network.clone(), refuse_request).await {
                    Ok((network, events)) => {
                        attempts = 0;
                        tracing::info!(name = %network.name(), address = %network.local_addr(), "peer switches: listening");
                        let network = Arc::new(network);
                        *peer_switches.network() = Some(network.clone());
                        exchange_messages(&*host, &peer_switches, &network, events, &mut wanted).await;
                        *peer_switches.network() = None;
                        let left = *wanted.borrow() == NetworkState::Left;
                        if left {
                            network.leave().await;
                        }
                    }
                    Err(error) => {
                        attempts += 1;
                        if attempts == TELL_AFTER {
                            tracing::warn!(%error, "peer switches: cannot join the network, serving alone and retrying");
                        }
                        let pause = if attempts < TELL_AFTER { RETRY } else { RETRY_LATER };
                        let _ = timeout(pause, wanted.changed()).await;
                    }
                }
            }
        }
    }
    peer_switches.ended.send_replace(true);
}

/// Switches do not forward requests to each other.
async fn refuse_request(_: http::Request<hyper::body::Incoming>, _: Name) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// Passes events to the machine and messages to the network, until another state is wanted.
async fn exchange_messages(
    host: &impl DispatcherHost,
    peer_switches: &PeerSwitches,
    network: &Network,
    mut events: Events,
    wanted: &mut watch::Receiver<NetworkState>,
) {
    let mut names: BTreeMap<Name, Arc<str>> = BTreeMap::new();
    let mut ticks = interval(peer_switches.config.settings.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            biased;
            _ = wanted.changed() => break,
            // Before messages: others must hear of loads while many messages arrive.
            _ = ticks.tick() => None,
            event = events.next() => match event {
                Some(event) => Some(event),
                None => break,
            },
        };
        let (now, mut out) = (host.now(), SwitchesOutput::default());
        handle_event(host.dispatcher(), peer_switches, now, &mut names, event, &mut out);
        send(network, &names, &out);
        host.deliver(now, out.started);
    }
    let (now, mut out) = (host.now(), SwitchesOutput::default());
    let mut machine = peer_switches.machine();
    names.values().for_each(|name| machine.remove_switch(now, name, host.dispatcher(), &mut out));
    drop(machine);
    host.deliver(now, out.started);
}

/// Handles an event or the passing of time.
fn handle_event(
    dispatcher: &Dispatcher,
    peer_switches: &PeerSwitches,
    now: Time,
    names: &mut BTreeMap<Name, Arc<str>>,
    event: Option<Event>,
    out: &mut SwitchesOutput,
) {
    let mut machine = peer_switches.machine();
    let known = |names: &BTreeMap<Name, Arc<str>>, name: &Name| names.get(name).cloned();
    match event {
        None => machine.tick(now, dispatcher, out),
        Some(Event::Joined(member)) => {
            tracing::info!(name = %member.name, address = %member.address, "peer switch: joined");
            let name: Arc<str> = Arc::from(member.name.as_str());
            names.insert(member.name, name.clone());
            machine.add_switch(now, &name, dispatcher, out);
        }
        Some(Event::Left(member, why)) => {
            match why {
                LeaveReason::Lost => tracing::warn!(name = %member.name, "peer switch: failed"),
                LeaveReason::Announced | LeaveReason::Replaced => {
                    tracing::info!(name = %member.name, reason = ?why, "peer switch: left");
                }
            }
            if let Some(name) = names.remove(&member.name) {
                machine.remove_switch(now, &name, dispatcher, out);
            }
        }
        Some(Event::LinkUp(peer, way)) => match (known(names, &peer.name), way) {
            (Some(name), LinkDirection::Outbound) => machine.link_up(&name, now, dispatcher, out),
            (Some(name), LinkDirection::Inbound) => machine.interrupt_link(&name),
            (None, _) => {}
        },
        Some(Event::LinkDown(peer, LinkDirection::Outbound)) => {
            _ = known(names, &peer.name).inspect(|name| machine.link_down(name));
        }
        // The machine forgets the load of the peer after a while without messages.
        Some(Event::LinkDown(_, LinkDirection::Inbound)) => {}
        Some(Event::Message(peer, message)) => {
            let Some(name) = known(names, &peer.name) else { return };
            if let Err(error) = machine.receive(now, &name, &message, dispatcher, out) {
                larder_log::limited_warn!(%name, %error, "peer switch: invalid message ignored");
            }
        }
    }
}

fn send(network: &Network, names: &BTreeMap<Name, Arc<str>>, out: &SwitchesOutput) {
    for outgoing in &out.messages {
        let message = Bytes::copy_from_slice(&outgoing.message);
        let sent = match &outgoing.to {
            None => network.broadcast(&message).map(|_| ()),
            Some(to) => {
                let name = names.iter().find(|(_, name)| *name == to).map(|(name, _)| name);
                name.map_or(Err(SendError::Down), |name| network.send(name, message))
            }
        };
        if let Err(error) = sent {
            // The link is reopened, and the current state is sent again.
            tracing::debug!(%error, "peer switch: message not sent");
        }
    }
}
