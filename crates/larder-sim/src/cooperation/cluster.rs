//! The settings of a cluster without a front-end.

use core::time::Duration;
use std::sync::Arc;

use larder_core::Bytes;
use larder_core::dispatch::Settings;
use larder_core::peers::{CardSettings, PressSettings, Rest, SharingSettings, WardSettings};
use larder_core::policy::table::RouteTable;
use serde::{Deserialize, Serialize};

use super::costs::Costs;
use super::servers::{Counted, Moving, Server};
use crate::{SimError, Workload};

/// The rule by which clients' requests come to nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Any, drawn anew for each: the paper's clients.
    #[default]
    Random,
    /// One after another.
    RoundRobin,
    /// Each node has connections of its own, which ask for what was dealt to it: the first, the one after as many as there are
    /// nodes, and so on. The WARD paper's clients. With a switch all connections are its own, as with [`Spread::RoundRobin`].
    Dealt,
}

/// The settings of nodes that work with routing tables.
#[derive(Clone, Debug, PartialEq)]
pub struct WardSetup {
    /// The protocol's settings; the memory is the cluster's.
    pub settings: WardSettings,
    /// Thousandths of a target's count that go over into the next period, at most 1,000.
    pub carry_permille: u16,
    /// A table that the first node is given.
    pub given: Option<Given>,
}

/// A routing table that comes from elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// After so many requests have come.
    pub after: usize,
    /// For as many nodes as there are.
    pub table: Arc<RouteTable>,
}

impl Default for WardSetup {
    /// Live settings, but: targets that the table does not have are served where they come, as in the paper; there is one
    /// table, which is made once a node has counted 10,000 requests.
    fn default() -> Self {
        let never = Duration::from_secs(31 * 86_400);
        let settings = WardSettings { rest: Rest::Here, refresh: Some(never), ..WardSettings::default() };
        Self { settings, carry_permille: 500, given: None }
    }
}

/// A cluster and how it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Cooperation {
    /// Its kind of server.
    pub server: Server,
    /// Nodes, 1 to 10,000; a dispatcher comes on top.
    pub nodes: u16,
    /// Memory of a node; that of [`Cooperation::protocol`] does not count.
    pub memory: Bytes,
    /// Connections of clients for each node, 1 to 10,000. Default 40.
    pub connections: u32,
    /// The nodes to which requests come.
    pub spread: Spread,
    /// Requests that come first and are not measured; None: a third.
    pub warmup: Option<usize>,
    /// For the draw of nodes.
    pub seed: u64,
    /// The costs of all steps.
    pub costs: Costs,
    /// The way in which requests move; PRESS's relay, all others' handoff.
    pub moving: Moving,
    /// The protocol's settings: PRESS. Default: those of the live nodes, but that reads are not told, as in the paper, and that one
    /// window decides on going back.
    pub protocol: PressSettings,
    /// CARD, and the switch's dispatcher.
    pub card: CardSettings,
    /// Until when CARD's dispatcher counts what is handed over.
    pub counted: Counted,
    /// WARD.
    pub ward: WardSetup,
}

impl Cooperation {
    /// Nodes with the paper's settings.
    pub fn new(server: Server, nodes: u16, memory: Bytes) -> Self {
        Self {
            server,
            nodes,
            memory,
            connections: 40,
            spread: Spread::Random,
            warmup: None,
            seed: 1,
            costs: Costs::default(),
            moving: server.moving(),
            protocol: PressSettings {
                tell_reads: false,
                sharing: SharingSettings { off_windows: 1, ..SharingSettings::default() },
                ..PressSettings::default()
            },
            card: CardSettings {
                dispatcher: Settings { shards: 1, ..Settings::default() },
                ..CardSettings::default()
            },
            counted: Counted::default(),
            ward: WardSetup::default(),
        }
    }

    pub(super) fn check(&self, workload: &Workload) -> Result<(), SimError> {
        let wrong = |key, range| Err(SimError::OutOfRange { key, range });
        if !(1..=10_000).contains(&self.nodes) {
            return wrong("nodes", "1 to 10000");
        }
        if !(1..=10_000).contains(&self.connections) {
            return wrong("connections", "1 to 10000");
        }
        let protocol = &self.protocol;
        if protocol.load_step == 0
            || protocol.overload == 0
            || protocol.sharing.window == 0
            || protocol.sharing.off_windows == 0
        {
            return wrong("protocol", "positive: load_step, overload, sharing.window, sharing.off_windows");
        }
        if protocol.beat.is_zero() || protocol.stale_after <= protocol.beat {
            return wrong("protocol", "such that beat is above 0 and stale_after above beat");
        }
        self.check_card()?;
        self.check_ward()?;
        self.costs.check()?;
        workload.check()?;
        if workload.requests.len() >= u32::MAX as usize {
            return Err(SimError::Workload("there may be at most 4,294,967,294 requests"));
        }
        Ok(())
    }

    fn check_card(&self) -> Result<(), SimError> {
        let CardSettings { patience, retry, waiting_max, dispatcher, .. } = &self.card;
        if patience.is_zero() || retry.is_zero() || *waiting_max == 0 {
            let range = "positive: patience, retry, waiting_max";
            return Err(SimError::OutOfRange { key: "card", range });
        }
        Ok(dispatcher.validate()?)
    }

    fn check_ward(&self) -> Result<(), SimError> {
        let WardSettings { refresh, beat, retry, patience, targets_max, .. } = self.ward.settings;
        let wrong = |range| Err(SimError::OutOfRange { key: "ward", range });
        if refresh.is_some_and(|refresh| refresh.is_zero()) || beat.is_zero() || retry.is_zero() {
            return wrong("positive: refresh, beat, retry");
        }
        if patience < retry || targets_max < 64 || self.ward.carry_permille > 1_000 {
            return wrong(
                "such that patience is at least retry, targets_max at least 64, carry_permille at most 1000",
            );
        }
        match &self.ward.given {
            Some(given) if given.table.nodes() != self.nodes => {
                wrong("such that the given table is for all nodes")
            }
            _ => Ok(()),
        }
    }
}
