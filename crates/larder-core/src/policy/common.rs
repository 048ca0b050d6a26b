//! The settings that several policies share. The settings of one policy are in that policy's file.

use super::table::RouteTable;
use super::thresholds::ThresholdSettings;
use alloc::sync::Arc;
use core::time::Duration;

/// The settings that several policies share. [`crate::dispatch::Settings`] documents their ranges and defaults.
#[derive(Clone, Debug)]
pub(crate) struct CommonSettings {
    /// The seed of random draws.
    pub(crate) seed: u64,
    /// T_low, in connections.
    pub(crate) t_low: u32,
    /// T_high, in connections.
    pub(crate) t_high: u32,
    /// The rules that T_low and T_high follow while the cluster runs.
    pub(crate) thresholds: ThresholdSettings,
    /// K: the time after which an unchanged server set shrinks.
    pub(crate) replication_decay: Duration,
    /// The largest number of stored targets.
    pub(crate) targets_max: usize,
    /// The largest number of nodes.
    pub(crate) nodes_max: u16,
    /// The number of shards of the target map, each with its own lock.
    pub(crate) shards: usize,
    /// The secret key that spreads targets over shards.
    pub(crate) spread_key: u64,
    /// The age above which a load report counts as missing.
    pub(crate) report_age_max: Duration,
    /// T_gat: the period at which reports are collected.
    pub(crate) t_gat: Duration,
    /// The route's routing table, if it has one.
    pub(crate) table: Option<Arc<RouteTable>>,
}
