//! One request of an HTTP/2 connection, from its header until h2 has written its reply.

use super::memory::{Account, READ_BYTES, REPLY_BYTES, STREAM_BYTES};
use crate::conn::Link;
use crate::failure::Failure;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, StatusCode};
use larder_edge::http2::{Blocked, Pace};
use pingora_http::{RequestHeader, ResponseHeader};
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

tokio::task_local! {
    /// The request that the task serves.
    static STREAM: Arc<Stream>;
}

/// Memory that h2 may hold of one reply. Bytes.
pub(super) const SEND_BUFFER: usize = 64 << 10;
/// Requests beside which each has `timeouts.client_write` for its turn.
const TURN_STREAMS: u32 = 16;

/// A request under way.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) link: Arc<Link>,
    account: Arc<Account>,
    pace: Pace,
    header_bytes: usize,
    /// Bytes that it has reserved.
    reserved: AtomicUsize,
    /// Bytes of the reply's body that h2 was given.
    sent_bytes: AtomicU64,
    on_abort: Mutex<Option<OnAbort>>,
    patience: Duration,
}

/// The record of a reply that may yet be aborted; called with the bytes of its body that were sent.
struct OnAbort(Box<dyn FnOnce(u64) + Send>);

impl fmt::Debug for OnAbort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnAbort")
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// h2 has written what was answered, or the client has left.
    Whole,
    /// The client took nothing of the reply, which was broken off.
    Aborted,
    /// The client takes nothing of the end of the reply. Only the end of the connection can take it back.
    Stuck,
}

/// The request that this task serves, if that is one of HTTP/2.
pub(crate) fn current() -> Option<Arc<Stream>> {
    STREAM.try_with(Arc::clone).ok()
}

/// The bytes of a header, about as HTTP/2 counts them (RFC 9113 section 6.5.2).
fn header_bytes(header: &RequestHeader) -> usize {
    let field = |name: &str, value: usize| name.len() + value + 32;
    let fields: usize = header.headers.iter().map(|(name, value)| field(name.as_str(), value.len())).sum();
    let host = header.uri.authority().map_or(0, |host| host.as_str().len());
    field(":method", header.method.as_str().len())
        + field(":scheme", "https".len())
        + field(":authority", host)
        + field(":path", header.raw_path().len())
        + fields
}

pub(super) fn is_grpc(header: &RequestHeader) -> bool {
    let value = header.headers.get(CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    value
        .strip_prefix(b"application/grpc")
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

impl Stream {
    /// A request with this header. `None` if the connection's requests under way leave no room for the header.
    pub(super) fn new(
        link: &Arc<Link>,
        account: &Arc<Account>,
        blocked: &Arc<Blocked>,
        header: &RequestHeader,
        patience: Duration,
    ) -> Option<Arc<Self>> {
        let header_bytes = header_bytes(header);
        account.enter(header_bytes).then(|| {
            Arc::new(Self {
                link: link.clone(),
                account: account.clone(),
                pace: Pace::new(blocked.clone()),
                header_bytes,
                reserved: AtomicUsize::new(0),
                sent_bytes: AtomicU64::new(0),
                on_abort: Mutex::default(),
                patience,
            })
        })
    }

    /// Runs what serves the request, and waits until h2 has written the reply. If the client takes nothing of it, the reply is aborted.
    pub(super) async fn serve(self: Arc<Self>, relay: impl Future<Output = ()>) -> Served {
        // A reply has its turn when the others had theirs.
        let patience = || self.patience * (1 + self.account.holders() / TURN_STREAMS);
        tokio::select! {
            biased;
            () = STREAM.scope(self.clone(), relay) => {}
            () = self.pace.stalled(patience) => {
                self.aborted();
                return Served::Aborted;
            }
        }
        self.keep(SEND_BUFFER);
        // If the reply was aborted, h2 throws its pieces away when the connection is polled next.
        self.pace.moved();
        tokio::select! {
            biased;
            () = poll_fn(|cx| self.pace.poll_gone(cx)) => Served::Whole,
            () = self.pace.stalled(patience) => Served::Stuck,
        }
    }

    /// Reserves memory before a node is chosen. A gRPC request reserves less, since its node is likely to be asked by HTTP/2.
    pub(super) async fn reserve(&self, grpc: bool) -> Result<(), Failure> {
        let bytes = STREAM_BYTES + if grpc { 0 } else { REPLY_BYTES };
        if !self.account.reserve(bytes, self.patience).await {
            return Err(Failure::StreamsFull);
        }
        self.reserved.store(bytes, Relaxed);
        Ok(())
    }

    /// Reserves what a node's reply needs beyond that. From a node that is asked by HTTP/2 little is read ahead. Does not wait, because
    /// the request has a place at the node by now.
    pub(crate) fn reserve_for(&self, http2_node: bool) -> Result<(), Failure> {
        if http2_node {
            self.keep(STREAM_BYTES);
            return Ok(());
        }
        let further = (STREAM_BYTES + REPLY_BYTES).saturating_sub(self.reserved.load(Relaxed));
        if !self.account.take(further) {
            return Err(Failure::StreamsFull);
        }
        self.reserved.fetch_add(further, Relaxed);
        Ok(())
    }

    /// Sets the function that records the reply if it is aborted.
    pub(crate) fn on_abort(&self, record: impl FnOnce(u64) + Send + 'static) {
        *self.on_abort.lock().unwrap_or_else(PoisonError::into_inner) = Some(OnAbort(Box::new(record)));
    }

    fn aborted(&self) {
        let record = self.on_abort.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(OnAbort(record)) = record {
            record(self.sent_bytes.load(Relaxed));
        }
    }

    /// The reply's header has come: gives back what the reply cannot need. Returns true if the reply has a body, so that it may be
    /// aborted.
    pub(crate) fn answered(&self, method: &Method, reply: &ResponseHeader) -> bool {
        let empty = method == Method::HEAD
            || matches!(reply.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let field = |name| reply.headers.get(name).and_then(|value| value.to_str().ok());
        let stated = field(CONTENT_LENGTH).and_then(|length| length.parse().ok());
        let events = field(CONTENT_TYPE).is_some_and(|kind| kind.starts_with("text/event-stream"));
        let length: usize = if empty { 0 } else { stated.unwrap_or(REPLY_BYTES) };
        let held = if events { 0 } else { length };
        self.keep(STREAM_BYTES + held.saturating_add(READ_BYTES).min(REPLY_BYTES));
        length > 0
    }

    /// Follows a piece of the reply until h2 has written it.
    pub(crate) fn follow(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        if bytes.is_empty() {
            return bytes;
        }
        self.pace.given();
        self.sent_bytes.fetch_add(bytes.len() as u64, Relaxed);
        Bytes::from_owner(Piece { bytes, stream: self.clone() })
    }

    fn keep(&self, bytes: usize) {
        let before = self.reserved.fetch_min(bytes, Relaxed);
        if before > bytes {
            self.account.give(before - bytes);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.account.leave(self.header_bytes, *self.reserved.get_mut());
    }
}

/// A piece of a reply, until it is written or thrown away.
struct Piece {
    bytes: Bytes,
    stream: Arc<Stream>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.stream.pace.gone();
    }
}
