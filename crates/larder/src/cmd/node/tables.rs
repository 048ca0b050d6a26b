//! Routing tables for nodes without a front-end: of their own counts, and of a log.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use larder_core::census::{Counted, Taken};
use larder_core::peers::Analyse;
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{Bytes, TargetId};
use larder_node::{Analyst, Node, WardConfig};
use larder_trace::Limits;
use larder_trace::ward::{Analysis, RoutesError, WardCosts, read_routes};
use tokio::time::{MissedTickBehavior, interval};

use crate::cmd::switch::tables::{Stamp, table_of};
use crate::config::{PeersWard, Refresh};

/// How often the file is looked at.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// Why a table's file cannot be used. Its fault: reading it again gives the same.
#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] RoutesError),
    /// It names no nodes.
    #[error("{}:2: the table does not name its nodes: make it with larder trace ward --names a,b,c", .0.display())]
    NoNames(PathBuf),
    /// There is no place for it.
    #[error("{}: it has {targets} targets and {owners} owners; node.peers.ward.targets_max is {targets_max}, and owners are at most 1024", path.display())]
    TooLarge { path: PathBuf, targets: usize, owners: usize, targets_max: usize },
    /// The task that read it failed.
    #[error("{}: reading it failed", .0.display())]
    Failed(PathBuf),
}

/// ward-analysis with a config's prices.
#[derive(Debug)]
struct WardAnalyst {
    costs: WardCosts,
}

impl Analyst for WardAnalyst {
    fn table(&self, analyse: &Analyse) -> Result<RouteTable, String> {
        let row = |count: &larder_core::peers::Count| Counted {
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
        let made = table_of(&Taken { rows, ..Taken::default() }, &refresh, &numbers, |target| {
            analyse.now.place(target)
        });
        let (analysis, table) = made.map_err(|error| error.to_string())?;
        if tracing::enabled!(tracing::Level::DEBUG) {
            let (moved, new_in_core) = moves(analyse, &table);
            let (core, placed) = (table.core_len(), table.len());
            let Analysis { local_share, memory_share, .. } = analysis;
            tracing::debug!(core, new_in_core, placed, moved, local_share, memory_share, "analysed");
        }
        analyse.now.remembered(table).map_err(|error| error.to_string())
    }
}

/// Targets that a table gives another owner, and that come to the core from an owner.
fn moves(analyse: &Analyse, table: &RouteTable) -> (usize, usize) {
    let (mut moved, mut new_in_core) = (0, 0);
    for (target, place) in table.iter() {
        match (analyse.now.place(target), place) {
            (Some(Place::Node(before)), Place::Node(owner)) if before != owner => moved += 1,
            (Some(Place::Node(_)), Place::Core) => new_in_core += 1,
            _ => {}
        }
    }
    (moved, new_in_core)
}

/// What a node's policy is told.
pub(super) fn config(ward: &PeersWard) -> WardConfig {
    WardConfig {
        settings: ward.settings,
        carry_permille: ward.carry_permille,
        analyst: Arc::new(WardAnalyst { costs: ward.costs.clone() }),
    }
}

/// A table of a log, and the names of its owners.
#[derive(Debug)]
pub(super) struct Loaded {
    names: Vec<String>,
    table: RouteTable,
}

/// The file of a table, and what it looked like when it was read last.
#[derive(Debug)]
pub(super) struct TableFile {
    path: PathBuf,
    host: String,
    targets_max: usize,
    stamp: Option<Stamp>,
}

impl TableFile {
    /// That of a config.
    pub(super) fn new(ward: &PeersWard) -> Option<Self> {
        let path = ward.table.clone()?;
        Some(Self { path, host: ward.host.clone(), targets_max: ward.settings.targets_max, stamp: None })
    }

    /// Reads it. Blocks.
    fn read(&mut self, node: &Node) -> Result<Loaded, TableError> {
        self.stamp = Stamp::of(&self.path);
        // A row that names nothing here is asked for by nobody.
        let id =
            |row: &str| node.target_of_row(row, &self.host).unwrap_or_else(|| TargetId::of(row.as_bytes()));
        let (header, table) = read_routes(&self.path, &Limits::default(), id)?;
        if header.names.is_empty() {
            return Err(TableError::NoNames(self.path.clone()));
        }
        let (targets, owners, targets_max) = (table.len(), header.names.len(), self.targets_max);
        if targets > targets_max || owners > larder_core::peers::OWNERS_MAX {
            let path = self.path.clone();
            return Err(TableError::TooLarge { path, targets, owners, targets_max });
        }
        Ok(Loaded { names: header.names, table })
    }

    /// Reads it elsewhere than on the runtime's threads.
    pub(super) async fn load(mut self, node: &Arc<Node>) -> (Self, Result<Loaded, TableError>) {
        let path = self.path.clone();
        let (host, targets_max) = (self.host.clone(), self.targets_max);
        let node = Arc::clone(node);
        let read = tokio::task::spawn_blocking(move || {
            let read = self.read(&node);
            (self, read)
        });
        read.await.unwrap_or_else(|_| {
            let failed = Err(TableError::Failed(path.clone()));
            (Self { path, host, targets_max, stamp: None }, failed)
        })
    }

    /// Watches it for as long as the runtime runs. One that cannot be used is reported, and the table before stays.
    pub(super) async fn watch(mut self, node: Arc<Node>) {
        let mut look = interval(WATCH_PERIOD);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            // A file that is gone is none: it may be on its way back.
            let now = Stamp::of(&self.path);
            if now.is_none() || now == self.stamp {
                continue;
            }
            let (file, loaded) = self.load(&node).await;
            self = file;
            match loaded {
                Ok(loaded) => give(&node, loaded),
                Err(error) => {
                    tracing::error!(%error, "routing table: the new one is rejected, the one before stays");
                    // Looked at again when it changes.
                    self.stamp = now;
                }
            }
        }
    }
}

/// Gives a table to all peers.
pub(super) fn give(node: &Node, Loaded { names, table }: Loaded) {
    let (core, targets) = (table.core_len(), table.len());
    let owners: Vec<&str> = names.iter().map(String::as_str).collect();
    if node.give_table(&owners, table) {
        tracing::info!(core, targets, "routing table: read from the file");
    } else {
        tracing::error!(
            owners = owners.len(),
            targets,
            "routing table: the file's is rejected, the one before stays"
        );
    }
}
