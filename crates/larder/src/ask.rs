//! HTTP client for the JSON interfaces of larder's own processes, on one kept-alive connection.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context, bail};
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Bytes;
use larder_http::client::{Client, Limits, tcp};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Limits on a reply.
const LIMITS: Limits = Limits { time: Duration::from_secs(10), body_bytes: 16 << 20 };
/// Limits on the reply to a purge. A switch takes at most 40 s for a purge.
const PURGE_LIMITS: Limits = Limits { time: Duration::from_secs(60), ..LIMITS };

/// A client of one admin interface.
#[derive(Debug)]
pub struct AdminClient {
    address: SocketAddr,
    client: Client,
}

impl AdminClient {
    /// Creates a client for the process that listens at `address`. Nothing is sent yet.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, client: Client::default() }
    }

    /// Sends a GET request for `path` and returns the reply. An open connection is used again.
    ///
    /// # Errors
    /// Returns an error if the connection fails, the status is not 200, or the reply is late, too long or has
    /// an unexpected form.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        self.exchange_json(Method::GET, path).await.with_context(|| self.describe(path))
    }

    /// Sends a POST request to `path` and returns the reply.
    ///
    /// # Errors
    /// Fails as [`Self::get`] does. The error includes the text of the reply's field `error`.
    pub(crate) async fn post<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        self.exchange_json(Method::POST, path).await.with_context(|| self.describe(path))
    }

    /// Sends a POST request with a bearer token. Returns the reply, and whether its status is 200.
    ///
    /// # Errors
    /// Returns an error if the connection fails, or the reply is late, too long or not JSON.
    pub(crate) async fn post_with_token(&mut self, path: &str, token: &str) -> anyhow::Result<(bool, Value)> {
        let answer = self.exchange(Method::POST, path, Some(token), PURGE_LIMITS).await;
        let read = answer.and_then(|answer| {
            Ok((answer.status() == StatusCode::OK, serde_json::from_slice(answer.body())?))
        });
        read.with_context(|| self.describe(path))
    }

    fn describe(&self, path: &str) -> String {
        format!("{path} of {}", self.address)
    }

    /// Sends a request and parses the reply, if its status is 200.
    async fn exchange_json<T: DeserializeOwned>(&mut self, method: Method, path: &str) -> anyhow::Result<T> {
        let answer = self.exchange(method, path, None, LIMITS).await?;
        let (status, body) = (answer.status(), answer.body());
        if status != StatusCode::OK {
            let problem: Option<Value> = serde_json::from_slice(body).ok();
            let detail = problem.as_ref().and_then(|problem| problem["error"].as_str()).unwrap_or_default();
            bail!("status {status} {detail}");
        }
        Ok(serde_json::from_slice(body)?)
    }

    async fn exchange(
        &mut self,
        method: Method,
        path: &str,
        token: Option<&str>,
        limits: Limits,
    ) -> anyhow::Result<Response<Bytes>> {
        let address = self.address.to_string();
        let mut request = Request::builder().method(method).uri(path).header(HOST, &address);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        Ok(self.client.exchange(tcp(&address), request.body(Bytes::new())?, limits).await?)
    }
}

/// Resolves the address of an admin interface: `HOST:PORT`, a port of this machine, or either as a URL.
/// Returns the full text and the resolved address.
///
/// # Errors
/// Returns an error if the text is not an address or cannot be resolved.
pub(crate) fn admin_address(admin: &str) -> anyhow::Result<(String, SocketAddr)> {
    let bare = admin.strip_prefix("http://").unwrap_or(admin).trim_end_matches('/');
    let full = if bare.contains(':') { bare.to_owned() } else { format!("127.0.0.1:{bare}") };
    let mut found = full.to_socket_addrs().with_context(|| format!("cannot resolve '{admin}'"))?;
    let address = found.next().with_context(|| format!("'{admin}' has no address"))?;
    Ok((full, address))
}
