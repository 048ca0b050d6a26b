//! Asks a process of ours for JSON over HTTP, on one connection that is kept.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

/// Largest answer read.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

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

    async fn fetch(
        address: SocketAddr,
        open: Option<SendRequest<Empty<Bytes>>>,
        path: &str,
    ) -> anyhow::Result<(SendRequest<Empty<Bytes>>, Bytes)> {
        let open = match open {
            Some(mut open) => open.ready().await.is_ok().then_some(open),
            None => None,
        };
        let mut open = match open {
            Some(open) => open,
            None => connect(address).await?,
        };
        let request = Request::get(path).header("host", "larder").body(Empty::new())?;
        let response = open.send_request(request).await?;
        if response.status() != StatusCode::OK {
            bail!("it answers {}", response.status());
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("its answer cannot be read: {error}"))?;
        Ok((open, body.to_bytes()))
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends by itself once the sender is dropped or the other side closes.
    tokio::spawn(connection);
    Ok(sender)
}
