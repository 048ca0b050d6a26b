//! A client of the demo: sends one completion, and measures its reply.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use larder_core::cache::Block;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;

use larder_prompts::TOKEN_BYTES;

/// A reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// Time from the connection to the first token.
    pub(super) first_token: Duration,
    /// Tokens of the prompt.
    pub(super) tokens: u64,
    /// Tokens of the prompt that the server had.
    pub(super) cached: u64,
}

/// Returns the body of a completion. Each block has a text of its own.
pub(super) fn body(blocks: &[Block], output: u32) -> String {
    let mut text = String::new();
    for block in blocks {
        let end = text.len() + (block.tokens * TOKEN_BYTES) as usize;
        while text.len() < end {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{:016x} ", block.id.0);
        }
        text.truncate(end);
    }
    let messages = [json!({ "role": "user", "content": text })];
    json!({ "model": "demo", "messages": messages, "max_tokens": output, "stream": true }).to_string()
}

/// Sends a completion on a connection of its own.
///
/// # Errors
/// The connection breaks, or the reply is an error.
pub(super) async fn complete(address: SocketAddr, body: String) -> anyhow::Result<Completion> {
    let begun = Instant::now();
    let tcp = TcpStream::connect(address).await.context("cannot connect to the switch")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tcp)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::post("/v1/chat/completions").header("host", "demo");
    let request = request.header("content-type", "application/json").body(Full::new(Bytes::from(body)))?;
    let response = sender.send_request(request).await?;
    let (status, mut reply) = (response.status(), response.into_body());
    let (mut text, mut first_token) = (Vec::new(), None);
    while let Some(frame) = reply.frame().await {
        if let Some(data) = frame?.data_ref() {
            first_token.get_or_insert_with(|| begun.elapsed());
            text.extend_from_slice(data);
        }
    }
    connection.abort();
    let text = String::from_utf8_lossy(&text);
    if !status.is_success() {
        bail!("status {status}: {text}");
    }
    let events =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let usage = events.filter_map(|event| event.get("usage").cloned()).next_back();
    let usage = usage.context("the reply has no usage")?;
    let number = |value: &Value| value.as_u64().context("the usage has no tokens");
    Ok(Completion {
        first_token: first_token.context("the reply is empty")?,
        tokens: number(&usage["prompt_tokens"])?,
        cached: number(&usage["prompt_tokens_details"]["cached_tokens"])?,
    })
}
