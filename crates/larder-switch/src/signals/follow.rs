//! Follows a node's cache by its event stream.
//!
//! While a stream is live, `Cache-Status` of the node's replies is ignored, because the stream is more accurate. A
//! broken stream is reopened at growing intervals. The dispatcher forgets a node's cache when the node fails, drains
//! or leaves. The stream is then closed, and reopened when the node takes requests again; its snapshot contains
//! everything.

use super::Signals;
use super::cache_mirror::{CacheMirror, LineKind, LineSplitter};
use super::client::PageClient;
use super::failure::SignalFailure;
use super::state::EventKind;
use crate::decider::Decider;
use crate::health::Jitter;
use crate::node::Node;
use larder_core::TargetId;
use larder_core::dispatch::CacheEvent;
use std::time::Duration;

/// First pause before the next connection attempt; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// Follows `node` until it leaves.
pub(super) async fn run((decider, signals): (&Decider, &Signals), node: &Node) {
    let config = &signals.config.cache;
    let secrets = signals.secrets();
    let mut client = PageClient::new(node.dial.clone(), &config.path, "application/x-ndjson", secrets);
    let mut mirror = CacheMirror::new(config.targets_max);
    let mut jitter = Jitter::new(node.id.0);
    let mut pause = RETRY_FIRST;
    let mut warned = false;
    while !node.condition().left {
        if decider.dispatcher.nodes().is_open(node.id) {
            let (went_live, cause) = stream((decider, signals), node, &mut client, &mut mirror).await;
            node.signals.set_streaming(false);
            node.signals.failed(cause);
            if went_live {
                tracing::info!(node = &*node.name, cause = cause.name(), "cache events: stream ended");
                (pause, warned) = (RETRY_FIRST, false);
            } else if !std::mem::replace(&mut warned, true) {
                tracing::warn!(
                    node = &*node.name,
                    cause = cause.name(),
                    "cache events: stream not available, Cache-Status of replies is used"
                );
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + jitter.next() / 2.0)).await;
        pause = (pause * 2).min(config.retry_max);
    }
}

/// Follows one stream until it ends. Returns whether its snapshot was complete, and why it ended.
async fn stream(
    (decider, signals): (&Decider, &Signals),
    node: &Node,
    client: &mut PageClient,
    mirror: &mut CacheMirror,
) -> (bool, SignalFailure) {
    let silence = signals.config.cache.silence;
    let epoch = decider.dispatcher.nodes().epoch();
    let mut stream_state = CacheStream { decider, node, mirror, fastest: None, live: false };
    stream_state.mirror.begin();
    let mut lines = LineSplitter::default();
    let mut answer = match tokio::time::timeout(silence, client.request()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(cause)) => return (false, cause),
        Err(_) => return (false, SignalFailure::Timeout),
    };
    loop {
        let piece = match tokio::time::timeout(silence, answer.piece()).await {
            Ok(Ok(Some(piece))) => piece,
            Ok(Ok(None)) => return (stream_state.live, SignalFailure::Ended),
            Ok(Err(error)) => return (stream_state.live, error.into()),
            Err(_) => return (stream_state.live, SignalFailure::Timeout),
        };
        if node.condition().left || decider.dispatcher.nodes().lost_since(node.id, epoch) {
            return (stream_state.live, SignalFailure::NotTaken);
        }
        let read = lines.feed(&piece, |line| stream_state.line(line));
        for _ in 0..stream_state.mirror.take_untracked() {
            node.signals.event(EventKind::Untracked);
        }
        if let Err(cause) = read {
            return (stream_state.live, cause);
        }
    }
}

/// An open event stream.
struct CacheStream<'a> {
    decider: &'a Decider,
    node: &'a Node,
    mirror: &'a mut CacheMirror,
    /// Minimum offset between the switch's clock and the node's, from the fastest event. Nanoseconds; may be
    /// negative.
    fastest: Option<i128>,
    live: bool,
}

impl CacheStream<'_> {
    fn line(&mut self, line: &[u8]) -> Result<(), SignalFailure> {
        let (decider, node) = (self.decider, self.node);
        let now = decider.clock.now();
        let tell = |target: TargetId, event: CacheEvent| {
            node.signals.event(match event {
                CacheEvent::Stored => EventKind::Stored,
                CacheEvent::Evicted | CacheEvent::Gone => EventKind::Evicted,
            });
            // The dispatcher ignores a node that takes no requests; then the stream is closed.
            decider.dispatcher.cache_event(now, node.id, target, event);
        };
        match self.mirror.line(line, tell)? {
            LineKind::SnapshotEnd => {
                self.live = true;
                node.signals.event(EventKind::Snapshot);
                node.signals.set_streaming(true);
                tracing::info!(node = &*node.name, "cache events: stream live");
            }
            LineKind::Change(Some(at)) => self.note_lag(at),
            LineKind::SnapshotPart | LineKind::Change(None) | LineKind::Unknown => {}
        }
        Ok(())
    }

    /// Records the delay of an event that happened at `at` by the node's clock, relative to the fastest event.
    fn note_lag(&mut self, at: Duration) {
        let offset = i128::from(self.decider.clock.now().as_nanos()) - at.as_nanos() as i128;
        let fastest = self.fastest.map_or(offset, |fastest| fastest.min(offset));
        self.fastest = Some(fastest);
        let lag = u64::try_from(offset - fastest).unwrap_or(u64::MAX);
        self.node.signals.set_lag(Duration::from_nanos(lag));
    }
}
