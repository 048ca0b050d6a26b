//! Bodies of replies: nothing, bytes from memory, or the chunks of a long object as they come.
//!
//! Chunks are asked for in order, one ahead of the one that is being sent, so that the store reads while the network
//! writes; a slow client therefore holds two chunks and no more, and the number of such replies has a limit
//! ([`streams_max`]).

use crate::config::CacheConfig;
use crate::connection::InFlight;
use crate::cooperate::{Relayed, Serviced};
use crate::fetch::PartState;
use crate::node::Node;
use crate::object::Object;
use crate::origin::Pulled;
use crate::report::stream::Events;
use crate::store::StoreError;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Chunks asked for ahead of the one to be sent next.
const AHEAD: usize = 1;

/// Bytes left of a body whose length is not known.
const UNKNOWN: u64 = u64::MAX;

/// Most replies in chunks at one time, so that the chunks they hold, in the cache or pushed out of it meanwhile, are
/// no more bytes than the cache or 256 MiB, whichever is more. At least 16, whatever the chunk size.
pub(crate) fn streams_max(cache: &CacheConfig) -> usize {
    let held = cache.chunk.0 * (1 + AHEAD as u64);
    let most = cache.bytes.0.max(256 << 20) / held;
    usize::try_from(most).unwrap_or(usize::MAX).clamp(16, Semaphore::MAX_PERMITS)
}

/// The body of a reply.
pub(crate) struct Body {
    content: Content,
    left: u64,
    /// Ends the request when the body has been taken over, or will never be.
    in_flight: Option<InFlight>,
    /// Counts as load among peers until then.
    serviced: Option<Box<Serviced>>,
}

enum Content {
    Whole(Bytes),
    Parts(Box<Parts>),
    Pulled(Box<Pulled>),
    Relayed(Box<Relayed>),
    /// Has no length; it ends when it ends.
    Events(Box<Events>),
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self { left: bytes.len() as u64, content: Content::Whole(bytes), in_flight: None, serviced: None }
    }

    pub(crate) fn parts(parts: Parts) -> Self {
        Self { left: parts.left, content: Content::Parts(Box::new(parts)), in_flight: None, serviced: None }
    }

    pub(crate) fn events(events: Events) -> Self {
        Self { left: UNKNOWN, content: Content::Events(Box::new(events)), in_flight: None, serviced: None }
    }

    /// A body from an origin, of this length if it is known.
    pub(crate) fn pulled(pulled: Pulled, len: Option<u64>) -> Self {
        Self {
            left: len.unwrap_or(UNKNOWN),
            content: Content::Pulled(Box::new(pulled)),
            in_flight: None,
            serviced: None,
        }
    }

    /// A body from a peer, of this length if it is known.
    pub(crate) fn relayed(relayed: Relayed, len: Option<u64>) -> Self {
        let content = Content::Relayed(Box::new(relayed));
        Self { left: len.unwrap_or(UNKNOWN), content, in_flight: None, serviced: None }
    }

    /// Hangs the load that it is on the body.
    pub(crate) fn serviced(mut self, serviced: Serviced) -> Self {
        self.serviced = Some(Box::new(serviced));
        self
    }

    /// Of a reply to HEAD: a text that such a reply would have is not sent, by any version of HTTP.
    pub(crate) fn of_head(mut self) -> Self {
        if let Content::Whole(bytes) = &mut self.content {
            *bytes = Bytes::new();
            self.left = 0;
        }
        self
    }

    /// Whether it has no end but its client's leaving.
    pub(crate) fn is_endless(&self) -> bool {
        matches!(self.content, Content::Events(_))
    }

    /// Hangs the request on the body.
    pub(crate) fn with(mut self, in_flight: InFlight) -> Self {
        self.in_flight = Some(in_flight);
        self
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = StoreError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StoreError>>> {
        let frame = ready!(self.poll_content(cx));
        if let Some((Err(error), in_flight)) = frame.as_ref().zip(self.in_flight.as_mut()) {
            in_flight.breaks_off(Some(error.detail()));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        match self.left {
            UNKNOWN => SizeHint::default(),
            _ => SizeHint::with_exact(self.left),
        }
    }
}

impl Body {
    /// Contents of unknown length have ended.
    fn end(&mut self) -> Poll<Option<Result<Frame<Bytes>, StoreError>>> {
        (self.left, self.content) = (0, Content::Whole(Bytes::new()));
        if let Some(serviced) = &mut self.serviced {
            serviced.whole();
        }
        Poll::Ready(None)
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StoreError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let bytes = match &mut self.content {
            Content::Whole(bytes) => std::mem::take(bytes),
            Content::Parts(parts) => match ready!(parts.poll_next(cx)) {
                Ok(bytes) => bytes,
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
            Content::Pulled(pulled) => match ready!(pulled.poll_next(cx)) {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if self.left == UNKNOWN => return self.end(),
                // It ended before its length: the client must not take it for whole.
                None => return Poll::Ready(Some(Err(StoreError::OriginBroke))),
            },
            Content::Relayed(relayed) => match ready!(relayed.poll_next(cx)) {
                Some(Ok(bytes)) => bytes,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if self.left == UNKNOWN => return self.end(),
                None => return Poll::Ready(Some(Err(StoreError::PeerBroke))),
            },
            Content::Events(events) => {
                let lines = ready!(events.poll_next(cx));
                if lines.is_none() {
                    self.left = 0;
                }
                return Poll::Ready(lines.map(|lines| Ok(Frame::data(lines))));
            }
        };
        if self.left != UNKNOWN {
            self.left = self.left.saturating_sub(bytes.len() as u64);
        }
        if self.left == 0 {
            // Gives back what the contents held, such as a slot of the origin, before the last bytes leave.
            self.content = Content::Whole(Bytes::new());
        }
        if let Some(serviced) = &mut self.serviced {
            serviced.sent(bytes.len());
        }
        if let Some(in_flight) = &self.in_flight {
            in_flight.sent(bytes.len() as u64);
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // Leaving is how a stream of events ends.
        let whole = self.left == 0 || self.is_endless();
        if let Some(in_flight) = self.in_flight.as_mut().filter(|_| !whole) {
            in_flight.counters().aborted.add(1);
            in_flight.breaks_off(None);
        }
    }
}

type Wait = Pin<Box<dyn Future<Output = Result<Bytes, StoreError>> + Send>>;

/// A chunk that has been asked for.
enum Asked {
    Here(Bytes),
    Awaited(Wait),
}

/// The bytes `from..to` of an object kept in chunks.
pub(crate) struct Parts {
    node: Arc<Node>,
    object: Arc<Object>,
    hash: u64,
    /// The first byte not asked for yet, and the end.
    from: u64,
    to: u64,
    /// Bytes not handed out yet.
    left: u64,
    /// Bytes in front of `from` that were read from the store without a gap.
    run: u64,
    asked: VecDeque<Asked>,
    /// A chunk that was awaited before the reply began.
    first: Option<Bytes>,
    /// One of the replies in chunks that may be under way.
    _place: OwnedSemaphorePermit,
}

impl Parts {
    /// The bytes of `part`, which is not empty.
    pub(crate) fn new(
        place: OwnedSemaphorePermit,
        node: Arc<Node>,
        object: Arc<Object>,
        hash: u64,
        part: Range<u64>,
    ) -> Self {
        let Range { start: from, end: to } = part;
        let asked = VecDeque::with_capacity(1 + AHEAD);
        Self { node, object, hash, from, to, left: to - from, run: 0, asked, first: None, _place: place }
    }

    /// Waits for the first chunk, so that a store that fails at once is an error reply and no torn one.
    pub(crate) async fn prime(&mut self) -> Result<(), StoreError> {
        let first = std::future::poll_fn(|cx| self.poll_next(cx)).await?;
        self.left += first.len() as u64;
        self.first = Some(first);
        Ok(())
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, StoreError>> {
        if let Some(first) = self.first.take() {
            self.left -= first.len() as u64;
            return Poll::Ready(Ok(first));
        }
        while self.asked.len() <= AHEAD && self.from < self.to {
            // Ahead of need only what must be read is asked for: what is in memory would be held for nothing.
            if !self.asked.is_empty() && self.node.holds_part(&self.object, self.hash, self.from) {
                break;
            }
            self.ask()?;
        }
        let bytes = match self.asked.front_mut() {
            Some(Asked::Here(bytes)) => std::mem::take(bytes),
            Some(Asked::Awaited(wait)) => ready!(wait.as_mut().poll(cx))?,
            // Only if more is asked of the body than it said it had.
            None => return Poll::Ready(Err(StoreError::Abandoned)),
        };
        self.asked.pop_front();
        self.left -= bytes.len() as u64;
        Poll::Ready(Ok(bytes))
    }

    /// Asks for the chunk that holds byte `from`.
    fn ask(&mut self) -> Result<(), StoreError> {
        let chunk = self.node.chunk_of(&self.object, self.from);
        let (skip, take) = (self.from - chunk.start, chunk.end.min(self.to) - self.from);
        let cut = move |bytes: &Bytes| bytes.slice(skip as usize..(skip + take) as usize);
        let state = self.node.part(&self.object, self.hash, &chunk, self.run)?;
        self.asked.push_back(match state {
            PartState::Here(bytes) => {
                self.run = 0;
                Asked::Here(cut(&bytes))
            }
            PartState::Awaited(flight) => {
                self.run += chunk.end - chunk.start;
                Asked::Awaited(Box::pin(async move {
                    Node::part_of(flight.landed().await).map(|bytes| cut(&bytes))
                }))
            }
        });
        self.from = self.from - skip + (chunk.end - chunk.start);
        Ok(())
    }
}
