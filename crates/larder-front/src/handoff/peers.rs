//! The nodes' side of the control channel: what each can do, and what it tells.

use super::lock::lock;
use larder_core::{NodeId, Time};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{ChannelState, Event, NodeChannel, Peer, SendError};
use larder_handoff::channel::identity::{Identity, PublicKey};
use larder_handoff::channel::message::{Hello, Keys, ToNode};
use larder_kernel::guard::Tunnel;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use tokio::sync::mpsc;

/// Messages of all nodes that may wait for the edge; a node that says more is slowed down.
const EVENTS_MAX: usize = 1_024;

const TAG_MAX: u8 = 127;

pub(super) const UP: u8 = 1;
pub(super) const COOKIE: u8 = 2;
pub(super) const REPAIR: u8 = 4;
pub(super) const LINKED: u8 = 8;
pub(super) const LATERAL: u8 = 16;
/// All of it.
#[cfg(test)]
pub(super) const UP_FOR_TESTS: u8 = UP | COOKIE | REPAIR | LINKED;
#[cfg(test)]
pub(super) const LATERAL_FOR_TESTS: u8 = LATERAL;

/// How a node takes connections, for status pages.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HandoffStatus {
    /// Its control channel: `up`, `connecting`, or `down: ` and why.
    pub channel: String,
    /// The name by which its agent goes.
    pub agent: Option<String>,
    /// It can be handed connections by cookie now.
    pub cookie: bool,
    /// It can be handed sockets now.
    pub repair: bool,
}

/// What a node can do at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capability {
    /// Its control channel is up.
    pub(crate) up: bool,
    /// Its kernel accepts connections by cookie, and believes our keys.
    pub(crate) cookie: bool,
    /// It takes sockets.
    pub(crate) repair: bool,
    /// The forwarding plane knows the way to it.
    pub(crate) linked: bool,
    /// Its server fetches from others what they have.
    pub(crate) lateral: bool,
}

#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) bits: AtomicU8,
    /// In its connections' timestamps.
    pub(super) tag: AtomicU8,
    /// Of [`COOKIE`] and [`REPAIR`], those that the node's host can; whether it does so for us is for it to accept.
    pub(super) able: AtomicU8,
    /// Connections opened by the fast path that the dispatcher has been told of.
    pub(super) opened_seen: AtomicU32,
    pub(super) channel: Mutex<Option<NodeChannel>>,
    /// Of the node's latest welcome.
    pub(super) incarnation: AtomicU64,
    pub(super) dead: AtomicBool,
    /// Of its interface, as it said last.
    pub(super) mac: Mutex<Option<[u8; 6]>>,
    /// Of the channel's connections the one that was heard to come up last: by no other are moves sent, nor is asked for all.
    pub(super) session: AtomicU64,
    /// The node has left, and finishes what it has.
    pub(super) left: Mutex<Option<Left>>,
}

/// A node that has left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Left {
    /// Since when its channel is down.
    pub(super) silent: Option<Time>,
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    slots: Box<[Slot]>,
    identity: Option<Identity>,
    sink: mpsc::Sender<Event>,
    hello: Mutex<Hello>,
    /// As [`Slot::opened_seen`], of all nodes.
    opened_seen: AtomicU32,
}

impl Peers {
    /// Room for so many nodes, and what they will tell.
    pub(crate) fn new(
        nodes_max: u16,
        identity: Option<Identity>,
        hello: Hello,
    ) -> (Self, mpsc::Receiver<Event>) {
        let (sink, events) = mpsc::channel(EVENTS_MAX);
        let peers = Self {
            slots: (0..nodes_max).map(|_| Slot::default()).collect(),
            identity,
            sink,
            hello: Mutex::new(hello),
            opened_seen: AtomicU32::new(0),
        };
        (peers, events)
    }

    /// How many nodes there is room for.
    pub(super) fn places(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    pub(super) fn slot(&self, node: NodeId) -> Option<&Slot> {
        self.slots.get(node.index())
    }

    /// What a node can do; nothing if it is not known.
    pub(crate) fn capability(&self, node: NodeId) -> Capability {
        let bits = self.slot(node).map_or(0, |slot| slot.bits.load(Relaxed));
        Capability {
            up: bits & UP != 0,
            cookie: bits & COOKIE != 0,
            repair: bits & REPAIR != 0,
            linked: bits & LINKED != 0,
            lateral: bits & LATERAL != 0,
        }
    }

    /// Sets what a node can do.
    #[cfg(test)]
    pub(super) fn set_bits(&self, node: NodeId, bits: u8) {
        if let Some(slot) = self.slot(node) {
            slot.able.store(bits & (COOKIE | REPAIR), Relaxed);
            slot.bits.store(bits, Relaxed);
        }
    }

    /// How a node stands, for people; `None` if it takes no connections.
    pub(crate) fn status(&self, node: NodeId) -> Option<HandoffStatus> {
        let state =
            lock(&self.slot(node)?.channel).as_ref().map(|channel| channel.state().borrow().clone())?;
        let (channel, agent) = match state {
            ChannelState::Connecting => ("connecting".to_owned(), None),
            ChannelState::Up { name, .. } => ("up".to_owned(), Some(name)),
            ChannelState::Waiting { why: reason, .. } => (format!("down: {reason}"), None),
        };
        let Capability { up, cookie, repair, linked, .. } = self.capability(node);
        Some(HandoffStatus { channel, agent, cookie: up && cookie && linked, repair: up && repair && linked })
    }

    /// What names the node in timestamps; 0 if nothing does.
    pub(super) fn tag_of(&self, node: NodeId) -> u8 {
        self.slot(node).map_or(0, |slot| slot.tag.load(Relaxed))
    }

    pub(super) fn set_tag(&self, node: NodeId, tag: u8) {
        if let Some(slot) = self.slot(node) {
            slot.tag.store(tag, Relaxed);
        }
    }

    /// Nothing new goes to any node.
    pub(super) fn offer_nothing(&self) {
        for slot in &self.slots {
            slot.able.store(0, Relaxed);
            slot.bits.fetch_and(!(COOKIE | REPAIR), Relaxed);
        }
    }

    /// Ends all channels: nodes keep what they have.
    pub(crate) fn hush(&self) {
        for slot in &self.slots {
            slot.bits.store(0, Relaxed);
            drop(lock(&slot.channel).take());
        }
    }

    /// Connects to a node's control address and keeps doing so. The node is told that packets come by `tunnel`.
    pub(crate) fn watch(&self, node: NodeId, address: SocketAddr, key: PublicKey, tunnel: Option<Tunnel>) {
        let (Some(slot), Some(identity)) = (self.slot(node), self.identity.clone()) else { return };
        let peer = Peer { node: node.0, address, key };
        let mut hello = lock(&self.hello).clone();
        (hello.tag, hello.tunnel) = (slot.tag.load(Relaxed), tunnel);
        let channel = NodeChannel::start(peer, identity, hello, Timing::default(), self.sink.clone());
        *lock(&slot.channel) = Some(channel);
        *lock(&slot.left) = None;
    }

    /// Looks at what is known of a node's leave.
    pub(super) fn with_left<R>(&self, node: NodeId, look: impl FnOnce(&mut Option<Left>) -> R) -> Option<R> {
        self.slot(node).map(|slot| look(&mut lock(&slot.left)))
    }

    /// The nodes that have left and finish what they have.
    pub(super) fn leaving(&self) -> Vec<NodeId> {
        let left = (0..).zip(&self.slots).filter(|(_, slot)| lock(&slot.left).is_some());
        left.map(|(index, _)| NodeId(index)).collect()
    }

    /// Ends the channel to a node that has left, and has nothing any more.
    pub(super) fn unwatch(&self, node: NodeId) {
        if let Some(slot) = self.slot(node) {
            *lock(&slot.channel) = None;
            *lock(&slot.left) = None;
            slot.bits.store(0, Relaxed);
        }
    }

    /// Tells every node the live keys.
    pub(crate) fn set_keys(&self, keys: Keys) {
        lock(&self.hello).keys = keys;
        self.slots.iter().for_each(|slot| {
            if let Some(channel) = &*lock(&slot.channel) {
                channel.set_keys(keys);
            }
        });
    }

    /// One more connection that the fast path has opened is counted.
    pub(crate) fn count_opened(&self, node: NodeId) {
        if let Some(slot) = self.slot(node) {
            slot.opened_seen.fetch_add(1, Relaxed);
            self.opened_seen.fetch_add(1, Relaxed);
        }
    }

    /// What was opened before this start is nobody's to count.
    pub(super) fn begin_counting(&self, opened: impl Fn(Option<NodeId>) -> u32) {
        for (index, slot) in (0..).zip(&self.slots) {
            slot.opened_seen.store(opened(Some(NodeId(index))), Relaxed);
        }
        self.opened_seen.store(opened(None), Relaxed);
    }

    /// How many of them are.
    pub(crate) fn opened_seen(&self, node: NodeId) -> u32 {
        self.slot(node).map_or(0, |slot| slot.opened_seen.load(Relaxed))
    }

    /// How many of all nodes are.
    pub(crate) fn opened_seen_sum(&self) -> u32 {
        self.opened_seen.load(Relaxed)
    }

    /// Whether a node is dead from now on; `true` if it has just died.
    pub(super) fn note_dead(&self, node: NodeId, dead: bool) -> bool {
        self.slot(node).is_some_and(|slot| !slot.dead.swap(dead, Relaxed) && dead)
    }

    /// Sends a message to a node.
    pub(crate) fn send(&self, node: NodeId, message: &ToNode) -> Result<(), SendError> {
        let slot = self.slot(node).ok_or(SendError::Down)?;
        lock(&slot.channel).as_ref().ok_or(SendError::Down)?.send(message)
    }

    /// Sends a message to a node, by that of the channel's connections only that was heard to come up last: what the node names
    /// afterwards tells of it.
    pub(crate) fn send_in_session(&self, node: NodeId, message: &ToNode) -> Result<(), SendError> {
        let slot = self.slot(node).ok_or(SendError::Down)?;
        let channel = lock(&slot.channel);
        channel.as_ref().ok_or(SendError::Down)?.send_in(slot.session.load(Relaxed), message)
    }
}

/// The tag of a node in timestamps: only the first 127 slots have one, for a clock with a higher one looks like one that
/// has gone back (RFC 7323 section 5.2).
pub(crate) fn tag(node: NodeId) -> u8 {
    u8::try_from(node.0 + 1).ok().filter(|tag| *tag <= TAG_MAX).unwrap_or(0)
}
