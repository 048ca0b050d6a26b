//! Following a node's cache by its event stream.
//!
//! While a stream is live, `Cache-Status` of the node's replies is not listened to: the stream knows better. A stream
//! that breaks is opened anew, at growing intervals. The dispatcher forgets what a node caches when the node fails,
//! drains or leaves: so a stream is left when that happens and opened anew when the node takes requests again, and
//! its snapshot tells everything.

use super::Signals;
use super::cause::Cause;
use super::client::Client;
use super::mirror::{Lines, Mirror, Said};
use super::state::EventKind;
use crate::decider::Decider;
use crate::health::Lots;
use crate::node::Node;
use larder_core::TargetId;
use larder_core::dispatch::CacheEvent;
use std::time::Duration;

/// First pause before another try to connect; it doubles.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// Follows `node` until it leaves.
pub(super) async fn run((decider, signals): (&Decider, &Signals), node: &Node) {
    let config = &signals.config.cache;
    let secrets = signals.secrets();
    let mut client = Client::new(node.dial.clone(), &config.path, "application/x-ndjson", secrets);
    let mut mirror = Mirror::new(config.targets_max);
    let mut lots = Lots::new(node.id.0);
    let mut pause = RETRY_FIRST;
    let mut told = false;
    while !node.condition().left {
        if decider.dispatcher.nodes().is_open(node.id) {
            let (went_live, cause) = stream((decider, signals), node, &mut client, &mut mirror).await;
            node.signals.set_streaming(false);
            node.signals.failed(cause);
            if went_live {
                tracing::info!(
                    node = &*node.name,
                    cause = cause.name(),
                    "the cache's event stream has ended"
                );
                (pause, told) = (RETRY_FIRST, false);
            } else if !std::mem::replace(&mut told, true) {
                tracing::warn!(
                    node = &*node.name,
                    cause = cause.name(),
                    "no event stream of the cache: only Cache-Status says what the node holds"
                );
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + lots.next() / 2.0)).await;
        pause = (pause * 2).min(config.retry_max);
    }
}

/// One stream, from connecting to its end. Says whether its snapshot was complete, and why it ended.
async fn stream(
    (decider, signals): (&Decider, &Signals),
    node: &Node,
    client: &mut Client,
    mirror: &mut Mirror,
) -> (bool, Cause) {
    let silence = signals.config.cache.silence;
    let epoch = decider.dispatcher.nodes().epoch();
    let mut link = Link { decider, node, mirror, fastest: None, live: false };
    link.mirror.begin();
    let mut lines = Lines::default();
    let mut answer = match tokio::time::timeout(silence, client.ask()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(cause)) => return (false, cause),
        Err(_) => return (false, Cause::Timeout),
    };
    loop {
        let piece = match tokio::time::timeout(silence, answer.piece()).await {
            Ok(Ok(Some(piece))) => piece,
            Ok(Ok(None)) => return (link.live, Cause::Ended),
            Ok(Err(error)) => return (link.live, error.into()),
            Err(_) => return (link.live, Cause::Timeout),
        };
        if node.condition().left || decider.dispatcher.nodes().lost_since(node.id, epoch) {
            return (link.live, Cause::NotTaken);
        }
        let read = lines.feed(&piece, |line| link.line(line));
        for _ in 0..link.mirror.take_untracked() {
            node.signals.event(EventKind::Untracked);
        }
        if let Err(cause) = read {
            return (link.live, cause);
        }
    }
}

/// A stream under way.
struct Link<'a> {
    decider: &'a Decider,
    node: &'a Node,
    mirror: &'a mut Mirror,
    /// The least difference seen between the switch's clock and the node's: that of the event that came fastest. In
    /// nanoseconds; the clocks' beginnings differ, so it may be negative.
    fastest: Option<i128>,
    live: bool,
}

impl Link<'_> {
    fn line(&mut self, line: &[u8]) -> Result<(), Cause> {
        let (decider, node) = (self.decider, self.node);
        let now = decider.clock.now();
        let tell = |target: TargetId, event: CacheEvent| {
            node.signals.event(match event {
                CacheEvent::Stored => EventKind::Stored,
                CacheEvent::Evicted | CacheEvent::Gone => EventKind::Evicted,
            });
            // False for a node that takes no requests: then the stream is left.
            decider.dispatcher.cache_event(now, node.id, target, event);
        };
        match self.mirror.line(line, tell)? {
            Said::Live => {
                self.live = true;
                node.signals.event(EventKind::Snapshot);
                node.signals.set_streaming(true);
                tracing::info!(node = &*node.name, "the cache's event stream is live");
            }
            Said::At(Some(at)) => self.note_lag(at),
            Said::Held | Said::At(None) | Said::Unknown => {}
        }
        Ok(())
    }

    /// How much later than at its fastest an event came that happened at `at` by the node's clock.
    fn note_lag(&mut self, at: Duration) {
        let apart = i128::from(self.decider.clock.now().as_nanos()) - at.as_nanos() as i128;
        let fastest = self.fastest.map_or(apart, |fastest| fastest.min(apart));
        self.fastest = Some(fastest);
        let lag = u64::try_from(apart - fastest).unwrap_or(u64::MAX);
        self.node.signals.set_lag(Duration::from_nanos(lag));
    }
}
