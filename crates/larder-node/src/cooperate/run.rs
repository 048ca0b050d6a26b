//! Starts the cooperation, and handles its events: members, messages, changes of the memory, and jobs.

use super::adapter::PolicyOutput;
use super::policy::Policy;
use super::ward::WardAdapter;
use super::{CooperateConfig, CooperateError, Cooperation, CooperationState, Job};
use crate::memory::{Memory, ResidencyChange, Subscription};
use larder_core::policy::table::RouteTable;
use larder_core::{NodeId, Time};
use larder_peers::{Event, Events, LeaveReason, LinkDirection, Name, Network, Service};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;

/// Changes of the memory that may wait. A node that lags further behind reads its whole memory again.
const CHANGES_MAX: usize = 1 << 16;
/// Most names with a number. Further members are not used.
const NAMES_MAX: u16 = u16::MAX - 1;

impl Cooperation {
    /// Joins the peers. Peers learn of changes in `memory`; `service` answers the requests that they forward.
    pub(crate) async fn join(
        config: CooperateConfig,
        memory: &Arc<Memory>,
        service: impl Service,
    ) -> Result<Arc<Self>, CooperateError> {
        let CooperateConfig { network, policy, head_timeout, peer_handoff } = config;
        let (network, events) = Network::start(network, service).await?;
        let policy = Policy::new(policy, network.name(), network.incarnation().max(1))?;
        let cooperation = Arc::new(Self {
            network,
            asks_dispatcher: matches!(policy, Policy::Card(_)),
            placed: policy.reasons().into_iter().map(|reason| (reason, AtomicU64::new(0))).collect(),
            state: Mutex::new(CooperationState {
                policy,
                numbers: BTreeMap::new(),
                numbered: 0,
                names: BTreeMap::new(),
                out: Vec::new(),
                jobs: Vec::new(),
            }),
            deadline_changed: Notify::new(),
            began: Instant::now(),
            head_timeout,
            peer_handoff,
            memory: Arc::clone(memory),
            load: AtomicU32::new(0),
            loads_told: AtomicU64::new(0),
            changes_told: AtomicU64::new(0),
            tables_told: AtomicU64::new(0),
        });
        tokio::spawn(Arc::clone(&cooperation).run(events));
        Ok(cooperation)
    }

    /// Passes a routing table to all peers, as the newest one. Returns false if this node uses no tables, or if
    /// the table has too many targets or another number of owners.
    pub(crate) fn give_table(&self, owners: &[&str], table: RouteTable) -> bool {
        let result = self
            .with_ward(|ward, now, out| ward.with(out, |ward, out| ward.load_table(now, owners, table, out)));
        result == Some(true)
    }

    /// Calls `act` with the policy if it is WARD, and executes the policy's outputs.
    fn with_ward<R>(
        &self,
        act: impl FnOnce(&mut WardAdapter, Time, &mut Vec<PolicyOutput>) -> R,
    ) -> Option<R> {
        self.with(|policy, now, out| match policy {
            Policy::Ward(ward) => Some(act(ward, now, out)),
            Policy::Press(_) | Policy::Card(_) => None,
        })
    }

    /// Runs a job, and reports its result to the policy.
    async fn run_job(self: Arc<Self>, job: Job) {
        let tools = self.with_ward(|ward, _, _| {
            (Arc::clone(&ward.census), ward.carry_permille, Arc::clone(&ward.analyst))
        });
        let Some((census, carry_permille, analyst)) = tools else { return };
        match job {
            Job::TakeCensus { whole } => {
                let carry_permille = if whole { 1_000 } else { carry_permille };
                // If the census cannot be taken, the empty result still completes the round.
                let taken = spawn_blocking(move || census.take(carry_permille)).await.unwrap_or_default();
                self.with_ward(|ward, now, out| {
                    ward.with(out, |ward, out| ward.receive_census(now, taken, out));
                });
            }
            Job::MakeTable(analyse) => {
                let round = analyse.round;
                let table = spawn_blocking(move || analyst.table(&analyse)).await;
                let table = table.unwrap_or_else(|error| Err(error.to_string()));
                self.handle_table(round, table);
            }
        }
    }

    fn handle_table(&self, round: u64, table: Result<RouteTable, String>) {
        let table = table
            .inspect_err(|error| tracing::warn!(%error, "routing table: not made, the previous one stays"));
        self.with_ward(|ward, now, out| match table {
            Ok(table) => {
                let (core, targets) = (table.core_len(), table.len());
                tracing::info!(core, targets, "routing table: made");
                ward.with(out, |ward, out| ward.receive_table(now, round, table, out));
            }
            Err(_) => ward.ward.record_analysis_failure(now, round),
        });
    }

    /// Runs until the network ends.
    async fn run(self: Arc<Self>, mut events: Events) {
        let mut changes = self.subscribe();
        loop {
            for job in std::mem::take(&mut self.lock().jobs) {
                tokio::spawn(Arc::clone(&self).run_job(job));
            }
            let deadline = self.lock().policy.next_deadline().as_nanos();
            let deadline = self.began + Duration::from_nanos(deadline.min(u64::MAX / 4));
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => self.handle_event(event),
                    None => return,
                },
                change = next_change(&mut changes) => match change {
                    Some(change) => self.handle_change(change),
                    // The subscription was cut because it lagged behind, or the node shuts down.
                    None => changes = self.subscribe(),
                },
                () = tokio::time::sleep_until(deadline.into()) => {
                    self.with(|policy, now, out| policy.adapter().tick(now, out));
                }
                () = self.deadline_changed.notified() => {}
            }
        }
    }

    /// Subscribes to changes of the memory, and reports its contents to the policy. Returns `None` if the node
    /// shuts down or the policy does not use memory contents.
    fn subscribe(&self) -> Option<Subscription> {
        if !matches!(self.lock().policy, Policy::Press(_)) {
            return None;
        }
        let subscription = self.memory.subscribe(usize::MAX, CHANGES_MAX)?;
        let (mut from, mut held) = (0, BTreeSet::new());
        loop {
            let page = self.memory.resident_page(from);
            let Some(last) = page.last() else { break };
            from = last.sequence + 1;
            held.extend(page.iter().map(|resident| resident.target));
        }
        self.with(|policy, now, out| {
            let before = match policy {
                Policy::Press(adapter) => adapter.press.cached_targets(),
                Policy::Card(_) | Policy::Ward(_) => Vec::new(),
            };
            let gone = before.into_iter().filter(|target| !held.contains(target));
            gone.for_each(|target| policy.adapter().record_cached(now, target, false, out));
            held.iter().for_each(|target| policy.adapter().record_cached(now, *target, true, out));
        });
        Some(subscription)
    }

    fn handle_change(&self, change: ResidencyChange) {
        let (target, cached) = match change {
            ResidencyChange::Stored(target, _) => (target, true),
            ResidencyChange::Evicted(target) => (target, false),
        };
        self.with(|policy, now, out| policy.adapter().record_cached(now, target, cached, out));
    }

    fn handle_event(&self, event: Event) {
        match event {
            Event::Joined(member) => {
                let Some(node) = self.assign_number(&member.name) else { return };
                tracing::info!(peer = %member.name, address = %member.address, "peer: joined");
                if let Some(peer_handoff) = &self.peer_handoff {
                    peer_handoff.handle_join(&member);
                }
                self.with(|policy, now, out| policy.adapter().add_member(now, node, &member.name, out));
            }
            Event::Left(member, why) => {
                match why {
                    LeaveReason::Lost => tracing::warn!(peer = %member.name, "peer: failed"),
                    LeaveReason::Announced | LeaveReason::Replaced => {
                        tracing::info!(peer = %member.name, reason = ?why, "peer: left");
                    }
                }
                if let Some(peer_handoff) = &self.peer_handoff {
                    peer_handoff.handle_leave(&member.name, why);
                }
                let Some(node) = self.number_of(&member.name) else { return };
                self.with(|policy, now, out| policy.adapter().remove_member(now, node, out));
                let mut state = self.lock();
                state.numbers.remove(&member.name);
                state.names.remove(&node);
            }
            Event::LinkUp(peer, LinkDirection::Outbound) => {
                if let Some(node) = self.number_of(&peer.name) {
                    self.with(|policy, now, out| policy.adapter().greet_member(now, node, out));
                }
            }
            Event::LinkUp(_, LinkDirection::Inbound) | Event::LinkDown(..) => {}
            Event::Message(peer, bytes) => {
                let Some(node) = self.number_of(&peer.name) else { return };
                let result =
                    self.with(|policy, now, out| policy.adapter().handle_message(now, node, &bytes, out));
                if let Err(error) = result {
                    larder_log::limited_warn!(peer = %peer.name, %error, "peer: invalid message ignored");
                }
            }
        }
    }

    fn number_of(&self, name: &Name) -> Option<NodeId> {
        self.lock().numbers.get(name).copied()
    }

    /// Returns the number of a member. A new member gets the next free number. So late events about a member
    /// that has left are not taken for events about its successor.
    fn assign_number(&self, name: &Name) -> Option<NodeId> {
        let mut state = self.lock();
        if let Some(node) = state.numbers.get(name) {
            return Some(*node);
        }
        let last = state.numbered;
        let mut numbers = (last + 1..NAMES_MAX).chain(1..=last).map(NodeId);
        let node = numbers.find(|node| !state.names.contains_key(node))?;
        state.numbered = node.0;
        state.numbers.insert(name.clone(), node);
        state.names.insert(node, name.clone());
        Some(node)
    }
}

async fn next_change(changes: &mut Option<Subscription>) -> Option<ResidencyChange> {
    match changes {
        Some(subscription) => subscription.changes.recv().await.map(|event| event.change),
        None => std::future::pending().await,
    }
}
