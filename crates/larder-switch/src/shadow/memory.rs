//! Sizes of the nodes' memory caches: `levels.cache_bytes_max` of a larder node's load page.

use super::{ShadowFeed, lock};
use crate::decider::Decider;
use crate::dial::Dialer;
use crate::signals::{self, Signals};
use larder_core::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Interval of the queries, once all nodes have replied.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// Interval while some nodes have not replied.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Timeout of a query.
const PATIENCE: Duration = Duration::from_secs(2);

/// Queries the nodes without a configured size, one after the other, until the switch ends.
pub(crate) async fn learn((decider, signals): (Arc<Decider>, Arc<Signals>), feed: Arc<ShadowFeed>) {
    if feed.config.memory.is_some() {
        return;
    }
    loop {
        let mut missing = false;
        for (name, dial) in unstated(&decider) {
            let asked = signals::cache_bytes_max(&signals, dial);
            match tokio::time::timeout(PATIENCE, asked).await.ok().flatten() {
                Some(bytes) => drop(lock(&feed.reported_sizes).insert(name, Bytes(bytes))),
                // The last reported size stays, because the node may be down for a while.
                None => missing |= !lock(&feed.reported_sizes).contains_key(&name),
            }
        }
        tokio::time::sleep(if missing { ASK_AGAIN } else { ASK_EVERY }).await;
    }
}

fn unstated(decider: &Decider) -> Vec<(Arc<str>, Dialer)> {
    let rows = decider.dispatcher.nodes().rows();
    let unstated = rows.into_iter().filter(|row| row.cache == Bytes::ZERO);
    unstated.filter_map(|row| Some((row.name, decider.nodes.get(row.id)?.dial.clone()))).collect()
}
