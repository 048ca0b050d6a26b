//! WARD without a front-end (dec-CARD): every node has the routing table.
//!
//! The design is from Cherkasova and Karlsson, HPL-2001-2, section 2. A target of the table's *core* is served where
//! it is requested, and one of its *partition* by its owner. Nodes count their own clients' requests
//! ([`crate::census`]). The live node with the lowest name (*table maker*) collects all counts and has a table made
//! of them. Every node fetches the table.
//!
//! ```text
//! table maker                         each node
//! CountsRequest --------------------> takes its census, most requested targets first
//!           <------------------------ Counts, part by part
//! Analyse: ward-analysis makes the table (the driver runs it)
//! Newest -------------------------->  compares with its own table
//!           <------------------------ TableRequest
//! Table, part by part ------------->  uses the table once it is complete
//! ```
//!
//! - *Choice of the table.* The table with the highest number is valid, and of equal numbers the one of the lowest maker's
//!   name. A maker numbers its table one above all numbers it knows. So two makers at once, as in a split network, make
//!   distinct tables, and all nodes end with the same one.
//! - *Distribution.* The node with the lowest name announces its table at intervals. A node with a newer table announces that
//!   one and is asked for it. Nodes request every part, so a lost part is requested again and a repeated one has no effect.
//! - *Times.* The first table is made once a node has decided about `first_requests` requests and that many are counted.
//!   Until then the counts do not decay. After that, a table is made every `refresh`. One more is made `settle` after the
//!   last change of the membership. The condition is that the owners differ from the live nodes and enough was counted
//!   since the last table. Otherwise it waits for the next refresh. (The paper: daily; it also names 15 minutes.)
//! - *Failure of an owner.* The targets of an owner that is gone or silent go by hash until there is a new table. The
//!   live node with the highest hash of target and name serves them. The same rule applies to all targets while there is
//!   no table.
//! - *Targets outside the table.* The paper serves them where they are requested, since no cache keeps them. Between two tables
//!   this is not true. So by default ([`UnlistedTargets::Hashed`]) they go by hash too, and only one node keeps them.
//! - *Stability.* A new table leaves targets at their owners as far as the balance allows. Targets without an owner first go to
//!   the node that has them by hash ([`CurrentPlacement`]), since a node that served a target has it in memory. Targets that are
//!   no longer requested keep their owner too.
//!
//! A node needs 11 to 12 bytes for each target of the table, and twice that while it fetches another one. The table maker needs
//! up to 24 bytes for each counted target while it collects counts. A decision takes one lookup, or O(nodes) by hash.

use super::card::NameKey;
use super::trust::Trust;
use crate::census::CensusPeriod;
use crate::id::{NodeId, TargetId};
use crate::policy::table::{Place, RouteTable};
use crate::time::Time;
use crate::unit::Bytes;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use counts::CountsSnapshot;
use current_placement::rank;
use round::CountingRound;
use tables::{InstalledTable, PartialTable};

mod counts;
mod current_placement;
mod fetch;
mod output;
mod round;
mod settings;
mod tables;
mod wire;

pub use current_placement::CurrentPlacement;
pub use output::{AnalysisInput, WardDecision, WardOutput, WardReason};
pub use settings::{UnlistedTargets, WardSettings};
pub use wire::{COUNTS_MAX, Count, OWNERS_MAX, PART_MAX, TableId, WardMessage};

/// State of the table in use, and counters of other tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WardStatus {
    /// Id of the table; `None` if there is none yet.
    pub id: Option<TableId>,
    /// Number of targets in its core.
    pub core_targets: usize,
    /// Number of targets with an owner.
    pub partition_targets: usize,
    /// Number of owners, and how many of them are live.
    pub owners: (usize, usize),
    /// Time since when this node uses the table.
    pub since: Time,
    /// Number of tables made here.
    pub made: u64,
    /// Number of tables fetched from other nodes.
    pub fetched: u64,
    /// Number of tables not fetched because they are invalid or have more than `targets_max` targets.
    pub refused: u64,
    /// Number of counting rounds without a table, for too few requests or a failed analysis.
    pub failed_rounds: u64,
    /// Number of targets that the last round dropped for lack of space.
    pub left_out: u64,
}

/// State machine of one node under WARD.
#[derive(Debug)]
pub struct Ward {
    me: NodeId,
    name: Arc<str>,
    epoch: u64,
    settings: WardSettings,
    /// Live nodes by name, including this one.
    nodes_by_name: BTreeMap<Arc<str>, NodeId>,
    nodes_by_key: BTreeMap<NameKey, NodeId>,
    trust: BTreeMap<NodeId, Trust>,
    installed: Option<Arc<InstalledTable>>,
    partial: Option<PartialTable>,
    /// Id of the last table that this node has refused.
    refused: Option<TableId>,
    counts: CountsSnapshot,
    round: Option<CountingRound>,
    last_round: u64,
    /// Requests since the last census.
    requests: u64,
    heartbeat_at: Time,
    refresh_at: Time,
    settle_at: Option<Time>,
    /// Time of the next request to the table maker for a first table.
    request_at: Option<Time>,
    status: WardStatus,
}

impl Ward {
    /// Changes the memory size of this node. The next counts carry it, so that the next table is made for it.
    pub fn resize(&mut self, memory: Bytes) {
        self.settings.memory = memory;
    }

    /// Creates the node in slot `me` with this name. Each start of the node has a higher `epoch`.
    pub fn new(me: NodeId, name: &str, epoch: u64, settings: WardSettings) -> Self {
        let name: Arc<str> = name.into();
        Self {
            me,
            epoch,
            settings,
            nodes_by_name: BTreeMap::from([(Arc::clone(&name), me)]),
            nodes_by_key: BTreeMap::from([(NameKey::of(&name), me)]),
            name,
            trust: BTreeMap::new(),
            installed: None,
            partial: None,
            refused: None,
            counts: CountsSnapshot::new(settings.refresh),
            round: None,
            last_round: 0,
            requests: 0,
            heartbeat_at: Time::ZERO,
            refresh_at: settings.refresh.map_or(Time::MAX, |refresh| Time::ZERO + refresh),
            settle_at: None,
            request_at: None,
            status: WardStatus::default(),
        }
    }

    /// Chooses the node that serves a client's request, and counts the request. The driver adds the target to its
    /// census. A request that another node has forwarded is always served here, without a call.
    pub fn decide(&mut self, now: Time, target: TargetId) -> WardDecision {
        self.requests = self.requests.saturating_add(1);
        if self.installed.is_none()
            && self.requests >= self.settings.first_requests
            && self.settings.refresh.is_some()
        {
            self.request_at = self.request_at.or(Some(now));
        }
        let decision = self.place_target(now, target);
        if let Some(trust) = self.trust.get_mut(&decision.node) {
            trust.record_forward(now);
        }
        decision
    }

    /// Records that a node did not answer a forwarded request. The node is avoided for a while.
    pub fn record_failure(&mut self, now: Time, node: NodeId) {
        if node != self.me && self.nodes_by_key.values().any(|id| *id == node) {
            self.trust.entry(node).or_insert(Trust::NEW).record_failure(now);
        }
    }

    /// Records that a node has begun to answer a forwarded request.
    pub fn record_reply(&mut self, node: NodeId) {
        self.trust.remove(&node);
    }

    /// Adds a node, or resets one that joins again.
    pub fn add_node(&mut self, now: Time, node: NodeId, name: &str, out: &mut Vec<WardOutput>) {
        if node == self.me || *name == *self.name {
            return;
        }
        self.remove_node(now, node, out);
        if let Some(before) = self.nodes_by_name.get(name).copied() {
            self.remove_node(now, before, out);
        }
        self.nodes_by_name.insert(name.into(), node);
        self.nodes_by_key.insert(NameKey::of(name), node);
        self.settle_at = Some(now + self.settings.settle);
        if self.is_maker() {
            let id = self.table_id();
            out.push(WardOutput::Send { to: node, message: WardMessage::Newest { id } });
        }
    }

    /// Removes a node.
    pub fn remove_node(&mut self, now: Time, node: NodeId, out: &mut Vec<WardOutput>) {
        let mut names = self.nodes_by_name.iter().filter(|(_, id)| **id == node && node != self.me);
        let Some(name) = names.next().map(|(name, _)| Arc::clone(name)) else { return };
        self.nodes_by_name.remove(&name);
        self.nodes_by_key.remove(&NameKey::of(&name));
        self.trust.remove(&node);
        self.counts.remove_waiter(node);
        self.settle_at = Some(now + self.settings.settle);
        if self.partial.as_ref().is_some_and(|partial| partial.from == node) {
            self.partial = None;
        }
        if let Some(round) = &mut self.round {
            round.drop_node(node);
        }
        self.analyse_if_complete(now, out);
    }

    /// Processes a message. Messages from unknown nodes are ignored.
    pub fn receive(&mut self, now: Time, from: NodeId, message: WardMessage, out: &mut Vec<WardOutput>) {
        if from == self.me || !self.nodes_by_key.values().any(|id| *id == from) {
            return;
        }
        let answer = match message {
            WardMessage::Newest { id } => self.receive_newest(now, from, id),
            WardMessage::TableRequest { id, from: row } => Some(self.table_part(&id, row)),
            WardMessage::Table { id, from: row, total, owners, rows } => {
                let part = tables::TablePart { row, total, owners, rows };
                self.receive_part(now, from, &id, part, out)
            }
            WardMessage::CountsRequest { round, snapshot, from: row } => {
                self.answer_counts_request(now, from, (round, snapshot, row), out)
            }
            WardMessage::Counts { round, snapshot, from: row, total, memory, rows } => {
                let part = round::CountsPart { snapshot, row, total, memory, rows };
                let answer = self.round.as_mut().and_then(|it| it.receive(now, round, from, part));
                self.analyse_if_complete(now, out);
                answer
            }
            WardMessage::FirstTableRequest => {
                if self.installed.is_none() && self.is_maker() {
                    self.begin_round(now, out);
                }
                None
            }
        };
        out.extend(answer.map(|message| WardOutput::Send { to: from, message }));
    }

    /// Processes the census of this node.
    pub fn receive_census(&mut self, now: Time, census: CensusPeriod, out: &mut Vec<WardOutput>) {
        self.requests = 0;
        let memory = self.settings.memory;
        for (to, message) in self.counts.store(now, census, self.settings.targets_max, memory) {
            out.push(WardOutput::Send { to, message });
        }
        if let Some(round) = &mut self.round {
            round.add_own(self.counts.rows());
        }
        self.analyse_if_complete(now, out);
    }

    /// Installs the table that was made. Its nodes are indexes into [`AnalysisInput::nodes`].
    pub fn receive_table(&mut self, now: Time, round: u64, table: RouteTable, out: &mut Vec<WardOutput>) {
        let Some(done) = self.round.take_if(|it| it.number == round) else { return };
        if usize::from(table.nodes()) > done.owners.len() || table.len() > self.settings.targets_max {
            return self.abandon_round(now);
        }
        self.status.made += 1;
        self.adopt(now, done.owners, table, out);
    }

    /// Records that no table could be made. The previous table stays.
    pub fn record_analysis_failure(&mut self, now: Time, round: u64) {
        if self.round.take_if(|it| it.number == round).is_some() {
            self.abandon_round(now);
        }
    }

    /// Installs a table from outside as the newest, such as one made from an old log. Its nodes are indexes into
    /// `next_owners`. Returns false if the table has more than `targets_max` targets, more nodes than [`OWNERS_MAX`], or
    /// another number of nodes than owners.
    pub fn load_table(
        &mut self,
        now: Time,
        owners: &[&str],
        table: RouteTable,
        out: &mut Vec<WardOutput>,
    ) -> bool {
        let fits = usize::from(table.nodes()) == owners.len() && owners.len() <= OWNERS_MAX;
        let fits = fits && table.len() <= self.settings.targets_max;
        if fits {
            self.adopt(now, owners.iter().map(|name| NameKey::of(name)).collect(), table, out);
        }
        fits
    }

    /// Returns the time of the next [`Ward::tick`]. O(nodes) while counts are collected.
    pub fn due(&self) -> Time {
        let retry = self.settings.retry;
        let mine = self.is_maker().then(|| self.heartbeat_at.min(self.round_due()));
        let partial = self.partial.as_ref().map(|partial| partial.requested_at + retry);
        let round = self.round.as_ref().and_then(|round| round.due(retry));
        let counts = self.counts.due();
        [mine, partial, round, counts, self.request_at].into_iter().flatten().min().unwrap_or(Time::MAX)
    }

    /// Performs the actions that are due.
    pub fn tick(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        self.counts.tick(now);
        self.repeat_request(now, out);
        if let Some(round) = &mut self.round {
            let requests = round.repeat_requests(now, self.settings.retry, self.settings.patience);
            out.extend(requests.into_iter().map(|(to, message)| WardOutput::Send { to, message }));
            self.analyse_if_complete(now, out);
        }
        if self.is_maker() {
            if self.heartbeat_at <= now {
                self.announce(now, out);
            }
            if self.round_due() <= now {
                let has_settled = self.settle_at.take_if(|at| *at <= now).is_some();
                if self.refresh_at <= now || (has_settled && !self.matches_live_nodes()) {
                    self.begin_round(now, out);
                }
            }
        }
        if self.request_at.is_some_and(|at| at <= now) {
            self.request_at = Some(now + self.settings.heartbeat).filter(|_| self.installed.is_none());
            match self.table_maker() {
                _ if self.installed.is_some() => {}
                maker if maker == self.me => self.begin_round(now, out),
                to => out.push(WardOutput::Send { to, message: WardMessage::FirstTableRequest }),
            }
        }
    }

    /// Returns the table maker, in the view of this node.
    pub fn table_maker(&self) -> NodeId {
        self.nodes_by_name.values().next().copied().unwrap_or(self.me)
    }

    /// Returns the status. O(owners).
    pub fn status(&self) -> WardStatus {
        let Some(installed) = &self.installed else { return self.status.clone() };
        let there = installed.owners.iter().filter(|owner| self.nodes_by_key.contains_key(owner)).count();
        WardStatus {
            id: Some(installed.id.clone()),
            core_targets: installed.table.core_len(),
            partition_targets: installed.table.len() - installed.table.core_len(),
            owners: (installed.owners.len(), there),
            ..self.status.clone()
        }
    }

    fn is_maker(&self) -> bool {
        self.table_maker() == self.me
    }

    fn table_id(&self) -> Option<TableId> {
        self.installed.as_ref().map(|installed| installed.id.clone())
    }

    fn trusts(&self, now: Time, node: NodeId) -> bool {
        self.trust.get(&node).is_none_or(|trust| trust.may_forward(now))
    }

    fn place_target(&self, now: Time, target: TargetId) -> WardDecision {
        let Some(installed) = &self.installed else {
            return self.place_by_hash(now, target, WardReason::Early);
        };
        match installed.table.get(target) {
            Some(Place::Core) => WardDecision { node: self.me, reason: WardReason::Core },
            Some(Place::Node(owner)) => {
                let owner =
                    installed.owners.get(usize::from(owner)).and_then(|owner| self.nodes_by_key.get(owner));
                match owner.copied() {
                    Some(node) if node == self.me => WardDecision { node, reason: WardReason::Own },
                    Some(node) if self.trusts(now, node) => WardDecision { node, reason: WardReason::Owner },
                    _ => self.place_by_hash(now, target, WardReason::Heir),
                }
            }
            None if self.settings.unlisted == UnlistedTargets::Here => {
                WardDecision { node: self.me, reason: WardReason::Rest }
            }
            None => self.place_by_hash(now, target, WardReason::Rest),
        }
    }

    /// Places a target at the answering node with the highest hash of target and name.
    fn place_by_hash(&self, now: Time, target: TargetId, reason: WardReason) -> WardDecision {
        let usable = self.nodes_by_key.iter().filter(|(_, node)| self.trusts(now, **node));
        let best = usable.max_by_key(|(key, _)| rank(target, **key));
        WardDecision { node: best.map_or(self.me, |(_, node)| *node), reason }
    }

    /// Returns the time of the next counting round of this node as the table maker.
    fn round_due(&self) -> Time {
        if self.settings.refresh.is_none() || self.round.is_some() {
            return Time::MAX;
        }
        let settle = self.settle_at.filter(|_| self.installed.is_some());
        settle.map_or(self.refresh_at, |at| at.min(self.refresh_at))
    }

    /// Returns true if the owners of the table are the live nodes.
    fn matches_live_nodes(&self) -> bool {
        let Some(installed) = &self.installed else { return false };
        let sorted = |mut keys: Vec<NameKey>| {
            keys.sort_unstable();
            keys
        };
        sorted(installed.owners.clone()) == sorted(self.next_owners().map(|(_, key)| key).collect())
    }

    /// Returns the nodes that a new table is made for, in order of their names.
    fn next_owners(&self) -> impl Iterator<Item = (NodeId, NameKey)> + '_ {
        self.nodes_by_name.iter().take(OWNERS_MAX).map(|(name, node)| (*node, NameKey::of(name)))
    }

    fn begin_round(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        let Some(refresh) = self.settings.refresh.filter(|_| self.round.is_none()) else { return };
        self.refresh_at = now + refresh;
        self.last_round += 1;
        let others: Vec<NodeId> =
            self.nodes_by_name.values().copied().filter(|node| *node != self.me).collect();
        let WardSettings { targets_max, memory, .. } = self.settings;
        let mut round = CountingRound::new(self.last_round, now, &others, targets_max, memory);
        let message = WardMessage::CountsRequest { round: self.last_round, snapshot: 0, from: 0 };
        out.extend(others.into_iter().map(|to| WardOutput::Send { to, message: message.clone() }));
        match self.counts.is_fresh(now) {
            true => round.add_own(self.counts.rows()),
            false => {
                let keep = self.keeps_counts();
                out.extend(self.counts.start().then_some(WardOutput::TakeCensus { keep }));
            }
        }
        self.round = Some(round);
        self.analyse_if_complete(now, out);
    }

    /// Starts the analysis if all counts have arrived.
    fn analyse_if_complete(&mut self, now: Time, out: &mut Vec<WardOutput>) {
        let (nodes, owners): (Vec<NodeId>, Vec<NameKey>) = match &self.round {
            Some(round) if round.is_complete() => self.next_owners().unzip(),
            _ => return,
        };
        let current = CurrentPlacement::new(self.installed.clone(), &owners, &self.settings);
        let Some(round) = &mut self.round else { return };
        self.status.left_out = round.left_out;
        if round.requests < self.settings.first_requests {
            self.round = None;
            return self.abandon_round(now);
        }
        round.owners = owners;
        let (counts, memory) = round.take_counts();
        out.push(WardOutput::Analyse(AnalysisInput { round: round.number, counts, nodes, memory, current }));
    }

    /// Returns true if the counts must not decay because an earlier census led to no table. With few requests, or
    /// mostly uncounted ones, there would never be enough of them for a first table.
    fn keeps_counts(&self) -> bool {
        self.installed.is_none() && self.counts.was_taken()
    }

    fn abandon_round(&mut self, now: Time) {
        self.status.failed_rounds += 1;
        self.refresh_at = self.settings.refresh.map_or(Time::MAX, |refresh| now + refresh);
    }

    /// Answers a request for this node's counts.
    fn answer_counts_request(
        &mut self,
        now: Time,
        from: NodeId,
        (round, snapshot, row): (u64, u64, u32),
        out: &mut Vec<WardOutput>,
    ) -> Option<WardMessage> {
        if snapshot == 0 && !self.counts.is_fresh(now) {
            let keep = self.keeps_counts();
            out.extend(self.counts.add_waiter(from, round).then_some(WardOutput::TakeCensus { keep }));
            return None;
        }
        Some(self.counts.make_part(now, round, (snapshot, row), self.settings.memory))
    }
}

#[cfg(test)]
mod tests;
