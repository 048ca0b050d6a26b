//! An HTTP/1.1 client for requests that are not time-critical: to admin interfaces, nodes, collectors and
//! certificate authorities.
//!
//! The crate hyper implements the protocol. This module limits the size and time of a reply, and classifies
//! errors:
//!
//! | limit | error |
//! |---|---|
//! | [`HEAD_BYTES_MAX`] for the head of a reply | [`ClientError::Malformed`] |
//! | [`Limits::body_bytes`] for its body | [`ClientError::TooLong`] |
//! | [`Limits::time`] from the connection to the last byte | [`ClientError::Late`] |

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower_service::Service as _;

#[cfg(test)]
mod tests;

/// Largest accepted head of a reply, in bytes.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// Reason why a request has no complete reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No connection could be opened. The text is the error of the caller's `connect`.
    #[error("{0}")]
    Connect(String),
    /// The connection ended before the end of the reply.
    #[error("the connection failed: {0}")]
    Broken(String),
    /// The reply violates HTTP/1, or its head exceeds [`HEAD_BYTES_MAX`].
    #[error("cannot read the reply: {0}")]
    Malformed(String),
    /// The body of the reply exceeds this number of bytes.
    #[error("the reply is longer than {0} bytes")]
    TooLong(usize),
    /// The reply was not complete within this time.
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
}

impl From<hyper::Error> for ClientError {
    fn from(error: hyper::Error) -> Self {
        if error.is_parse() {
            Self::Malformed(error_chain(&error))
        } else {
            Self::Broken(error_chain(&error))
        }
    }
}

/// Limits of [`Client::exchange`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time from the connection attempt to the last byte of the reply.
    pub time: Duration,
    /// Largest accepted body of a reply, in bytes.
    pub body_bytes: usize,
}

/// A client of one server. After a reply was read completely, the client keeps its connection for the next
/// request.
#[derive(Debug, Default)]
pub struct Client {
    idle: Option<OpenConnection>,
}

/// A connection and the task that drives it.
#[derive(Debug)]
struct OpenConnection {
    sender: SendRequest<Full<Bytes>>,
    /// The task that reads from and writes to the connection. The task is aborted when this field is dropped.
    _driver: JoinSet<hyper::Result<()>>,
}

/// A reply whose head has arrived. Its body has not been read.
#[derive(Debug)]
pub struct Reply<'a> {
    head: Parts,
    body: Incoming,
    connection: OpenConnection,
    idle_slot: &'a mut Option<OpenConnection>,
}

impl Client {
    /// Sends a request, and waits for the head of its reply.
    ///
    /// The target of the request must be a path, and the request must have a `Host` field.
    ///
    /// An idempotent request is sent on the idle connection, if there is one. If that connection ends before
    /// the reply, the request is sent again on a new connection, because servers close idle connections.
    /// Every other request is sent on a new connection, which `connect` opens.
    ///
    /// # Errors
    /// No connection could be opened, or the head is malformed, too large or incomplete.
    pub async fn send<S, E: Display>(
        &mut self,
        connect: impl Future<Output = Result<S, E>>,
        request: Request<Bytes>,
    ) -> Result<Reply<'_>, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let request = request.map(Full::new);
        // The connection is taken out while it is in use. If this future is dropped, the connection is
        // closed.
        if let Some(mut idle) = self.idle.take().filter(|_| request.method().is_idempotent())
            && idle.sender.ready().await.is_ok()
        {
            match idle.sender.send_request(request.clone()).await.map_err(ClientError::from) {
                Ok(reply) => return Ok(Reply::new(reply, idle, &mut self.idle)),
                Err(ClientError::Broken(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let stream = connect.await.map_err(|error| ClientError::Connect(error.to_string()))?;
        let handshake = Builder::new().max_buf_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let reply = sender.send_request(request).await?;
        Ok(Reply::new(reply, OpenConnection { sender, _driver: driver }, &mut self.idle))
    }

    /// Sends a request as [`Self::send`] does, and reads the complete reply.
    ///
    /// # Errors
    /// No connection could be opened, or the reply is incomplete, malformed, too large or late.
    pub async fn exchange<S, E: Display>(
        &mut self,
        connect: impl Future<Output = Result<S, E>>,
        request: Request<Bytes>,
        limits: Limits,
    ) -> Result<Response<Bytes>, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let exchange = async { self.send(connect, request).await?.read(limits.body_bytes).await };
        timeout(limits.time, exchange).await.unwrap_or(Err(ClientError::Late(limits.time)))
    }
}

impl<'a> Reply<'a> {
    fn new(
        reply: Response<Incoming>,
        connection: OpenConnection,
        idle_slot: &'a mut Option<OpenConnection>,
    ) -> Self {
        let (head, body) = reply.into_parts();
        Self { head, body, connection, idle_slot }
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// Returns the header fields.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Waits for the next piece of the body. Returns `None` at the end of the body.
    ///
    /// # Errors
    /// The connection ended before the end of the body, or the body is malformed.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads the complete body, and keeps the connection for the next request.
    ///
    /// # Errors
    /// As for [`Self::piece`], or [`ClientError::TooLong`] if the body exceeds `body_bytes_max` bytes.
    pub async fn read(mut self, body_bytes_max: usize) -> Result<Response<Bytes>, ClientError> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > body_bytes_max {
                return Err(ClientError::TooLong(body_bytes_max));
            }
            whole.extend_from_slice(&piece);
        }
        *self.idle_slot = Some(self.connection);
        Ok(Response::from_parts(self.head, whole.freeze()))
    }
}

/// Connects to `HOST:PORT` over TCP.
///
/// If the host has addresses of both families, the second family is tried shortly after the first (RFC 8305).
///
/// # Errors
/// The name has no address, or no address accepts the connection. The text is that of the operating system.
pub async fn tcp(authority: &str) -> io::Result<TcpStream> {
    let to = Uri::builder().scheme("http").authority(authority).path_and_query("/").build();
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let connecting = connector.call(to.map_err(io::Error::other)?);
    let stream = connecting
        .await
        .map_err(|error| io::Error::other(error.source().map_or_else(String::new, error_chain)))?;
    Ok(stream.into_inner())
}

/// Returns the text of an error and of its causes. Libraries leave the causes out of the text of an error.
fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
