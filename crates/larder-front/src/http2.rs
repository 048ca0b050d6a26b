//! HTTP/2 from clients (RFC 9113): a connection with many requests at a time, each of which is decided and relayed by itself.
//!
//! The engine turns each stream into a request as HTTP/1 has it. What a request must know of its connection comes with the task
//! that serves it, since streams of HTTP/2 have no socket of their own.

use crate::accept::Front;
use crate::conn::{ClientStream, Link};
use larder_edge::ClientIo;
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::Digest;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{
    H2Accept, H2Options, HttpSession, default_h2_options, handshake,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// What a client begins HTTP/2 with (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Requests that one client may have under way on a connection.
const STREAMS_MAX: u32 = 128;
/// Malformed requests after which a connection is closed.
const MALFORMED_MAX: u32 = 32;
/// What a client may send of request bodies before anybody has read of them: of one, and of all. Bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Between two looks at a connection whose first bytes are too few to tell.
const PEEK_PAUSE: Duration = Duration::from_millis(1);
const PEEK_PAUSE_MAX: Duration = Duration::from_millis(50);

tokio::task_local! {
    /// The connection of the request that the task serves.
    static CONNECTION: Arc<Link>;
}

/// The connection of the request that this task serves, if it is a stream of HTTP/2.
pub(crate) fn connection() -> Option<Arc<Link>> {
    CONNECTION.try_with(Arc::clone).ok()
}

/// Whether a connection begins with the preface, as one whose client knows that HTTP/2 is spoken here does (RFC 9113 section
/// 3.3). Nothing is taken from it. What takes longer than `patience` is not.
pub(crate) async fn begins(tcp: &TcpStream, patience: Duration) -> bool {
    let look = async {
        let (mut bytes, mut pause) = ([0; PREFACE.len()], PEEK_PAUSE);
        loop {
            match tcp.peek(&mut bytes).await {
                Ok(seen) if seen > 0 && bytes[..seen] == PREFACE[..seen] => {
                    if seen == PREFACE.len() {
                        return true;
                    }
                    // There is something to read all the time, so that waiting for it would not wait.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PEEK_PAUSE_MAX);
                }
                _ => return false,
            }
        }
    };
    timeout(patience, look).await.unwrap_or(false)
}

impl Front {
    fn http2_options(&self) -> H2Options {
        let mut options = default_h2_options();
        options
            .max_header_list_size(u32::try_from(self.shared.limits.header_bytes_max).unwrap_or(u32::MAX))
            .max_concurrent_streams(STREAMS_MAX)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        options
    }

    /// Serves the requests of an HTTP/2 connection, many at a time, until the client leaves, nothing has been asked for as long
    /// as a connection may be idle, or the switch stops and what has begun has ended.
    pub(crate) async fn serve_http2(self, io: ClientIo, link: Link) {
        let (shared, link) = (&self.shared, Arc::new(link));
        shared.metrics.http2_connected();
        // Its frames have no headers that the stream could watch.
        link.serving(false);
        let stream: Stream = Box::new(ClientStream::frames(io, link.clone(), self.limits(), shared.clock));
        let shaking = handshake(stream, Some(self.http2_options()));
        let Ok(Ok(mut connection)) = timeout(shared.timeouts.header, shaking).await else { return };
        let (digest, mut stopping) = (Arc::new(Digest::default()), self.stopping.clone());
        let (mut streams, mut malformed, mut leaving) = (JoinSet::new(), 0, false);
        let mut idle_at = Instant::now() + shared.timeouts.keepalive;
        loop {
            tokio::select! {
                biased;
                _ = stopping.changed(), if !leaving => {
                    leaving = true;
                    connection.graceful_shutdown();
                }
                Some(_) = streams.join_next(), if !streams.is_empty() => {
                    idle_at = Instant::now() + shared.timeouts.keepalive;
                }
                accepted = HttpSession::from_h2_conn(&mut connection, digest.clone()) => match accepted {
                    Ok(Some(H2Accept::Session(session))) => {
                        let (proxy, stopping) = (self.proxy.clone(), self.stopping.clone());
                        let serve = async move {
                            proxy.process_new_http(ServerSession::new_http2(session), &stopping).await;
                        };
                        streams.spawn(CONNECTION.scope(link.clone(), serve));
                    }
                    Ok(Some(H2Accept::Rejected)) => {
                        malformed += 1;
                        shared.metrics.failed(crate::failure::Failure::BadRequest);
                        if malformed > MALFORMED_MAX {
                            break;
                        }
                    }
                    // The client has left, or everything has been said.
                    Ok(None) | Err(_) => break,
                },
                () = sleep_until(idle_at), if streams.is_empty() => {
                    if leaving {
                        break;
                    }
                    // It is told that it may ask no more, and has as long as a header may take to see it.
                    leaving = true;
                    connection.graceful_shutdown();
                    idle_at = Instant::now() + shared.timeouts.header;
                }
            }
        }
        // What is under way has nobody to go to any more.
        streams.shutdown().await;
    }
}
