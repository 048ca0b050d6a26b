//! Asks a process of ours for JSON over HTTP, on one connection that is kept.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::TcpStream;

/// Largest answer read.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the end of a purge, for which a switch takes 40 s at most.
const PURGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Somebody who answers.
#[derive(Debug)]
pub(crate) struct Asked {
    address: SocketAddr,
    open: Option<SendRequest<Empty<Bytes>>>,
}

impl Asked {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, open: None }
    }

    /// The answer to a GET of `path`, over the connection of the last time if it is still open.
    ///
    /// # Errors
    /// No connection, another status than 200, an answer that is too long, late or not what is expected.
    pub(crate) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let what = || format!("{path} of {}", self.address);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, Self::fetch(self.address, self.open.take(), path));
        let (open, body) =
            answer.await.map_err(|_| anyhow::anyhow!("no answer")).flatten().with_context(what)?;
        let read = serde_json::from_slice(&body).with_context(what)?;
        self.open = Some(open);
        Ok(read)
    }

    /// The answer to a POST of `path`, over a connection of its own.
    ///
    /// # Errors
    /// As for [`Self::get`]; what the answer says is wrong is told.
    pub(crate) async fn post<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        let what = || format!("{path} of {}", self.address);
        let request = Request::post(path).header("host", self.address.to_string()).body(Empty::new())?;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, Self::send(self.address, None, request));
        let (_, body) =
            answer.await.map_err(|_| anyhow::anyhow!("no answer")).flatten().with_context(what)?;
        serde_json::from_slice(&body).with_context(what)
    }

    /// The answer to a POST of `path` that shows a token, over a connection of its own, and whether its status is 200.
    ///
    /// # Errors
    /// No connection, or an answer that is too long, late or no JSON.
    pub(crate) async fn post_as(&self, path: &str, token: &str) -> anyhow::Result<(bool, Value)> {
        let what = || format!("{path} of {}", self.address);
        let request = Request::post(path)
            .header("host", self.address.to_string())
            .header("authorization", format!("Bearer {token}"))
            .body(Empty::new())?;
        let answer = tokio::time::timeout(PURGE_TIMEOUT, Self::exchange(self.address, None, request));
        let (_, status, body) =
            answer.await.map_err(|_| anyhow::anyhow!("no answer")).flatten().with_context(what)?;
        Ok((status == StatusCode::OK, serde_json::from_slice(&body).with_context(what)?))
    }

    async fn fetch(
        address: SocketAddr,
        open: Option<SendRequest<Empty<Bytes>>>,
        path: &str,
    ) -> anyhow::Result<(SendRequest<Empty<Bytes>>, Bytes)> {
        let request = Request::get(path).header("host", address.to_string()).body(Empty::new())?;
        Self::send(address, open, request).await
    }

    async fn send(
        address: SocketAddr,
        open: Option<SendRequest<Empty<Bytes>>>,
        request: Request<Empty<Bytes>>,
    ) -> anyhow::Result<(SendRequest<Empty<Bytes>>, Bytes)> {
        let (open, status, body) = Self::exchange(address, open, request).await?;
        if status != StatusCode::OK {
            let problem: Option<Value> = serde_json::from_slice(&body).ok();
            let said = problem.as_ref().and_then(|problem| problem["error"].as_str()).unwrap_or_default();
            bail!("it answers {status} {said}");
        }
        Ok((open, body))
    }

    async fn exchange(
        address: SocketAddr,
        open: Option<SendRequest<Empty<Bytes>>>,
        request: Request<Empty<Bytes>>,
    ) -> anyhow::Result<(SendRequest<Empty<Bytes>>, StatusCode, Bytes)> {
        let open = match open {
            Some(mut open) => open.ready().await.is_ok().then_some(open),
            None => None,
        };
        let mut open = match open {
            Some(open) => open,
            None => connect(address).await?,
        };
        let response = open.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("its answer cannot be read: {error}"))?;
        Ok((open, status, body.to_bytes()))
    }
}

/// The address of an admin interface as an operator writes it: HOST:PORT, a port of this machine, or either as a URL. With the text
/// that was resolved.
///
/// # Errors
/// It is no address, or leads nowhere.
pub(crate) fn admin_address(admin: &str) -> anyhow::Result<(String, SocketAddr)> {
    let bare = admin.strip_prefix("http://").unwrap_or(admin).trim_end_matches('/');
    let full = if bare.contains(':') { bare.to_owned() } else { format!("127.0.0.1:{bare}") };
    let mut found = full.to_socket_addrs().with_context(|| format!("'{admin}' is no address"))?;
    let address = found.next().with_context(|| format!("'{admin}' leads nowhere"))?;
    Ok((full, address))
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends by itself once the sender is dropped or the other side closes.
    tokio::spawn(connection);
    Ok(sender)
}
