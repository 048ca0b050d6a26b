//! CARD: every node accepts clients (*distributor*), and one node decides for all of them (*dispatcher*).
//!
//! Aron, Sanders, Druschel and Zwaenepoel describe the design in "Scalable Content-aware Request Distribution in
//! Cluster-based Network Servers" (USENIX 2000). The name CARD comes from HPL-2001-2, which describes WARD. A
//! distributor asks the dispatcher where to serve a request. The dispatcher is the one of the switch
//! ([`crate::dispatch`]), with all its policies.
//!
//! - *Batches.* At most one batch of requests is in flight to the dispatcher. Requests that arrive meanwhile go with the next
//!   batch. So batches grow with the load of the dispatcher, and an idle dispatcher answers at once (2000, section 4).
//! - *Choice of the dispatcher.* The dispatcher is the live node with the lowest name, as each node sees it. There is no
//!   election. While the views of two nodes differ, there may be two dispatchers, which only costs locality.
//! - *Failure of the dispatcher.* A request that waits longer than `patience` is served where it arrived. The paper does not
//!   treat this case. A distributor asks the same dispatcher again after `retry`, and the next dispatcher as soon as the
//!   membership reports the first one as gone. The loads of the old dispatcher are lost. The new one counts its own placements.
//! - *Failure of a distributor.* The dispatcher ends the loads of all requests that this distributor had asked about.
//!
//! # Loads
//!
//! The dispatcher counts each request it placed until the distributor reports the end. Messages may be lost, late, repeated
//! and reordered. None of this may leave a load behind:
//!
//! - Batches are numbered. Each batch names the last batch whose answers were used, and the dispatcher ends the placements
//!   that it has answered since. A repeated batch gets the same answer again.
//! - Ended requests are reported in numbered groups. A group is repeated unchanged until a batch that carried it is answered.
//!   The dispatcher applies each group once.
//! - The dispatcher numbers the *incarnations* of nodes: each node that joins gets a new number. Answers and ends name it.
//!   When the dispatcher sees a node as gone, it ends all loads of that incarnation. Later ends of it change nothing.
//! - An *account* holds this state for one distributor. The number of its first batch names it. A distributor opens an
//!   account with each node that joins, and a new one when it has lost count. The dispatcher then ends all loads of the old
//!   account. A dispatcher that does not know an account says so, and the distributor asks again with a new account.
//!
//! A node needs about 100 bytes for each peer. A dispatcher needs at most 8 KB more for each distributor.

use crate::dispatch::{Settings, SettingsError};
use crate::id::{NodeId, TargetId};
use crate::time::Time;
use account::{Account, PendingBatch, PendingRequest};
use accounts::Accounts;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;
use dispatcher::CardDispatcher;

mod account;
mod accounts;
mod audit;
mod dispatcher;
mod message;
mod wire;

use super::trust::Trust;
pub use audit::Miscount;
pub use message::{BATCH_MAX, Batch, CardMessage, EndedRequests, NameKey, NodeInstance};

/// Settings for the cooperation of nodes with their dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSettings {
    /// Longest time that a request waits for the dispatcher. 1 ms to 10 s; default 50 ms.
    pub patience: Duration,
    /// Time until a silent dispatcher is asked again. 10 ms to 1 min; default 500 ms.
    pub retry: Duration,
    /// Time after which ended requests are reported if no request carries the report and no batch is in flight. At
    /// most 1 s; default 0. With a longer time, only the requests of the dispatcher itself would end at once, so it
    /// would mostly be the least loaded node.
    pub gather: Duration,
    /// Largest number of waiting requests. Further requests are served where they arrive. 1 to 1,000,000; default
    /// 4,096.
    pub waiting_max: usize,
    /// Settings of the dispatcher. Two of them are overridden. Admission is unlimited, since each node limits its
    /// own connections. A node that joins gets requests at once, without a warm-up.
    pub dispatcher: Settings,
}

impl Default for CardSettings {
    fn default() -> Self {
        Self {
            patience: Duration::from_millis(50),
            retry: Duration::from_millis(500),
            gather: Duration::ZERO,
            waiting_max: 4_096,
            dispatcher: Settings::default(),
        }
    }
}

/// Reason for the placement of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CardReason {
    /// The dispatcher chose the node where the request arrived.
    Here,
    /// The dispatcher chose a peer.
    Peer,
    /// The dispatcher does not answer.
    Silent,
    /// Too many requests wait for the dispatcher.
    Full,
    /// The dispatcher chose a node that is gone or does not answer.
    Gone,
}

impl CardReason {
    /// All reasons, in order.
    pub const ALL: [Self; 5] = [Self::Here, Self::Peer, Self::Silent, Self::Full, Self::Gone];

    /// Returns the name of the reason in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Peer => "peer",
            Self::Silent => "silent",
            Self::Full => "full",
            Self::Gone => "gone",
        }
    }
}

/// Reference to a request that a dispatcher counts. The caller gives it back once, at the end of the request
/// ([`Card::end_request`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    account: u64,
    incarnation: u64,
}

/// Decision about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardPlacement {
    /// Ticket that the caller passed with the request.
    pub ticket: u64,
    /// Node that serves the request: this node, except for [`CardReason::Peer`].
    pub node: NodeId,
    /// Reason for the choice.
    pub reason: CardReason,
    /// Reference for the dispatcher that counts the request; `None` if none counts it.
    pub claim: Option<Claim>,
}

/// Action that the caller carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardOutput {
    /// Send a message.
    Send {
        /// Receiver.
        to: NodeId,
        /// Message.
        message: CardMessage,
    },
    /// Serve a request at the given node.
    Placement(CardPlacement),
}

/// Account of this node with its own dispatcher. No batch has this number.
const OWN_ACCOUNT: u64 = 0;

/// Longest time between two messages from a distributor to its dispatcher.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// State machine of one node under CARD.
#[derive(Debug)]
pub struct Card {
    me: NodeId,
    epoch: u64,
    settings: CardSettings,
    /// Live nodes by name, including this one.
    nodes_by_name: BTreeMap<Box<str>, NodeId>,
    /// Names of the live nodes.
    names_by_node: BTreeMap<NodeId, Box<str>>,
    nodes_by_key: BTreeMap<NameKey, NodeId>,
    /// Accounts with the other nodes.
    accounts: Accounts,
    trust: BTreeMap<NodeId, Trust>,
    waiting: VecDeque<PendingRequest>,
    last_number: u64,
    /// The dispatcher that did not answer, and the time until which it is not asked.
    silent_dispatcher: Option<(NodeId, Time)>,
    own_dispatcher: CardDispatcher,
}

impl Card {
    /// Creates the node in slot `me` with this name. Each start of the node has a higher `epoch`.
    ///
    /// # Errors
    /// Returns an error if a setting of the dispatcher is out of range.
    pub fn new(me: NodeId, name: &str, epoch: u64, settings: CardSettings) -> Result<Self, SettingsError> {
        let own_dispatcher = CardDispatcher::new(&settings.dispatcher)?;
        let mut card = Self {
            me,
            epoch,
            accounts: Accounts::new(settings.patience, settings.retry),
            settings,
            nodes_by_name: BTreeMap::new(),
            names_by_node: BTreeMap::new(),
            nodes_by_key: BTreeMap::new(),
            trust: BTreeMap::new(),
            waiting: VecDeque::new(),
            last_number: OWN_ACCOUNT,
            silent_dispatcher: None,
            own_dispatcher,
        };
        card.insert_node(Time::ZERO, me, name);
        Ok(card)
    }

    /// Asks where to serve a request. The answer comes as [`CardOutput::Placement`], now or later.
    pub fn ask(&mut self, now: Time, ticket: u64, target: TargetId, out: &mut Vec<CardOutput>) {
        let waiting = PendingRequest { ticket, target, since: now };
        let dispatcher = self.dispatcher();
        if dispatcher != self.me {
            if self.silent_dispatcher.is_some_and(|(node, until)| node == dispatcher && now < until) {
                return out.push(self.place_locally(waiting, CardReason::Silent));
            }
            if self.waiting.len() >= self.settings.waiting_max {
                return out.push(self.place_locally(waiting, CardReason::Full));
            }
        }
        self.waiting.push_back(waiting);
        self.send_waiting(now, out);
    }

    /// Records the end of a placed request.
    pub fn end_request(&mut self, now: Time, claim: Claim) {
        if claim.account == OWN_ACCOUNT {
            return self.own_dispatcher.end_requests(now, self.me, claim.incarnation, 1);
        }
        let by = now + self.settings.gather;
        if let Some(node) = self.accounts.node_of(claim.account) {
            self.accounts.update(node, |account| account.add_ended(claim.incarnation, by));
        }
    }

    /// Processes a message. Messages from unknown nodes are ignored.
    pub fn receive(&mut self, now: Time, from: NodeId, message: CardMessage, out: &mut Vec<CardOutput>) {
        if !self.accounts.contains(from) {
            return;
        }
        match message {
            CardMessage::Batch(batch) => {
                let answer = self.own_dispatcher.receive(now, from, batch);
                out.extend(answer.map(|message| CardOutput::Send { to: from, message }));
            }
            CardMessage::Answers { number, instances } => {
                self.receive_answers(now, from, number, instances, out);
            }
            CardMessage::Unknown { number } => {
                let answered_batch = self.accounts.update(from, |account| {
                    let in_flight = account.take_answered(number)?;
                    account.close(now);
                    Some(in_flight)
                });
                if let Some(in_flight) = answered_batch.flatten() {
                    self.requeue(in_flight);
                    self.send_waiting(now, out);
                }
            }
        }
    }

    /// Adds a node, or resets one that joins again.
    pub fn add_node(&mut self, now: Time, node: NodeId, name: &str, out: &mut Vec<CardOutput>) {
        if node == self.me {
            return;
        }
        self.remove_node(now, node, out);
        if let Some(before) = self.nodes_by_name.get(name).copied() {
            self.remove_node(now, before, out);
        }
        if !self.nodes_by_name.contains_key(name) {
            self.insert_node(now, node, name);
            self.accounts.insert(node, Account::open_at(now));
            self.send_waiting(now, out);
        }
    }

    /// Removes a node.
    pub fn remove_node(&mut self, now: Time, node: NodeId, out: &mut Vec<CardOutput>) {
        if node == self.me {
            return;
        }
        let Some(name) = self.names_by_node.remove(&node) else { return };
        self.nodes_by_name.remove(&name);
        self.nodes_by_key.remove(&NameKey::of(&name));
        self.trust.remove(&node);
        self.own_dispatcher.remove_node(now, node, NameKey::of(&name));
        if self.silent_dispatcher.is_some_and(|(silent, _)| silent == node) {
            self.silent_dispatcher = None;
        }
        if let Some(in_flight) = self.accounts.remove(node).and_then(|account| account.in_flight) {
            // The requests go to the next dispatcher.
            self.requeue(in_flight);
        }
        self.send_waiting(now, out);
    }

    /// Records that a node did not answer a forwarded request. The node is avoided for a while.
    pub fn record_failure(&mut self, now: Time, node: NodeId) {
        if self.accounts.contains(node) {
            self.trust.entry(node).or_insert(Trust::NEW).record_failure(now);
        }
    }

    /// Records that a node has begun to answer a forwarded request.
    pub fn record_reply(&mut self, node: NodeId) {
        self.trust.remove(&node);
    }

    /// Returns the time of the next [`Card::tick`]. O(log nodes).
    pub fn due(&self) -> Time {
        let oldest = self.waiting.front().map_or(Time::MAX, |waiting| waiting.since + self.settings.patience);
        let first = self.accounts.first_due().unwrap_or(Time::MAX);
        oldest.min(first).min(self.heartbeat_due())
    }

    /// Returns the time of the next message to the dispatcher if nothing else happens until then.
    fn heartbeat_due(&self) -> Time {
        let account = self.accounts.get(self.dispatcher()).filter(|account| account.is_idle());
        account.map_or(Time::MAX, |account| account.sent_at + HEARTBEAT)
    }

    /// Performs the actions that are due.
    pub fn tick(&mut self, now: Time, out: &mut Vec<CardOutput>) {
        let CardSettings { patience, retry, .. } = self.settings;
        let mut nodes = self.accounts.nodes_due(now);
        if self.heartbeat_due() <= now {
            nodes.insert(self.dispatcher());
        }
        for node in nodes {
            let unanswered = self.accounts.update(node, |account| {
                let in_flight = account.in_flight.take();
                if in_flight.as_ref().is_some_and(|in_flight| !in_flight.requests.is_empty()) {
                    // The next batch reports that the answers of this one are not used.
                    account.send_by(now + retry);
                }
                in_flight
            });
            match unanswered.flatten() {
                Some(in_flight) if !in_flight.requests.is_empty() => {
                    self.silent_dispatcher = Some((node, now + retry));
                    let waiting = match self.dispatcher() == node {
                        true => core::mem::take(&mut self.waiting),
                        false => VecDeque::new(),
                    };
                    let all = in_flight.requests.into_iter().chain(waiting);
                    out.extend(all.map(|waiting| self.place_locally(waiting, CardReason::Silent)));
                }
                // No request waits for this batch.
                _ => self.send_batch(now, node, out),
            }
        }
        let late = |waiting: &mut PendingRequest| now.since(waiting.since) >= patience;
        while let Some(waiting) = self.waiting.pop_front_if(late) {
            out.push(self.place_locally(waiting, CardReason::Silent));
        }
        self.send_waiting(now, out);
    }

    /// Returns the node that decides, in the view of this node.
    pub fn dispatcher(&self) -> NodeId {
        self.nodes_by_name.values().next().copied().unwrap_or(self.me)
    }

    /// Returns the load that the dispatcher of this node counts for a node; 0 if it decides nothing. O(log nodes).
    pub fn dispatcher_load(&self, node: NodeId) -> u32 {
        self.names_by_node.get(&node).map_or(0, |name| self.own_dispatcher.load(NameKey::of(name)))
    }

    /// Returns the number of requests that wait for an answer of the dispatcher.
    pub fn waiting_requests(&self) -> usize {
        let requests = self.accounts.iter().filter_map(|account| account.in_flight.as_ref());
        self.waiting.len() + requests.map(|in_flight| in_flight.requests.len()).sum::<usize>()
    }

    /// Returns the number of live nodes beyond the limit of the dispatcher ([`Settings::nodes_max`]). The dispatcher
    /// of this node places no request at them.
    pub fn nodes_over_limit(&self) -> usize {
        self.own_dispatcher.nodes_over_limit()
    }

    /// Returns the number of targets in the tables of the dispatcher of this node.
    pub fn targets_known(&self) -> usize {
        self.own_dispatcher.targets_known()
    }

    fn insert_node(&mut self, now: Time, node: NodeId, name: &str) {
        self.nodes_by_name.insert(name.into(), node);
        self.names_by_node.insert(node, name.into());
        self.nodes_by_key.insert(NameKey::of(name), node);
        self.own_dispatcher.add_node(now, node, name);
    }

    fn place_locally(&self, waiting: PendingRequest, reason: CardReason) -> CardOutput {
        CardOutput::Placement(CardPlacement { ticket: waiting.ticket, node: self.me, reason, claim: None })
    }

    /// Turns one answer into a placement. Returns true if the dispatcher must learn that the request ended at once.
    /// This is the case if the answer names a node that is gone or avoided.
    fn place_answer(
        &mut self,
        now: Time,
        waiting: PendingRequest,
        name: NameKey,
        claim: Claim,
    ) -> (CardOutput, bool) {
        if name == NameKey::REQUESTER {
            return (self.place_locally(waiting, CardReason::Here), false);
        }
        let node = self.nodes_by_key.get(&name).copied();
        let trusted = |node: &NodeId| self.trust.get(node).is_none_or(|trust| trust.may_forward(now));
        let Some(node) = node.filter(trusted) else {
            return (self.place_locally(waiting, CardReason::Gone), true);
        };
        if let Some(trust) = self.trust.get_mut(&node) {
            trust.record_forward(now);
        }
        let reason = if node == self.me { CardReason::Here } else { CardReason::Peer };
        (
            CardOutput::Placement(CardPlacement { ticket: waiting.ticket, node, reason, claim: Some(claim) }),
            false,
        )
    }

    fn receive_answers(
        &mut self,
        now: Time,
        from: NodeId,
        number: u64,
        instances: Vec<NodeInstance>,
        out: &mut Vec<CardOutput>,
    ) {
        let gather = self.settings.gather;
        let answered_batch = self.accounts.update(from, |account| {
            let in_flight = account.take_answered(number);
            match &in_flight {
                Some(in_flight) => account.acknowledge(in_flight),
                // The answer is too late, or belongs to a delayed batch. The next batch reports that it is not used.
                None => account.send_by(now + gather),
            }
            in_flight
        });
        let Some(in_flight) = answered_batch.flatten() else { return };
        if self.silent_dispatcher.is_some_and(|(silent, _)| silent == from) {
            self.silent_dispatcher = None;
        }
        let instances = instances.into_iter().chain(core::iter::repeat(NodeInstance::REQUESTER));
        for (waiting, NodeInstance { node, incarnation }) in in_flight.requests.into_iter().zip(instances) {
            let claim = Claim { account: in_flight.account, incarnation };
            let (placed, is_over) = self.place_answer(now, waiting, node, claim);
            out.push(placed);
            if is_over {
                self.end_request(now, claim);
            }
        }
        self.send_waiting(now, out);
    }

    /// Puts the requests of a failed batch back, before all newer requests.
    fn requeue(&mut self, in_flight: PendingBatch) {
        in_flight.requests.into_iter().rev().for_each(|waiting| self.waiting.push_front(waiting));
    }

    /// Places the waiting requests if this node decides. Otherwise it sends them, unless a batch with requests is in
    /// flight.
    fn send_waiting(&mut self, now: Time, out: &mut Vec<CardOutput>) {
        let dispatcher = self.dispatcher();
        if dispatcher == self.me {
            for waiting in core::mem::take(&mut self.waiting) {
                let NodeInstance { node, incarnation } =
                    self.own_dispatcher.place(now, self.me, waiting.target);
                let claim = Claim { account: OWN_ACCOUNT, incarnation };
                let (placed, is_over) = self.place_answer(now, waiting, node, claim);
                out.push(placed);
                if is_over {
                    self.end_request(now, claim);
                }
            }
        } else if !self.waiting.is_empty()
            && self.accounts.get(dispatcher).is_some_and(|account| !account.has_requests())
        {
            self.send_batch(now, dispatcher, out);
        }
    }

    /// Sends a batch to a node: the waiting requests if that node decides, and the ended requests.
    fn send_batch(&mut self, now: Time, to: NodeId, out: &mut Vec<CardOutput>) {
        let is_dispatcher = to == self.dispatcher();
        if !self.accounts.contains(to) {
            return;
        }
        let count = if is_dispatcher { self.waiting.len().min(BATCH_MAX) } else { 0 };
        let requests: Vec<PendingRequest> = self.waiting.drain(..count).collect();
        self.last_number += 1;
        let (epoch, number) = (self.epoch, self.last_number);
        let batch = self.accounts.update(to, |account| account.make_batch(now, epoch, number, requests));
        out.extend(batch.map(|batch| CardOutput::Send { to, message: CardMessage::Batch(batch) }));
    }
}

#[cfg(test)]
mod tests;
