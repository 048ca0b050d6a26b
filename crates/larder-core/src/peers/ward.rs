//! WARD without a front-end (dec-CARD): every node has the routing table.
//!
//! Cherkasova and Karlsson, HPL-2001-2, section 2. A target of the table's *core* is served where it is asked for, one of its
//! *partition* by its owner. Nodes count what their own clients ask for ([`crate::census`]). The live node with the lowest name
//! (*table maker*) gathers all counts, has a table made of them, and every node fetches it.
//!
//! ```text
//! table maker                         each node
//! AskCounts ------------------------> takes its counts, most requested first
//!           <------------------------ Counts, part by part
//! Analyse: ward-analysis makes the table (whoever drives this)
//! Newest -------------------------->  is it newer than this node's?
//!           <------------------------ AskTable
//! Table, part by part ------------->  goes by it once it is complete
//! ```
//!
//! - *Which table.* The one with the highest number; of equals that of the lowest maker's name. A maker's number is one above all
//!   that it has heard of, so two makers at once, as in two halves of a network, are told apart, and all nodes end with one.
//! - *How it spreads.* The node with the lowest name says at intervals which it has; who has a newer one says so and is asked
//!   for it. Every part is asked for, so what is lost is asked for again, and what comes twice does nothing.
//! - *When.* The first once a node has decided about `first_requests`, and counts of so many are there; until then none fade. Then every `refresh`; and
//!   `settle` after the last change of who is there, if the table's owners are others than the live nodes and so much was counted
//!   since the last time; else at the next refresh. (The paper: daily, and names 15 minutes.)
//! - *An owner that is not there, or does not answer*: its targets go to the live node of the highest hash of target and name,
//!   until there is another table. The same holds for all targets while there is no table.
//! - *Targets that the table does not have* are served where they are asked for in the paper, since no cache keeps them. Between
//!   two tables that is not so: by default ([`Rest::Hashed`]) they go by their hash too, and are kept once, not everywhere.
//! - *From one table to the next* targets stay with their owners as far as the balance allows, and first get the node that has them
//!   by hash ([`Serving`]): whoever serves a target has it in memory. What is not asked for any more keeps its owner too.
//!
//! State: 11 to 12 bytes a target of the table, twice while another comes; at the table maker up to 24 a target counted while it
//! gathers. Cost of a decision: one look-up; by hash O(nodes).

use super::card::NameKey;
use super::trust::Trust;
use crate::census::Taken;
use crate::id::{NodeId, TargetId};
use crate::policy::table::{Place, RouteTable};
use crate::time::Time;
use crate::unit::Bytes;
use counts::Counts;
use round::Round;
use serving::rank;
use std::collections::BTreeMap;
use std::sync::Arc;
use tables::{Coming, Held};

mod counts;
mod fetch;
mod output;
mod round;
mod serving;
mod settings;
mod tables;
mod wire;

pub use output::{Analyse, WardOutput, WardVerdict, WardWhy};
pub use serving::Serving;
pub use settings::{Rest, WardSettings};
pub use wire::{COUNTS_MAX, Count, OWNERS_MAX, PART_MAX, TableId, WardMessage};

/// The table in force, and what has become of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WardStatus {
    /// Which it is; None: there is none yet.
    pub id: Option<TableId>,
    /// Targets in its core.
    pub core_targets: usize,
    /// Targets with an owner.
    pub partition_targets: usize,
    /// Its owners, and how many of them are there.
    pub owners: (usize, usize),
    /// Since when this node goes by it.
    pub since: Time,
    /// Tables made here.
    pub made: u64,
    /// Tables fetched from others.
    pub fetched: u64,
    /// Tables not fetched because they have more than `targets_max` targets, or make no sense.
    pub refused: u64,
    /// Rounds of counting that led to no table: too few requests, or the analysis failed.
    pub unmade: u64,
    /// Targets that the last round left out for want of room.
    pub left_out: u64,
}

/// A node of the cluster.
#[derive(Debug)]
pub struct Ward {
    me: NodeId,
    name: Arc<str>,
    epoch: u64,
    settings: WardSettings,
    /// Live nodes by name, this one among them.
    names: BTreeMap<Arc<str>, NodeId>,
    keys: BTreeMap<NameKey, NodeId>,
    trust: BTreeMap<NodeId, Trust>,
    held: Option<Arc<Held>>,
    coming: Option<Coming>,
    /// What this node does not fetch.
    refused: Option<TableId>,
    counts: Counts,
    round: Option<Round>,
    rounds: u64,
    /// Requests since the counts were taken last.
    requests: u64,
    beat_at: Time,
    refresh_at: Time,
    settle_at: Option<Time>,
    /// When the maker is asked for the first table.
    want_at: Option<Time>,
    status: WardStatus,
}

impl Ward {
    /// This node's memory has another size now: it is told with the counts from then on, so that the next table is made for it.
    pub fn resize(&mut self, memory: Bytes) {
        self.settings.memory = memory;
    }

    /// The node of slot `me` with this name, in its `epoch`, which is higher at each start.
    pub fn new(me: NodeId, name: &str, epoch: u64, settings: WardSettings) -> Self {
        let name: Arc<str> = name.into();
        Self {
            me,
            epoch,
            settings,
            names: BTreeMap::from([(Arc::clone(&name), me)]),
            keys: BTreeMap::from([(NameKey::of(&name), me)]),
            name,
            trust: BTreeMap::new(),
            held: None,
            coming: None,
            refused: None,
            counts: Counts::new(settings.refresh),
            round: None,
            rounds: 0,
            requests: 0,
            beat_at: Time::ZERO,
            refresh_at: settings.refresh.map_or(Time::MAX, |refresh| Time::ZERO + refresh),
            settle_at: None,
            want_at: None,
            status: WardStatus::default(),
        }
    }

    /// Decides about a client's request, and counts it; what it was for is for the census of whoever drives this. A request that
    /// another node has forwarded is served here, whatever is known, and not asked about.
    pub fn decide(&mut self, now: Time, target: TargetId) -> WardVerdict {
        self.requests = self.requests.saturating_add(1);
        if self.held.is_none()
            && self.requests >= self.settings.first_requests
            && self.settings.refresh.is_some()
        {
            self.want_at = self.want_at.or(Some(now));
        }
        let verdict = self.place(now, target);
        if let Some(trust) = self.trust.get_mut(&verdict.node) {
            trust.try_with(now);
        }
        verdict
    }

    /// A node did not answer a request that was forwarded to it: it is shunned for a while.
    pub fn unanswered(&mut self, now: Time, node: NodeId) {
        if node != self.me && self.keys.values().any(|id| *id == node) {
            self.trust.entry(node).or_insert(Trust::NEW).lose(now);
        }
    }

    /// A node has begun to answer a request that was forwarded to it.
    pub fn replied(&mut self, node: NodeId) {
        self.trust.remove(&node);
    }

    /// A node is there, or there anew.
    pub fn joined(&mut self, now: Time, node: NodeId, name: &str, out: &mut Vec<WardOutput>) {
        if node == self.me || *name == *self.name {
            return;
        }
        self.left(now, node, out);
        if let Some(before) = self.names.get(name).copied() {
            self.left(now, before, out);
        }
        self.names.insert(name.into(), node);
        self.keys.insert(NameKey::of(name), node);
        self.settle_at = Some(now + self.settings.settle);
        if self.is_maker() {
            let id = self.id();
            out.push(WardOutput::Send { to: node, message: WardMessage::Newest { id } });
        }
    }

    /// A node is gone.
    pub fn left(&mut self, now: Time, node: NodeId, out: &mut Vec<WardOutput>) {
        let mut names = self.names.iter().filter(|(_, id)| **id == node && node != self.me);
        let Some(name) = names.next().map(|(name, _)| Arc::clone(name)) else { return };
        self.names.remove(&name);
        self.keys.remove(&NameKey::of(&name));
        self.trust.remove(&node);
        self.counts.forget(node);
        self.settle_at = Some(now + self.settings.settle);
        if self.coming.as_ref().is_some_and(|coming| coming.from == node) {
            self.coming = None;
        }
        if let Some(round) = &mut self.round {
            round.leave_out(node);
        }
        self.gathered(now, out);
    }

    /// Hears a message. Those of nodes that are not there mean nothing.
    pub fn hear(&mut self, now: Time, from: NodeId, message: WardMessage, out: &mut Vec<WardOutput>) {
        if from == self.me || !self.keys.values().any(|id| *id == from) {
            return;
        }
        let answer = match message {
            WardMessage::Newest { id } => self.heard_of(now, from, id),
            WardMessage::AskTable { id, from: row } => Some(self.part(&id, row)),
            WardMessage::Table { id, from: row, total, owners, rows } => {
                let part = tables::Part { row, total, owners, rows };
                self.fetched(now, from, &id, part, out)
            }
            WardMessage::AskCounts { round, snapshot, from: row } => {
                self.asked_for_counts(now, from, (round, snapshot, row), out)
            }
            WardMessage::Counts { round, snapshot, from: row, total, memory, rows } => {
                let part = round::Part { snapshot, row, total, memory, rows };
                let answer = self.round.as_mut().and_then(|it| it.hear(now, round, from, part));
                self.gathered(now, out);
                answer
            }
            WardMessage::Want => {
                if self.held.is_none() && self.is_maker() {
                    self.begin_round(now, out);
                }
                None
            }
        };
        out.extend(answer.map(|message| WardOutput::Send { to: from, message }));
    }

    /// The census of this node was taken.
    pub fn counted(&mut self, now: Time, taken: Taken, out: &mut Vec<WardOutput>) {
        self.requests = 0;
        let memory = self.settings.memory;
        for (to, message) in self.counts.taken(now, taken, self.settings.targets_max, memory) {
            out.push(WardOutput::Send { to, message });
        }
        if let Some(round) = &mut self.round {
            round.own(self.counts.rows());
        }
        self.gathered(now, out);
    }

    /// A table was made; its nodes are the places in [`Analyse::nodes`].
    pub fn made(&mut self, now: Time, round: u64, table: RouteTable, out: &mut Vec<WardOutput>) {
        let Some(done) = self.round.take_if(|it| it.number == round) else { return };
        if usize::from(table.nodes()) > done.owners.len() || table.len() > self.settings.targets_max {
            return self.give_up(now);
        }
        self.status.made += 1;
        self.adopt(now, done.owners, table, out);
    }

    /// No table could be made. The one before stays.
    pub fn unmade(&mut self, now: Time, round: u64) {
        if self.round.take_if(|it| it.number == round).is_some() {
            self.give_up(now);
        }
    }

    /// Takes a table from elsewhere, such as one made of yesterday's log, as the newest; its nodes are the places in `owners`.
    /// False: it has more than `targets_max` targets, or other nodes than owners, or more than [`OWNERS_MAX`] of them.
    pub fn load(&mut self, now: Time, owners: &[&str], table: RouteTable, out: &mut Vec<WardOutput>) -> bool {
        let fits = usize::from(table.nodes()) == owners.len() && owners.len() <= OWNERS_MAX;
        let fits = fits && table.len() <= self.settings.targets_max;
        if fits {
            self.adopt(now, owners.iter().map(|name| NameKey::of(name)).collect(), table, out);
        }
        fits
    }

    /// When [`Ward::tick`] is due next. O(nodes) while counts are gathered.
    pub fn due(&self) -> Time {
        let retry = self.settings.retry;
        let mine = self.is_maker().then(|| self.beat_at.min(self.round_at()));
        let coming = self.coming.as_ref().map(|coming| coming.asked + retry);
        let round = self.round.as_ref().and_then(|round| round.due(retry));
        let counts = self.counts.due();
        [mine, coming, round, counts, self.want_at].into_iter().flatten().min().unwrap_or(Time::MAX)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        self.counts.tick(now);
        self.ask_again(now, out);
        if let Some(round) = &mut self.round {
            let asked = round.tick(now, self.settings.retry, self.settings.patience);
            out.extend(asked.into_iter().map(|(to, message)| WardOutput::Send { to, message }));
            self.gathered(now, out);
        }
        if self.is_maker() {
            if self.beat_at <= now {
                self.tell(now, out);
            }
            if self.round_at() <= now {
                let has_settled = self.settle_at.take_if(|at| *at <= now).is_some();
                if self.refresh_at <= now || (has_settled && !self.fits_the_nodes()) {
                    self.begin_round(now, out);
                }
            }
        }
        if self.want_at.is_some_and(|at| at <= now) {
            self.want_at = Some(now + self.settings.beat).filter(|_| self.held.is_none());
            match self.maker() {
                _ if self.held.is_some() => {}
                maker if maker == self.me => self.begin_round(now, out),
                to => out.push(WardOutput::Send { to, message: WardMessage::Want }),
            }
        }
    }

    /// Who makes tables, as this node sees it.
    pub fn maker(&self) -> NodeId {
        self.names.values().next().copied().unwrap_or(self.me)
    }

    /// How it stands. O(owners).
    pub fn status(&self) -> WardStatus {
        let Some(held) = &self.held else { return self.status.clone() };
        let there = held.owners.iter().filter(|owner| self.keys.contains_key(owner)).count();
        WardStatus {
            id: Some(held.id.clone()),
            core_targets: held.table.core_len(),
            partition_targets: held.table.len() - held.table.core_len(),
            owners: (held.owners.len(), there),
            ..self.status.clone()
        }
    }

    /// The place of a target in the table in force; an owner by its number in it. None: it has none.
    pub fn place_of(&self, target: TargetId) -> Option<Place> {
        self.held.as_ref()?.table.get(target)
    }

    fn is_maker(&self) -> bool {
        self.maker() == self.me
    }

    fn id(&self) -> Option<TableId> {
        self.held.as_ref().map(|held| held.id.clone())
    }

    fn trusts(&self, now: Time, node: NodeId) -> bool {
        self.trust.get(&node).is_none_or(|trust| trust.may_ask(now))
    }

    fn place(&self, now: Time, target: TargetId) -> WardVerdict {
        let Some(held) = &self.held else { return self.hashed(now, target, WardWhy::Early) };
        match held.table.get(target) {
            Some(Place::Core) => WardVerdict { node: self.me, why: WardWhy::Core },
            Some(Place::Node(owner)) => {
                let owner = held.owners.get(usize::from(owner)).and_then(|owner| self.keys.get(owner));
                match owner.copied() {
                    Some(node) if node == self.me => WardVerdict { node, why: WardWhy::Own },
                    Some(node) if self.trusts(now, node) => WardVerdict { node, why: WardWhy::Owner },
                    _ => self.hashed(now, target, WardWhy::Heir),
                }
            }
            None if self.settings.rest == Rest::Here => WardVerdict { node: self.me, why: WardWhy::Rest },
            None => self.hashed(now, target, WardWhy::Rest),
        }
    }

    /// By the highest hash of target and name, among the nodes that answer.
    fn hashed(&self, now: Time, target: TargetId, why: WardWhy) -> WardVerdict {
        let usable = self.keys.iter().filter(|(_, node)| self.trusts(now, **node));
        let best = usable.max_by_key(|(key, _)| rank(target, **key));
        WardVerdict { node: best.map_or(self.me, |(_, node)| *node), why }
    }

    /// When this node, as the table maker, begins to count.
    fn round_at(&self) -> Time {
        if self.settings.refresh.is_none() || self.round.is_some() {
            return Time::MAX;
        }
        let settle = self.settle_at.filter(|_| self.held.is_some());
        settle.map_or(self.refresh_at, |at| at.min(self.refresh_at))
    }

    /// Whether the owners of the table in force are the live nodes.
    fn fits_the_nodes(&self) -> bool {
        let Some(held) = &self.held else { return false };
        let sorted = |mut keys: Vec<NameKey>| {
            keys.sort_unstable();
            keys
        };
        sorted(held.owners.clone()) == sorted(self.owners().map(|(_, key)| key).collect())
    }

    /// The nodes that a table is made for, in order of their names.
    fn owners(&self) -> impl Iterator<Item = (NodeId, NameKey)> + '_ {
        self.names.iter().take(OWNERS_MAX).map(|(name, node)| (*node, NameKey::of(name)))
    }

    fn begin_round(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        let Some(refresh) = self.settings.refresh.filter(|_| self.round.is_none()) else { return };
        self.refresh_at = now + refresh;
        self.rounds += 1;
        let others: Vec<NodeId> = self.names.values().copied().filter(|node| *node != self.me).collect();
        let WardSettings { targets_max, memory, .. } = self.settings;
        let mut round = Round::new(self.rounds, now, &others, targets_max, memory);
        let message = WardMessage::AskCounts { round: self.rounds, snapshot: 0, from: 0 };
        out.extend(others.into_iter().map(|to| WardOutput::Send { to, message: message.clone() }));
        match self.counts.are_fresh(now) {
            true => round.own(self.counts.rows()),
            false => {
                let whole = self.counts_whole();
                out.extend(self.counts.want().then_some(WardOutput::Count { whole }));
            }
        }
        self.round = Some(round);
        self.gathered(now, out);
    }

    /// Has the table made if all counts are there.
    fn gathered(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        let (nodes, owners): (Vec<NodeId>, Vec<NameKey>) = match &self.round {
            Some(round) if round.is_complete() => self.owners().unzip(),
            _ => return,
        };
        let now_at = Serving::new(self.held.clone(), &owners, &self.settings);
        let Some(round) = &mut self.round else { return };
        self.status.left_out = round.left_out;
        if round.requests < self.settings.first_requests {
            self.round = None;
            return self.give_up(now);
        }
        round.owners = owners;
        let (counts, memory) = round.take();
        out.push(WardOutput::Analyse(Analyse { round: round.number, counts, nodes, memory, now: now_at }));
    }

    /// Whether counts are not to fade: they were taken before, for nothing. Where requests are few, or mostly of a kind that is not
    /// counted, there would never be enough of them for a first table.
    fn counts_whole(&self) -> bool {
        self.held.is_none() && self.counts.were_taken()
    }

    fn give_up(&mut self, now: Time) {
        self.status.unmade += 1;
        self.refresh_at = self.settings.refresh.map_or(Time::MAX, |refresh| now + refresh);
    }

    /// This node is asked for its counts.
    fn asked_for_counts(
        &mut self,
        now: Time,
        from: NodeId,
        (round, snapshot, row): (u64, u64, u32),
        out: &mut Vec<WardOutput>,
    ) -> Option<WardMessage> {
        if snapshot == 0 && !self.counts.are_fresh(now) {
            let whole = self.counts_whole();
            out.extend(self.counts.ask(from, round).then_some(WardOutput::Count { whole }));
            return None;
        }
        Some(self.counts.part(now, round, (snapshot, row), self.settings.memory))
    }
}

#[cfg(test)]
mod tests;
