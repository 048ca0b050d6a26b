//! Requests that are forwarded to a peer, and the bodies of their replies.

use super::Cooperation;
use crate::body::Stream;
use crate::http::hop::without_hop_fields;
use crate::store::StoreError;
use bytes::Bytes;
use http::header::HeaderName;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::Empty;
use larder_peers::{ForwardError, Name, ReplyBody};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Header field that marks a peer's reply as its own refusal.
pub(crate) const LARDER_REFUSED: HeaderName = HeaderName::from_static("larder-refused");

/// The reason why a request that was to be forwarded is served here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardFailure {
    /// The peer sent no reply.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The head of the reply did not arrive in time.
    #[error("no reply in time")]
    Timeout,
    /// The service node refused the request or failed.
    #[error("the peer answers {0}")]
    Refused(StatusCode),
}

/// The body of a reply from a peer.
pub(crate) struct PeerBody {
    pub(crate) body: ReplyBody,
}

impl Stream for PeerBody {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>> {
        loop {
            return Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => None,
                Some(Err(_)) => Some(Err(StoreError::PeerBroke)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) if !bytes.is_empty() => Some(Ok(bytes)),
                    // Trailers are not passed on.
                    _ => continue,
                },
            });
        }
    }

    fn truncation_error(&self) -> StoreError {
        StoreError::PeerBroke
    }
}

impl Cooperation {
    /// Sends a request to a peer, and waits for the head of its reply.
    pub(crate) async fn forward(
        &self,
        to: &Name,
        parts: &Parts,
    ) -> Result<Response<ReplyBody>, ForwardFailure> {
        let mut request = Request::new(Empty::<Bytes>::new());
        request.method_mut().clone_from(&parts.method);
        request.uri_mut().clone_from(&parts.uri);
        *request.headers_mut() = without_hop_fields(&parts.headers);
        let forwarding = self.network.forward(to, request);
        let reply = match tokio::time::timeout(self.head_timeout, forwarding).await {
            Ok(reply) => reply?,
            Err(_) => return Err(ForwardFailure::Timeout),
        };
        if reply.headers().contains_key(LARDER_REFUSED) {
            return Err(ForwardFailure::Refused(reply.status()));
        }
        Ok(reply)
    }
}
