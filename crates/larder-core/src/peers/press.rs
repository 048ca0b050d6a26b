//! PRESS: a cluster of equal nodes without a front-end (Carrera and Bianchini, PPoPP 2001).
//!
//! Any node takes any request (*initial node*) and decides which one serves it (*service node*): the one that has the target
//! in memory. A request that is forwarded is served where it arrives, whatever that node believes, so no request goes
//! further than one step, and no two views of the cluster can send it in circles.
//!
//! ```text
//! this node is by itself        serve here                                        (see `sharing`)
//! size >= large_min             serve here, keep nothing
//! here in memory                serve here
//! no server known               serve here, and keep: the first
//! else n = least loaded server
//!   load(n) <= T                forward to n
//!   load(here) < T              serve here, and keep: one server more
//!   p = least loaded of all, load(p) < T: forward to p, one server more
//!   else                        forward to n all the same
//! ```
//!
//! The load of a node is the number of connections it services: requests of clients that it was asked for, forwarded or not,
//! and those that others forwarded to it. A node tells its load when it differs by a step from what it told last, and at
//! intervals as a sign of life; and what it begins or ceases to have in memory, gathered for a short time.
//!
//! Where the paper is silent (papers' ambiguities in parentheses):
//! - Between two reports this node counts what it has sent to a peer itself and has not had back (2). Ties go to the server of
//!   the highest hash of target and slot (2).
//! - A load is *unknown* when none was told for `stale_after`. A server with unknown load counts as loaded to T, neither
//!   preferred nor avoided; a node with unknown load is never made a server.
//! - A node that was made a server by this one counts as such for `assumed_for`, or until it says so itself (5).
//! - A node tells that it has a target when it begins to read it ([`Press::reading`]), not when it has read it: else those who
//!   ask for it meanwhile would read it at their nodes too, and all of them have it for good. What does not come within
//!   `assumed_for` is taken back, and told the next time only when it is there. While most of what is read does not come,
//!   nothing is told before it is there (see `coming`).
//! - A service node that does not have the target any more reads and keeps it (3).
//! - One that does not answer is shunned for 1 s, then tried with one request, and shunned for twice as long, up to 30 s, while
//!   it does not answer that; the initial node serves what it could not forward. Messages do not end this: a node may speak
//!   and yet not get at its disk.
//!
//! State: up to 57 bytes per target known, some 20 per target in memory here, about 100 per peer, and the list of what this node
//! would have by itself. Cost of a decision: O(servers of the target), or O(peers) where all of them are overloaded.

use super::coming::Coming;
use super::ledger::Ledger;
use super::message::Message;
use super::peer::{Lesson, Peer};
use super::sets::Sets;
use super::sharing::{Sharing, SharingSettings};
use super::trust::Trust;
use super::verdict::{Verdict, Why};
use super::{Outgoing, To};
use crate::clock::{ClockTable, TargetMark};
use crate::id::{NodeId, TargetId};
use crate::nodes::mix;
use crate::time::Time;
use crate::unit::Bytes;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Servers assumed at one time; beyond it the oldest is forgotten.
const ASSUMED_MAX: usize = 4_096;
/// Changes that wait to be told at most, whatever the time.
const UNTOLD_MAX: u64 = 64;

/// How a node cooperates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressSettings {
    /// T: connections above which a node is overloaded. 1 to 1,000,000; the paper: 80.
    pub overload: u32,
    /// Targets of this size and more are served where they are asked for and never kept. The paper: 128 KB.
    pub large_min: Bytes,
    /// A load is told when it differs by so much from what was told last; at least 1. The paper: 4.
    pub load_step: u32,
    /// Changes of memory are gathered for this long; zero tells each at once.
    pub gather: Duration,
    /// Whether the others hear of what is being read as if it were in memory. The paper: no.
    pub tell_reads: bool,
    /// Time between signs of life.
    pub beat: Duration,
    /// A load told longer ago is unknown; more than `beat`.
    pub stale_after: Duration,
    /// A server that this node has made counts as such so long without its word.
    pub assumed_for: Duration,
    /// Targets whose servers are known at most.
    pub targets_max: usize,
    /// Changes of memory that can be told again, 16 bytes each; who missed more is given the whole list. At least 64.
    pub log_max: usize,
    /// This node's memory, for the judgement of when to take part.
    pub memory: Bytes,
    /// When a node takes part.
    pub sharing: SharingSettings,
}

impl Default for PressSettings {
    fn default() -> Self {
        Self {
            overload: 80,
            large_min: Bytes::kib(128),
            load_step: 4,
            gather: Duration::from_millis(20),
            tell_reads: true,
            beat: Duration::from_secs(1),
            stale_after: Duration::from_secs(3),
            assumed_for: Duration::from_secs(5),
            targets_max: 1_000_000,
            log_max: 8_192,
            memory: Bytes::mib(64),
            sharing: SharingSettings::default(),
        }
    }
}

/// A node of the cluster.
#[derive(Debug)]
pub struct Press {
    me: NodeId,
    epoch: u64,
    settings: PressSettings,
    sharing: Sharing,
    ledger: Ledger,
    peers: BTreeMap<NodeId, Peer>,
    sets: Sets,
    /// Targets that were large when they were served last.
    large: ClockTable<TargetMark>,
    /// Servers that this node has made and that have not said so themselves.
    assumed: BTreeMap<(TargetId, NodeId), Time>,
    assumed_order: VecDeque<(Time, TargetId, NodeId)>,
    coming: Coming,
    load: u32,
    told_load: u32,
    told_changes: u64,
    tell_at: Option<Time>,
    beat_at: Time,
    /// No peer is to be asked anything before.
    asks_at: Time,
}

impl Press {
    /// The node of slot `me`, in its `epoch`: at least 1, and higher at each start.
    pub fn new(me: NodeId, epoch: u64, settings: PressSettings) -> Self {
        Self {
            me,
            epoch,
            settings,
            sharing: Sharing::new(settings.sharing, settings.memory),
            ledger: Ledger::new(settings.log_max.max(UNTOLD_MAX as usize)),
            peers: BTreeMap::new(),
            sets: Sets::new(settings.targets_max),
            large: ClockTable::new((settings.targets_max / 16).max(1)),
            assumed: BTreeMap::new(),
            assumed_order: VecDeque::new(),
            coming: Coming::new((settings.targets_max / 16).max(1)),
            load: 0,
            told_load: 0,
            told_changes: 0,
            tell_at: None,
            beat_at: Time::ZERO,
            asks_at: Time::MAX,
        }
    }

    /// Decides who serves a client's request. `size` is None where it is not known: then it is large if it was the last time
    /// that it was [served](Press::served). The request counts from [`Press::begun`] on.
    pub fn decide(&mut self, now: Time, target: TargetId, size: Option<Bytes>) -> Verdict {
        let me = self.me;
        let here = |why, keep| Verdict { node: me, why, keep };
        if self.is_large(target, size) {
            return here(Why::Large, false);
        }
        if !self.sharing.is_on() {
            return here(Why::Alone, true);
        }
        if self.ledger.holds(target) {
            return here(Why::Here, true);
        }
        let Some((server, load)) = self.least_loaded_server(now, target) else {
            return here(Why::First, true);
        };
        let limit = self.settings.overload;
        if load <= limit {
            return self.send(now, server, Why::Peer);
        }
        if self.load < limit {
            return here(Why::Relief, true);
        }
        match self.least_loaded(now, target) {
            Some((other, load)) if load < limit => {
                self.assume(now, target, other);
                self.send(now, other, Why::Spread)
            }
            _ => self.send(now, server, Why::Crowded),
        }
    }

    /// Decides about a request that another node has forwarded: it is served here, whatever is known, so that it goes no
    /// further.
    pub fn forwarded(&mut self, target: TargetId, size: Option<Bytes>) -> Verdict {
        Verdict { node: self.me, why: Why::Forwarded, keep: !self.is_large(target, size) }
    }

    /// A service node did not answer: it is shunned for a while, and this node serves the request. With `fault` false it is
    /// not to blame (it is only busy, or waits for another), and not shunned.
    pub fn unanswered(&mut self, now: Time, node: NodeId, target: TargetId, fault: bool) -> Verdict {
        if let Some(peer) = self.peers.get_mut(&node).filter(|_| fault) {
            peer.trust.lose(now);
        }
        self.assumed.remove(&(target, node));
        Verdict { node: self.me, why: Why::Unanswered, keep: true }
    }

    /// A service node has begun to answer what was forwarded to it: it is not shunned any more.
    pub fn answered(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.trust = Trust::default();
        }
    }

    /// A request that was forwarded to a node has ended, whatever came of it.
    pub fn returned(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.sent = peer.sent.saturating_sub(1);
        }
    }

    /// A connection is serviced here: a client's request, or one that another node has forwarded.
    pub fn begun(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        self.load += 1;
        self.tell_load(now, out);
    }

    /// A connection is not serviced any more.
    pub fn ended(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        self.load = self.load.saturating_sub(1);
        self.tell_load(now, out);
    }

    /// This node's memory, and what is too large for it, are others now. What is in memory already stays until it is evicted.
    /// Returns whether all is done; else it is to be called again.
    pub fn resize(&mut self, memory: Bytes, large_min: Bytes) -> bool {
        (self.settings.memory, self.settings.large_min) = (memory, large_min);
        self.sharing.step_to(memory)
    }

    /// A client's request was served, by this node or for it, and its size is known: `missed` if this node served it and
    /// did not have it in memory.
    pub fn served(
        &mut self,
        now: Time,
        target: TargetId,
        size: Bytes,
        missed: bool,
        out: &mut Vec<Outgoing>,
    ) {
        if size >= self.settings.large_min {
            self.large.touch(target, || TargetMark::new(target));
            if self.coming.ends(target) {
                self.note(now, target, false, out);
            }
            return;
        }
        self.large.remove(target);
        if self.sharing.served(target, size, missed) {
            self.told_changes = self.ledger.changes();
            self.tell_at = None;
            self.say_load(now, To::All, out);
        }
    }

    /// What was [decided](Press::decide) to be served and kept here is being read: the others hear of it at once, and ask here,
    /// unless most of what was read lately was not kept.
    pub fn reading(&mut self, now: Time, verdict: Verdict, target: TargetId, out: &mut Vec<Outgoing>) {
        let told = self.settings.tell_reads && self.sharing.is_on();
        let reads = verdict.keep && matches!(verdict.why, Why::First | Why::Relief);
        if !told || !reads || !self.coming.begins(now + self.settings.assumed_for, target) {
            return;
        }
        self.note(now, target, true, out);
    }

    /// What was being read here is not there: the others hear of it at once, instead of when it should have come.
    pub fn came_to_nothing(&mut self, now: Time, target: TargetId, out: &mut Vec<Outgoing>) {
        if self.coming.is_not_there(target) {
            self.note(now, target, false, out);
        }
    }

    /// A target is in memory here now, or no longer.
    pub fn noted(&mut self, now: Time, target: TargetId, cached: bool, out: &mut Vec<Outgoing>) {
        self.coming.noted(target, cached);
        self.note(now, target, cached, out);
    }

    fn note(&mut self, now: Time, target: TargetId, cached: bool, out: &mut Vec<Outgoing>) {
        if !self.ledger.note(target, cached) || !self.sharing.is_on() {
            return;
        }
        let untold = self.ledger.changes() - self.told_changes;
        if self.settings.gather.is_zero() || untold >= UNTOLD_MAX {
            self.tell_changes(out);
        } else if self.tell_at.is_none() {
            self.tell_at = Some(now + self.settings.gather);
        }
    }

    /// A peer is there, or is there anew.
    pub fn joined(&mut self, now: Time, peer: NodeId, out: &mut Vec<Outgoing>) {
        if peer == self.me {
            return;
        }
        if self.peers.insert(peer, Peer::new()).is_some() {
            self.sets.forget(peer);
        }
        if self.sharing.is_on() {
            self.say_load(now, To::One(peer), out);
        }
    }

    /// Messages to a peer go again, and it may have missed some: it is told the load. What else it missed it then asks for.
    pub fn greet(&mut self, now: Time, peer: NodeId, out: &mut Vec<Outgoing>) {
        if self.sharing.is_on() && self.peers.contains_key(&peer) {
            self.say_load(now, To::One(peer), out);
        }
    }

    /// A peer is gone.
    pub fn left(&mut self, peer: NodeId) {
        if self.peers.remove(&peer).is_some() {
            self.sets.forget(peer);
            self.assumed.retain(|(_, node), _| *node != peer);
        }
    }

    /// Hears a message of a peer. Of one that is not there it is ignored.
    pub fn hear(&mut self, now: Time, from: NodeId, message: Message, out: &mut Vec<Outgoing>) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let mut fresh = false;
        let mut lessons = Vec::new();
        match message {
            Message::Ask { of, after } if of == self.epoch => self.answer(now, from, after, out),
            Message::AskList { of, after } if of == self.epoch && self.sharing.is_on() => {
                out.push(Outgoing { to: To::One(from), message: self.ledger.list(self.epoch, after) });
            }
            Message::AskList { of, .. } if of == self.epoch => self.say_load(now, To::One(from), out),
            Message::Ask { .. } | Message::AskList { .. } => {}
            Message::Load { epoch, load, sharing, changes } => {
                if peer.hear_epoch(epoch, &mut fresh) {
                    lessons.push(peer.hear_load(now, load, sharing, changes));
                }
            }
            Message::Changes { epoch, first, items } => {
                if peer.hear_epoch(epoch, &mut fresh) {
                    lessons.push(peer.hear_changes(now, first, items));
                }
            }
            Message::List { epoch, changes, after, last, targets } => {
                if peer.hear_epoch(epoch, &mut fresh) {
                    lessons = peer.hear_list(now, changes, after, last, targets);
                }
            }
        }
        if fresh {
            self.sets.forget(from);
        }
        lessons.into_iter().for_each(|lesson| self.learn(from, lesson));
        if fresh && self.sharing.is_on() {
            // It begins anew and knows nothing of this node.
            self.say_load(now, To::One(from), out);
        }
        self.ask(now, from, out);
    }

    /// When [`Press::tick`] is due next, or earlier. O(1).
    pub fn due(&self) -> Time {
        let beat = self.sharing.is_on().then_some(self.beat_at);
        let expiry = self.assumed_order.front().map(|(at, ..)| *at);
        beat.into_iter()
            .chain(self.tell_at)
            .chain(expiry)
            .chain(self.coming.due())
            .fold(self.asks_at, Time::min)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        while let Some(target) = self.coming.expires(now) {
            self.note(now, target, false, out);
        }
        if self.tell_at.is_some_and(|at| at <= now) {
            self.tell_changes(out);
        }
        if self.sharing.is_on() && self.beat_at <= now {
            self.say_load(now, To::All, out);
        }
        if self.asks_at <= now {
            let stale_after = self.settings.stale_after;
            let is_due = |peer: &Peer| peer.due(stale_after).is_some_and(|at| at <= now);
            let asking: Vec<NodeId> =
                self.peers.iter().filter(|(_, peer)| is_due(peer)).map(|(node, _)| *node).collect();
            asking.into_iter().for_each(|peer| self.ask(now, peer, out));
            let due = self.peers.values().filter_map(|peer| peer.due(stale_after));
            self.asks_at = due.min().unwrap_or(Time::MAX);
        }
        while let Some((at, target, node)) = self.assumed_order.front().copied().filter(|(at, ..)| *at <= now)
        {
            self.assumed_order.pop_front();
            if self.assumed.get(&(target, node)) == Some(&at) {
                self.assumed.remove(&(target, node));
            }
        }
    }

    /// The nodes that are believed to have a target in memory, this one among them, in order.
    pub fn servers(&mut self, target: TargetId) -> Vec<NodeId> {
        let mut servers: Vec<NodeId> = self.sets.members(target, false).collect();
        servers.extend(self.assumed_servers(target));
        servers.extend(self.ledger.holds(target).then_some(self.me));
        servers.sort_unstable();
        servers.dedup();
        servers
    }

    /// Whether a target is in memory here, as far as was [noted](Press::noted).
    pub fn holds(&self, target: TargetId) -> bool {
        self.ledger.holds(target) && !self.coming.has(target)
    }

    /// All that is in memory here, as far as was noted, in order.
    pub fn held(&self) -> Vec<TargetId> {
        self.ledger.targets().filter(|target| !self.coming.has(*target)).collect()
    }

    /// Connections serviced here.
    pub const fn load(&self) -> u32 {
        self.load
    }

    /// Whether this node takes part: by itself it forwards nothing and tells nothing.
    pub fn shares(&self) -> bool {
        self.sharing.is_on()
    }

    /// A peer's load as it counts here; None where it is unknown.
    pub fn load_of(&self, now: Time, peer: NodeId) -> Option<u32> {
        self.peers.get(&peer)?.load(now, self.settings.stale_after)
    }

    /// Whether all that a peer has said of its memory is known here.
    pub fn knows(&self, peer: NodeId) -> bool {
        self.peers.get(&peer).is_some_and(Peer::is_known)
    }

    /// Targets whose servers are known, and targets in memory here.
    pub fn sizes(&self) -> (usize, usize) {
        (self.sets.len(), self.ledger.len())
    }

    fn is_large(&mut self, target: TargetId, size: Option<Bytes>) -> bool {
        size.map_or_else(|| self.large.find(target).is_some(), |size| size >= self.settings.large_min)
    }

    fn send(&mut self, now: Time, node: NodeId, why: Why) -> Verdict {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.sent = peer.sent.saturating_add(1);
            peer.trust.try_with(now);
        }
        Verdict { node, why, keep: false }
    }

    /// The least loaded of a target's servers, and its load.
    fn least_loaded_server(&mut self, now: Time, target: TargetId) -> Option<(NodeId, u32)> {
        let assumed: Vec<NodeId> = self.assumed_servers(target).collect();
        let Self { sets, peers, settings, .. } = self;
        let servers = sets.members(target, true).chain(assumed);
        let usable = servers.filter_map(|node| {
            let peer = peers.get(&node).filter(|peer| peer.sharing && peer.trust.may_ask(now))?;
            Some((node, peer.load(now, settings.stale_after).unwrap_or(settings.overload)))
        });
        usable.min_by_key(|(node, load)| (*load, core::cmp::Reverse(rank(target, *node))))
    }

    /// The least loaded of all peers whose load is known.
    fn least_loaded(&self, now: Time, target: TargetId) -> Option<(NodeId, u32)> {
        let usable = self.peers.iter().filter(|(_, peer)| peer.sharing && peer.trust.may_ask(now));
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

    fn learn(&mut self, from: NodeId, lesson: Lesson) {
        match lesson {
            Lesson::Nothing => {}
            Lesson::Forget => self.sets.forget(from),
            Lesson::Learn(changes) => {
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

    fn ask(&mut self, now: Time, peer: NodeId, out: &mut Vec<Outgoing>) {
        let asked = self.peers.get_mut(&peer).and_then(|peer| peer.ask(now, self.settings.stale_after));
        out.extend(asked.map(|message| Outgoing { to: To::One(peer), message }));
        let due = self.peers.get(&peer).and_then(|peer| peer.due(self.settings.stale_after));
        self.asks_at = due.map_or(self.asks_at, |at| self.asks_at.min(at));
    }

    fn answer(&mut self, now: Time, to: NodeId, after: u64, out: &mut Vec<Outgoing>) {
        self.say_load(now, To::One(to), out);
        if !self.sharing.is_on() {
            return;
        }
        let messages = self.ledger.since(self.epoch, after);
        let messages = messages.unwrap_or_else(|| vec![self.ledger.list(self.epoch, None)]);
        out.extend(messages.into_iter().map(|message| Outgoing { to: To::One(to), message }));
    }

    fn tell_load(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        if self.sharing.is_on() && self.load.abs_diff(self.told_load) >= self.settings.load_step {
            self.say_load(now, To::All, out);
        }
    }

    fn say_load(&mut self, now: Time, to: To, out: &mut Vec<Outgoing>) {
        let (epoch, load, sharing) = (self.epoch, self.load, self.sharing.is_on());
        // Of what is not told yet nobody is to think that it was lost.
        let message = Message::Load { epoch, load, sharing, changes: self.told_changes };
        if to == To::All {
            self.told_load = load;
            self.beat_at = now + self.settings.beat;
        }
        out.push(Outgoing { to, message });
    }

    fn tell_changes(&mut self, out: &mut Vec<Outgoing>) {
        self.tell_at = None;
        // The log holds far more than is ever untold.
        let messages = self.ledger.since(self.epoch, self.told_changes).unwrap_or_default();
        self.told_changes = self.ledger.changes();
        out.extend(messages.into_iter().map(|message| Outgoing { to: To::All, message }));
    }
}

/// Which of equally loaded nodes a target prefers: the same for all initial nodes whose slots agree.
fn rank(target: TargetId, node: NodeId) -> u64 {
    mix(target.0 ^ mix(u64::from(node.0)))
}

#[cfg(test)]
mod tests;
