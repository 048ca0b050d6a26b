//! Routing tables of nodes without a switch, from their own request counts or from a log.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder_core::census::{CensusPeriod, TargetCount};
use larder_core::peers::AnalysisInput;
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{Bytes, TargetId};
use larder_node::{Analyst, Node, WardConfig};
use larder_trace::Limits;
use larder_trace::ward::{Analysis, RoutesError, WardCosts, read_routes};
use tokio::time::{MissedTickBehavior, interval};

use crate::cmd::switch::tables::{FileVersion, build_table};
use crate::config::{PeersWard, Refresh};

/// Interval at which the file is checked for changes.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Error of a table file. The file is invalid, so reading it again gives the same error.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeTableError {
    /// The file cannot be read or parsed.
    #[error(transparent)]
    Read(#[from] RoutesError),
    /// The table does not name its nodes.
    #[error("{}:2: the table has no names of nodes: create it with larder trace ward --names a,b,c", .0.display())]
    NoNames(PathBuf),
    /// The table exceeds a limit.
    #[error("{}: the table is too large: {targets} targets (node.peers.ward.targets_max is {targets_max}) and {owners} owners (at most 1024)", path.display())]
    TooLarge { path: PathBuf, targets: usize, owners: usize, targets_max: usize },
    /// The task that read the file failed.
    #[error("cannot read {}: the task failed", .0.display())]
    Failed(PathBuf),
}

/// ward-analysis with the costs of the config.
#[derive(Debug)]
struct WardAnalyst {
    costs: WardCosts,
}

impl Analyst for WardAnalyst {
    fn table(&self, analyse: &AnalysisInput) -> Result<RouteTable, String> {
        let row = |count: &larder_core::peers::Count| TargetCount {
            target: count.target,
            requests: count.requests,
            bytes: Bytes::ZERO,
            size: count.size,
        };
        let rows = analyse.counts.iter().map(row).collect();
        let refresh = Refresh {
            every: Duration::ZERO,
            memory: analyse.memory,
            costs: self.costs.clone(),
            carry_permille: 0,
            core: true,
        };
        let numbers: Vec<u16> = (0..).take(analyse.nodes.len()).collect();
        let made =
            build_table(&CensusPeriod { rows, ..CensusPeriod::default() }, &refresh, &numbers, |target| {
                analyse.current.place(target)
            });
        let (analysis, table) = made.map_err(|error| error.to_string())?;
        if tracing::enabled!(tracing::Level::DEBUG) {
            let (moved, new_in_core) = count_moves(analyse, &table);
            let (core, placed) = (table.core_len(), table.len());
            let Analysis { local_share, memory_share, .. } = analysis;
            tracing::debug!(
                core,
                new_in_core,
                placed,
                moved,
                local_share,
                memory_share,
                "routing table: analysed"
            );
        }
        analyse.current.with_remembered(table).map_err(|error| error.to_string())
    }
}

/// Counts the targets whose owner changes, and the targets that move from an owner to the core.
fn count_moves(analyse: &AnalysisInput, table: &RouteTable) -> (usize, usize) {
    let (mut moved, mut new_in_core) = (0, 0);
    for (target, place) in table.iter() {
        match (analyse.current.place(target), place) {
            (Some(Place::Node(before)), Place::Node(owner)) if before != owner => moved += 1,
            (Some(Place::Node(_)), Place::Core) => new_in_core += 1,
            _ => {}
        }
    }
    (moved, new_in_core)
}

/// Returns the settings of the node's policy.
pub(super) fn ward_config(ward: &PeersWard) -> WardConfig {
    WardConfig {
        settings: ward.settings,
        carry_permille: ward.carry_permille,
        analyst: Arc::new(WardAnalyst { costs: ward.costs.clone() }),
    }
}

/// A table that was read, with the names of its owners.
#[derive(Debug)]
pub(super) struct OwnerTable {
    names: Vec<String>,
    table: RouteTable,
}

/// The file of a table, with its state at the last read.
#[derive(Debug)]
pub(super) struct TableFile {
    path: PathBuf,
    host: String,
    targets_max: usize,
    version: Option<FileVersion>,
}

impl TableFile {
    /// Returns the table file of the config, if there is one.
    pub(super) fn new(ward: &PeersWard) -> Option<Self> {
        let path = ward.table.clone()?;
        Some(Self { path, host: ward.host.clone(), targets_max: ward.settings.targets_max, version: None })
    }

    /// Reads the file. Blocks.
    fn read(&mut self, node: &Node) -> Result<OwnerTable, NodeTableError> {
        self.version = FileVersion::of(&self.path);
        // A row that matches no target of this node gets an id that no request has.
        let id =
            |row: &str| node.target_of_row(row, &self.host).unwrap_or_else(|| TargetId::of(row.as_bytes()));
        let (header, table) = read_routes(&self.path, &Limits::default(), id)?;
        if header.names.is_empty() {
            return Err(NodeTableError::NoNames(self.path.clone()));
        }
        let (targets, owners, targets_max) = (table.len(), header.names.len(), self.targets_max);
        if targets > targets_max || owners > larder_core::peers::OWNERS_MAX {
            let path = self.path.clone();
            return Err(NodeTableError::TooLarge { path, targets, owners, targets_max });
        }
        Ok(OwnerTable { names: header.names, table })
    }

    /// Reads the file on a blocking thread.
    pub(super) async fn load(mut self, node: &Arc<Node>) -> (Self, Result<OwnerTable, NodeTableError>) {
        let path = self.path.clone();
        let (host, targets_max) = (self.host.clone(), self.targets_max);
        let node = Arc::clone(node);
        let read = tokio::task::spawn_blocking(move || {
            let read = self.read(&node);
            (self, read)
        });
        read.await.unwrap_or_else(|_| {
            let failed = Err(NodeTableError::Failed(path.clone()));
            (Self { path, host, targets_max, version: None }, failed)
        })
    }

    /// Watches the file until the runtime ends. An invalid file is reported, and the previous table stays in
    /// force.
    pub(super) async fn watch(mut self, node: Arc<Node>) {
        let mut timer = interval(WATCH_PERIOD);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            // A missing file is not an error, because it may be replaced at the moment.
            let now = FileVersion::of(&self.path);
            if now.is_none() || now == self.version {
                continue;
            }
            let (file, table) = self.load(&node).await;
            self = file;
            match table {
                Ok(table) => apply_table(&node, table),
                Err(error) => {
                    tracing::warn!(%error, "routing table: rejected, the previous one stays");
                    // An invalid file is read again only after it has changed.
                    self.version = now;
                }
            }
        }
    }
}

/// Sends a table to all peers.
pub(super) fn apply_table(node: &Node, OwnerTable { names, table }: OwnerTable) {
    let (core, targets) = (table.core_len(), table.len());
    let owners: Vec<&str> = names.iter().map(String::as_str).collect();
    if node.give_table(&owners, table) {
        tracing::info!(core, targets, "routing table: read from the file");
    } else {
        tracing::warn!(owners = owners.len(), targets, "routing table: rejected, the previous one stays");
    }
}
