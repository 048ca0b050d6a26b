//! The state of the cluster, as one node sees it.

use super::adapter::LOCAL;
use super::policy::Policy;
use super::{Cooperation, CooperationState};
use crate::handoff::PeerHandoffView;
use larder_core::Time;
use larder_peers::{CounterValues, Member};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// The state of the cluster, as this node sees it.
#[derive(Clone, Debug, Serialize)]
pub struct PeersView {
    /// This node's name.
    pub name: String,
    /// The node's incarnation: milliseconds since 1970 at its start.
    pub incarnation: u64,
    /// The policy: `press`, `card` or `ward`.
    pub policy: &'static str,
    /// The node that decides for all nodes or makes the tables; `null` if each node decides for itself.
    pub dispatcher: Option<String>,
    /// The routing table; `null` if there is none.
    pub table: Option<TableView>,
    /// Whether the node shares its memory with peers. If not, it forwards and reports nothing.
    pub sharing: bool,
    /// Connections that the node serves.
    pub load: u32,
    /// Targets whose servers the node knows: from peers' reports, as their dispatcher, or by the table.
    pub targets_known: usize,
    /// Targets in this node's memory that peers may ask for.
    pub targets_held: usize,
    /// Requests that wait for the dispatcher.
    pub waiting: usize,
    /// Members beyond the limit of this node as the dispatcher. It places no requests at them.
    pub unseated: usize,
    /// Decisions by reason.
    pub decisions: BTreeMap<&'static str, u64>,
    /// The other members.
    pub members: Vec<MemberView>,
    /// Broadcasts of the load.
    pub loads_told: u64,
    /// Broadcasts of changes of the memory.
    pub changes_told: u64,
    /// Broadcasts of the current routing table's number.
    pub tables_told: u64,
    /// Requests that this node has forwarded.
    pub forwarded: u64,
    /// Requests that peers have forwarded to this node.
    pub taken: u64,
    /// Handoffs between peers; `null` if they are off.
    pub handoff: Option<PeerHandoffView>,
    /// Counters of the network of peers.
    pub network: CounterValues,
}

/// A member of the cluster.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// The member's name.
    pub name: String,
    /// The address at which the member listens for peers.
    pub address: String,
    /// The member's incarnation.
    pub incarnation: u64,
    /// The member's load as this node counts it; `null` if it is unknown, for example at a node that does not
    /// decide.
    pub load: Option<u32>,
    /// Whether this node knows the member's complete memory contents. True for policies that do not report
    /// them.
    pub known: bool,
}

/// The routing table that a node uses.
#[derive(Clone, Debug, Serialize)]
pub struct TableView {
    /// The table's number. Of two tables, the one with the higher number is used.
    pub number: u64,
    /// The node that made the table or received it from the operator.
    pub maker: String,
    /// Seconds since this node began to use the table.
    pub age_s: f64,
    /// Targets that every node serves.
    pub core_targets: usize,
    /// Targets that have an owner.
    pub partition_targets: usize,
    /// Number of owners.
    pub owners: usize,
    /// Owners that are members now.
    pub owners_there: usize,
    /// Targets that did not fit into the table; known to its maker only.
    pub left_out: u64,
    /// Tables that were made here or given to this node.
    pub made: u64,
    /// Tables that were fetched from peers.
    pub fetched: u64,
    /// Tables that were refused because they are too large for this node.
    pub refused: u64,
    /// Times that no table was made: there were too few requests, or the analysis failed.
    pub unmade: u64,
}

impl Policy {
    /// Returns the number of targets whose servers are known, and the number in memory if the policy knows it.
    fn sizes(&self) -> (usize, Option<usize>) {
        match self {
            Self::Press(adapter) => {
                let (known, held) = adapter.press.table_sizes();
                (known, Some(held))
            }
            Self::Card(adapter) => (adapter.card.targets_known(), None),
            Self::Ward(adapter) => {
                let status = adapter.ward.status();
                (status.core_targets + status.partition_targets, None)
            }
        }
    }

    fn table(&self, now: Time) -> Option<TableView> {
        let Self::Ward(adapter) = self else { return None };
        let status = adapter.ward.status();
        let id = status.id?;
        Some(TableView {
            number: id.number,
            maker: id.maker.to_string(),
            age_s: now.since(status.since).as_secs_f64(),
            core_targets: status.core_targets,
            partition_targets: status.partition_targets,
            owners: status.owners.0,
            owners_there: status.owners.1,
            left_out: status.left_out,
            made: status.made,
            fetched: status.fetched,
            refused: status.refused,
            unmade: status.failed_rounds,
        })
    }
}

impl CooperationState {
    fn member(&self, now: Time, member: &Member) -> MemberView {
        let node = self.numbers.get(&member.name).copied();
        let (load, known) = match &self.policy {
            Policy::Press(adapter) => (
                node.and_then(|node| adapter.press.peer_load(now, node)),
                node.is_some_and(|node| adapter.press.is_current(node)),
            ),
            Policy::Card(adapter) if adapter.card.dispatcher() == LOCAL => {
                (node.map(|node| adapter.card.dispatcher_load(node)), true)
            }
            Policy::Card(_) | Policy::Ward(_) => (None, true),
        };
        MemberView {
            name: member.name.to_string(),
            address: member.address.to_string(),
            incarnation: member.incarnation,
            load,
            known,
        }
    }
}

impl Cooperation {
    pub(crate) fn view(&self) -> PeersView {
        // The lock of the handoff is taken before the lock of the policy.
        let handoff = self.peer_handoff.as_ref().map(|peer_handoff| peer_handoff.view());
        let (state, now) = (self.lock(), self.now());
        let (targets_known, held) = state.policy.sizes();
        let counts = self.network.counters().read();
        let (decider, sharing) = match &state.policy {
            Policy::Press(adapter) => (None, adapter.press.is_sharing()),
            Policy::Card(adapter) => (Some(adapter.card.dispatcher()), true),
            Policy::Ward(adapter) => (Some(adapter.ward.table_maker()), true),
        };
        let (waiting, unseated) = match &state.policy {
            Policy::Card(adapter) => (adapter.card.waiting_requests(), adapter.card.nodes_over_limit()),
            Policy::Press(_) | Policy::Ward(_) => (0, 0),
        };
        let name = |node| if node == LOCAL { Some(self.network.name()) } else { state.names.get(&node) };
        PeersView {
            name: self.network.name().to_string(),
            incarnation: self.network.incarnation(),
            policy: state.policy.name(),
            dispatcher: decider.and_then(name).map(ToString::to_string),
            table: state.policy.table(now),
            sharing,
            load: self.load.load(Relaxed),
            targets_known,
            targets_held: held.unwrap_or_else(|| self.memory.residents()),
            waiting,
            unseated,
            decisions: self.placed.iter().map(|(why, count)| (*why, count.load(Relaxed))).collect(),
            members: self.network.members().iter().map(|member| state.member(now, member)).collect(),
            loads_told: self.loads_told.load(Relaxed),
            changes_told: self.changes_told.load(Relaxed),
            tables_told: self.tables_told.load(Relaxed),
            forwarded: counts.requests_out,
            taken: counts.requests_in,
            handoff,
            network: counts,
        }
    }
}
