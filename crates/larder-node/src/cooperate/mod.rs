//! A node among equal peers, without a front-end: PRESS, CARD and WARD at work ([`larder_core::peers`]).
//!
//! Any node takes any client's request. Who serves it the policy decides; this module keeps its state, tells it what
//! happens (requests, the memory's changes, members, messages), sends what it says, and moves requests: a forwarded one
//! goes to its service node over the [network of peers](larder_peers), and the reply through this node to the client
//! without being kept.
//!
//! ```text
//! serve    requests and replies           side     the policies behind one face
//! view     what an operator sees          press, card, ward
//! ```
//!
//! A request that a peer forwards is served here, whatever this node believes, and goes no further. If the service node does
//! not answer, this node serves the request itself: only GET and HEAD are forwarded, so nothing happens twice. Once a part
//! of the reply has been sent, the connection to the client is cut when the rest does not come.
//!
//! One lock guards the policy's state; it is held for a few look-ups and for the queueing of messages, in whose order
//! peers hear of changes.

use crate::handover::Handover;
use crate::memory::Memory;
use crate::node::Node;
use crate::report::residents::{Change, Subscription};
use crate::terms::PeersMemory;
use bytes::Bytes;
use card::{Asked, CardSide};
use http::Request;
use larder_core::dispatch::SettingsError;
use larder_core::peers::{Claim, Why};
use larder_core::{NodeId, TargetId, Time};
use larder_handoff::channel::identity::IdentityError;
use larder_peers::{ClusterSecrets, Event, Events, Name, Network, NetworkError, PeersConfig, Way};
use side::{Policy, Say, Told};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use ward::{Job, WardSide};

mod card;
mod metrics;
mod press;
mod serve;
mod side;
mod view;
mod ward;

pub(crate) use serve::{Held, OwnFault, Relayed, Serviced};
pub use side::CooperatePolicy;
pub use view::{MemberView, PeersView, TableView};
pub use ward::{Analyst, WardConfig};

/// This node, among its peers.
const ME: NodeId = NodeId(0);
/// Changes of the memory that may wait to be told; a node that lags further behind goes through all it holds.
const CHANGES_MAX: usize = 1 << 16;
/// Names that are given numbers at most; further members are not used.
const NAMES_MAX: u16 = u16::MAX - 1;

/// Reasons that all policies have: another node forwarded it; its service node did not answer.
const FORWARDED: &str = Why::Forwarded.name();
const UNANSWERED: &str = Why::Unanswered.name();

/// How a node works with its peers.
#[derive(Clone, Debug)]
pub struct CooperateConfig {
    /// Their network.
    pub network: PeersConfig,
    /// Who decides where a request is served.
    pub policy: CooperatePolicy,
    /// How long a service node may take to begin its reply. Then this node serves the request.
    pub head_timeout: Duration,
    /// Hands connections over; `None`: all that peers serve is relayed.
    pub handover: Option<Arc<Handover>>,
}

/// Why a node cannot work with peers. The operator's to mend.
#[derive(Debug, thiserror::Error)]
pub enum CooperateError {
    /// Their network cannot be started.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A setting of the dispatcher is out of range.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// A node's part of the cluster.
#[derive(Debug)]
pub(crate) struct Cooperation {
    network: Network,
    state: Mutex<State>,
    /// Something is due sooner than it was, or to be done beside.
    sooner: Notify,
    began: Instant,
    head_timeout: Duration,
    pub(crate) handover: Option<Arc<Handover>>,
    memory: Arc<Memory>,
    /// Whether another may have to be asked who serves a request.
    asks: bool,
    /// Connections serviced here.
    load: AtomicU32,
    /// Decisions by reason.
    placed: Vec<(&'static str, AtomicU64)>,
    loads_told: AtomicU64,
    changes_told: AtomicU64,
    tables_told: AtomicU64,
}

#[derive(Debug)]
struct State {
    policy: Policy,
    numbers: BTreeMap<Name, NodeId>,
    /// The number given last.
    numbered: u16,
    names: BTreeMap<NodeId, Name>,
    /// Empty between two calls.
    out: Vec<Say>,
    /// To be begun; at most one of each kind.
    jobs: Vec<Job>,
}

/// Where a client's request is served.
#[derive(Debug)]
struct Place {
    node: NodeId,
    /// Of that node, if it is not this one.
    name: Option<Name>,
    /// Whether this node has it in memory, as far as the policy knows.
    held: bool,
    /// By what a dispatcher counts it.
    claim: Option<Claim>,
}

impl Cooperation {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Does something with the policy, and sends what it says.
    fn with<R>(&self, act: impl FnOnce(&mut Policy, Time, &mut Vec<Say>) -> R) -> R {
        let mut state = self.lock();
        let now = self.now();
        let State { policy, names, out, jobs, .. } = &mut *state;
        let due = policy.due();
        let result = act(policy, now, out);
        for say in out.drain(..) {
            match say {
                Say::To(node, bytes) => self.send(names.get(&node), bytes),
                Say::All(bytes, told) => self.broadcast(bytes, told),
                Say::Count { whole } => jobs.push(Job::Count { whole }),
                Say::Analyse(analyse) => jobs.push(Job::Analyse(analyse)),
            }
        }
        if policy.due() < due || !jobs.is_empty() {
            self.sooner.notify_one();
        }
        result
    }

    /// The same where one node decides for all.
    fn with_card<R>(&self, act: impl FnOnce(&mut CardSide, Time, &mut Vec<Say>) -> R) -> Option<R> {
        self.with(|policy, now, out| match policy {
            Policy::Card(card) => Some(act(card, now, out)),
            Policy::Press(_) | Policy::Ward(_) => None,
        })
    }

    /// The same where a table decides.
    fn with_ward<R>(&self, act: impl FnOnce(&mut WardSide, Time, &mut Vec<Say>) -> R) -> Option<R> {
        self.with(|policy, now, out| match policy {
            Policy::Ward(ward) => Some(act(ward, now, out)),
            Policy::Press(_) | Policy::Card(_) => None,
        })
    }

    /// What cannot be sent is asked for by those who miss it, or said again.
    fn send(&self, to: Option<&Name>, bytes: Vec<u8>) {
        let sent = to.map_or(Ok(()), |name| self.network.send(name, Bytes::from(bytes)));
        if let Err(error) = sent {
            tracing::debug!(%error, "a message to a peer was not sent");
        }
    }

    fn broadcast(&self, bytes: Vec<u8>, told: Told) {
        let counter = match told {
            Told::Load => &self.loads_told,
            Told::Changes => &self.changes_told,
            Told::Table => &self.tables_told,
        };
        counter.fetch_add(1, Relaxed);
        if let Err(error) = self.network.broadcast(&Bytes::from(bytes)) {
            tracing::debug!(%error, "a message to the peers was not sent");
        }
    }

    fn count(&self, reason: &'static str) {
        if let Some((_, count)) = self.placed.iter().find(|(name, _)| *name == reason) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Who serves a request.
    async fn decide(self: &Arc<Self>, target: TargetId) -> Place {
        let asked = if self.asks { Asked::new(self, target) } else { None };
        let (node, reason, held, claim) = match asked {
            Some(asked) => match asked.place().await {
                Some(placed) => (placed.node, placed.why.name(), false, placed.claim),
                // The node ends.
                None => return Place { node: ME, name: None, held: false, claim: None },
            },
            None => self.decide_here(target),
        };
        self.count(reason);
        let name = if node == ME { None } else { self.lock().names.get(&node).cloned() };
        Place { node, name, held, claim }
    }

    /// The same where each node decides for itself.
    fn decide_here(&self, target: TargetId) -> (NodeId, &'static str, bool, Option<Claim>) {
        self.with(|policy, now, out| match policy {
            Policy::Press(side) => {
                let verdict = side.decide(now, target, out);
                (verdict.node, verdict.why.name(), side.press.holds(target), None)
            }
            Policy::Ward(side) => {
                let verdict = side.ward.decide(now, target);
                (verdict.node, verdict.why.name(), false, None)
            }
            Policy::Card(_) => (ME, UNANSWERED, false, None),
        })
    }

    /// This node's memory has another size. Decisions come in between, where that takes long.
    pub(crate) fn resized(&self, memory: PeersMemory) {
        while !self.with(|policy, _, _| policy.side().resized(memory)) {
            std::thread::yield_now();
        }
    }

    /// A request that could not be forwarded is this node's.
    fn take_back(&self, node: NodeId, target: TargetId, to_blame: bool) {
        self.with(|policy, now, _| policy.side().unanswered(now, node, target, to_blame));
        self.count(UNANSWERED);
    }

    /// A request that a peer has forwarded is this node's, whatever it believes.
    fn forwarded(&self, target: TargetId) {
        let reason = self.with(|policy, _, _| match policy {
            Policy::Press(side) => side.press.forwarded(target, None).why.name(),
            Policy::Card(_) | Policy::Ward(_) => FORWARDED,
        });
        self.count(reason);
    }

    /// Works until the network ends.
    async fn run(self: Arc<Self>, mut events: Events) {
        let mut changes = self.follow();
        loop {
            for job in std::mem::take(&mut self.lock().jobs) {
                tokio::spawn(Arc::clone(&self).work(job));
            }
            let due = self.lock().policy.due().as_nanos();
            let due = self.began + Duration::from_nanos(due.min(u64::MAX / 4));
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => self.happened(event),
                    None => return,
                },
                change = next_change(&mut changes) => match change {
                    Some(change) => self.changed(change),
                    // Cut for lagging behind, or the node ends.
                    None => changes = self.follow(),
                },
                () = tokio::time::sleep_until(due.into()) => {
                    self.with(|policy, now, out| policy.side().tick(now, out));
                }
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Subscribes to changes of the memory, and goes through what it holds. None when the node ends, or where peers are not
    /// told of it.
    fn follow(&self) -> Option<Subscription> {
        if !matches!(self.lock().policy, Policy::Press(_)) {
            return None;
        }
        let subscription = self.memory.subscribe(usize::MAX, CHANGES_MAX)?;
        let (mut from, mut held) = (0, BTreeSet::new());
        loop {
            let page = self.memory.resident_page(from);
            let Some(last) = page.last() else { break };
            from = last.place + 1;
            held.extend(page.iter().map(|resident| resident.target));
        }
        self.with(|policy, now, out| {
            let before = match policy {
                Policy::Press(side) => side.press.held(),
                Policy::Card(_) | Policy::Ward(_) => Vec::new(),
            };
            let gone = before.into_iter().filter(|target| !held.contains(target));
            gone.for_each(|target| policy.side().noted(now, target, false, out));
            held.iter().for_each(|target| policy.side().noted(now, *target, true, out));
        });
        Some(subscription)
    }

    fn changed(&self, change: Change) {
        let (target, cached) = match change {
            Change::Stored(target, _) => (target, true),
            Change::Evicted(target) => (target, false),
        };
        self.with(|policy, now, out| policy.side().noted(now, target, cached, out));
    }

    fn happened(&self, event: Event) {
        match event {
            Event::Joined(member) => {
                let Some(node) = self.number(&member.name) else { return };
                tracing::info!(peer = %member.name, address = %member.address, "peer: joined");
                if let Some(handover) = &self.handover {
                    handover.joined(&member);
                }
                self.with(|policy, now, out| policy.side().joined(now, node, &member.name, out));
            }
            Event::Left(member, why) => {
                tracing::info!(peer = %member.name, ?why, "peer: left");
                if let Some(handover) = &self.handover {
                    handover.left(&member.name, why);
                }
                let Some(node) = self.number_of(&member.name) else { return };
                self.with(|policy, now, out| policy.side().left(now, node, out));
                let mut state = self.lock();
                state.numbers.remove(&member.name);
                state.names.remove(&node);
            }
            Event::Up(peer, Way::To) => {
                if let Some(node) = self.number_of(&peer.name) {
                    self.with(|policy, now, out| policy.side().linked(now, node, out));
                }
            }
            Event::Up(_, Way::From) | Event::Down(..) => {}
            Event::Message(peer, bytes) => {
                let Some(node) = self.number_of(&peer.name) else { return };
                let heard = self.with(|policy, now, out| policy.side().hear(now, node, &bytes, out));
                if let Err(error) = heard {
                    tracing::warn!(peer = %peer.name, %error, "peer: invalid message ignored");
                }
            }
        }
    }

    fn number_of(&self, name: &Name) -> Option<NodeId> {
        self.lock().numbers.get(name).copied()
    }

    /// The number of a member. One that has none yet gets the next that is free: what is still to be said of somebody who has left
    /// (a reply that fails late) is not to be of who comes next.
    fn number(&self, name: &Name) -> Option<NodeId> {
        let mut state = self.lock();
        if let Some(node) = state.numbers.get(name) {
            return Some(*node);
        }
        let last = state.numbered;
        let mut numbers = (last + 1..NAMES_MAX).chain(1..=last).map(NodeId);
        let node = numbers.find(|node| !state.names.contains_key(node))?;
        state.numbered = node.0;
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
    /// The network cannot be started, or a setting is out of range.
    pub async fn join_peers(self: &Arc<Self>, config: CooperateConfig) -> Result<(), CooperateError> {
        let CooperateConfig { network, policy, head_timeout, handover } = config;
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
        let policy = Policy::new(policy, network.name(), network.incarnation().max(1))?;
        let cooperation = Arc::new(Cooperation {
            network,
            asks: matches!(policy, Policy::Card(_)),
            placed: policy.reasons().into_iter().map(|reason| (reason, AtomicU64::new(0))).collect(),
            state: Mutex::new(State {
                policy,
                numbers: BTreeMap::new(),
                numbered: 0,
                names: BTreeMap::new(),
                out: Vec::new(),
                jobs: Vec::new(),
            }),
            sooner: Notify::new(),
            began: Instant::now(),
            head_timeout,
            handover,
            memory: Arc::clone(&self.memory),
            load: AtomicU32::new(0),
            loads_told: AtomicU64::new(0),
            changes_told: AtomicU64::new(0),
            tables_told: AtomicU64::new(0),
        });
        tokio::spawn(Arc::clone(&cooperation).run(events));
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

    /// Replaces the secrets of its peers' network ([`Network::set_secrets`]), and the keys by which connections are handed
    /// over. Does nothing if there are no peers.
    ///
    /// # Errors
    /// If keys cannot be made of a secret. Nothing has changed then.
    pub fn set_peers_secrets(&self, secrets: &ClusterSecrets) -> Result<(), IdentityError> {
        let Some(cooperation) = self.cooperation.get() else { return Ok(()) };
        if let Some(handover) = &cooperation.handover {
            handover.set_secrets(secrets, cooperation.network.name())?;
        }
        cooperation.network.set_secrets(secrets.clone());
        Ok(())
    }

    /// Where it listens to its peers; `None` if there are none.
    pub fn peers_address(&self) -> Option<SocketAddr> {
        self.cooperation.get().map(|cooperation| cooperation.network.local())
    }

    /// What the cluster looks like from here; `None` if there are no peers.
    pub fn peers(&self) -> Option<PeersView> {
        self.cooperation.get().map(|cooperation| cooperation.view())
    }
}
