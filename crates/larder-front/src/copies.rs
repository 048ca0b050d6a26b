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
use larder_core::dispatch::Served;
use larder_core::{Decision, Request};
use larder_http::client::Client;
use larder_http::h1::{Body, RequestHead};
use std::sync::Arc;

use crate::mirror::{Outcome, UnderWay};
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
        let mut client = Client::default();
        let connecting = dial.open(self.client.as_ref(), Speaks::Http1);
        let mut reply = client.send(connecting, self.message()?).await.ok()?;
        while reply.piece().await.ok()?.is_some() {}
        Some(())
    }

    fn message(&self) -> Option<http::Request<Bytes>> {
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
        message.body(self.body.clone().freeze()).ok()
    }
}

impl Drop for Duplicate {
    fn drop(&mut self) {
        if !self.whole {
            self.place.0.count(Outcome::Unfinished);
        }
    }
}
