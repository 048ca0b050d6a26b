//! A client of HTTP/1.1 for requests that need no speed: to admin interfaces, nodes, collectors and authorities.
//!
//! hyper speaks the protocol. This module bounds a reply and names the errors:
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

/// Bytes of a reply's head.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// There is no connection. The text is the caller's, who connects.
    #[error("{0}")]
    Connect(String),
    /// The connection ended before the end of the reply.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The reply breaks the rules of HTTP/1, or its head exceeds [`HEAD_BYTES_MAX`].
    #[error("the answer cannot be read: {0}")]
    Malformed(String),
    /// The reply's body exceeds this number of bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// The reply was not complete within this time.
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
}

impl From<hyper::Error> for ClientError {
    fn from(error: hyper::Error) -> Self {
        if error.is_parse() { Self::Malformed(chain(&error)) } else { Self::Broken(chain(&error)) }
    }
}

/// Limits of [`Client::exchange`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time from the connection to the last byte of the reply.
    pub time: Duration,
    /// Bytes of the reply's body.
    pub body_bytes: usize,
}

/// A client of one server. It keeps its connection after a reply that was read whole.
#[derive(Debug, Default)]
pub struct Client {
    kept: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// The task that reads and writes. It ends with this.
    _driver: JoinSet<hyper::Result<()>>,
}

/// A reply whose body is still to be read.
#[derive(Debug)]
pub struct Reply<'a> {
    head: Parts,
    body: Incoming,
    connection: Connection,
    home: &'a mut Option<Connection>,
}

impl Client {
    /// Sends a request, and waits for the head of its reply. The request's target is a path, and it names a `Host`.
    ///
    /// An idempotent request goes over the kept connection, if there is one. If that connection ends before the reply,
    /// the server may have closed it for its silence, and the request is sent once more. Otherwise the request goes over
    /// the connection that `connect` makes.
    ///
    /// # Errors
    /// There is no connection, or no head within its limit.
    pub async fn send<S, E: Display>(
        &mut self,
        connect: impl Future<Output = Result<S, E>>,
        request: Request<Bytes>,
    ) -> Result<Reply<'_>, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let request = request.map(Full::new);
        // Taken out while it is in use: if this future is dropped, the connection goes with it.
        if let Some(mut kept) = self.kept.take().filter(|_| request.method().is_idempotent())
            && kept.sender.ready().await.is_ok()
        {
            match kept.sender.send_request(request.clone()).await.map_err(ClientError::from) {
                Ok(reply) => return Ok(Reply::new(reply, kept, &mut self.kept)),
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
        Ok(Reply::new(reply, Connection { sender, _driver: driver }, &mut self.kept))
    }

    /// Sends a request as [`Self::send`] does, and reads its reply whole.
    ///
    /// # Errors
    /// There is no connection, or no whole reply within the limits.
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
    fn new(reply: Response<Incoming>, connection: Connection, home: &'a mut Option<Connection>) -> Self {
        let (head, body) = reply.into_parts();
        Self { head, body, connection, home }
    }

    /// The reply's status.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// The reply's header fields.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Waits for the next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// The connection ended before the body, or the body is malformed.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// Reads the whole body, and keeps the connection for the next request.
    ///
    /// # Errors
    /// As for [`Self::piece`], or the body is longer than `body_bytes_max`.
    pub async fn read(mut self, body_bytes_max: usize) -> Result<Response<Bytes>, ClientError> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            if whole.len() + piece.len() > body_bytes_max {
                return Err(ClientError::TooLong(body_bytes_max));
            }
            whole.extend_from_slice(&piece);
        }
        *self.home = Some(self.connection);
        Ok(Response::from_parts(self.head, whole.freeze()))
    }
}

/// Connects to `HOST:PORT` by TCP. If the host has addresses of both families, the second is tried soon after the first
/// (RFC 8305).
///
/// # Errors
/// The name has no address, or none accepts. The text is that of the system.
pub async fn tcp(authority: &str) -> io::Result<TcpStream> {
    let to = Uri::builder().scheme("http").authority(authority).path_and_query("/").build();
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let connecting = connector.call(to.map_err(io::Error::other)?);
    let stream =
        connecting.await.map_err(|error| io::Error::other(error.source().map_or_else(String::new, chain)))?;
    Ok(stream.into_inner())
}

/// The text of an error, followed by its causes, which libraries leave out of their own texts.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
