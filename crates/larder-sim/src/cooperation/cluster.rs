//! The settings of a cluster without a front-end.

use core::time::Duration;
use std::sync::Arc;

use larder_core::Bytes;
use larder_core::dispatch::Settings;
use larder_core::peers::{CardSettings, PressSettings, SharingSettings, UnlistedTargets, WardSettings};
use larder_core::policy::table::RouteTable;
use serde::{Deserialize, Serialize};

use super::costs::CooperationCosts;
use super::servers::{ForwardingMode, LoadAccounting, RelayedLoad, ServerKind};
use crate::{SimError, Workload};

/// The rule that assigns clients' requests to initial nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestSpread {
    /// A random node for each request, as in the PRESS paper.
    #[default]
    Random,
    /// The nodes in turn.
    RoundRobin,
    /// Each node has its own connections, which send the node's part of the trace: every request whose index
    /// modulo the number of nodes is the node's. These are the WARD paper's clients. With a switch this
    /// equals [`RequestSpread::RoundRobin`].
    Dealt,
}

/// The settings of nodes with routing tables.
#[derive(Clone, Debug, PartialEq)]
pub struct WardSetup {
    /// The protocol's settings. The memory is taken from the cluster.
    pub settings: WardSettings,
    /// The part of a target's count that is carried over into the next period, in thousandths, at most 1,000.
    pub carry_permille: u16,
    /// A table that is installed at the first node; `None` if the nodes compute their tables.
    pub preset: Option<PresetTable>,
}

/// A routing table that is installed during the run.
#[derive(Clone, Debug, PartialEq)]
pub struct PresetTable {
    /// The number of requests that arrive before the table is installed.
    pub after: usize,
    /// The table, for exactly the nodes of the cluster.
    pub table: Arc<RouteTable>,
}

impl Default for WardSetup {
    /// Returns the live settings with two differences. Targets outside the table are served where they
    /// arrive, as in the paper. One table is computed once a node has counted 10,000 requests, and it is
    /// never refreshed.
    fn default() -> Self {
        let never = Duration::from_secs(31 * 86_400);
        let settings =
            WardSettings { unlisted: UnlistedTargets::Here, refresh: Some(never), ..WardSettings::default() };
        Self { settings, carry_permille: 500, preset: None }
    }
}

/// A cluster without a front-end, and the parameters of its run.
#[derive(Clone, Debug, PartialEq)]
pub struct CooperativeCluster {
    /// The kind of server.
    pub server: ServerKind,
    /// The number of nodes, 1 to 10,000. A dispatcher is an additional machine.
    pub nodes: u16,
    /// The memory of a node. The memory in [`CooperativeCluster::protocol`] is ignored.
    pub memory: Bytes,
    /// The number of client connections per node, 1 to 10,000. Default 40.
    pub connections: u32,
    /// The assignment of requests to initial nodes.
    pub spread: RequestSpread,
    /// The number of requests of the warm-up, which are not measured; `None` for a third of all requests.
    pub warmup: Option<usize>,
    /// The seed for the random assignment of requests.
    pub seed: u64,
    /// The cost model.
    pub costs: CooperationCosts,
    /// The forwarding mode. Default: relay for PRESS, handoff for all other servers.
    pub forwarding: ForwardingMode,
    /// The nodes at which a request counts as load whose reply is relayed.
    pub relayed_load: RelayedLoad,
    /// PRESS's settings. Default: the live settings with two differences. Reads are not broadcast, as in the
    /// paper, and one window decides whether a node leaves the cooperation.
    pub protocol: PressSettings,
    /// CARD's settings, which include those of the switch's dispatcher.
    pub card: CardSettings,
    /// The time until which CARD's dispatcher counts a request that was handed off.
    pub accounting: LoadAccounting,
    /// WARD's settings.
    pub ward: WardSetup,
}

impl CooperativeCluster {
    /// Creates a cluster with the paper's settings.
    pub fn new(server: ServerKind, nodes: u16, memory: Bytes) -> Self {
        Self {
            server,
            nodes,
            memory,
            connections: 40,
            spread: RequestSpread::Random,
            warmup: None,
            seed: 1,
            costs: CooperationCosts::default(),
            forwarding: server.default_forwarding(),
            relayed_load: RelayedLoad::default(),
            protocol: PressSettings {
                announce_reads: false,
                sharing: SharingSettings { off_windows: 1, ..SharingSettings::default() },
                ..PressSettings::default()
            },
            card: CardSettings {
                dispatcher: Settings { shards: 1, ..Settings::default() },
                ..CardSettings::default()
            },
            accounting: LoadAccounting::default(),
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
        if protocol.heartbeat.is_zero() || protocol.stale_after <= protocol.heartbeat {
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
        let WardSettings { refresh, heartbeat: beat, retry, patience, targets_max, .. } = self.ward.settings;
        let wrong = |range| Err(SimError::OutOfRange { key: "ward", range });
        if refresh.is_some_and(|refresh| refresh.is_zero()) || beat.is_zero() || retry.is_zero() {
            return wrong("positive: refresh, beat, retry");
        }
        if patience < retry || targets_max < 64 || self.ward.carry_permille > 1_000 {
            return wrong(
                "such that patience is at least retry, targets_max at least 64, carry_permille at most 1000",
            );
        }
        match &self.ward.preset {
            Some(given) if given.table.nodes() != self.nodes => {
                wrong("such that the given table is for all nodes")
            }
            _ => Ok(()),
        }
    }
}
