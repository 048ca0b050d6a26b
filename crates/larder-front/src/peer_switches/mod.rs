//! Switches side by side: what this one hears of the others, and tells them.
//!
//! The state machine is [`larder_core::switches`], the network [`larder_peers`]: membership by SWIM, messages over sealed links.
//! One task carries events from the one to the other and back. Where the network cannot be had, the switch serves by itself
//! and tries again. A process that takes another's place has the same name and a newer life of it, and its port as soon as
//! the other has let go of it.

pub(crate) mod config;

pub use config::SwitchesConfig;

use crate::decider::Decider;
use crate::routing::Routing;
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Empty;
use larder_core::dispatch::SettingsError;
use larder_core::switches::{OtherView, Out, Switches, SwitchesCounts};
use larder_core::{Dispatcher, Time};
use larder_peers::{CounterValues, Event, Events, LinkDirection, Name, Network, SendError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Between two attempts to have the network's port: at first a predecessor may still hold it.
const RETRY: Duration = Duration::from_millis(50);
const RETRY_LATER: Duration = Duration::from_secs(1);
/// Attempts after which the operator is told.
const TELL_AFTER: u32 = 100;
/// Longest wait for the others to be told that this one leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the network is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Joined.
    On,
    /// Let go of, for another process of this name.
    Off,
    /// Left in good order.
    Left,
}

/// This switch, beside others.
#[derive(Debug)]
pub(crate) struct PeerSwitches {
    pub(crate) config: SwitchesConfig,
    machine: Mutex<Switches>,
    wanted: watch::Sender<Wanted>,
    /// Who is in the network, while it is joined.
    network: Mutex<Option<Arc<Network>>>,
    ended: watch::Sender<bool>,
}

impl PeerSwitches {
    pub(crate) fn new(
        config: SwitchesConfig,
        now: Time,
        routing: &Routing,
        dispatcher: &Dispatcher,
    ) -> Result<Self, SettingsError> {
        let routes = routing.all().map(|(id, route)| (id, route.name.to_string())).collect();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let life = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
        let machine = Switches::new(now, life, config.settings, routes, dispatcher)?;
        Ok(Self {
            config,
            machine: Mutex::new(machine),
            wanted: watch::Sender::new(Wanted::On),
            network: Mutex::default(),
            ended: watch::Sender::new(false),
        })
    }

    /// Another process of this name takes the port.
    pub(crate) fn let_go(&self) {
        self.wanted.send_replace(Wanted::Off);
    }

    /// The other process did not come up.
    pub(crate) fn resume(&self) {
        self.wanted.send_replace(Wanted::On);
    }

    /// Tells the others that this switch leaves. Nothing is told where another process has taken its place.
    pub(crate) async fn leave(&self) {
        let off = *self.wanted.borrow() == Wanted::Off;
        if off {
            return;
        }
        self.wanted.send_replace(Wanted::Left);
        let mut ended = self.ended.subscribe();
        // A task that was ended otherwise has told nobody.
        let _ = timeout(LEAVE_TIMEOUT, ended.wait_for(|ended| *ended)).await;
    }

    pub(crate) fn machine(&self) -> MutexGuard<'_, Switches> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn network(&self) -> MutexGuard<'_, Option<Arc<Network>>> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerSwitches {
    /// The counts of the network; zeros while it is not joined.
    pub(crate) fn counted(&self) -> CounterValues {
        self.network().as_ref().map(|network| network.counters().read()).unwrap_or_default()
    }

    /// The others, and what has been told and heard.
    pub(crate) fn numbers(&self, now: Time) -> (Vec<OtherView>, SwitchesCounts) {
        let machine = self.machine();
        (machine.others(now), machine.counts())
    }
}

/// Works with the other switches until this one leaves.
pub(crate) async fn run(decider: Arc<Decider>, beside: Arc<PeerSwitches>) {
    let mut wanted = beside.wanted.subscribe();
    let mut attempts = 0;
    loop {
        let now = *wanted.borrow_and_update();
        match now {
            Wanted::Left => break,
            Wanted::Off => _ = wanted.changed().await,
            Wanted::On => match Network::start(beside.config.network.clone(), not_here).await {
                Ok((network, events)) => {
                    attempts = 0;
                    tracing::info!(name = %network.name(), address = %network.local_addr(), "peer switches: listening");
                    let network = Arc::new(network);
                    *beside.network() = Some(network.clone());
                    work(&decider, &beside, &network, events, &mut wanted).await;
                    *beside.network() = None;
                    let left = *wanted.borrow() == Wanted::Left;
                    if left {
                        network.leave().await;
                    }
                }
                Err(error) => {
                    attempts += 1;
                    if attempts == TELL_AFTER {
                        tracing::error!(%error, "this switch works by itself: the others cannot be joined; it goes on trying");
                    }
                    let pause = if attempts < TELL_AFTER { RETRY } else { RETRY_LATER };
                    let _ = timeout(pause, wanted.changed()).await;
                }
            },
        }
    }
    beside.ended.send_replace(true);
}

/// Switches forward no requests to each other.
async fn not_here(_: http::Request<hyper::body::Incoming>, _: Name) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// Carries events to the machine and messages to the network, until something else is wanted.
async fn work(
    decider: &Decider,
    beside: &PeerSwitches,
    network: &Network,
    mut events: Events,
    wanted: &mut watch::Receiver<Wanted>,
) {
    let mut names: BTreeMap<Name, Arc<str>> = BTreeMap::new();
    let mut ticks = interval(beside.config.settings.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            biased;
            _ = wanted.changed() => break,
            event = events.next() => match event {
                Some(event) => Some(event),
                None => break,
            },
            _ = ticks.tick() => None,
        };
        let (now, mut out) = (decider.clock.now(), Out::default());
        happen(decider, beside, now, &mut names, event, &mut out);
        send(network, &names, &out);
        decider.waiters.deliver(&decider.dispatcher, now, out.started);
    }
    let (now, mut out) = (decider.clock.now(), Out::default());
    let mut machine = beside.machine();
    names.values().for_each(|name| machine.left(now, name, &decider.dispatcher, &mut out));
    drop(machine);
    decider.waiters.deliver(&decider.dispatcher, now, out.started);
}

/// What the machine makes of an event, or of the time.
fn happen(
    decider: &Decider,
    beside: &PeerSwitches,
    now: Time,
    names: &mut BTreeMap<Name, Arc<str>>,
    event: Option<Event>,
    out: &mut Out,
) {
    let (dispatcher, mut machine) = (&decider.dispatcher, beside.machine());
    let known = |names: &BTreeMap<Name, Arc<str>>, name: &Name| names.get(name).cloned();
    match event {
        None => machine.tick(now, dispatcher, out),
        Some(Event::Joined(member)) => {
            tracing::info!(name = %member.name, address = %member.address, "peer switch: joined");
            let name: Arc<str> = Arc::from(member.name.as_str());
            names.insert(member.name, name.clone());
            machine.joined(now, &name, dispatcher, out);
        }
        Some(Event::Left(member, why)) => {
            tracing::info!(name = %member.name, ?why, "peer switch: left");
            if let Some(name) = names.remove(&member.name) {
                machine.left(now, &name, dispatcher, out);
            }
        }
        Some(Event::LinkUp(peer, way)) => match (known(names, &peer.name), way) {
            (Some(name), LinkDirection::Outbound) => machine.up(&name, now, dispatcher, out),
            (Some(name), LinkDirection::Inbound) => machine.afresh(&name),
            (None, _) => {}
        },
        Some(Event::LinkDown(peer, LinkDirection::Outbound)) => {
            _ = known(names, &peer.name).inspect(|name| machine.down(name))
        }
        // Its load is not known any more if nothing comes for a while.
        Some(Event::LinkDown(_, LinkDirection::Inbound)) => {}
        Some(Event::Message(peer, message)) => {
            let Some(name) = known(names, &peer.name) else { return };
            if let Err(error) = machine.message(now, &name, &message, dispatcher, out) {
                tracing::warn!(%name, %error, "peer switch: invalid message");
            }
        }
    }
}

fn send(network: &Network, names: &BTreeMap<Name, Arc<str>>, out: &Out) {
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
            // The link is made anew, and all that matters is said again then.
            tracing::debug!(%error, "a message to another switch was not sent");
        }
    }
}
