//! One HTTP/1.1 connection to ask a node with: kept between polls, opened anew when it is lost.
//!
//! hyper's client speaks HTTP (the node_exporter sends chunks); this bounds what it may bring. The caller sets the
//! time limit: a future that is dropped leaves the connection unusable, and the next call opens another.

use super::cause::Cause;
use crate::dial::{Dial, Speaks};
use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_ENCODING, HOST, HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use larder_peers::{ClusterSecrets, PROOF_FIELD};
use tokio::task::JoinHandle;

/// Bytes of a reply's head, and of what is read ahead of its body.
const HEAD_MAX: usize = 64 << 10;

/// Where and what to ask.
#[derive(Debug)]
pub(super) struct Client {
    dial: Dial,
    path: Uri,
    host: HeaderValue,
    accept: &'static str,
    proof: Option<HeaderValue>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    sender: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The body of a reply, while its connection is held.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    body: Incoming,
    _connection: &'a mut Client,
}

impl Client {
    /// A client for one page. `path` begins with `/` and has been checked; `accept` is the media type. The node is shown the proof
    /// of the first of `secrets`.
    pub(super) fn new(
        dial: Dial,
        path: &str,
        accept: &'static str,
        secrets: Option<&ClusterSecrets>,
    ) -> Self {
        let path = path.parse().unwrap_or(Uri::from_static("/"));
        let host = HeaderValue::try_from(dial.address.to_string()).unwrap_or(HeaderValue::from_static(""));
        let proof =
            secrets.and_then(|secrets| HeaderValue::try_from(secrets.proof()).ok()).map(|mut proof| {
                proof.set_sensitive(true);
                proof
            });
        Self { dial, path, host, accept, proof, open: None }
    }

    /// Asks for the page; the body is to be read from the answer.
    pub(super) async fn ask(&mut self) -> Result<Answer<'_>, Cause> {
        // Taken out while it is in use: if this future is dropped, the connection goes with it.
        let (open, reply) = match self.open.take().filter(|open| open.sender.is_ready()) {
            // The node may have closed it just now for its silence; that is no failure.
            Some(open) => match self.send(open).await {
                Err(Cause::Connection) => self.send(Open::new(&self.dial).await?).await?,
                sent => sent?,
            },
            None => self.send(Open::new(&self.dial).await?).await?,
        };
        if reply.status() != StatusCode::OK {
            return Err(Cause::Status);
        }
        if reply.headers().contains_key(CONTENT_ENCODING) {
            return Err(Cause::Malformed);
        }
        let body = reply.into_body();
        self.open = Some(open);
        Ok(Answer { body, _connection: self })
    }

    /// Sends the request and waits for the reply's head.
    async fn send(&self, mut open: Open) -> Result<(Open, Response<Incoming>), Cause> {
        let mut request = Request::get(self.path.clone())
            .header(HOST, self.host.clone())
            .header(USER_AGENT, "larder-signals")
            .header(ACCEPT, self.accept)
            .header(CONNECTION, "keep-alive")
            .body(Empty::new())
            .map_err(|_| Cause::Malformed)?;
        if let Some(proof) = &self.proof {
            request.headers_mut().insert(PROOF_FIELD, proof.clone());
        }
        let reply = open.sender.send_request(request).await.map_err(|error| cause(&error))?;
        Ok((open, reply))
    }

    /// Asks for the page and reads it whole, up to `body_max` bytes.
    pub(super) async fn page(&mut self, body_max: usize) -> Result<Vec<u8>, Cause> {
        let mut page = Vec::new();
        let read = async {
            let mut answer = self.ask().await?;
            while let Some(piece) = answer.piece().await? {
                if page.len() + piece.len() > body_max {
                    return Err(Cause::BodyTooLarge);
                }
                page.extend_from_slice(&piece);
            }
            Ok(())
        };
        let read = read.await;
        if read.is_err() {
            // What is left of the reply must not be taken for the next one's.
            self.close();
        }
        read.map(|()| page)
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.open = None;
    }
}

impl Answer<'_> {
    /// The next piece of the body; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, Cause> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.map_err(|error| cause(&error))?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

impl Open {
    async fn new(dial: &Dial) -> Result<Self, Cause> {
        let io = dial.open(None, Speaks::Http1).await.map_err(|_| Cause::Connection)?;
        let handshake = http1::Builder::new().max_buf_size(HEAD_MAX).handshake(TokioIo::new(io));
        let (sender, connection) = handshake.await.map_err(|error| cause(&error))?;
        let driver = tokio::spawn(async move {
            // Whoever asks learns of the failure.
            let _ = connection.await;
        });
        Ok(Self { sender, driver })
    }
}

fn cause(error: &hyper::Error) -> Cause {
    if error.is_parse() || error.is_parse_too_large() { Cause::Malformed } else { Cause::Connection }
}
