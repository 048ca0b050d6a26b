//! CARD: every node faces clients (*distributor*), one of them decides for all (*dispatcher*).
//!
//! After Aron, Sanders, Druschel and Zwaenepoel, "Scalable Content-aware Request Distribution in Cluster-based Network
//! Servers" (USENIX 2000), and its name in WARD (HPL-2001-2). A node asks the dispatcher where a request is to be served; the
//! dispatcher is that of the switch ([`crate::dispatch`]), with all its policies.
//!
//! - *Batches.* One batch of requests is under way to the dispatcher at a time; what comes meanwhile is gathered and goes with
//!   the next. So batches grow with the dispatcher's load by themselves, and an idle one answers at once (2000, section 4).
//! - *Who it is.* The live node with the lowest name, as each node sees it; nobody is elected. Who is asked decides: while
//!   views differ there may be two, which costs locality only.
//! - *When it dies.* Requests that wait longer than `patience` are served where they arrived (the paper says nothing of it).
//!   The same node is asked again after `retry`, its successor as soon as the membership says that it is gone. What it had
//!   counted is lost; the new one counts what it places itself.
//! - *When a distributor dies*, the loads of what it had been answered end with it.
//!
//! # Loads
//! The dispatcher counts what it has placed until it hears that it ended. Messages may be lost, late, repeated and out of
//! order, and none of that may leave a load behind:
//!
//! - Batches are numbered. A batch says which was the last whose answers were used; what the dispatcher has answered since
//!   then is placed no longer. One that comes twice is answered twice in the same words.
//! - Ends go in numbered lots, each repeated unchanged until a batch that carried it is answered; each counts once.
//! - The dispatcher numbers the nodes that come. Answers and ends name this *life*: when it takes a node for gone, all that
//!   it counts there ends, and what ends later is not taken from what it has placed there since.
//! - All this is an *account*, named by the number of its first batch. A node opens one with each node that comes, and anew
//!   where it has lost count; the dispatcher then ends all that it counts for that node. Who is asked on an account that he
//!   does not know says so, and is asked again on a new one.
//!
//! State: some 100 bytes per peer, and at a dispatcher 8 KB more per distributor at most.

use crate::dispatch::{Settings, SettingsError};
use crate::id::{NodeId, TargetId};
use crate::time::Time;
use account::{Account, Flight, Waiting};
use accounts::Accounts;
use core::time::Duration;
use desk::Desk;
use std::collections::{BTreeMap, VecDeque};

mod account;
mod accounts;
mod audit;
mod desk;
mod message;
mod wire;

use super::trust::Trust;
pub use audit::Miscount;
pub use message::{BATCH_MAX, Batch, CardMessage, Ends, NameKey, Seat};

/// How nodes and their dispatcher work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSettings {
    /// Longer than this no request waits for the dispatcher. 1 ms to 10 s; default 50 ms.
    pub patience: Duration,
    /// A dispatcher that was silent is asked again after this time. 10 ms to 1 min; default 500 ms.
    pub retry: Duration,
    /// Ends are told after this time where no request takes them along, and no batch is under way. At most 1 s; default 0:
    /// later, the dispatcher's own requests would be the only ones that end at once, and the least loaded node mostly itself.
    pub gather: Duration,
    /// Requests that wait at most; further ones are served where they arrived. 1 to 1,000,000; default 4,096.
    pub waiting_max: usize,
    /// Of the dispatcher. Whatever they say, admission is unlimited, since each node limits its own connections, and a node
    /// that joins is given all it can take at once.
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

/// Why a request is served where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CardWhy {
    /// The dispatcher says: where it arrived.
    Here,
    /// The dispatcher says: by a peer.
    Peer,
    /// The dispatcher is silent.
    Silent,
    /// Too many requests wait for the dispatcher.
    Full,
    /// The dispatcher names a node that is not there, or that does not answer.
    Gone,
}

impl CardWhy {
    /// All, in order.
    pub const ALL: [Self; 5] = [Self::Here, Self::Peer, Self::Silent, Self::Full, Self::Gone];

    /// Its name in logs and metrics.
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

/// By what a dispatcher counts a request. To be given back at its end, once ([`Card::ended`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    account: u64,
    life: u64,
}

/// A request that was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// By which the caller knows it.
    pub ticket: u64,
    /// Where it is to be served: this node but for [`CardWhy::Peer`].
    pub node: NodeId,
    /// Why.
    pub why: CardWhy,
    /// By what a dispatcher counts it; None: it does not.
    pub claim: Option<Claim>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardOutput {
    /// A message is to be sent.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: CardMessage,
    },
    /// A request has its place.
    Placed(Placed),
}

/// This node's account with its own dispatcher: no batch has this number.
const OWN: u64 = 0;

/// The dispatcher hears from each node at least so often.
const SIGN: Duration = Duration::from_secs(10);

/// A node of the cluster.
#[derive(Debug)]
pub struct Card {
    me: NodeId,
    epoch: u64,
    settings: CardSettings,
    /// Live nodes by name, this one among them.
    names: BTreeMap<Box<str>, NodeId>,
    /// The same by number.
    named: BTreeMap<NodeId, Box<str>>,
    keys: BTreeMap<NameKey, NodeId>,
    /// With the other nodes.
    accounts: Accounts,
    trust: BTreeMap<NodeId, Trust>,
    waiting: VecDeque<Waiting>,
    numbers: u64,
    /// The dispatcher that did not answer, and when it is asked again.
    silent: Option<(NodeId, Time)>,
    desk: Desk,
}

impl Card {
    /// The node of slot `me` with this name, in its `epoch`, which is higher at each start.
    ///
    /// # Errors
    /// A setting of the dispatcher is out of range.
    pub fn new(me: NodeId, name: &str, epoch: u64, settings: CardSettings) -> Result<Self, SettingsError> {
        let desk = Desk::new(&settings.dispatcher)?;
        let mut card = Self {
            me,
            epoch,
            accounts: Accounts::new(settings.patience, settings.retry),
            settings,
            names: BTreeMap::new(),
            named: BTreeMap::new(),
            keys: BTreeMap::new(),
            trust: BTreeMap::new(),
            waiting: VecDeque::new(),
            numbers: OWN,
            silent: None,
            desk,
        };
        card.enter(Time::ZERO, me, name);
        Ok(card)
    }

    /// Asks where a request is to be served. The answer comes as [`CardOutput::Placed`], now or later.
    pub fn ask(&mut self, now: Time, ticket: u64, target: TargetId, out: &mut Vec<CardOutput>) {
        let waiting = Waiting { ticket, target, since: now };
        let dispatcher = self.dispatcher();
        if dispatcher != self.me {
            if self.silent.is_some_and(|(node, until)| node == dispatcher && now < until) {
                return out.push(self.here(waiting, CardWhy::Silent));
            }
            if self.waiting.len() >= self.settings.waiting_max {
                return out.push(self.here(waiting, CardWhy::Full));
            }
        }
        self.waiting.push_back(waiting);
        self.send(now, out);
    }

    /// A placed request has ended.
    pub fn ended(&mut self, now: Time, claim: Claim) {
        if claim.account == OWN {
            return self.desk.end(now, self.me, claim.life, 1);
        }
        let by = now + self.settings.gather;
        if let Some(node) = self.accounts.owner(claim.account) {
            self.accounts.with(node, |account| account.owe(claim.life, by));
        }
    }

    /// Hears a message. Those of nodes that are not there mean nothing.
    pub fn hear(&mut self, now: Time, from: NodeId, message: CardMessage, out: &mut Vec<CardOutput>) {
        if !self.accounts.contains(from) {
            return;
        }
        match message {
            CardMessage::Batch(batch) => {
                let answer = self.desk.hear(now, from, batch);
                out.extend(answer.map(|message| CardOutput::Send { to: from, message }));
            }
            CardMessage::Answers { number, seats } => self.answered(now, from, number, seats, out),
            CardMessage::Unknown { number } => {
                let landed = self.accounts.with(from, |account| {
                    let flight = account.landed(number)?;
                    account.close(now);
                    Some(flight)
                });
                if let Some(flight) = landed.flatten() {
                    self.again(flight);
                    self.send(now, out);
                }
            }
        }
    }

    /// A node is there, or there anew.
    pub fn joined(&mut self, now: Time, node: NodeId, name: &str, out: &mut Vec<CardOutput>) {
        if node == self.me {
            return;
        }
        self.left(now, node, out);
        if let Some(before) = self.names.get(name).copied() {
            self.left(now, before, out);
        }
        if !self.names.contains_key(name) {
            self.enter(now, node, name);
            self.accounts.insert(node, Account::due_at(now));
            self.send(now, out);
        }
    }

    /// A node is gone.
    pub fn left(&mut self, now: Time, node: NodeId, out: &mut Vec<CardOutput>) {
        if node == self.me {
            return;
        }
        let Some(name) = self.named.remove(&node) else { return };
        self.names.remove(&name);
        self.keys.remove(&NameKey::of(&name));
        self.trust.remove(&node);
        self.desk.leave(now, node, NameKey::of(&name));
        if self.silent.is_some_and(|(silent, _)| silent == node) {
            self.silent = None;
        }
        if let Some(flight) = self.accounts.remove(node).and_then(|account| account.flight) {
            // Its successor is asked.
            self.again(flight);
        }
        self.send(now, out);
    }

    /// A node did not answer a request that was forwarded to it: it is shunned for a while.
    pub fn unanswered(&mut self, now: Time, node: NodeId) {
        if self.accounts.contains(node) {
            self.trust.entry(node).or_insert(Trust::NEW).lose(now);
        }
    }

    /// A node has begun to answer a request that was forwarded to it.
    pub fn replied(&mut self, node: NodeId) {
        self.trust.remove(&node);
    }

    /// When [`Card::tick`] is due next. O(log nodes).
    pub fn due(&self) -> Time {
        let oldest = self.waiting.front().map_or(Time::MAX, |waiting| waiting.since + self.settings.patience);
        let first = self.accounts.first_due().unwrap_or(Time::MAX);
        oldest.min(first).min(self.sign_due())
    }

    /// When the dispatcher is to be told how its account stands, if nothing else happens.
    fn sign_due(&self) -> Time {
        let account = self.accounts.get(self.dispatcher()).filter(|account| account.rests());
        account.map_or(Time::MAX, |account| account.spoke + SIGN)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time, out: &mut Vec<CardOutput>) {
        let CardSettings { patience, retry, .. } = self.settings;
        let mut nodes = self.accounts.due_by(now);
        if self.sign_due() <= now {
            nodes.insert(self.dispatcher());
        }
        for node in nodes {
            let unanswered = self.accounts.with(node, |account| {
                let flight = account.flight.take();
                if flight.as_ref().is_some_and(|flight| !flight.asked.is_empty()) {
                    // The next batch says that its answers are not used.
                    account.speak_by(now + retry);
                }
                flight
            });
            match unanswered.flatten() {
                Some(flight) if !flight.asked.is_empty() => {
                    self.silent = Some((node, now + retry));
                    let waiting = match self.dispatcher() == node {
                        true => core::mem::take(&mut self.waiting),
                        false => VecDeque::new(),
                    };
                    let all = flight.asked.into_iter().chain(waiting);
                    out.extend(all.map(|waiting| self.here(waiting, CardWhy::Silent)));
                }
                // Nobody waits for it.
                _ => self.send_batch(now, node, out),
            }
        }
        let late = |waiting: &mut Waiting| now.since(waiting.since) >= patience;
        while let Some(waiting) = self.waiting.pop_front_if(late) {
            out.push(self.here(waiting, CardWhy::Silent));
        }
        self.send(now, out);
    }

    /// Who decides, as this node sees it.
    pub fn dispatcher(&self) -> NodeId {
        self.names.values().next().copied().unwrap_or(self.me)
    }

    /// The load that this node's own dispatcher counts for a node; 0 where it decides nothing. O(log nodes).
    pub fn load_at_desk(&self, node: NodeId) -> u32 {
        self.named.get(&node).map_or(0, |name| self.desk.load(NameKey::of(name)))
    }

    /// Requests that wait for the dispatcher's answer.
    pub fn waiting(&self) -> usize {
        let asked = self.accounts.iter().filter_map(|account| account.flight.as_ref());
        self.waiting.len() + asked.map(|flight| flight.asked.len()).sum::<usize>()
    }

    /// Nodes that are there and that this node's own dispatcher places nothing at, since they are more than it takes
    /// ([`Settings::nodes_max`]).
    pub fn unseated(&self) -> usize {
        self.desk.unseated()
    }

    /// Targets that this node's own dispatcher remembers.
    pub fn targets_known(&self) -> usize {
        self.desk.targets_known()
    }

    fn enter(&mut self, now: Time, node: NodeId, name: &str) {
        self.names.insert(name.into(), node);
        self.named.insert(node, name.into());
        self.keys.insert(NameKey::of(name), node);
        self.desk.join(now, node, name);
    }

    fn here(&self, waiting: Waiting, why: CardWhy) -> CardOutput {
        CardOutput::Placed(Placed { ticket: waiting.ticket, node: self.me, why, claim: None })
    }

    /// Where an answer sends a request, and whether somebody is to be told that it ends at once: a node that is not there any
    /// more, or shunned, is none.
    fn placed(&mut self, now: Time, waiting: Waiting, name: NameKey, claim: Claim) -> (CardOutput, bool) {
        if name == NameKey::ASKER {
            return (self.here(waiting, CardWhy::Here), false);
        }
        let node = self.keys.get(&name).copied();
        let trusted = |node: &NodeId| self.trust.get(node).is_none_or(|trust| trust.may_ask(now));
        let Some(node) = node.filter(trusted) else {
            return (self.here(waiting, CardWhy::Gone), true);
        };
        if let Some(trust) = self.trust.get_mut(&node) {
            trust.try_with(now);
        }
        let why = if node == self.me { CardWhy::Here } else { CardWhy::Peer };
        (CardOutput::Placed(Placed { ticket: waiting.ticket, node, why, claim: Some(claim) }), false)
    }

    fn answered(
        &mut self,
        now: Time,
        from: NodeId,
        number: u64,
        seats: Vec<Seat>,
        out: &mut Vec<CardOutput>,
    ) {
        let gather = self.settings.gather;
        let landed = self.accounts.with(from, |account| {
            let flight = account.landed(number);
            match &flight {
                Some(flight) => account.used(flight),
                // Too late, or of a batch that came late: the next one says that it is not used.
                None => account.speak_by(now + gather),
            }
            flight
        });
        let Some(flight) = landed.flatten() else { return };
        if self.silent.is_some_and(|(silent, _)| silent == from) {
            self.silent = None;
        }
        let seats = seats.into_iter().chain(core::iter::repeat(Seat::ASKER));
        for (waiting, Seat { node, life }) in flight.asked.into_iter().zip(seats) {
            let claim = Claim { account: flight.account, life };
            let (placed, is_over) = self.placed(now, waiting, node, claim);
            out.push(placed);
            if is_over {
                self.ended(now, claim);
            }
        }
        self.send(now, out);
    }

    /// Requests whose batch has gone wrong wait again, before those that came later.
    fn again(&mut self, flight: Flight) {
        flight.asked.into_iter().rev().for_each(|waiting| self.waiting.push_front(waiting));
    }

    /// Sends what waits, unless a batch with requests is under way, or places it where this node decides.
    fn send(&mut self, now: Time, out: &mut Vec<CardOutput>) {
        let dispatcher = self.dispatcher();
        if dispatcher == self.me {
            for waiting in core::mem::take(&mut self.waiting) {
                let Seat { node, life } = self.desk.place(now, self.me, waiting.target);
                let claim = Claim { account: OWN, life };
                let (placed, is_over) = self.placed(now, waiting, node, claim);
                out.push(placed);
                if is_over {
                    self.ended(now, claim);
                }
            }
        } else if !self.waiting.is_empty()
            && self.accounts.get(dispatcher).is_some_and(|account| !account.asks())
        {
            self.send_batch(now, dispatcher, out);
        }
    }

    /// Sends what there is for a node: what waits, if that decides, and what is to be told.
    fn send_batch(&mut self, now: Time, to: NodeId, out: &mut Vec<CardOutput>) {
        let is_dispatcher = to == self.dispatcher();
        if !self.accounts.contains(to) {
            return;
        }
        let count = if is_dispatcher { self.waiting.len().min(BATCH_MAX) } else { 0 };
        let asked: Vec<Waiting> = self.waiting.drain(..count).collect();
        self.numbers += 1;
        let (epoch, number) = (self.epoch, self.numbers);
        let batch = self.accounts.with(to, |account| account.batch(now, epoch, number, asked));
        out.extend(batch.map(|batch| CardOutput::Send { to, message: CardMessage::Batch(batch) }));
    }
}

#[cfg(test)]
mod tests;
