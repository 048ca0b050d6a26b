//! A page of a node, asked for again and again over a connection that is kept.
//!
//! The caller sets the time limit.

use super::cause::Cause;
use crate::dial::{Dialer, NodeProtocol};
use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_ENCODING, HOST, HeaderValue, USER_AGENT};
use http::{Request, StatusCode, Uri};
use larder_http::client::{self, ClientError, Reply};
use larder_peers::{ClusterSecrets, PROOF_FIELD};

/// Where and what to ask.
#[derive(Debug)]
pub(super) struct Client {
    dial: Dialer,
    request: Request<Bytes>,
    client: client::Client,
}

impl Client {
    /// A client for one page. `path` begins with `/` and has been checked; `accept` is the media type. The node is shown the proof
    /// of the first of `secrets`.
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

    /// Asks for the page; the body is to be read from the reply.
    pub(super) async fn ask(&mut self) -> Result<Reply<'_>, Cause> {
        let connecting = self.dial.open(None, NodeProtocol::Http1);
        let reply = self.client.send(connecting, self.request.clone()).await?;
        if reply.status() != StatusCode::OK {
            return Err(Cause::Status);
        }
        if reply.headers().contains_key(CONTENT_ENCODING) {
            return Err(Cause::Malformed);
        }
        Ok(reply)
    }

    /// Asks for the page and reads it whole, up to `body_max` bytes.
    pub(super) async fn page(&mut self, body_max: usize) -> Result<Bytes, Cause> {
        Ok(self.ask().await?.read(body_max).await?.into_body())
    }
}

impl From<ClientError> for Cause {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Connect(_) | ClientError::Broken(_) => Self::Connection,
            ClientError::Malformed(_) => Self::Malformed,
            ClientError::TooLong(_) => Self::BodyTooLarge,
            ClientError::Late(_) => Self::Timeout,
        }
    }
}
