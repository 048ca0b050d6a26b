//! Mirroring: a share of a route's requests is asked for once more by another route, whose replies nobody sees.
//!
//! A copy is asked for by a task of its own, after the client's request has its node: it neither delays that nor can it fail
//! it. It is a request like any other to the dispatcher: on a route with a policy, nodes and header rules of its own, counted
//! as load at its node and held to S of its group; but it does not wait: where there is no room there is no copy. Bounded
//! are the copies under way, those whose request still comes among them, the bytes of a request's body, and the time. What
//! comes of a reply is dropped as it comes.
//!
//! Which requests are copied goes round: of a share of a tenth every tenth one.

use crate::decider::Decider;
use crate::dial::{Announced, Speaks};
use crate::lease::Lease;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use larder_core::dispatch::Served;
use larder_core::{Decision, Request, RouteId};
use larder_http::h1::{Body, RequestHead};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;

/// What a mirroring route copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorOf {
    /// The route whose requests are copied, by name; one with matchers, or the default one.
    pub route: String,
    /// How many of them, in thousandths of a percent: 0 to 100,000.
    pub share: u32,
    /// Copies under way at a time; more are left out. 1 to 65,536; usual 64.
    pub copies_max: u32,
    /// Bytes of a request's body; requests with more are not copied. 0 to 16 MiB; usual 64 KiB.
    pub body_bytes_max: usize,
    /// How long a copy may take, from connecting to the end of the reply. 10 ms to 1 min; usual 10 s.
    pub timeout: Duration,
}

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its reply came whole.
    Done,
    /// The node could not be reached, or broke off.
    Failed,
    /// It took too long.
    TimedOut,
    /// The dispatcher had no room for it, or no node.
    NoRoom,
    /// As many as may be were under way.
    TooMany,
    /// The request's body was too long.
    TooLarge,
    /// The request was not whole: its client left, or it was tried again.
    Unfinished,
}

impl Outcome {
    pub(crate) const ALL: [Self; 7] = [
        Self::Done,
        Self::Failed,
        Self::TimedOut,
        Self::NoRoom,
        Self::TooMany,
        Self::TooLarge,
        Self::Unfinished,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::NoRoom => "no_room",
            Self::TooMany => "too_many",
            Self::TooLarge => "too_large",
            Self::Unfinished => "unfinished",
        }
    }
}

/// A route that copies another's requests, at work.
#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) config: MirrorOf,
    /// Where copies go.
    pub(crate) route: RouteId,
    turn: AtomicU64,
    under_way: AtomicU32,
    outcomes: [AtomicU64; Outcome::ALL.len()],
}

impl Mirror {
    pub(crate) fn new(config: MirrorOf, route: RouteId) -> Self {
        let outcomes = std::array::from_fn(|_| AtomicU64::new(0));
        Self { config, route, turn: AtomicU64::new(0), under_way: AtomicU32::new(0), outcomes }
    }

    /// Whether it is this request's turn.
    pub(crate) fn takes(&self) -> bool {
        let (share, whole) = (u64::from(self.config.share), u64::from(crate::split::WHOLE));
        let before = self.turn.fetch_add(share, Relaxed) % whole;
        before + share >= whole
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Outcome::ALL
            .into_iter()
            .map(|outcome| (outcome.name(), self.outcomes[outcome as usize].load(Relaxed)))
    }

    /// A place among those under way; `None`, which is counted, if there is none.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<UnderWay> {
        let max = self.config.copies_max;
        let more = |count: u32| (count < max).then_some(count + 1);
        if self.under_way.fetch_update(Relaxed, Relaxed, more).is_err() {
            self.count(Outcome::TooMany);
            return None;
        }
        Some(UnderWay(self.clone()))
    }
}

/// A copy's place among those under way.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Mirror>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

/// A request that is to be copied, as far as it has come. One that is dropped before it is sent was not whole.
#[derive(Debug)]
pub(crate) struct Duplicate {
    place: UnderWay,
    head: Box<RequestHead>,
    request: Request,
    /// Whom it is from, for nodes to which that is announced.
    client: Option<Announced>,
    body: BytesMut,
    whole: bool,
}

impl Duplicate {
    pub(crate) fn new(
        place: UnderWay,
        head: RequestHead,
        request: Request,
        client: Option<Announced>,
    ) -> Self {
        Self { place, head: Box::new(head), request, client, body: BytesMut::new(), whole: false }
    }

    /// Takes a piece of the body. False if it is too long by now.
    pub(crate) fn push(&mut self, piece: &[u8]) -> bool {
        let fits = self.body.len() + piece.len() <= self.place.0.config.body_bytes_max;
        if fits {
            self.body.extend_from_slice(piece);
        } else {
            self.whole = true;
            self.place.0.count(Outcome::TooLarge);
        }
        fits
    }

    /// The request is whole: it is asked for once more.
    pub(crate) fn send(mut self, decider: &Arc<Decider>) {
        self.whole = true;
        let mut lease = Lease::new(decider.clone());
        // One that would have to wait gives its place in the queue back at once.
        let Ok(Some(decision)) = lease.arrive(decider.clock.now(), self.request) else {
            return self.place.0.count(Outcome::NoRoom);
        };
        let decider = decider.clone();
        tokio::spawn(async move {
            let began = decider.clock.now();
            let asked = tokio::time::timeout(self.place.0.config.timeout, self.ask(&decider, decision)).await;
            let now = decider.clock.now();
            match asked {
                Ok(Some(())) => {
                    let served = Served { elapsed: now - began, first_byte: None, found: None };
                    decider.dispatcher.served(now, &self.request, decision.node, &served);
                    self.place.0.count(Outcome::Done);
                }
                failed => {
                    decider.dispatcher.unserved(now, &self.request, decision.node, now - began);
                    self.place.0.count(if failed.is_err() { Outcome::TimedOut } else { Outcome::Failed });
                }
            }
            lease.release(now);
        });
    }

    /// Asks the node and throws away what it says; `None` if it did not say it all.
    async fn ask(&self, decider: &Decider, decision: Decision) -> Option<()> {
        let dial = decider.nodes.get(decision.node)?.dial.clone();
        let io = dial.open(self.client.as_ref(), Speaks::Http1).await.ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.ok()?;
        // Ends with this.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let reply = sender.send_request(self.message()?).await.ok()?;
        let mut body = reply.into_body();
        loop {
            match body.frame().await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return None,
                None => return Some(()),
            }
        }
    }

    fn message(&self) -> Option<http::Request<Full<Bytes>>> {
        let uri = std::str::from_utf8(self.head.target()).ok()?;
        let mut message = http::Request::builder().method(self.head.method()).uri(uri);
        let headers = message.headers_mut()?;
        for field in self.head.fields.iter() {
            let value = HeaderValue::from_bytes(field.value).ok()?;
            headers.append(HeaderName::from_bytes(field.name).ok()?, value);
        }
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        if !self.body.is_empty() || self.head.body() != Body::None {
            headers.insert(CONTENT_LENGTH, self.body.len().into());
        }
        message.body(Full::new(self.body.clone().freeze())).ok()
    }
}

impl Drop for Duplicate {
    fn drop(&mut self) {
        if !self.whole {
            self.place.0.count(Outcome::Unfinished);
        }
    }
}
