//! WARD: one state machine of the live node per node, with the census of its clients' requests.

use std::rc::Rc;
use std::sync::Arc;

use larder_core::census::{Census, Counted};
use larder_core::peers::{Analyse, To, Ward, WardMessage, WardOutput, WardSettings, WardWhy};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, NodeId, Time};
use larder_trace::ward::{CoreChoice, WardCosts};

use super::mind::{Asked, Decision, Minds, Place, State, TARGET_BYTES, Wish, Words, name_of};
use crate::Workload;
use crate::cooperation::cluster::{Cooperation, Given, WardSetup};
use crate::cooperation::outcome::Tables;
use crate::cooperation::servers::Server;
use crate::tables::routing_table;

/// Bytes of a target in a routing table.
const ROW_BYTES: usize = 12;

/// Bytes of a peer: its names and its state.
const PEER_BYTES: usize = 112;

/// A table that was computed or installed.
#[derive(Clone, Copy, Debug)]
struct Made {
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
pub(super) struct Wards {
    wards: Vec<Ward>,
    censuses: Vec<Census>,
    setup: WardSetup,
    prices: WardCosts,
    core: CoreChoice,
    made: Vec<Made>,
    /// An empty buffer between two calls.
    out: Vec<WardOutput>,
}

impl Wards {
    pub(super) fn new(cluster: &Cooperation, workload: &Workload) -> Self {
        let settings = WardSettings { memory: cluster.memory, ..cluster.ward.settings };
        let ward = |node| Ward::new(NodeId(node), &name_of(node), 1, settings);
        let mean_bytes = workload.bytes() / workload.items.len().max(1) as u64;
        Self {
            wards: (0..cluster.nodes).map(ward).collect(),
            censuses: (0..cluster.nodes).map(|_| Census::new(settings.targets_max)).collect(),
            setup: cluster.ward.clone(),
            prices: cluster.costs.prices(mean_bytes, cluster.moving),
            core: if cluster.server == Server::Part { CoreChoice::Targets(0) } else { CoreChoice::Best },
            made: Vec::new(),
            out: Vec::new(),
        }
    }

    fn with<R>(
        &mut self,
        now: Time,
        node: u16,
        out: &mut Vec<Wish>,
        act: impl FnOnce(&mut Ward, &mut Vec<WardOutput>) -> R,
    ) -> R {
        let ward = &mut self.wards[usize::from(node)];
        let result = act(ward, &mut self.out);
        while !self.out.is_empty() {
            for output in core::mem::take(&mut self.out) {
                out.push(match output {
                    WardOutput::Send { to, message } => {
                        Wish::Say { to: To::One(to), words: Words::Ward(message) }
                    }
                    WardOutput::Tell(message) => Wish::Say { to: To::All, words: Words::Ward(message) },
                    WardOutput::Count { whole } => {
                        let carry = if whole { 1_000 } else { self.setup.carry_permille };
                        let taken = self.censuses[usize::from(node)].take(carry);
                        ward.counted(now, taken, &mut self.out);
                        continue;
                    }
                    WardOutput::Analyse(analyse) => {
                        let table = table(&analyse, &self.prices, self.core).map(Rc::new);
                        let words = Words::Made { round: analyse.round, table };
                        Wish::Analyse { targets: analyse.counts.len(), words }
                    }
                });
            }
        }
        result
    }

    /// Records that a node has activated a table that it computed or was given.
    fn begun_with(&mut self, now: Time, node: u16) {
        let status = self.wards[usize::from(node)].status();
        let Some(id) = status.id else { return };
        let targets = status.core_targets + status.partition_targets;
        let core_targets = status.core_targets;
        self.made.push(Made { number: id.number, at: now, targets, core_targets, nodes: 1, last: now });
    }
}

/// Computes a table as the live node's analyst does.
fn table(analyse: &Analyse, prices: &WardCosts, core: CoreChoice) -> Option<RouteTable> {
    let row = |count: &larder_core::peers::Count| Counted {
        target: count.target,
        requests: count.requests,
        bytes: Bytes::ZERO,
        size: count.size,
    };
    let rows: Vec<Counted> = analyse.counts.iter().map(row).collect();
    let members: Vec<(NodeId, Bytes)> =
        (0..).map(NodeId).zip(analyse.nodes.iter().map(|_| analyse.memory)).collect();
    let table = routing_table(&rows, &members, prices, core, |target| analyse.now.place(target)).ok()?;
    analyse.now.remembered(table).ok()
}

impl Minds for Wards {
    fn reasons(&self) -> Vec<&'static str> {
        WardWhy::ALL.map(WardWhy::name).to_vec()
    }

    fn speakers(&self) -> u16 {
        self.wards.len() as u16
    }

    fn leader(&self) -> Option<u16> {
        self.wards.first().map(|ward| ward.maker().0)
    }

    fn joined(&mut self, now: Time, node: u16, peer: u16, out: &mut Vec<Wish>) {
        self.with(now, node, out, |ward, out| ward.joined(now, NodeId(peer), &name_of(peer), out));
    }

    fn given(&mut self, now: Time, out: &mut Vec<Wish>) {
        let Some(Given { table, .. }) = self.setup.given.take() else { return };
        let names: Vec<String> = (0..table.nodes()).map(name_of).collect();
        let owners: Vec<&str> = names.iter().map(String::as_str).collect();
        let table = Arc::unwrap_or_clone(table);
        if self.with(now, 0, out, |ward, out| ward.load(now, &owners, table, out)) {
            self.begun_with(now, 0);
        }
    }

    fn decide(&mut self, now: Time, _task: u32, asked: &Asked, _out: &mut Vec<Wish>) -> Decision {
        let verdict = self.wards[usize::from(asked.node)].decide(now, asked.target);
        Decision::Place(Place { node: verdict.node.0, why: verdict.why as usize, keep: true })
    }

    fn served(&mut self, _now: Time, asked: &Asked, _missed: bool, _out: &mut Vec<Wish>) -> bool {
        self.censuses[usize::from(asked.node)].count(asked.target, asked.size);
        false
    }

    fn hear(&mut self, now: Time, node: u16, from: u16, words: Words, out: &mut Vec<Wish>) {
        match words {
            Words::Made { round, table: Some(table) } => {
                let table = Rc::unwrap_or_clone(table);
                self.with(now, node, out, |ward, out| ward.made(now, round, table, out));
                self.begun_with(now, node);
            }
            Words::Made { round, table: None } => self.wards[usize::from(node)].unmade(now, round),
            Words::Ward(message) => {
                let number = match &message {
                    WardMessage::Table { id, .. } => Some(id.number),
                    _ => None,
                };
                let fetched = |wards: &[Ward]| wards[usize::from(node)].status().fetched;
                let before = number.map_or(0, |_| fetched(&self.wards));
                self.with(now, node, out, |ward, out| ward.hear(now, NodeId(from), message, out));
                if number.is_some() && fetched(&self.wards) > before {
                    let made = self.made.iter_mut().find(|made| Some(made.number) == number);
                    if let Some(made) = made {
                        (made.nodes, made.last) = (made.nodes + 1, now);
                    }
                }
            }
            Words::Press(_) | Words::Card(_) => {}
        }
    }

    fn tick(&mut self, now: Time, node: u16, out: &mut Vec<Wish>) {
        self.with(now, node, out, |ward, out| ward.tick(now, out));
    }

    fn due(&self, node: u16) -> Time {
        self.wards[usize::from(node)].due()
    }

    /// Counts 12 bytes per target of the table, the targets of the census, and the peers.
    fn states(&self) -> Vec<State> {
        let peers = self.wards.len() - 1;
        let state = |(ward, census): (&Ward, &Census)| {
            let status = ward.status();
            let targets = status.core_targets + status.partition_targets;
            let bytes = ROW_BYTES * targets + TARGET_BYTES * census.len() + PEER_BYTES * peers;
            State { bytes, targets }
        };
        self.wards.iter().zip(&self.censuses).map(state).collect()
    }

    fn tables(&self) -> Tables {
        let everywhere = self.made.iter().filter(|made| made.nodes == self.wards.len());
        let spread: Vec<f64> = everywhere.map(|made| made.last.since(made.at).as_secs_f64()).collect();
        let last = self.made.last();
        Tables {
            made: self.made.len() as u64,
            targets: last.map_or(0, |made| made.targets as u64),
            core_targets: last.map_or(0, |made| made.core_targets as u64),
            spread_s: spread.iter().sum::<f64>() / spread.len().max(1) as f64,
            everywhere: spread.len() as u64,
        }
    }
}
