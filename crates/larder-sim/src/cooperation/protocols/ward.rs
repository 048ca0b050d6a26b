//! WARD: one state machine of the live node per node, with the census of its clients' requests.

use std::rc::Rc;
use std::sync::Arc;

use larder_core::census::{Census, TargetCount};
use larder_core::peers::{AnalysisInput, Recipient, Ward, WardMessage, WardOutput, WardReason, WardSettings};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, NodeId, Time};
use larder_trace::ward::{CoreChoice, WardCosts};

use super::interface::{
    ClusterProtocol, NodeMessage, Placement, PlacementDecision, PlacementRequest, ProtocolAction, StateSize,
    TARGET_BYTES, name_of,
};
use crate::Workload;
use crate::cooperation::cluster::{CooperativeCluster, PresetTable, WardSetup};
use crate::cooperation::outcome::TableStats;
use crate::cooperation::servers::ServerKind;
use crate::tables::compute_table;

/// Bytes of a target in a routing table.
const ROW_BYTES: usize = 12;

/// Bytes of a peer: its names and its state.
const PEER_BYTES: usize = 112;

/// A table that was computed or installed.
#[derive(Clone, Copy, Debug)]
struct TableRecord {
    number: u64,
    at: Time,
    targets: usize,
    core_targets: usize,
    /// The number of nodes that have the table, and the time at which the last of them got it.
    nodes: usize,
    last: Time,
}

/// The state machines of the nodes.
#[derive(Debug)]
pub(super) struct WardNodes {
    wards: Vec<Ward>,
    censuses: Vec<Census>,
    setup: WardSetup,
    costs: WardCosts,
    core: CoreChoice,
    made: Vec<TableRecord>,
    /// An empty buffer between two calls.
    out: Vec<WardOutput>,
}

impl WardNodes {
    pub(super) fn new(cluster: &CooperativeCluster, workload: &Workload) -> Self {
        let settings = WardSettings { memory: cluster.memory, ..cluster.ward.settings };
        let ward = |node| Ward::new(NodeId(node), &name_of(node), 1, settings);
        let mean_bytes = workload.bytes() / workload.items.len().max(1) as u64;
        Self {
            wards: (0..cluster.nodes).map(ward).collect(),
            censuses: (0..cluster.nodes).map(|_| Census::new(settings.targets_max)).collect(),
            setup: cluster.ward.clone(),
            costs: cluster.costs.ward_costs(mean_bytes, cluster.forwarding),
            core: if cluster.server == ServerKind::Part { CoreChoice::Targets(0) } else { CoreChoice::Best },
            made: Vec::new(),
            out: Vec::new(),
        }
    }

    fn with<R>(
        &mut self,
        now: Time,
        node: u16,
        out: &mut Vec<ProtocolAction>,
        act: impl FnOnce(&mut Ward, &mut Vec<WardOutput>) -> R,
    ) -> R {
        let ward = &mut self.wards[usize::from(node)];
        let result = act(ward, &mut self.out);
        while !self.out.is_empty() {
            for output in core::mem::take(&mut self.out) {
                out.push(match output {
                    WardOutput::Send { to, message } => {
                        ProtocolAction::Send { to: Recipient::One(to), message: NodeMessage::Ward(message) }
                    }
                    WardOutput::Broadcast(message) => {
                        ProtocolAction::Send { to: Recipient::All, message: NodeMessage::Ward(message) }
                    }
                    WardOutput::TakeCensus { keep: whole } => {
                        let carry = if whole { 1_000 } else { self.setup.carry_permille };
                        let taken = self.censuses[usize::from(node)].take(carry);
                        ward.receive_census(now, taken, &mut self.out);
                        continue;
                    }
                    WardOutput::Analyse(analyse) => {
                        let table = table(&analyse, &self.costs, self.core).map(Rc::new);
                        let message = NodeMessage::AnalysisResult { round: analyse.round, table };
                        ProtocolAction::Analyse { targets: analyse.counts.len(), message }
                    }
                });
            }
        }
        result
    }

    /// Records that a node has activated a table that it computed or was given.
    fn record_activation(&mut self, now: Time, node: u16) {
        let status = self.wards[usize::from(node)].status();
        let Some(id) = status.id else { return };
        let targets = status.core_targets + status.partition_targets;
        let core_targets = status.core_targets;
        self.made.push(TableRecord {
            number: id.number,
            at: now,
            targets,
            core_targets,
            nodes: 1,
            last: now,
        });
    }
}

/// Computes a table as the live node's analyst does.
fn table(analyse: &AnalysisInput, costs: &WardCosts, core: CoreChoice) -> Option<RouteTable> {
    let row = |count: &larder_core::peers::Count| TargetCount {
        target: count.target,
        requests: count.requests,
        bytes: Bytes::ZERO,
        size: count.size,
    };
    let rows: Vec<TargetCount> = analyse.counts.iter().map(row).collect();
    let members: Vec<(NodeId, Bytes)> =
        (0..).map(NodeId).zip(analyse.nodes.iter().map(|_| analyse.memory)).collect();
    let table = compute_table(&rows, &members, costs, core, |target| analyse.current.place(target)).ok()?;
    analyse.current.with_remembered(table).ok()
}

impl ClusterProtocol for WardNodes {
    fn reasons(&self) -> Vec<&'static str> {
        WardReason::ALL.map(WardReason::name).to_vec()
    }

    fn messaging_nodes(&self) -> u16 {
        self.wards.len() as u16
    }

    fn leader(&self) -> Option<u16> {
        self.wards.first().map(|ward| ward.table_maker().0)
    }

    fn add_peer(&mut self, now: Time, node: u16, peer: u16, out: &mut Vec<ProtocolAction>) {
        self.with(now, node, out, |ward, out| ward.add_node(now, NodeId(peer), &name_of(peer), out));
    }

    fn install_preset(&mut self, now: Time, out: &mut Vec<ProtocolAction>) {
        let Some(PresetTable { table, .. }) = self.setup.preset.take() else { return };
        let names: Vec<String> = (0..table.nodes()).map(name_of).collect();
        let owners: Vec<&str> = names.iter().map(String::as_str).collect();
        let table = Arc::unwrap_or_clone(table);
        if self.with(now, 0, out, |ward, out| ward.load_table(now, &owners, table, out)) {
            self.record_activation(now, 0);
        }
    }

    fn decide(
        &mut self,
        now: Time,
        _task: u32,
        request: &PlacementRequest,
        _out: &mut Vec<ProtocolAction>,
    ) -> PlacementDecision {
        let verdict = self.wards[usize::from(request.node)].decide(now, request.target);
        PlacementDecision::Placement(Placement {
            node: verdict.node.0,
            why: verdict.reason as usize,
            keep: true,
        })
    }

    fn complete_request(
        &mut self,
        _now: Time,
        request: &PlacementRequest,
        _missed: bool,
        _out: &mut Vec<ProtocolAction>,
    ) -> bool {
        self.censuses[usize::from(request.node)].count(request.target, request.size);
        false
    }

    fn receive(
        &mut self,
        now: Time,
        node: u16,
        from: u16,
        message: NodeMessage,
        out: &mut Vec<ProtocolAction>,
    ) {
        match message {
            NodeMessage::AnalysisResult { round, table: Some(table) } => {
                let table = Rc::unwrap_or_clone(table);
                self.with(now, node, out, |ward, out| ward.receive_table(now, round, table, out));
                self.record_activation(now, node);
            }
            NodeMessage::AnalysisResult { round, table: None } => {
                self.wards[usize::from(node)].record_analysis_failure(now, round);
            }
            NodeMessage::Ward(message) => {
                let number = match &message {
                    WardMessage::Table { id, .. } => Some(id.number),
                    _ => None,
                };
                let fetched = |wards: &[Ward]| wards[usize::from(node)].status().fetched;
                let before = number.map_or(0, |_| fetched(&self.wards));
                self.with(now, node, out, |ward, out| ward.receive(now, NodeId(from), message, out));
                if number.is_some() && fetched(&self.wards) > before {
                    let made = self.made.iter_mut().find(|made| Some(made.number) == number);
                    if let Some(made) = made {
                        (made.nodes, made.last) = (made.nodes + 1, now);
                    }
                }
            }
            NodeMessage::Press(_) | NodeMessage::Card(_) => {}
        }
    }

    fn tick(&mut self, now: Time, node: u16, out: &mut Vec<ProtocolAction>) {
        self.with(now, node, out, |ward, out| ward.tick(now, out));
    }

    fn next_timer(&self, node: u16) -> Time {
        self.wards[usize::from(node)].due()
    }

    /// Counts 12 bytes per target of the table, the targets of the census, and the peers.
    fn state_sizes(&self) -> Vec<StateSize> {
        let peers = self.wards.len() - 1;
        let state = |(ward, census): (&Ward, &Census)| {
            let status = ward.status();
            let targets = status.core_targets + status.partition_targets;
            let bytes = ROW_BYTES * targets + TARGET_BYTES * census.len() + PEER_BYTES * peers;
            StateSize { bytes, targets }
        };
        self.wards.iter().zip(&self.censuses).map(state).collect()
    }

    fn table_stats(&self) -> TableStats {
        let everywhere = self.made.iter().filter(|made| made.nodes == self.wards.len());
        let spread: Vec<f64> = everywhere.map(|made| made.last.since(made.at).as_secs_f64()).collect();
        let last = self.made.last();
        TableStats {
            made: self.made.len() as u64,
            targets: last.map_or(0, |made| made.targets as u64),
            core_targets: last.map_or(0, |made| made.core_targets as u64),
            spread_s: spread.iter().sum::<f64>() / spread.len().max(1) as f64,
            everywhere: spread.len() as u64,
        }
    }
}
