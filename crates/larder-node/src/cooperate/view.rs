//! What the cluster looks like from one node.

use super::policy::Policy;
use super::side::ME;
use super::{Cooperation, State};
use crate::handover::HandoverView;
use larder_core::Time;
use larder_peers::{CounterValues, Member};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// What the cluster looks like from here.
#[derive(Clone, Debug, Serialize)]
pub struct PeersView {
    /// This node's name.
    pub name: String,
    /// Which life of it: milliseconds since 1970 at its start.
    pub incarnation: u64,
    /// Who decides where a request is served: `press`, `card` or `ward`.
    pub policy: &'static str,
    /// The node that decides for all, or makes the tables; `null` where each decides for itself.
    pub dispatcher: Option<String>,
    /// The routing table; `null` where there is none.
    pub table: Option<TableView>,
    /// Whether it takes part; by itself it forwards nothing and tells nothing.
    pub sharing: bool,
    /// Connections that it services.
    pub load: u32,
    /// Targets whose servers it knows: from what peers say, as their dispatcher, or by the table.
    pub targets_known: usize,
    /// Targets that it holds in memory, of those that peers may ask for.
    pub targets_held: usize,
    /// Requests that wait for the dispatcher.
    pub waiting: usize,
    /// Members that this node as the dispatcher places nothing at, for it takes no more nodes.
    pub unseated: usize,
    /// Decisions by reason.
    pub decisions: BTreeMap<&'static str, u64>,
    /// The other members.
    pub members: Vec<MemberView>,
    /// Broadcasts of load.
    pub loads_told: u64,
    /// Broadcasts of changes of memory.
    pub changes_told: u64,
    /// Broadcasts of which routing table there is.
    pub tables_told: u64,
    /// Requests that were forwarded.
    pub forwarded: u64,
    /// Requests that peers have forwarded.
    pub taken: u64,
    /// Connections that are handed over; `null` if none are.
    pub handoff: Option<HandoverView>,
    /// The network between them.
    pub network: CounterValues,
}

/// A member.
#[derive(Clone, Debug, Serialize)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Where it listens for peers.
    pub address: String,
    /// Which life of its name.
    pub incarnation: u64,
    /// Its load as it counts here; unknown is `null`, such as at a node that does not decide.
    pub load: Option<u32>,
    /// Whether all that it has said of its memory is known. Always, where nothing is said of it.
    pub known: bool,
}

/// The routing table that a node goes by.
#[derive(Clone, Debug, Serialize)]
pub struct TableView {
    /// Of two, the higher is gone by.
    pub number: u64,
    /// Who made it, or was given it.
    pub maker: String,
    /// Seconds since this node goes by it.
    pub age_s: f64,
    /// Targets that every node serves.
    pub core_targets: usize,
    /// Targets that have an owner.
    pub partition_targets: usize,
    /// Owners.
    pub owners: usize,
    /// Owners that are there.
    pub owners_there: usize,
    /// Targets that were left out of it for want of room; known to its maker.
    pub left_out: u64,
    /// Tables made here, or given to this node.
    pub made: u64,
    /// Tables fetched from others.
    pub fetched: u64,
    /// Tables refused, for they are too large here.
    pub refused: u64,
    /// Times that no table was made: of too few requests, or because that failed.
    pub unmade: u64,
}

impl Policy {
    /// Targets whose servers it knows; and those in memory, if it knows.
    fn sizes(&self) -> (usize, Option<usize>) {
        match self {
            Self::Press(side) => {
                let (known, held) = side.press.sizes();
                (known, Some(held))
            }
            Self::Card(side) => (side.card.targets_known(), None),
            Self::Ward(side) => {
                let status = side.ward.status();
                (status.core_targets + status.partition_targets, None)
            }
        }
    }

    fn table(&self, now: Time) -> Option<TableView> {
        let Self::Ward(side) = self else { return None };
        let status = side.ward.status();
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
            unmade: status.unmade,
        })
    }
}

impl State {
    fn member(&self, now: Time, member: &Member) -> MemberView {
        let node = self.numbers.get(&member.name).copied();
        let (load, known) = match &self.policy {
            Policy::Press(side) => (
                node.and_then(|node| side.press.load_of(now, node)),
                node.is_some_and(|node| side.press.knows(node)),
            ),
            Policy::Card(side) if side.card.dispatcher() == ME => {
                (node.map(|node| side.card.load_at_desk(node)), true)
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
        // First, for its lock comes before the policy's.
        let handoff = self.handover.as_ref().map(|handover| handover.view());
        let (state, now) = (self.lock(), self.now());
        let (targets_known, held) = state.policy.sizes();
        let counts = self.network.counters().read();
        let (decider, sharing) = match &state.policy {
            Policy::Press(side) => (None, side.press.shares()),
            Policy::Card(side) => (Some(side.card.dispatcher()), true),
            Policy::Ward(side) => (Some(side.ward.maker()), true),
        };
        let (waiting, unseated) = match &state.policy {
            Policy::Card(side) => (side.card.waiting(), side.card.unseated()),
            Policy::Press(_) | Policy::Ward(_) => (0, 0),
        };
        let name = |node| if node == ME { Some(self.network.name()) } else { state.names.get(&node) };
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
