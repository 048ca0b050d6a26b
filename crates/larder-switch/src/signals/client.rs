//! Client for one page of a node, over a kept connection.
//!
//! The caller sets timeouts.

use super::failure::SignalFailure;
use crate::dial::{Dialer, NodeProtocol};
use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_ENCODING, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode, Uri};
use larder_http::client::{self, ClientError, Reply};
use larder_peers::{ClusterSecrets, PROOF_FIELD};

/// Client for one page.
#[derive(Debug)]
pub(super) struct PageClient {
    dial: Dialer,
    request: Request<Bytes>,
    client: client::Client,
}

impl PageClient {
    /// Creates a client. `path` begins with `/` and has been validated; `accept` is the media type. The request
    /// carries the proof of the first of `secrets`.
    pub(super) fn new(
        dial: Dialer,
        path: &str,
        accept: &'static str,
        secrets: Option<&ClusterSecrets>,
    ) -> Self {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = path.parse().unwrap_or(Uri::from_static("/"));
        let host = HeaderValue::try_from(dial.address.to_string()).unwrap_or(HeaderValue::from_static(""));
        let headers = request.headers_mut();
        headers.insert(HOST, host);
        headers.insert(USER_AGENT, HeaderValue::from_static("larder-signals"));
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
        if let Some(mut proof) = secrets.and_then(|secrets| HeaderValue::try_from(secrets.proof()).ok()) {
            proof.set_sensitive(true);
            headers.insert(PROOF_FIELD, proof);
        }
        Self { dial, request, client: client::Client::default() }
    }

    /// Requests the page. The caller reads the body.
    pub(super) async fn request(&mut self) -> Result<Reply<'_>, SignalFailure> {
        let connecting = self.dial.open(None, NodeProtocol::Http1);
        let reply = self.client.send(connecting, self.request.clone()).await?;
        if reply.status() != StatusCode::OK {
            return Err(SignalFailure::Status);
        }
        if reply.headers().contains_key(CONTENT_ENCODING) {
            return Err(SignalFailure::Malformed);
        }
        Ok(reply)
    }

    /// Requests the page and reads at most `body_max` bytes.
    pub(super) async fn page(&mut self, body_max: usize) -> Result<Bytes, SignalFailure> {
        Ok(self.request().await?.read(body_max).await?.into_body())
    }
}

impl From<ClientError> for SignalFailure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Connect(_) | ClientError::Broken(_) => Self::Connection,
            ClientError::Malformed(_) => Self::Malformed,
            ClientError::TooLong(_) => Self::BodyTooLarge,
            ClientError::Late(_) => Self::Timeout,
        }
    }
}
