//! PRESS: a cluster of equal nodes without a front-end (Carrera and Bianchini, PPoPP 2001).
//!
//! Any node accepts any request (*initial node*) and chooses the node that serves it (*service node*): one that has
//! the target in memory. A forwarded request is served where it arrives. So no request is forwarded twice, and
//! different views of the cluster cannot send it in circles.
//!
//! ```text
//! size >= large_min             serve here, do not keep                           (see `keep_large_alone`)
//! this node does not share      serve here                                        (see `sharing`)
//! in memory here                serve here
//! no server known               serve here, and keep: the first server
//! else n = least loaded server
//!   load(n) <= T                forward to n
//!   load(here) < T              serve here, and keep: an additional server
//!   p = least loaded peer, load(p) < T: forward to p, an additional server
//!   else                        forward to n anyway
//! ```
//!
//! The load of a node is the number of connections that it serves. It includes its own clients' requests, forwarded or
//! not, and the requests forwarded to it. A node sends its load when it differs by a step from the last value sent, and
//! at intervals as a heartbeat. It also sends the changes of its memory, gathered for a short time.
//!
//! The paper leaves some cases open. They are decided as follows:
//!
//! - Between two reports a node adds the requests that it has itself forwarded to a peer and that have not ended
//!   ([`PressSettings::count_forwarded`]). Ties go to the server with the highest hash of target and slot.
//! - A load is *unknown* if no report came for `stale_after`. A server with unknown load counts as loaded to T, so it is
//!   neither preferred nor avoided. A node with unknown load never becomes a server.
//! - A node that this node has made a server counts as one for `assumed_for`, or until it reports the target itself.
//! - A node announces a target when it begins to read it ([`Press::begin_read`]), not at the end. Otherwise all nodes that
//!   get a request meanwhile would read the target too, and keep it. A read that takes longer than `assumed_for` is
//!   withdrawn, and next time the target is announced only when it is in memory. While most reads fail, the node announces
//!   no reads (see `pending_reads`).
//! - A service node that no longer has the target reads and keeps it.
//! - A peer that does not answer is avoided for 1 s and then tried with one request. While the trials fail, the time doubles,
//!   up to 30 s. The initial node serves the requests that it could not forward. Messages do not end this: a node may send
//!   messages although it cannot read its disk.
//!
//! A node needs up to 57 bytes for each known target, about 20 for each target in its memory and about 100 for each peer. The
//! list of what it would cache without sharing comes on top. A decision takes O(servers of the target), or O(peers) if all
//! servers are overloaded.

mod settings;

pub use settings::PressSettings;

use super::decision::{PressDecision, PressReason};
use super::ledger::Ledger;
use super::message::PressMessage;
use super::peer::{PeerUpdate, PressPeer};
use super::pending_reads::PendingReads;
use super::sets::PeerSets;
use super::sharing::Sharing;
use super::trust::Trust;
use super::{PressOutput, Recipient};
use crate::clock::{ClockTable, TargetMark};
use crate::id::{NodeId, TargetId};
use crate::nodes::mix;
use crate::time::Time;
use crate::unit::Bytes;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

/// Largest number of assumed servers. Beyond it, the oldest is dropped.
const ASSUMED_MAX: usize = 4_096;
/// Largest number of changes that wait to be sent. Further changes are sent at once.
const UNSENT_MAX: u64 = 64;

/// State machine of one node under PRESS.
#[derive(Debug)]
pub struct Press {
    me: NodeId,
    epoch: u64,
    settings: PressSettings,
    sharing: Sharing,
    ledger: Ledger,
    peers: BTreeMap<NodeId, PressPeer>,
    sets: PeerSets,
    /// Targets that were large when they were last served.
    large: ClockTable<TargetMark>,
    /// Servers that this node has chosen and that have not yet reported the target.
    assumed: BTreeMap<(TargetId, NodeId), Time>,
    assumed_order: VecDeque<(Time, TargetId, NodeId)>,
    pending_reads: PendingReads,
    load: u32,
    sent_load: u32,
    sent_changes: u64,
    send_changes_at: Option<Time>,
    heartbeat_at: Time,
    /// Earliest time of the next request to a peer.
    next_request_at: Time,
}

impl Press {
    /// Creates the node in slot `me`. The `epoch` is at least 1 and higher at each start.
    pub fn new(me: NodeId, epoch: u64, settings: PressSettings) -> Self {
        Self {
            me,
            epoch,
            settings,
            sharing: Sharing::new(settings.sharing, settings.memory),
            ledger: Ledger::new(settings.log_max.max(UNSENT_MAX as usize)),
            peers: BTreeMap::new(),
            sets: PeerSets::new(settings.targets_max),
            large: ClockTable::new((settings.targets_max / 16).max(1)),
            assumed: BTreeMap::new(),
            assumed_order: VecDeque::new(),
            pending_reads: PendingReads::new((settings.targets_max / 16).max(1)),
            load: 0,
            sent_load: 0,
            sent_changes: 0,
            send_changes_at: None,
            heartbeat_at: Time::ZERO,
            next_request_at: Time::MAX,
        }
    }

    /// Chooses the node that serves a client's request. Without `size`, the target is large if it was large when
    /// last [served](Press::record_served). The request counts as load from [`Press::begin_connection`] on.
    pub fn decide(&mut self, now: Time, target: TargetId, size: Option<Bytes>) -> PressDecision {
        let me = self.me;
        let here = |reason, keep| PressDecision { node: me, reason, keep };
        if self.settings.keep_large_alone && !self.sharing.is_on() {
            return here(PressReason::Alone, true);
        }
        if self.is_large(target, size) {
            return here(PressReason::Large, false);
        }
        if !self.sharing.is_on() {
            return here(PressReason::Alone, true);
        }
        if self.ledger.contains(target) {
            return here(PressReason::Here, true);
        }
        let Some((server, load)) = self.least_loaded_server(now, target) else {
            return here(PressReason::First, true);
        };
        let limit = self.settings.overload;
        if load <= limit {
            return self.forward_to(now, server, PressReason::Peer);
        }
        if self.load < limit {
            return here(PressReason::Relief, true);
        }
        match self.least_loaded_peer(now, target) {
            Some((other, load)) if load < limit => {
                self.assume(now, target, other);
                self.forward_to(now, other, PressReason::Spread)
            }
            _ => self.forward_to(now, server, PressReason::Crowded),
        }
    }

    /// Decides about a request that another node has forwarded. It is always served here, so that it is not
    /// forwarded again.
    pub fn decide_forwarded(&mut self, target: TargetId, size: Option<Bytes>) -> PressDecision {
        PressDecision { node: self.me, reason: PressReason::Forwarded, keep: !self.is_large(target, size) }
    }

    /// Records that a service node did not answer, and decides that this node serves the request. The node is
    /// avoided for a while if `fault` is true. A node that is only busy, or waits for another one, is not at fault.
    pub fn record_failure(
        &mut self,
        now: Time,
        node: NodeId,
        target: TargetId,
        fault: bool,
    ) -> PressDecision {
        if let Some(peer) = self.peers.get_mut(&node).filter(|_| fault) {
            peer.trust.record_failure(now);
        }
        self.assumed.remove(&(target, node));
        PressDecision { node: self.me, reason: PressReason::Unanswered, keep: true }
    }

    /// Records that a service node has begun to answer a forwarded request. The node is no longer avoided.
    pub fn record_reply(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.trust = Trust::default();
        }
    }

    /// Records the end of a request that was forwarded to a node, successful or not.
    pub fn record_return(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.sent = peer.sent.saturating_sub(1);
        }
    }

    /// Records that a connection is served here: a client's request, or one that another node has forwarded.
    pub fn begin_connection(&mut self, now: Time, out: &mut Vec<PressOutput>) {
        self.load += 1;
        self.send_load_step(now, out);
    }

    /// Records that a connection is no longer served.
    pub fn end_connection(&mut self, now: Time, out: &mut Vec<PressOutput>) {
        self.load = self.load.saturating_sub(1);
        self.send_load_step(now, out);
    }

    /// Changes the memory size of this node and the size of large targets. Cached targets stay until they are
    /// evicted. Returns true when the change is complete; otherwise the caller calls again.
    pub fn resize(&mut self, memory: Bytes, large_min: Bytes) -> bool {
        (self.settings.memory, self.settings.large_min) = (memory, large_min);
        self.sharing.resize_step(memory)
    }

    /// Records the end of a client's request, whose size is now known. `missed` is true if this node served it and
    /// the target was not in memory.
    pub fn record_served(
        &mut self,
        now: Time,
        target: TargetId,
        size: Bytes,
        missed: bool,
        out: &mut Vec<PressOutput>,
    ) {
        let kept_alone = self.settings.keep_large_alone && !self.sharing.is_on();
        if size >= self.settings.large_min && !kept_alone {
            self.large.touch(target, || TargetMark::new(target));
            if self.pending_reads.fail(target) {
                self.record_change(now, target, false, out);
            }
            return;
        }
        self.large.remove(target);
        if self.sharing.record_request(target, size, missed) {
            self.sent_changes = self.ledger.changes();
            self.send_changes_at = None;
            self.send_load(now, Recipient::All, out);
        }
    }

    /// Begins the read of a target after the [decision](Press::decide) to serve and keep it here. The read is
    /// announced at once so that the peers forward their requests, unless most recent reads failed.
    pub fn begin_read(
        &mut self,
        now: Time,
        decision: PressDecision,
        target: TargetId,
        out: &mut Vec<PressOutput>,
    ) {
        let announces = self.settings.announce_reads && self.sharing.is_on();
        let reads = decision.keep && matches!(decision.reason, PressReason::First | PressReason::Relief);
        if !announces || !reads || !self.pending_reads.begin(now + self.settings.assumed_for, target) {
            return;
        }
        self.record_change(now, target, true, out);
    }

    /// Records that a target that was being read does not exist. The announcement is withdrawn at once, not at the
    /// time limit of the read.
    pub fn record_missing(&mut self, now: Time, target: TargetId, out: &mut Vec<PressOutput>) {
        if self.pending_reads.record_missing(target) {
            self.record_change(now, target, false, out);
        }
    }

    /// Records that a target is in memory here now, or no longer.
    pub fn set_cached(&mut self, now: Time, target: TargetId, cached: bool, out: &mut Vec<PressOutput>) {
        self.pending_reads.set_cached(target, cached);
        self.record_change(now, target, cached, out);
    }

    fn record_change(&mut self, now: Time, target: TargetId, cached: bool, out: &mut Vec<PressOutput>) {
        if !self.ledger.record(target, cached) || !self.sharing.is_on() {
            return;
        }
        let unsent = self.ledger.changes() - self.sent_changes;
        if self.settings.gather.is_zero() || unsent >= UNSENT_MAX {
            self.send_changes(out);
        } else if self.send_changes_at.is_none() {
            self.send_changes_at = Some(now + self.settings.gather);
        }
    }

    /// Adds a peer, or resets one that joins again.
    pub fn add_peer(&mut self, now: Time, peer: NodeId, out: &mut Vec<PressOutput>) {
        if peer == self.me {
            return;
        }
        if self.peers.insert(peer, PressPeer::new()).is_some() {
            self.sets.remove_node(peer);
        }
        if self.sharing.is_on() {
            self.send_load(now, Recipient::One(peer), out);
        }
    }

    /// Sends the load to a peer that can be reached again and may have missed messages. The peer then requests what
    /// it has missed.
    pub fn resume_link(&mut self, now: Time, peer: NodeId, out: &mut Vec<PressOutput>) {
        if self.sharing.is_on() && self.peers.contains_key(&peer) {
            self.send_load(now, Recipient::One(peer), out);
        }
    }

    /// Removes a peer.
    pub fn remove_peer(&mut self, peer: NodeId) {
        if self.peers.remove(&peer).is_some() {
            self.sets.remove_node(peer);
            self.assumed.retain(|(_, node), _| *node != peer);
        }
    }

    /// Processes a message. Messages from unknown peers are ignored.
    pub fn receive(&mut self, now: Time, from: NodeId, message: PressMessage, out: &mut Vec<PressOutput>) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let mut fresh = false;
        let mut updates = Vec::new();
        match message {
            PressMessage::ChangesRequest { epoch, after } if epoch == self.epoch => {
                self.answer_request(now, from, after, out);
            }
            PressMessage::ListRequest { epoch, after } if epoch == self.epoch && self.sharing.is_on() => {
                out.push(PressOutput {
                    to: Recipient::One(from),
                    message: self.ledger.list_part(self.epoch, after),
                });
            }
            PressMessage::ListRequest { epoch, .. } if epoch == self.epoch => {
                self.send_load(now, Recipient::One(from), out);
            }
            PressMessage::ChangesRequest { .. } | PressMessage::ListRequest { .. } => {}
            PressMessage::Load { epoch, load, sharing, changes } => {
                if peer.check_epoch(epoch, &mut fresh) {
                    updates.push(peer.receive_load(now, load, sharing, changes));
                }
            }
            PressMessage::Changes { epoch, first, items } => {
                if peer.check_epoch(epoch, &mut fresh) {
                    updates.push(peer.receive_changes(now, first, items));
                }
            }
            PressMessage::List { epoch, changes, after, last, targets } => {
                if peer.check_epoch(epoch, &mut fresh) {
                    updates = peer.receive_list(now, changes, after, last, targets);
                }
            }
        }
        if fresh {
            self.sets.remove_node(from);
        }
        updates.into_iter().for_each(|update| self.apply_update(from, update));
        if fresh && self.sharing.is_on() {
            // The peer has restarted and knows nothing about this node.
            self.send_load(now, Recipient::One(from), out);
        }
        self.request_missing(now, from, out);
    }

    /// Returns a lower bound of the time of the next [`Press::tick`]. O(1).
    pub fn due(&self) -> Time {
        let heartbeat = self.sharing.is_on().then_some(self.heartbeat_at);
        let expiry = self.assumed_order.front().map(|(at, ..)| *at);
        heartbeat
            .into_iter()
            .chain(self.send_changes_at)
            .chain(expiry)
            .chain(self.pending_reads.due())
            .fold(self.next_request_at, Time::min)
    }

    /// Performs the actions that are due.
    pub fn tick(&mut self, now: Time, out: &mut Vec<PressOutput>) {
        while let Some(target) = self.pending_reads.expire(now) {
            self.record_change(now, target, false, out);
        }
        if self.send_changes_at.is_some_and(|at| at <= now) {
            self.send_changes(out);
        }
        if self.sharing.is_on() && self.heartbeat_at <= now {
            self.send_load(now, Recipient::All, out);
        }
        if self.next_request_at <= now {
            let stale_after = self.settings.stale_after;
            let is_due = |peer: &PressPeer| peer.due(stale_after).is_some_and(|at| at <= now);
            let due_peers: Vec<NodeId> =
                self.peers.iter().filter(|(_, peer)| is_due(peer)).map(|(node, _)| *node).collect();
            due_peers.into_iter().for_each(|peer| self.request_missing(now, peer, out));
            let due = self.peers.values().filter_map(|peer| peer.due(stale_after));
            self.next_request_at = due.min().unwrap_or(Time::MAX);
        }
        while let Some((at, target, node)) = self.assumed_order.front().copied().filter(|(at, ..)| *at <= now)
        {
            self.assumed_order.pop_front();
            if self.assumed.get(&(target, node)) == Some(&at) {
                self.assumed.remove(&(target, node));
            }
        }
    }

    /// Returns the nodes that are believed to have a target in memory, including this one, in order.
    pub fn servers(&mut self, target: TargetId) -> Vec<NodeId> {
        let mut servers: Vec<NodeId> = self.sets.members(target, false).collect();
        servers.extend(self.assumed_servers(target));
        servers.extend(self.ledger.contains(target).then_some(self.me));
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// Returns true if a target is in memory here according to [`Press::set_cached`].
    pub fn holds(&self, target: TargetId) -> bool {
        self.ledger.contains(target) && !self.pending_reads.contains(target)
    }

    /// Returns all targets in memory here, in order.
    pub fn cached_targets(&self) -> Vec<TargetId> {
        self.ledger.targets().filter(|target| !self.pending_reads.contains(*target)).collect()
    }

    /// Returns the number of connections served here.
    pub const fn load(&self) -> u32 {
        self.load
    }

    /// Returns true if this node shares its cache. Otherwise it forwards and sends nothing.
    pub fn is_sharing(&self) -> bool {
        self.sharing.is_on()
    }

    /// Returns the load of a peer; `None` if it is unknown.
    pub fn peer_load(&self, now: Time, peer: NodeId) -> Option<u32> {
        self.peers.get(&peer)?.load(now, self.settings.stale_after)
    }

    /// Returns true if all changes that a peer has mentioned are known here.
    pub fn is_current(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(PressPeer::is_current)
    }

    /// Returns the number of targets with known servers, and the number of targets in memory here.
    pub fn table_sizes(&self) -> (usize, usize) {
        (self.sets.len(), self.ledger.len())
    }

    fn is_large(&mut self, target: TargetId, size: Option<Bytes>) -> bool {
        size.map_or_else(|| self.large.find(target).is_some(), |size| size >= self.settings.large_min)
    }

    fn forward_to(&mut self, now: Time, node: NodeId, reason: PressReason) -> PressDecision {
        let counted = u32::from(self.settings.count_forwarded);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.sent = peer.sent.saturating_add(counted);
            peer.trust.record_forward(now);
        }
        PressDecision { node, reason, keep: false }
    }

    /// Returns the least loaded server of a target, and its load.
    fn least_loaded_server(&mut self, now: Time, target: TargetId) -> Option<(NodeId, u32)> {
        let assumed: Vec<NodeId> = self.assumed_servers(target).collect();
        let Self { sets, peers, settings, .. } = self;
        let servers = sets.members(target, true).chain(assumed);
        let usable = servers.filter_map(|node| {
            let peer = peers.get(&node).filter(|peer| peer.sharing && peer.trust.may_forward(now))?;
            Some((node, peer.load(now, settings.stale_after).unwrap_or(settings.overload)))
        });
        usable.min_by_key(|(node, load)| (*load, core::cmp::Reverse(rank(target, *node))))
    }

    /// Returns the least loaded of all peers whose load is known.
    fn least_loaded_peer(&self, now: Time, target: TargetId) -> Option<(NodeId, u32)> {
        let usable = self.peers.iter().filter(|(_, peer)| peer.sharing && peer.trust.may_forward(now));
        let known =
            usable.filter_map(|(node, peer)| Some((*node, peer.load(now, self.settings.stale_after)?)));
        known.min_by_key(|(node, load)| (*load, core::cmp::Reverse(rank(target, *node))))
    }

    fn assumed_servers(&self, target: TargetId) -> impl Iterator<Item = NodeId> + '_ {
        self.assumed.range((target, NodeId(0))..=(target, NodeId(u16::MAX))).map(|((_, node), _)| *node)
    }

    fn assume(&mut self, now: Time, target: TargetId, node: NodeId) {
        let until = now + self.settings.assumed_for;
        if self.assumed_order.len() == ASSUMED_MAX
            && let Some((at, target, node)) = self.assumed_order.pop_front()
            && self.assumed.get(&(target, node)) == Some(&at)
        {
            self.assumed.remove(&(target, node));
        }
        self.assumed.insert((target, node), until);
        self.assumed_order.push_back((until, target, node));
    }

    fn apply_update(&mut self, from: NodeId, update: PeerUpdate) {
        match update {
            PeerUpdate::Nothing => {}
            PeerUpdate::Clear => self.sets.remove_node(from),
            PeerUpdate::Apply(changes) => {
                for change in changes {
                    self.assumed.remove(&(change.target, from));
                    if change.cached {
                        self.sets.add(change.target, from);
                    } else {
                        self.sets.remove(change.target, from);
                    }
                }
            }
        }
    }

    fn request_missing(&mut self, now: Time, peer: NodeId, out: &mut Vec<PressOutput>) {
        let request =
            self.peers.get_mut(&peer).and_then(|peer| peer.next_request(now, self.settings.stale_after));
        out.extend(request.map(|message| PressOutput { to: Recipient::One(peer), message }));
        let due = self.peers.get(&peer).and_then(|peer| peer.due(self.settings.stale_after));
        self.next_request_at = due.map_or(self.next_request_at, |at| self.next_request_at.min(at));
    }

    fn answer_request(&mut self, now: Time, to: NodeId, after: u64, out: &mut Vec<PressOutput>) {
        self.send_load(now, Recipient::One(to), out);
        if !self.sharing.is_on() {
            return;
        }
        let messages = self.ledger.messages_since(self.epoch, after);
        let messages = messages.unwrap_or_else(|| vec![self.ledger.list_part(self.epoch, None)]);
        out.extend(messages.into_iter().map(|message| PressOutput { to: Recipient::One(to), message }));
    }

    fn send_load_step(&mut self, now: Time, out: &mut Vec<PressOutput>) {
        if self.sharing.is_on() && self.load.abs_diff(self.sent_load) >= self.settings.load_step {
            self.send_load(now, Recipient::All, out);
        }
    }

    fn send_load(&mut self, now: Time, to: Recipient, out: &mut Vec<PressOutput>) {
        let (epoch, load, sharing) = (self.epoch, self.load, self.sharing.is_on());
        // A change that was not sent yet must not look lost.
        let message = PressMessage::Load { epoch, load, sharing, changes: self.sent_changes };
        if to == Recipient::All {
            self.sent_load = load;
            self.heartbeat_at = now + self.settings.heartbeat;
        }
        out.push(PressOutput { to, message });
    }

    fn send_changes(&mut self, out: &mut Vec<PressOutput>) {
        self.send_changes_at = None;
        // The log always holds more changes than are unsent.
        let messages = self.ledger.messages_since(self.epoch, self.sent_changes).unwrap_or_default();
        self.sent_changes = self.ledger.changes();
        out.extend(messages.into_iter().map(|message| PressOutput { to: Recipient::All, message }));
    }
}

/// Returns the rank of a node for a target, for ties of load. All nodes with equal slots compute the same rank.
fn rank(target: TargetId, node: NodeId) -> u64 {
    mix(target.0 ^ mix(u64::from(node.0)))
}

#[cfg(test)]
mod tests;
