//! The owner of protection: limits, the shares of clients, the budget of retries, and which nodes are fit.

use crate::budget::RetryBudget;
use crate::clients::Clients;
use crate::health::config::OutlierConfig;
use crate::limits::{HealthConfig, Limits};
use larder_edge::EntryRules;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// Protects the switch, its nodes and its clients. All threads share it.
#[derive(Debug)]
pub(crate) struct Guards {
    pub(crate) limits: Limits,
    /// The rules for header fields of requests as they enter.
    pub(crate) entry: EntryRules,
    /// Client connections open.
    pub(crate) clients: AtomicUsize,
    /// The shares of each client, if they are limited.
    pub(crate) per_client: Option<Arc<Clients>>,
    pub(crate) retries: RetryBudget,
    pub(crate) health: HealthConfig,
    pub(crate) outliers: OutlierConfig,
    /// Held while traffic takes a node out.
    pub(crate) ejecting: Mutex<()>,
}
