//! The thread that keeps the shadow.

use super::{Feed, feed, held};
use crate::switch::Shared;
use larder_core::shadow::{LiveNode, Seen, Shadow};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time from one look at the live nodes, and one report, to the next.
const LOOK: Duration = Duration::from_secs(1);

/// Starts the thread, once. It ends with the switch.
pub(crate) fn start(shared: &Arc<Shared>) {
    let Some((shadow, seen)) = feed(shared).and_then(|feed| held(&feed.begin).take()) else { return };
    let weak = Arc::downgrade(shared);
    let started =
        std::thread::Builder::new().name("larder-shadow".to_owned()).spawn(move || run(&weak, shadow, &seen));
    if let Err(error) = started {
        tracing::error!(%error, "no shadow: its thread cannot be started");
    }
}

fn run(shared: &Weak<Shared>, mut shadow: Shadow, seen: &Receiver<Seen>) {
    let mut look_at = Instant::now();
    loop {
        if Instant::now() >= look_at {
            look_at = Instant::now() + LOOK;
            let Some(shared) = shared.upgrade() else { return };
            look(&shared, &mut shadow);
        }
        match seen.recv_timeout(look_at.saturating_duration_since(Instant::now())) {
            Ok(request) => shadow.see(&request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Follows the nodes and reports.
fn look(shared: &Shared, shadow: &mut Shadow) {
    let Some(feed) = feed(shared) else { return };
    shadow.follow(shared.clock.now(), nodes(shared, feed));
    *held(&feed.report) = Some(shadow.report());
}

fn nodes(shared: &Shared, feed: &Feed) -> Vec<LiveNode> {
    let row = |row: larder_core::NodeRow| LiveNode {
        memory: feed.memory_of(&row.name, row.cache).0,
        name: row.name,
        id: row.id,
        weight: row.weight,
        groups: row.groups,
        backup: row.backup,
        state: row.state,
    };
    shared.dispatcher.nodes().rows().into_iter().map(row).collect()
}
