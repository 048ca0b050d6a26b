//! Asks a process of ours for JSON over HTTP, on one connection that is kept.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::{Context, bail};
use http::header::{AUTHORIZATION, HOST};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Bytes;
use larder_http::client::{Client, Limits, tcp};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Limits on an answer.
const LIMITS: Limits = Limits { time: Duration::from_secs(10), body_bytes: 16 << 20 };
/// Limits on the answer to a purge, for which a switch takes 40 s at most.
const PURGE_LIMITS: Limits = Limits { time: Duration::from_secs(60), ..LIMITS };

/// Somebody who answers.
#[derive(Debug)]
pub struct Asked {
    address: SocketAddr,
    client: Client,
}

impl Asked {
    /// A process that listens at `address`. Nothing is sent yet.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, client: Client::default() }
    }

    /// The answer to a GET of `path`, over the connection of the last time if it is still open.
    ///
    /// # Errors
    /// No connection, another status than 200, an answer that is too long, late or not what is expected.
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        self.good(Method::GET, path).await.with_context(|| self.what(path))
    }

    /// The answer to a POST of `path`, over a connection of its own.
    ///
    /// # Errors
    /// As for [`Self::get`]; what the answer says is wrong is told.
    pub(crate) async fn post<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        self.good(Method::POST, path).await.with_context(|| self.what(path))
    }

    /// The answer to a POST of `path` that shows a token, over a connection of its own, and whether its status is 200.
    ///
    /// # Errors
    /// No connection, or an answer that is too long, late or no JSON.
    pub(crate) async fn post_as(&mut self, path: &str, token: &str) -> anyhow::Result<(bool, Value)> {
        let answer = self.exchange(Method::POST, path, Some(token), PURGE_LIMITS).await;
        let read = answer.and_then(|answer| {
            Ok((answer.status() == StatusCode::OK, serde_json::from_slice(answer.body())?))
        });
        read.with_context(|| self.what(path))
    }

    fn what(&self, path: &str) -> String {
        format!("{path} of {}", self.address)
    }

    /// The answer to a request, whose status is 200.
    async fn good<T: DeserializeOwned>(&mut self, method: Method, path: &str) -> anyhow::Result<T> {
        let answer = self.exchange(method, path, None, LIMITS).await?;
        let (status, body) = (answer.status(), answer.body());
        if status != StatusCode::OK {
            let problem: Option<Value> = serde_json::from_slice(body).ok();
            let said = problem.as_ref().and_then(|problem| problem["error"].as_str()).unwrap_or_default();
            bail!("it answers {status} {said}");
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
