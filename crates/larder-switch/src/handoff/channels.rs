//! Control channels to the nodes: capabilities of each node, and its messages.

use crate::lock::lock;
use larder_core::{NodeId, Time};
use larder_handoff::channel::Timing;
use larder_handoff::channel::client::{ChannelEvent, ChannelState, NodeAddress, NodeChannel, SendError};
use larder_handoff::channel::identity::Identity;
use larder_handoff::channel::message::{CookieKeys, Hello, ToNode};
use larder_kernel::guard::InboundTunnel;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use tokio::sync::mpsc;

/// Maximum number of queued messages from all nodes. Beyond it, nodes are slowed down.
const EVENTS_MAX: usize = 1_024;

const TAG_MAX: u8 = 127;

pub(super) const UP: u8 = 1;
pub(super) const COOKIE: u8 = 2;
pub(super) const REPAIR: u8 = 4;
pub(super) const LINKED: u8 = 8;
pub(super) const LATERAL: u8 = 16;
/// All capabilities of a node.
#[cfg(test)]
pub(super) const UP_FOR_TESTS: u8 = UP | COOKIE | REPAIR | LINKED;
#[cfg(test)]
pub(super) const LATERAL_FOR_TESTS: u8 = LATERAL;

/// Handoff status of a node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HandoffStatus {
    /// State of its control channel: `up`, `connecting`, or `down: ` and the reason.
    pub channel: String,
    /// Name of its agent.
    pub agent: Option<String>,
    /// Whether it accepts connections by cookie now.
    pub cookie: bool,
    /// Whether it accepts moved sockets now.
    pub repair: bool,
}

/// Current capabilities of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeCapability {
    /// Whether its control channel is up.
    pub(crate) up: bool,
    /// Whether it accepts connections by cookie with our keys.
    pub(crate) cookie: bool,
    /// Whether it accepts moved sockets.
    pub(crate) repair: bool,
    /// Whether the forwarding plane has a link to it.
    pub(crate) linked: bool,
    /// Whether its server fetches from other nodes what they have.
    pub(crate) lateral: bool,
}

#[derive(Debug, Default)]
pub(super) struct ChannelSlot {
    pub(super) bits: AtomicU8,
    /// Tag in the timestamps of its connections.
    pub(super) tag: AtomicU8,
    /// Bits of [`COOKIE`] and [`REPAIR`] that the node's host supports. The node decides whether it uses them for
    /// this switch.
    pub(super) able: AtomicU8,
    /// Connections opened by the fast path that the dispatcher has counted.
    pub(super) opened_seen: AtomicU32,
    pub(super) channel: Mutex<Option<NodeChannel>>,
    /// Incarnation of the node's latest welcome.
    pub(super) incarnation: AtomicU64,
    pub(super) dead: AtomicBool,
    /// MAC address that its interface last reported.
    pub(super) mac: Mutex<Option<[u8; 6]>>,
    /// Newest session of the channel. Only this session sends moves and requests full lists.
    pub(super) session: AtomicU64,
    /// Departure of a node that has left and finishes its connections.
    pub(super) departure: Mutex<Option<Departure>>,
}

/// Departure of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Departure {
    /// Time since which its channel is down.
    pub(super) silent_since: Option<Time>,
}

/// Control channels to all nodes.
#[derive(Debug)]
pub(crate) struct NodeChannels {
    slots: Box<[ChannelSlot]>,
    identity: Option<Identity>,
    sink: mpsc::Sender<ChannelEvent>,
    hello: Mutex<Hello>,
    /// Sum of [`ChannelSlot::opened_seen`] over all nodes.
    opened_seen: AtomicU32,
}

impl NodeChannels {
    /// Creates the channels for this number of nodes, and the receiver of their messages.
    pub(crate) fn new(
        nodes_max: u16,
        identity: Option<Identity>,
        hello: Hello,
    ) -> (Self, mpsc::Receiver<ChannelEvent>) {
        let (sink, events) = mpsc::channel(EVENTS_MAX);
        let channels = Self {
            slots: (0..nodes_max).map(|_| ChannelSlot::default()).collect(),
            identity,
            sink,
            hello: Mutex::new(hello),
            opened_seen: AtomicU32::new(0),
        };
        (channels, events)
    }

    /// Returns the number of slots.
    pub(super) fn capacity(&self) -> u16 {
        u16::try_from(self.slots.len()).unwrap_or(u16::MAX)
    }

    pub(super) fn slot(&self, node: NodeId) -> Option<&ChannelSlot> {
        self.slots.get(node.index())
    }

    /// Returns the capabilities of a node; none if it is unknown.
    pub(crate) fn capability(&self, node: NodeId) -> NodeCapability {
        let bits = self.slot(node).map_or(0, |slot| slot.bits.load(Relaxed));
        NodeCapability {
            up: bits & UP != 0,
            cookie: bits & COOKIE != 0,
            repair: bits & REPAIR != 0,
            linked: bits & LINKED != 0,
            lateral: bits & LATERAL != 0,
        }
    }

    /// Sets the capabilities of a node.
    #[cfg(test)]
    pub(super) fn set_bits(&self, node: NodeId, bits: u8) {
        if let Some(slot) = self.slot(node) {
            slot.able.store(bits & (COOKIE | REPAIR), Relaxed);
            slot.bits.store(bits, Relaxed);
        }
    }

    /// Returns the status of a node; `None` if it takes no connections.
    pub(crate) fn status(&self, node: NodeId) -> Option<HandoffStatus> {
        let state =
            lock(&self.slot(node)?.channel).as_ref().map(|channel| channel.state().borrow().clone())?;
        let NodeCapability { up, cookie, repair, linked, .. } = self.capability(node);
        let (channel, agent) = match state {
            ChannelState::Up { name, .. } if up => ("up".to_owned(), Some(name)),
            // The node is connected, and its capabilities are not known yet.
            ChannelState::Connecting | ChannelState::Up { .. } => ("connecting".to_owned(), None),
            ChannelState::Waiting { reason, .. } => (format!("down: {reason}"), None),
        };
        Some(HandoffStatus { channel, agent, cookie: up && cookie && linked, repair: up && repair && linked })
    }

    /// Returns the tag of the node in timestamps; 0 if it has none.
    pub(super) fn tag_of(&self, node: NodeId) -> u8 {
        self.slot(node).map_or(0, |slot| slot.tag.load(Relaxed))
    }

    pub(super) fn set_tag(&self, node: NodeId, tag: u8) {
        if let Some(slot) = self.slot(node) {
            slot.tag.store(tag, Relaxed);
        }
    }

    /// Clears the capabilities of all nodes, so that they get nothing new.
    pub(super) fn clear_capabilities(&self) {
        for slot in &self.slots {
            slot.able.store(0, Relaxed);
            slot.bits.fetch_and(!(COOKIE | REPAIR), Relaxed);
        }
    }

    /// Closes all channels. Nodes keep their connections.
    pub(crate) fn close_all(&self) {
        for slot in &self.slots {
            slot.bits.store(0, Relaxed);
            drop(lock(&slot.channel).take());
        }
    }

    /// Connects to a node and reconnects until the channel is closed. `tunnel` is the encapsulation of packets to the
    /// node.
    pub(crate) fn connect(&self, node: NodeAddress, tunnel: Option<InboundTunnel>) {
        let (Some(slot), Some(identity)) = (self.slot(NodeId(node.node)), self.identity.clone()) else {
            return;
        };
        let mut hello = lock(&self.hello).clone();
        (hello.tag, hello.tunnel) = (slot.tag.load(Relaxed), tunnel);
        let channel = NodeChannel::start(node, identity, hello, Timing::default(), self.sink.clone());
        *lock(&slot.channel) = Some(channel);
        *lock(&slot.departure) = None;
    }

    /// Calls `look` with the departure of a node.
    pub(super) fn with_departure<R>(
        &self,
        node: NodeId,
        look: impl FnOnce(&mut Option<Departure>) -> R,
    ) -> Option<R> {
        self.slot(node).map(|slot| look(&mut lock(&slot.departure)))
    }

    /// Returns the nodes that have left and finish their connections.
    pub(super) fn departing(&self) -> Vec<NodeId> {
        let left = (0..).zip(&self.slots).filter(|(_, slot)| lock(&slot.departure).is_some());
        left.map(|(index, _)| NodeId(index)).collect()
    }

    /// Closes the channel to a node that has left and has no connections.
    pub(super) fn disconnect(&self, node: NodeId) {
        if let Some(slot) = self.slot(node) {
            *lock(&slot.channel) = None;
            *lock(&slot.departure) = None;
            slot.bits.store(0, Relaxed);
        }
    }

    /// Sends the active keys to every node.
    pub(crate) fn set_keys(&self, keys: CookieKeys) {
        lock(&self.hello).keys = keys;
        self.slots.iter().for_each(|slot| {
            if let Some(channel) = &*lock(&slot.channel) {
                channel.set_keys(keys);
            }
        });
    }

    /// Counts a connection that the fast path has opened.
    pub(crate) fn count_opened(&self, node: NodeId) {
        if let Some(slot) = self.slot(node) {
            slot.opened_seen.fetch_add(1, Relaxed);
            self.opened_seen.fetch_add(1, Relaxed);
        }
    }

    /// Starts counting after the connections that were opened before this start.
    pub(super) fn begin_counting(&self, opened: impl Fn(Option<NodeId>) -> u32) {
        for (index, slot) in (0..).zip(&self.slots) {
            slot.opened_seen.store(opened(Some(NodeId(index))), Relaxed);
        }
        self.opened_seen.store(opened(None), Relaxed);
    }

    /// Returns the counted connections of a node.
    pub(crate) fn opened_seen(&self, node: NodeId) -> u32 {
        self.slot(node).map_or(0, |slot| slot.opened_seen.load(Relaxed))
    }

    /// Returns the counted connections of all nodes.
    pub(crate) fn opened_seen_sum(&self) -> u32 {
        self.opened_seen.load(Relaxed)
    }

    /// Sets whether a node is dead. Returns true if it has just died.
    pub(super) fn set_dead(&self, node: NodeId, dead: bool) -> bool {
        self.slot(node).is_some_and(|slot| !slot.dead.swap(dead, Relaxed) && dead)
    }

    /// Sends a message to a node.
    pub(crate) fn send(&self, node: NodeId, message: &ToNode) -> Result<(), SendError> {
        let slot = self.slot(node).ok_or(SendError::Down)?;
        lock(&slot.channel).as_ref().ok_or(SendError::Down)?.send(message)
    }

    /// Sends a message to a node in the newest session only, so that later lists of the node refer to it.
    pub(crate) fn send_in_session(&self, node: NodeId, message: &ToNode) -> Result<(), SendError> {
        let slot = self.slot(node).ok_or(SendError::Down)?;
        let channel = lock(&slot.channel);
        channel.as_ref().ok_or(SendError::Down)?.send_in_session(slot.session.load(Relaxed), message)
    }
}

/// Returns the tag of a node in timestamps. Only the first 127 slots have one, because a clock with a higher tag
/// looks as if it had gone back (RFC 7323 section 5.2).
pub(crate) fn tag(node: NodeId) -> u8 {
    u8::try_from(node.0 + 1).ok().filter(|tag| *tag <= TAG_MAX).unwrap_or(0)
}
