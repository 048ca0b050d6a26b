//! Mirroring: a share of a route's requests is sent again through another route, and the replies are discarded.
//!
//! A task of its own sends a copy after the client's request has its node, so that the copy cannot delay or fail the
//! request. To the dispatcher, a copy is an ordinary request of a route with its own policy, nodes and header rules.
//! It counts as load and against the admission limit of its group, but it never waits: without admission there is no
//! copy. Limited are the copies in flight (including those whose request is incomplete), the size of a request body,
//! and the time. The body of a reply is dropped as it arrives.
//!
//! Requests are selected in turn: a share of a tenth copies every tenth request.

use crate::decider::Decider;
use crate::dial::{Announcement, NodeProtocol};
use crate::lease::Lease;
use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue};
use larder_core::dispatch::ReplyFeedback;
use larder_core::{Decision, Request};
use larder_http::client::Client;
use larder_http::h1::{Body, RequestHead};
use std::sync::Arc;

use crate::mirror::{CopyOutcome, CopyPermit};
/// Copy of a request, as far as the request has arrived. A copy that is dropped before it is sent was incomplete.
#[derive(Debug)]
pub(crate) struct RequestCopy {
    permit: CopyPermit,
    head: Box<RequestHead>,
    request: Request,
    /// Client to announce, for nodes that expect an announcement.
    client: Option<Announcement>,
    body: BytesMut,
    settled: bool,
}

impl RequestCopy {
    pub(crate) fn new(
        permit: CopyPermit,
        head: RequestHead,
        request: Request,
        client: Option<Announcement>,
    ) -> Self {
        Self { permit, head: Box::new(head), request, client, body: BytesMut::new(), settled: false }
    }

    /// Adds a piece of the body. Returns false if the body is too large now.
    pub(crate) fn push(&mut self, piece: &[u8]) -> bool {
        let fits = self.body.len() + piece.len() <= self.permit.0.config.body_bytes_max;
        if fits {
            self.body.extend_from_slice(piece);
        } else {
            self.settled = true;
            self.permit.0.count(CopyOutcome::TooLarge);
        }
        fits
    }

    /// Sends the copy, because the request is complete.
    pub(crate) fn send(mut self, decider: &Arc<Decider>) {
        self.settled = true;
        let mut lease = Lease::new(decider.clone());
        // A copy that would have to wait gives its place in the queue back at once.
        let Ok(Some(decision)) = lease.arrive(decider.clock.now(), self.request) else {
            return self.permit.0.count(CopyOutcome::NoRoom);
        };
        let decider = decider.clone();
        tokio::spawn(async move {
            let began = decider.clock.now();
            let asked =
                tokio::time::timeout(self.permit.0.config.timeout, self.exchange(&decider, decision)).await;
            let now = decider.clock.now();
            match asked {
                Ok(Some(())) => {
                    let served = ReplyFeedback { elapsed: now - began, first_byte: None, found: None };
                    decider.dispatcher.observe_reply(now, &self.request, decision.node, &served);
                    self.permit.0.count(CopyOutcome::Done);
                }
                failed => {
                    decider.dispatcher.observe_failure(now, &self.request, decision.node, now - began);
                    self.permit.0.count(if failed.is_err() {
                        CopyOutcome::TimedOut
                    } else {
                        CopyOutcome::Failed
                    });
                }
            }
            lease.release(now);
        });
    }

    /// Sends the request to the node and discards the reply. Returns `None` if the reply is incomplete.
    async fn exchange(&self, decider: &Decider, decision: Decision) -> Option<()> {
        let dial = decider.nodes.get(decision.node)?.dial.clone();
        let mut client = Client::default();
        let connecting = dial.open(self.client.as_ref(), NodeProtocol::Http1);
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

impl Drop for RequestCopy {
    fn drop(&mut self) {
        if !self.settled {
            self.permit.0.count(CopyOutcome::Unfinished);
        }
    }
}
