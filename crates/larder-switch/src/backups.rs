//! Log lines about groups of nodes that start or stop using their backups.

use crate::routing::Routing;
use larder_core::Dispatcher;
use larder_log::LogLimiter;
use std::sync::{Mutex, PoisonError};

/// Logs when a group starts or stops using its backups. A flapping node causes each line at most every 10 s per
/// group.
#[derive(Debug, Default)]
pub(crate) struct BackupLog(Mutex<Vec<GroupLog>>);

/// State of a group at the last call.
#[derive(Debug, Default)]
struct GroupLog {
    on_backups: bool,
    begins: LogLimiter,
    ends: LogLimiter,
}

impl BackupLog {
    /// Logs the changes since the last call. Must be called after every change of the nodes.
    pub(crate) fn follow(&self, dispatcher: &Dispatcher, routing: &Routing) {
        let nodes = dispatcher.nodes();
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (group, name) in routing.all_groups() {
            if groups.len() <= group.index() {
                groups.resize_with(group.index() + 1, GroupLog::default);
            }
            let seen = &mut groups[group.index()];
            let on_backups = nodes.on_backups(group);
            if seen.on_backups == on_backups {
                continue;
            }
            seen.on_backups = on_backups;
            let seldom = if on_backups { &seen.begins } else { &seen.ends };
            let Some(times) = seldom.due() else { continue };
            let (group, nodes_up) = (if name.is_empty() { "all nodes" } else { name }, nodes.open_in(group));
            match (on_backups, nodes_up) {
                (true, _) => tracing::warn!(
                    group,
                    nodes_up,
                    times,
                    "backup nodes: take requests, no ordinary node of the group is up"
                ),
                (false, 0) => tracing::error!(
                    group,
                    times,
                    "backup nodes: take no requests, no node of the group is up"
                ),
                (false, _) => tracing::info!(
                    group,
                    nodes_up,
                    times,
                    "backup nodes: take no new requests, an ordinary node of the group is up"
                ),
            }
        }
    }
}
