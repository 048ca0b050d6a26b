//! Connections to a node for requests that may be hedged: kept and used again by hyper's client, of HTTP/1.1.

use crate::config::Timeouts;
use crate::dial::{Dial, DialError, NodeStream, Speaks};
use crate::failure::Failure;
use crate::node_log::{self, NodeLog};
use bytes::Bytes;
use http::Uri;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Idle connections that are kept for a node at most; more are closed.
const IDLE_MAX: usize = 64;

/// Fields of a reply's header, as many as the engine takes.
const FIELDS_MAX: usize = 256;

/// Asks one node.
#[derive(Clone, Debug)]
pub(crate) struct NodeClient {
    client: Client<Connector, Empty<Bytes>>,
    log: Arc<NodeLog>,
}

impl NodeClient {
    /// One for this node, which keeps `idle_max` idle connections at most.
    pub(crate) fn new(log: &Arc<NodeLog>, dial: &Dial, timeouts: &Timeouts, idle_max: usize) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(timeouts.node_idle)
            .pool_max_idle_per_host(idle_max.min(IDLE_MAX))
            .pool_timer(TokioTimer::new())
            // What the engine takes of a reply is taken here too.
            .http1_max_headers(FIELDS_MAX)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .http1_allow_spaces_after_header_name_in_responses(true)
            .http1_title_case_headers(true)
            // The client's own.
            .set_host(false)
            .build(Connector { dial: dial.clone(), connect: timeouts.connect });
        Self { client, log: log.clone() }
    }

    /// The node's answer, as far as its header; its body may still come. Who drops this asks no more.
    ///
    /// A node may close an idle connection in the moment in which it is asked by it: what closes without a word is asked once more.
    pub(super) async fn ask(
        &self,
        message: impl Fn() -> Option<http::Request<Empty<Bytes>>>,
    ) -> Result<http::Response<Incoming>, Failure> {
        let ask = || async {
            let message = message().ok_or(Failure::Internal)?;
            self.client.request(message).await.map_err(|error| {
                let failure = failure(&error);
                self.log.failed(failure, || node_log::root(&error));
                failure
            })
        };
        match ask().await {
            Err(Failure::NodeClosed) => ask().await,
            answer => answer,
        }
    }
}

fn failure(error: &Error) -> Failure {
    let mut cause = error.source();
    while let Some(found) = cause {
        if let Some(dial) = found.downcast_ref::<DialError>() {
            return match dial {
                DialError::Tls(_) => Failure::NodeTls,
                DialError::Connect(error) if error.kind() == io::ErrorKind::TimedOut => {
                    Failure::ConnectTimeout
                }
                DialError::Connect(_) => Failure::ConnectFailed,
            };
        }
        let io = found.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if matches!(io, Some(inner) if inner.is::<rustls::Error>()) {
            // With TLS 1.3 a node that does not like the switch's certificate says so after the handshake.
            return Failure::NodeTls;
        }
        if let Some(error) = found.downcast_ref::<hyper::Error>()
            && error.is_parse()
        {
            return Failure::BadReply;
        }
        cause = found.source();
    }
    Failure::NodeClosed
}

/// Opens connections as the node is reached.
#[derive(Clone, Debug)]
struct Connector {
    dial: Dial,
    connect: Duration,
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<NodeStream>;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, DialError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { dial, connect } = self.clone();
        Box::pin(async move {
            let late = |_| DialError::Connect(io::ErrorKind::TimedOut.into());
            let opened = tokio::time::timeout(connect, dial.open(None, Speaks::Http1)).await.map_err(late)?;
            Ok(TokioIo::new(opened?))
        })
    }
}

/// As the client takes it.
impl Connection for NodeStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
