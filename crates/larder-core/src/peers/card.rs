//! CARD: every node faces clients (*distributor*), one of them decides for all (*dispatcher*).
//!
//! After Aron, Sanders, Druschel and Zwaenepoel, "Scalable Content-aware Request Distribution in Cluster-based Network
//! Servers" (USENIX 2000), and its name in WARD (HPL-2001-2). A node asks the dispatcher where a request is to be served; the
//! dispatcher is that of the switch ([`crate::dispatch`]), with all its policies.
//!
//! - *Batches.* One message to the dispatcher is under way at a time; what comes meanwhile is gathered and goes with the
//!   next. So batches grow with the dispatcher's load by themselves, and an idle one answers at once (2000, section 4).
//! - *Who it is.* The live node with the lowest name, as each node sees it; nobody is elected. Who is asked decides: while
//!   views differ there may be two, which costs locality only.
//! - *When it dies.* Requests that wait longer than `patience` are served where they arrived (the paper says nothing of it).
//!   The same node is asked again after `retry`, its successor as soon as the membership says that it is gone. What it had
//!   counted is lost; the new one counts what it places itself, and knows by the *term* whose placements end.
//! - *When a distributor dies*, the loads of what it had been answered end with it.

use crate::dispatch::{Admission, Arrival, Dispatcher, Request, Settings, SettingsError};
use crate::id::{NodeId, TargetId};
use crate::nodes::NodeSpec;
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

mod wire;

/// Most requests in one batch, and most lines of ends.
pub const BATCH_MAX: usize = 1_024;

/// A node's name as messages carry it: its XXH3-64. No name has 0, which stands for *whoever asks*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameKey(pub u64);

impl NameKey {
    /// Whoever asks.
    pub const ASKER: Self = Self(0);

    /// The key of a name.
    pub fn of(name: &str) -> Self {
        Self(TargetId::of(name.as_bytes()).0.max(1))
    }
}

/// Requests that ended, of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Who had placed them.
    pub term: u64,
    /// Where.
    pub node: NameKey,
    /// How many.
    pub count: u32,
}

/// A message between a distributor and a dispatcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardMessage {
    /// Where are these to be served? Those have ended.
    Batch {
        /// Counts up.
        number: u64,
        /// What is asked for, at most [`BATCH_MAX`].
        asks: Vec<TargetId>,
        /// What has ended since the last batch, at most [`BATCH_MAX`].
        ends: Vec<Ends>,
    },
    /// There.
    Answers {
        /// The batch's.
        number: u64,
        /// The dispatcher's.
        term: u64,
        /// One for each that was asked for, in order.
        nodes: Vec<NameKey>,
    },
}

/// How nodes and their dispatcher work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSettings {
    /// Longer than this no request waits for the dispatcher. 1 ms to 10 s.
    pub patience: Duration,
    /// A dispatcher that was silent is asked again after this time.
    pub retry: Duration,
    /// Ends are told after this time where no request takes them along.
    pub gather: Duration,
    /// Requests that wait at most; further ones are served where they arrived.
    pub waiting_max: usize,
    /// Of the dispatcher. Admission is unlimited whatever they say: each node limits its own connections.
    pub dispatcher: Settings,
}

impl Default for CardSettings {
    fn default() -> Self {
        Self {
            patience: Duration::from_millis(50),
            retry: Duration::from_millis(500),
            gather: Duration::from_millis(20),
            waiting_max: 4_096,
            dispatcher: Settings::default(),
        }
    }
}

/// A request that was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// By which the caller knows it.
    pub ticket: u64,
    /// Where it is to be served.
    pub node: NodeId,
    /// Who placed it; None: nobody, it is served where it arrived because the dispatcher is silent. To be given back at its
    /// end ([`Card::ended`]).
    pub term: Option<u64>,
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

#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: u64,
    target: TargetId,
    since: Time,
}

#[derive(Debug)]
struct Flight {
    to: NodeId,
    number: u64,
    asked: Vec<Waiting>,
}

/// A node of the cluster.
#[derive(Debug)]
pub struct Card {
    me: NodeId,
    settings: CardSettings,
    /// Live nodes by name, this one among them.
    names: BTreeMap<Box<str>, NodeId>,
    keys: BTreeMap<NameKey, NodeId>,
    waiting: VecDeque<Waiting>,
    flight: Option<Flight>,
    numbers: u64,
    ends: BTreeMap<(u64, NameKey), u32>,
    ends_at: Option<Time>,
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
        let term = TargetId::of_parts(&[name.as_bytes(), &epoch.to_le_bytes()]).0;
        let desk = Desk::new(term, &settings.dispatcher)?;
        let mut card = Self {
            me,
            settings,
            names: BTreeMap::new(),
            keys: BTreeMap::new(),
            waiting: VecDeque::new(),
            flight: None,
            numbers: 0,
            ends: BTreeMap::new(),
            ends_at: None,
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
        if dispatcher == self.me {
            let node = self.desk.place(now, self.me, target);
            return out.push(self.placed(waiting, node, self.desk.term));
        }
        let silent = self.silent.is_some_and(|(node, until)| node == dispatcher && now < until);
        if silent || self.waiting.len() >= self.settings.waiting_max {
            return out.push(self.alone(waiting));
        }
        self.waiting.push_back(waiting);
        self.send(out);
    }

    /// A placed request has ended.
    pub fn ended(&mut self, now: Time, node: NodeId, term: Option<u64>) {
        let Some(term) = term else { return };
        let Some(name) = self.name_of(node) else { return };
        if term == self.desk.term {
            return self.desk.end(now, self.me, name, 1);
        }
        // What is not told for long is of a dispatcher that is gone.
        if self.ends.len() < BATCH_MAX || self.ends.contains_key(&(term, name)) {
            *self.ends.entry((term, name)).or_default() += 1;
            self.ends_at = self.ends_at.or(Some(now + self.settings.gather));
        }
    }

    /// Hears a message.
    pub fn hear(&mut self, now: Time, from: NodeId, message: CardMessage, out: &mut Vec<CardOutput>) {
        match message {
            CardMessage::Batch { number, asks, ends } => {
                let term = self.desk.term;
                let ours = ends.into_iter().filter(|ends| ends.term == term);
                ours.for_each(|ends| self.desk.end(now, from, ends.node, ends.count));
                let nodes = asks.into_iter().map(|target| self.desk.place(now, from, target)).collect();
                let message = CardMessage::Answers { number, term, nodes };
                out.push(CardOutput::Send { to: from, message });
            }
            CardMessage::Answers { number, term, nodes } => {
                self.answered(now, from, (number, term), nodes, out);
            }
        }
    }

    /// A node is there, or there anew.
    pub fn joined(&mut self, now: Time, node: NodeId, name: &str, out: &mut Vec<CardOutput>) {
        if node != self.me {
            self.left(now, node, out);
            self.enter(now, node, name);
        }
    }

    /// A node is gone.
    pub fn left(&mut self, now: Time, node: NodeId, out: &mut Vec<CardOutput>) {
        let mut names = self.names.iter().filter(|(_, id)| **id == node && node != self.me);
        let Some(name) = names.next().map(|(name, _)| name.clone()) else { return };
        self.names.remove(&name);
        self.keys.remove(&NameKey::of(&name));
        self.desk.leave(now, node, NameKey::of(&name));
        if self.silent.is_some_and(|(silent, _)| silent == node) {
            self.silent = None;
        }
        if let Some(flight) = self.flight.take_if(|flight| flight.to == node) {
            // Its successor is asked.
            flight.asked.into_iter().rev().for_each(|waiting| self.waiting.push_front(waiting));
        }
        self.send_or_place(now, out);
    }

    /// When [`Card::tick`] is due next.
    pub fn due(&self) -> Time {
        let patience = self.settings.patience;
        let flight = self.flight.as_ref().and_then(|flight| flight.asked.first());
        let oldest =
            [flight, self.waiting.front()].into_iter().flatten().map(|waiting| waiting.since + patience);
        oldest.chain(self.ends_at.filter(|_| self.flight.is_none())).min().unwrap_or(Time::MAX)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time, out: &mut Vec<CardOutput>) {
        let patience = self.settings.patience;
        let late = |waiting: &Waiting| now.since(waiting.since) >= patience;
        if let Some(flight) = self.flight.take_if(|flight| flight.asked.first().is_some_and(late)) {
            self.silent = Some((flight.to, now + self.settings.retry));
            out.extend(flight.asked.into_iter().map(|waiting| self.alone(waiting)));
            let waiting = core::mem::take(&mut self.waiting);
            out.extend(waiting.into_iter().map(|waiting| self.alone(waiting)));
        }
        while let Some(waiting) = self.waiting.pop_front_if(|waiting| late(waiting)) {
            out.push(self.alone(waiting));
        }
        if self.ends_at.is_some_and(|at| at <= now) && self.flight.is_none() {
            self.ends_at = None;
            let dispatcher = self.dispatcher();
            if dispatcher == self.me {
                // They were of another term.
                self.ends.clear();
            } else {
                self.send_batch(dispatcher, out);
            }
        }
    }

    /// Who decides, as this node sees it.
    pub fn dispatcher(&self) -> NodeId {
        self.names.values().next().copied().unwrap_or(self.me)
    }

    /// The load that this node's own dispatcher counts for a node; 0 where it decides nothing.
    pub fn load_at_desk(&self, node: NodeId) -> u32 {
        self.name_of(node).map_or(0, |name| self.desk.load(name))
    }

    fn enter(&mut self, now: Time, node: NodeId, name: &str) {
        self.names.insert(name.into(), node);
        self.keys.insert(NameKey::of(name), node);
        self.desk.join(now, name);
    }

    fn name_of(&self, node: NodeId) -> Option<NameKey> {
        self.keys.iter().find(|(_, id)| **id == node).map(|(key, _)| *key)
    }

    fn alone(&self, waiting: Waiting) -> CardOutput {
        CardOutput::Placed(Placed { ticket: waiting.ticket, node: self.me, term: None })
    }

    /// Where an answer sends a request. A node that is not there any more is none.
    fn placed(&self, waiting: Waiting, name: NameKey, term: u64) -> CardOutput {
        match self.keys.get(&name) {
            Some(node) => {
                CardOutput::Placed(Placed { ticket: waiting.ticket, node: *node, term: Some(term) })
            }
            None => self.alone(waiting),
        }
    }

    fn answered(
        &mut self,
        now: Time,
        from: NodeId,
        (number, term): (u64, u64),
        nodes: Vec<NameKey>,
        out: &mut Vec<CardOutput>,
    ) {
        let ours = |flight: &mut Flight| flight.to == from && flight.number == number;
        let Some(flight) = self.flight.take_if(ours) else {
            // Too late: what it has counted for this node has no end of its own.
            for name in nodes.into_iter().filter(|name| *name != NameKey::ASKER) {
                *self.ends.entry((term, name)).or_default() += 1;
                self.ends_at = self.ends_at.or(Some(now + self.settings.gather));
            }
            return;
        };
        self.silent = None;
        let mut nodes = nodes.into_iter();
        for waiting in flight.asked {
            let name = nodes.next().unwrap_or(NameKey::ASKER);
            let placed = self.placed(waiting, name, term);
            if name != NameKey::ASKER && !self.keys.contains_key(&name) {
                *self.ends.entry((term, name)).or_default() += 1;
            }
            out.push(placed);
        }
        self.send(out);
    }

    /// Sends what waits, unless a batch is under way.
    fn send(&mut self, out: &mut Vec<CardOutput>) {
        let dispatcher = self.dispatcher();
        if self.flight.is_none() && !self.waiting.is_empty() && dispatcher != self.me {
            self.send_batch(dispatcher, out);
        }
    }

    fn send_batch(&mut self, to: NodeId, out: &mut Vec<CardOutput>) {
        let count = self.waiting.len().min(BATCH_MAX);
        let asked: Vec<Waiting> = self.waiting.drain(..count).collect();
        let asks = asked.iter().map(|waiting| waiting.target).collect();
        let mut ends = Vec::new();
        while let Some(((term, node), count)) = self.ends.pop_first().filter(|_| ends.len() < BATCH_MAX) {
            ends.push(Ends { term, node, count });
        }
        if self.ends.is_empty() {
            self.ends_at = None;
        }
        self.numbers += 1;
        let number = self.numbers;
        // A batch of ends alone needs no answer to be waited for.
        if !asked.is_empty() {
            self.flight = Some(Flight { to, number, asked });
        }
        out.push(CardOutput::Send { to, message: CardMessage::Batch { number, asks, ends } });
    }

    /// After a change of who decides.
    fn send_or_place(&mut self, now: Time, out: &mut Vec<CardOutput>) {
        if self.dispatcher() != self.me {
            return self.send(out);
        }
        for waiting in core::mem::take(&mut self.waiting) {
            let node = self.desk.place(now, self.me, waiting.target);
            out.push(self.placed(waiting, node, self.desk.term));
        }
    }
}

/// The dispatcher of a node. It works where somebody asks it.
#[derive(Debug)]
struct Desk {
    term: u64,
    dispatcher: Dispatcher,
    slots: BTreeMap<NameKey, NodeId>,
    names: BTreeMap<NodeId, NameKey>,
    /// Requests placed and not ended: by who asked, and where.
    placed: BTreeMap<(NodeId, NameKey), u32>,
}

impl Desk {
    fn new(term: u64, settings: &Settings) -> Result<Self, SettingsError> {
        let settings = Settings { admission: Admission::Unlimited, ..settings.clone() };
        let dispatcher = Dispatcher::new(settings, &[])?;
        Ok(Self { term, dispatcher, slots: BTreeMap::new(), names: BTreeMap::new(), placed: BTreeMap::new() })
    }

    fn join(&mut self, now: Time, name: &str) {
        // Beyond the most nodes that the dispatcher takes, a node is placed at by nobody, and serves its own.
        if let Ok(slot) = self.dispatcher.join(now, NodeSpec::named(name), &mut Vec::new()) {
            self.slots.insert(NameKey::of(name), slot);
            self.names.insert(slot, NameKey::of(name));
        }
    }

    fn leave(&mut self, now: Time, node: NodeId, name: NameKey) {
        let asked: Vec<(NameKey, u32)> = self
            .placed
            .range((node, NameKey(0))..=(node, NameKey(u64::MAX)))
            .map(|((_, at), count)| (*at, *count))
            .collect();
        asked.into_iter().for_each(|(at, count)| self.end(now, node, at, count));
        if let Some(slot) = self.slots.remove(&name) {
            self.dispatcher.fail(now, slot, &mut Vec::new());
            self.dispatcher.leave(now, slot, &mut Vec::new());
            self.names.remove(&slot);
            self.placed.retain(|(_, at), _| *at != name);
        }
    }

    fn place(&mut self, now: Time, asker: NodeId, target: TargetId) -> NameKey {
        let Arrival::Start(decision) = self.dispatcher.arrive(now, Request::new(target)) else {
            return NameKey::ASKER;
        };
        let Some(name) = self.names.get(&decision.node).copied() else {
            self.dispatcher.finish(now, decision.node, &mut Vec::new());
            return NameKey::ASKER;
        };
        *self.placed.entry((asker, name)).or_default() += 1;
        name
    }

    /// Requests have ended; never more than were placed.
    fn end(&mut self, now: Time, asker: NodeId, name: NameKey, count: u32) {
        let Some(placed) = self.placed.get_mut(&(asker, name)) else { return };
        let count = count.min(*placed);
        *placed -= count;
        if *placed == 0 {
            self.placed.remove(&(asker, name));
        }
        if let Some(slot) = self.slots.get(&name).copied() {
            (0..count).for_each(|_| self.dispatcher.finish(now, slot, &mut Vec::new()));
        }
    }

    fn load(&self, name: NameKey) -> u32 {
        self.placed.iter().filter(|((_, at), _)| *at == name).map(|(_, count)| *count).sum()
    }
}

#[cfg(test)]
mod tests;
