//! Regular work: idle and forgotten connections, dead nodes.

use super::edge::Edge;
use super::fabric::Fabric as _;
use super::lock::lock;
use super::mechanism::{Delivery, Mechanism, Why};
use super::table::{End, Handed};
use crate::lease::Lease;
use crate::lease::Started;
use crate::metrics::HandedEnd;
use larder_core::dispatch::Served;
use larder_core::{Decision, NodeId, Reason, Request, TargetId, Time};
use larder_handoff::FlowKey;
use larder_handoff::abi::{Flow, flow_flag, flow_state};
use larder_handoff::plane::Account;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// An ended connection's flow is kept so long for packets that come late: a node's TIME_WAIT is 60 s.
const LINGER: Duration = Duration::from_secs(60);

/// A connection that no process holds although the plane thinks so, as after a restart, is forgotten by the plane after
/// so long: the client's next try opens it anew.
const HELD_BY_NOBODY: Duration = Duration::from_millis(100);

/// A client that has said nothing for so long has gone without a word.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

/// A connection that is nobody's is taken for one from before a restart only once it is so old: a younger one may be on its
/// way into the table.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// How long a reply's first byte may take before its connection counts as resting.
const UNANSWERED_FOR: Duration = Duration::from_secs(60);

/// A client that has ended its side acknowledges what still comes at distances below this.
const ENDS_AFTER: Duration = Duration::from_secs(1);

/// A connection whose client has ended its side is kept so long for its node's word, should the node go on sending, or die.
const CLOSING_FOR: Duration = Duration::from_secs(10);

/// A connection of which the client has seen nothing may be unknown to its node for so long: its first packet may have
/// been lost, and the client sends it again.
const UNPROVEN_FOR: Duration = Duration::from_secs(4);

/// Connections that are held against a node's list before others have their turn.
const RECONCILED_AT_ONCE: usize = 256;

/// How long it is known.
fn age(now_ns: u64, flow: &Flow) -> Duration {
    Duration::from_nanos(now_ns.saturating_sub(flow.opened_ns))
}

/// The client's side has ended, or the node has said that all has.
fn has_ended(flow: &Flow) -> bool {
    flow.flags & (flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST) != 0
}

/// For how long the client has sent nothing.
fn silence(now_ns: u64, flow: &Flow) -> Duration {
    Duration::from_nanos(now_ns.saturating_sub(flow.seen_ns))
}

impl Edge {
    /// Looks at the connections that count at their nodes: those that rest, and those that the plane has forgotten.
    pub(super) fn review(self: &Arc<Self>) {
        let now_ns = self.fabric.now_ns();
        let active = lock(&self.table).active_keys();
        for key in active {
            match self.fabric.flow(key).filter(|flow| flow.state == flow_state::NODE) {
                None => self.end(key, End::Silent),
                Some(flow) if self.is_over(now_ns, &flow) => self.end_unless_it_goes_on(key),
                Some(flow) if self.rests(now_ns, &flow) => self.rest(key),
                Some(_) => {}
            }
        }
        // Their nodes should have said so.
        let closed = lock(&self.table).closed_for(CLOSING_FOR, self.decider.clock.now());
        closed.into_iter().for_each(|key| self.end_unless_it_goes_on(key));
        let unaccepted = self.expire_placed(self.decider.clock.now());
        self.counts.unaccepted(unaccepted);
        self.peers.ask_doubtful(self.decider.clock.now());
        self.bury(false);
        self.sweep_passing();
    }

    /// Looks at every connection the plane knows: those that are over, those that came from before a restart; and at
    /// those it no longer knows.
    pub(super) fn sweep(self: &Arc<Self>) {
        let now_ns = self.fabric.now_ns();
        let before = lock(&self.table).keys();
        let (mut seen, mut over, mut held, mut strangers) = (HashSet::new(), vec![], vec![], vec![]);
        self.fabric.each_flow(&mut |key, flow| {
            let silent = silence(now_ns, &flow);
            let ended = has_ended(&flow);
            if flow.state == flow_state::HOLD && silent > HELD_BY_NOBODY {
                held.push(key);
            }
            // What this host's stack serves, the stack knows the end of.
            if flow.state != flow_state::NODE {
                return;
            }
            if ended && silent > LINGER {
                over.push(key);
            }
            let known = lock(&self.table).contains(key);
            if known {
                seen.insert(key);
            } else if !ended && silent <= self.config.idle_after && age(now_ns, &flow) > SETTLED_AFTER {
                strangers.push((key, flow));
            }
        });
        for key in before {
            if !seen.contains(&key) {
                self.end(key, End::Silent);
            }
        }
        over.into_iter().for_each(|key| self.fabric.remove_flow(key));
        held.into_iter().for_each(|key| self.forget_held(key));
        for (key, flow) in strangers {
            // Its end may have been told since: it is noted in the plane before the table forgets it.
            if !lock(&self.table).contains(key) && self.fabric.flow(key).is_some_and(|now| !has_ended(&now)) {
                self.adopt(key, flow, Why::Adopted);
            }
        }
        self.sweep_left(self.decider.clock.now());
        self.wake_tags();
    }

    /// The connections that the plane forwards: also those that rest and count for nobody, as a predecessor's do, but not
    /// those whose clients have said nothing for very long.
    pub(super) fn forwarded(&self) -> usize {
        let now_ns = self.fabric.now_ns();
        let mut count = 0;
        self.fabric.each_flow(&mut |_, flow| {
            let ended = flow.flags & (flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST) != 0;
            if flow.state == flow_state::NODE && !ended && silence(now_ns, &flow) < FORGOTTEN_AFTER {
                count += 1;
            }
        });
        count
    }

    /// Whether nothing is under way on a connection: the client has had something of the latest reply and no packet has come
    /// since. A client that waits for its reply's first byte is not at rest, however slow the node is, within reason.
    fn rests(&self, now_ns: u64, flow: &Flow) -> bool {
        let silent = silence(now_ns, flow);
        let answered = flow.last_ack != flow.asked_ack;
        silent > if answered { self.config.idle_after } else { UNANSWERED_FOR.max(self.config.idle_after) }
    }

    /// Whether a connection has ended although its node has not said so: the client has ended its side, has had something
    /// of the reply, and acknowledges no more.
    fn is_over(&self, now_ns: u64, flow: &Flow) -> bool {
        let both = flow_flag::CLIENT_FIN | flow_flag::ACKED;
        flow.flags & both == both && silence(now_ns, flow) > self.config.idle_after.min(ENDS_AFTER)
    }

    /// A connection that has ended as far as can be seen, while its node has not said so: if it goes on, that is told.
    fn end_unless_it_goes_on(&self, key: FlowKey) {
        self.end(key, End::Closed);
        self.fabric.set_idle(key);
    }

    /// A connection on which nothing moves gives its load back.
    fn rest(&self, key: FlowKey) {
        let mut table = lock(&self.table);
        let Some(handed) = table.get_mut(key).filter(|handed| !handed.idle) else { return };
        (handed.idle, handed.rested) = (true, true);
        // Before it is marked in the plane, nothing would be told; after, the table is locked until this is done.
        self.fabric.set_idle(key);
        handed.lease.release(self.decider.clock.now());
    }

    /// A connection that was opened before this switch started, or by another one, or that was forgotten.
    pub(super) fn adopt(&self, key: FlowKey, flow: Flow, why: Why) {
        let (node, request) = (NodeId(flow.node), Request::new(TargetId(0)));
        let mut lease = Lease::new(self.decider.clone());
        if !lease.reuse(self.decider.clock.now(), request, node) {
            return;
        }
        let decision = Decision { node, reason: Reason::Reuse };
        let delivery = Delivery { mechanism: Mechanism::Cookie, why };
        let started = Started { lease, request, decision };
        let handed =
            Handed { rested: true, ..Handed::new(started, delivery, self.decider.clock.now(), None) };
        self.counts.delivered(handed.delivery);
        let before = lock(&self.table).put(key, handed);
        if let Some(before) = before {
            self.finish(key, before, End::Replaced, None);
        }
        self.set_bases(node);
    }

    /// Holds the table against what a node says it has: what it does not have has ended there.
    /// The list is of the time `as_of` or later. Others have their turn in between.
    pub(super) async fn reconcile(self: &Arc<Self>, node: NodeId, live: &HashSet<FlowKey>, as_of: Time) {
        let grace = Duration::from_secs(1);
        let mut doubtful = false;
        let keys = lock(&self.table).of_node(node);
        for (at, key) in keys.into_iter().enumerate() {
            if at % RECONCILED_AT_ONCE == RECONCILED_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            if live.contains(&key) {
                continue;
            }
            let proven = self.fabric.flow(key).is_none_or(|flow| flow.flags & flow_flag::ACKED != 0);
            let grace = if proven { grace } else { UNPROVEN_FOR };
            // On its way there, it may be too young for this list.
            let settled = |handed: &Handed| {
                handed.decision.node == node
                    && as_of.since(handed.opened) >= grace
                    && !self.peers.is_moving(key)
            };
            // Looked at and taken at once: another connection may have its addresses by now.
            let handed = lock(&self.table).take_if(key, settled);
            match handed {
                // Its node's word was lost with the channel.
                Some(handed) if handed.closing.is_some() => {
                    self.finish(key, handed, End::Closed, None);
                }
                Some(handed) => {
                    self.tell_lost(key, handed.first_ack);
                    let account = self.account(key);
                    self.finish(key, handed, End::NodeLost, account);
                }
                None => doubtful = true,
            }
        }
        self.peers.ask_again(node, doubtful.then(|| self.decider.clock.now() + UNPROVEN_FOR));
        self.count_resumed(node, live, as_of);
        // What the plane has forgotten, as after a restart, it learns from the node.
        for (at, key) in live.iter().enumerate() {
            if at % RECONCILED_AT_ONCE == RECONCILED_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            // What is held here, or at another node, is another connection.
            let holding = lock(&self.holding);
            let elsewhere =
                || lock(&self.table).get_mut(*key).is_some_and(|handed| handed.decision.node != node);
            if !holding.contains(*key)
                && !elsewhere()
                && let Err(error) = self.fabric.add_flow(*key, node)
            {
                tracing::warn!(%error, %key, "a node's connection could not be entered in the forwarding plane");
            }
        }
    }

    /// The connections of dead nodes, or with `newly` of those that have died just now: their clients are told at once.
    pub(super) fn bury(&self, newly: bool) {
        self.peers.give_up_unheard(self.decider.clock.now());
        for row in self.decider.dispatcher.nodes().rows() {
            let dead = self.is_dead(row.id);
            let died = self.peers.note_dead(row.id, dead);
            if dead {
                self.peers.give_up_moves(row.id);
            }
            if dead && (died || !newly) {
                let keys = lock(&self.table).of_node(row.id);
                keys.into_iter().for_each(|key| self.lose(key));
            }
        }
    }

    /// The node does not have the connection any more: the client is told.
    pub(super) fn lose(&self, key: FlowKey) {
        let first_ack = lock(&self.table).get_mut(key).and_then(|handed| handed.first_ack);
        self.lose_at(key, first_ack);
    }

    /// The same, where the plane may not know what the client has acknowledged.
    pub(super) fn lose_at(&self, key: FlowKey, first_ack: Option<u32>) {
        self.tell_lost(key, first_ack);
        self.end(key, End::NodeLost);
    }

    fn tell_lost(&self, key: FlowKey, first_ack: Option<u32>) {
        if let Err(error) = self.fabric.reset_client_at(key, first_ack) {
            tracing::debug!(%error, %key, "a client could not be told that its connection is gone");
        }
    }

    /// A connection has ended: its load, what it taught, its line in the log.
    pub(super) fn finish(&self, key: FlowKey, mut handed: Handed, end: End, account: Option<Account>) {
        let now = self.decider.clock.now();
        let (account, ended) = handed.closing.map_or((account, now), |(account, at)| (Some(account), at));
        // What was held may have ended before it was decided.
        let total = ended.since(handed.opened);
        let (acknowledged, requests) = match handed.first_ack {
            None => (account.map(|seen| seen.acknowledged), account.map_or(0, |seen| seen.requests)),
            // Of a moved connection the plane has not seen the first request, and perhaps no acknowledgement before the last.
            Some(first_ack) => {
                let flow = self.fabric.flow(key).filter(|flow| flow.packets > 0);
                let acknowledged = flow.map(|flow| flow.last_ack.wrapping_sub(first_ack));
                (acknowledged, flow.map_or(0, |flow| flow.requests) + 1)
            }
        };
        // The node's FIN has a number, too.
        let bytes = acknowledged.map(|bytes| u64::from(bytes).saturating_sub(1));
        let node = handed.decision.node;
        if end == End::Closed
            && requests <= 1
            && let Some(bytes) = bytes.filter(|bytes| *bytes > 0)
        {
            self.learned.note_reply(handed.request.target, bytes);
            if !handed.rested {
                let served = Served { elapsed: total, first_byte: None, found: None };
                self.decider.dispatcher.served(now, &handed.request, node, &served);
            }
        }
        handed.lease.release(now);
        self.set_bases(node);
        if !self.config.mends.entry_outlives {
            self.fabric.remove_flow(key);
        }
        self.counts.ended(end);
        self.decider.metrics.handed_ended(&HandedEnd { node, bytes: bytes.unwrap_or(0), total });
        self.log(key, &handed, bytes, total);
    }
}
