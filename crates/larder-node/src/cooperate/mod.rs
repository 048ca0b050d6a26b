//! A node among equal peers, without a front-end: PRESS at work ([`larder_core::peers`]).
//!
//! Any node takes any client's request. Who serves it the protocol decides; this module keeps its state, tells it what
//! happens (requests, the memory's changes, members, messages), sends what it says, and moves requests: a forwarded one
//! goes to its service node over the [network of peers](crate::peers), and the reply through this node to the client
//! without being kept.
//!
//! A request that a peer forwards is served here, whatever this node believes, and goes no further. If the service node does
//! not answer, this node serves the request itself: only GET and HEAD are forwarded, so nothing happens twice. Once a part
//! of the reply has been sent, the connection to the client is cut when the rest does not come.
//!
//! One lock guards the protocol's state; it is held for a few look-ups and for the queueing of messages, in whose order
//! peers hear of changes.

use crate::memory::Memory;
use crate::node::Node;
use crate::peers::{Event, Events, Name, Network, NetworkError, PeersConfig, Way};
use crate::report::residents::{Change, Subscription};
use bytes::Bytes;
use http::Request;
use larder_core::peers::{Message, Outgoing, Press, PressSettings, To, Verdict, Why as Placed};
use larder_core::{NodeId, TargetId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

mod serve;
mod view;

pub(crate) use serve::{Relayed, Serviced};
pub use view::{MemberView, PeersView};

/// This node, among its peers.
const ME: NodeId = NodeId(0);
/// Changes of the memory that may wait to be told; a node that lags further behind goes through all it holds.
const CHANGES_MAX: usize = 1 << 16;
/// Names that are given numbers at most; further members are not used.
const NAMES_MAX: u16 = u16::MAX - 1;

/// How a node works with its peers.
#[derive(Clone, Debug)]
pub struct CooperateConfig {
    /// Their network.
    pub network: PeersConfig,
    /// The protocol. `large_min` bounds what this node keeps in memory too.
    pub press: PressSettings,
    /// How long a service node may take to begin its reply. Then this node serves the request.
    pub head_timeout: Duration,
}

/// A node's part of the cluster.
#[derive(Debug)]
pub(crate) struct Cooperation {
    network: Network,
    state: Mutex<State>,
    /// Something is due sooner than it was.
    sooner: Notify,
    began: Instant,
    head_timeout: Duration,
    /// Decisions by reason, as [`Placed::ALL`] has them.
    placed: [AtomicU64; Placed::ALL.len()],
    loads_told: AtomicU64,
    changes_told: AtomicU64,
}

#[derive(Debug)]
struct State {
    press: Press,
    numbers: BTreeMap<Name, NodeId>,
    names: BTreeMap<NodeId, Name>,
    out: Vec<Outgoing>,
}

impl Cooperation {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Does something with the protocol, and sends what it says.
    fn with<R>(&self, act: impl FnOnce(&mut Press, Time, &mut Vec<Outgoing>) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        let State { press, names, out, .. } = &mut *state;
        let due = press.due();
        let result = act(press, now, out);
        for Outgoing { to, message } in out.drain(..) {
            self.send(names, to, &message);
        }
        if press.due() < due {
            self.sooner.notify_one();
        }
        result
    }

    /// What cannot be sent is asked for by those who miss it.
    fn send(&self, names: &BTreeMap<NodeId, Name>, to: To, message: &Message) {
        let bytes = Bytes::from(message.encode());
        match (to, message) {
            (To::All, Message::Load { .. }) => self.loads_told.fetch_add(1, Relaxed),
            (To::All, _) => self.changes_told.fetch_add(1, Relaxed),
            (To::One(_), _) => 0,
        };
        let sent = match to {
            To::All => self.network.broadcast(&bytes).map(drop),
            To::One(node) => names.get(&node).map_or(Ok(()), |name| self.network.send(name, bytes)),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "a message to a peer was not sent");
        }
    }

    /// Who serves a request, the name of that node if it is not this one, and whether this node has it in memory.
    fn decide(&self, target: TargetId) -> (Verdict, Option<Name>, bool) {
        let mut state = self.lock();
        let now = self.now();
        let State { press, names, .. } = &mut *state;
        let verdict = press.decide(now, target, None);
        let name = names.get(&verdict.node).filter(|_| verdict.node != ME).cloned();
        let held = press.holds(target);
        drop(state);
        self.placed[verdict.why as usize].fetch_add(1, Relaxed);
        if verdict.why == Placed::Spread {
            // What it has assumed expires.
            self.sooner.notify_one();
        }
        (verdict, name, held)
    }

    /// A request that could not be forwarded is this node's.
    fn take_back(&self, node: NodeId, target: TargetId, to_blame: bool) {
        let verdict = self.with(|press, now, _| press.unanswered(now, node, target, to_blame));
        self.placed[verdict.why as usize].fetch_add(1, Relaxed);
    }

    /// A request that a peer has forwarded is this node's, whatever it believes.
    fn forwarded(&self, target: TargetId) {
        let verdict = self.with(|press, _, _| press.forwarded(target, None));
        self.placed[verdict.why as usize].fetch_add(1, Relaxed);
    }

    /// Works until the network ends.
    async fn run(self: Arc<Self>, mut events: Events, memory: Arc<Memory>) {
        let mut changes = self.follow(&memory);
        loop {
            let due = self.began + Duration::from_nanos(self.lock().press.due().as_nanos().min(u64::MAX / 4));
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => self.happened(event),
                    None => return,
                },
                change = next_change(&mut changes) => match change {
                    Some(change) => self.changed(change),
                    // Cut for lagging behind, or the node ends.
                    None => changes = self.follow(&memory),
                },
                () = tokio::time::sleep_until(due.into()) => self.with(Press::tick),
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Subscribes to changes of the memory, and goes through what it holds. None when the node ends.
    fn follow(&self, memory: &Memory) -> Option<Subscription> {
        let subscription = memory.subscribe(usize::MAX, CHANGES_MAX)?;
        let (mut from, mut held) = (0, BTreeSet::new());
        loop {
            let page = memory.resident_page(from);
            let Some(last) = page.last() else { break };
            from = last.place + 1;
            held.extend(page.iter().map(|resident| resident.target));
        }
        self.with(|press, now, out| {
            let gone = press.held().into_iter().filter(|target| !held.contains(target));
            gone.for_each(|target| press.noted(now, target, false, out));
            held.iter().for_each(|target| press.noted(now, *target, true, out));
        });
        Some(subscription)
    }

    fn changed(&self, change: Change) {
        let (target, cached) = match change {
            Change::Stored(target, _) => (target, true),
            Change::Evicted(target) => (target, false),
        };
        self.with(|press, now, out| press.noted(now, target, cached, out));
    }

    fn happened(&self, event: Event) {
        match event {
            Event::Joined(member) => {
                let Some(node) = self.number(&member.name) else { return };
                tracing::info!(peer = %member.name, address = %member.address, "a peer has come");
                self.with(|press, now, out| press.joined(now, node, out));
            }
            Event::Left(member, why) => {
                tracing::info!(peer = %member.name, ?why, "a peer has gone");
                let mut state = self.lock();
                if let Some(node) = state.numbers.remove(&member.name) {
                    state.press.left(node);
                    state.names.remove(&node);
                }
            }
            Event::Up(peer, Way::To) => self.of(&peer.name, Press::greet),
            Event::Up(_, Way::From) | Event::Down(..) => {}
            Event::Message(peer, bytes) => match Message::decode(&bytes) {
                Ok(message) => {
                    self.of(&peer.name, |press, now, node, out| press.hear(now, node, message, out));
                }
                Err(error) => tracing::warn!(peer = %peer.name, %error, "a message means nothing"),
            },
        }
    }

    fn of(&self, name: &Name, act: impl FnOnce(&mut Press, Time, NodeId, &mut Vec<Outgoing>)) {
        let node = self.lock().numbers.get(name).copied();
        if let Some(node) = node {
            self.with(|press, now, out| act(press, now, node, out));
        }
    }

    /// The number of a member, the lowest that is free if it has none yet.
    fn number(&self, name: &Name) -> Option<NodeId> {
        let mut state = self.lock();
        if let Some(node) = state.numbers.get(name) {
            return Some(*node);
        }
        let node = (1..NAMES_MAX).map(NodeId).find(|node| !state.names.contains_key(node))?;
        state.numbers.insert(name.clone(), node);
        state.names.insert(node, name.clone());
        Some(node)
    }
}

async fn next_change(changes: &mut Option<Subscription>) -> Option<Change> {
    match changes {
        Some(subscription) => subscription.changes.recv().await.map(|told| told.change),
        None => std::future::pending().await,
    }
}

impl Node {
    /// Joins its peers, and works with them until [`Node::leave_peers`].
    ///
    /// # Errors
    /// The network cannot be started.
    pub async fn join_peers(self: &Arc<Self>, config: CooperateConfig) -> Result<(), NetworkError> {
        let CooperateConfig { network, press, head_timeout } = config;
        let node: Weak<Self> = Arc::downgrade(self);
        let service = move |request: Request<hyper::body::Incoming>, _from: Name| {
            let node = node.upgrade();
            async move {
                match node {
                    Some(node) => node.answer_peer(request).await,
                    None => serve::gone(),
                }
            }
        };
        let (network, events) = Network::start(network, service).await?;
        let epoch = network.incarnation().max(1);
        let cooperation = Arc::new(Cooperation {
            network,
            state: Mutex::new(State {
                press: Press::new(ME, epoch, press),
                numbers: BTreeMap::new(),
                names: BTreeMap::new(),
                out: Vec::new(),
            }),
            sooner: Notify::new(),
            began: Instant::now(),
            head_timeout,
            placed: Default::default(),
            loads_told: AtomicU64::new(0),
            changes_told: AtomicU64::new(0),
        });
        tokio::spawn(Arc::clone(&cooperation).run(events, Arc::clone(&self.memory)));
        let _ = self.cooperation.set(cooperation);
        Ok(())
    }

    /// Tells the peers that this node goes, and lets end what they have forwarded. `true` if nothing was cut.
    pub async fn leave_peers(&self) -> bool {
        match self.cooperation.get() {
            Some(cooperation) => cooperation.network.leave().await,
            None => true,
        }
    }

    /// What the cluster looks like from here; `None` if there are no peers.
    pub fn peers(&self) -> Option<PeersView> {
        self.cooperation.get().map(|cooperation| cooperation.view())
    }
}
