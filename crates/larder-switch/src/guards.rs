//! The part of the switch that protects: limits, the shares of clients, the retry budget, and health checks of nodes.

use crate::budget::RetryBudget;
use crate::clients::Clients;
use crate::health::config::OutlierConfig;
use crate::limits::{HealthConfig, Limits};
use larder_edge::EntryRules;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// Limits and checks that protect the switch, its nodes and its clients. All threads share them.
#[derive(Debug)]
pub(crate) struct Guards {
    pub(crate) limits: Limits,
    /// Rules for the header fields of incoming requests.
    pub(crate) entry: EntryRules,
    /// Number of open client connections.
    pub(crate) clients: AtomicUsize,
    /// Limits per client; `None` if clients are not limited.
    pub(crate) per_client: Option<Arc<Clients>>,
    pub(crate) retries: RetryBudget,
    pub(crate) health: HealthConfig,
    pub(crate) outliers: OutlierConfig,
    /// Lock that is held while passive checks take a node out of service.
    pub(crate) ejecting: Mutex<()>,
}
