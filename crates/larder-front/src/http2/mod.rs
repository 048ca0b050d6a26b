//! HTTP/2 from clients (RFC 9113): a connection with many requests at a time, each of which is decided and relayed by itself.
//!
//! The engine turns each stream into a request as HTTP/1 has it. A stream has no socket of its own, so the task that serves it carries
//! what a request must know of its connection ([`stream`]).
//!
//! | | bound |
//! |---|---|
//! | requests of a connection at one time | [`STREAMS_MAX`] |
//! | memory for replies, of a connection and of all | [`memory`] |
//! | a reply of which the client takes nothing | `timeouts.client_write`; then the reply is aborted, or the connection ends if h2 holds all of it |
//! | a socket that takes no bytes | `timeouts.client_write`; then the connection ends |
//! | bytes of request bodies that nobody has read | [`STREAM_WINDOW`], of all requests of a connection [`CONNECTION_WINDOW`] |
//! | malformed requests | [`MALFORMED_MAX`]; then the connection ends |
//! | resets, and frames that carry nothing | [`larder_edge::http2`]; then the connection ends |
//! | a connection without a request | `timeouts.keepalive` after the last reply was written |

mod memory;
mod stream;

pub(crate) use memory::Memory;
pub(crate) use stream::{Stream, current};

use crate::accept::{Front, farewell, note_end};
use crate::conn::{ClientStream, Link};
use crate::failure::Failure;
use crate::request::Client;
use crate::switch::Shared;
use larder_edge::ClientIo;
use larder_edge::http2::Blocked;
use memory::Account;
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::Digest;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{
    H2Accept, H2Options, HttpSession, default_h2_options, handshake,
};
use socket2::SockRef;
use std::sync::Arc;
use std::time::Duration;
use stream::{SEND_BUFFER, Served, is_grpc};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// The client's connection preface (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Requests that one client may have under way on a connection.
const STREAMS_MAX: u32 = 100;
/// Malformed requests after which a connection is closed.
const MALFORMED_MAX: u32 = 32;
/// Flow-control windows for request bodies: of one stream, and of the connection. Bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes that the kernel may hold and has not sent, so that a reply which is written is nearly at its client.
const UNSENT_MAX: u32 = 128 << 10;
/// Time that the requests of a connection which has ended have to write their records.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at a connection whose first bytes are too few to tell.
const PEEK_PAUSE: Duration = Duration::from_millis(1);
const PEEK_PAUSE_MAX: Duration = Duration::from_millis(50);

/// The connection of the request that this task serves, if it is a stream of HTTP/2.
pub(crate) fn connection() -> Option<Arc<Link>> {
    current().map(|stream| stream.link.clone())
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
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER);
        options
    }

    /// Serves an HTTP/2 connection to its end.
    pub(crate) async fn serve_http2(self, io: ClientIo, client: Client) {
        let shared = &self.shared;
        let link = Arc::new(Link::new(client));
        shared.metrics.http2_connected();
        // It fails only for a connection that is gone.
        let _ = SockRef::from(io.tcp()).set_tcp_notsent_lowat(UNSENT_MAX);
        let blocked = Arc::new(Blocked::default());
        let stream = ClientStream::new(io, link.clone(), shared.timeouts.client_write, blocked.clone());
        let complete = self.serve_streams(stream, &link, &blocked).await;
        if let Some(flood) = link.flood() {
            shared.metrics.failed(Failure::Http2Flood);
            tracing::debug!(client = %link.client, %flood, "HTTP/2 connection closed");
        }
        if let Some(io) = link.take_socket()
            && complete
        {
            farewell(io).await;
        }
    }

    /// Serves the requests of a connection, many at a time, until the client leaves, the connection has been idle for too long, or the
    /// switch stops and all requests under way have ended. Returns true if all replies were written.
    async fn serve_streams(&self, stream: ClientStream, link: &Arc<Link>, blocked: &Arc<Blocked>) -> bool {
        let shared = &self.shared;
        let shaking = handshake(Box::new(stream), Some(self.http2_options()));
        let Ok(Ok(mut connection)) = timeout(shared.timeouts.header, shaking).await else { return false };
        let account = Account::new(shared.http2_memory.clone(), link.client.ip(), blocked.clone());
        let (digest, mut stopping) = (Arc::new(Digest::default()), self.stopping.clone());
        let (mut streams, mut malformed, mut leaving) = (JoinSet::new(), 0, false);
        let mut idle_at = Instant::now() + shared.timeouts.keepalive;
        let complete = loop {
            tokio::select! {
                biased;
                _ = stopping.changed(), if !leaving => {
                    leaving = true;
                    connection.graceful_shutdown();
                }
                Some(ended) = streams.join_next(), if !streams.is_empty() => {
                    if let Ok(Served::Stuck) = ended {
                        shared.metrics.failed(Failure::ClientGone);
                        break false;
                    }
                    note_end(&shared.metrics, &ended);
                    idle_at = Instant::now() + shared.timeouts.keepalive;
                }
                accepted = HttpSession::from_h2_conn(&mut connection, digest.clone()) => match accepted {
                    Ok(Some(H2Accept::Session(session))) => {
                        let (header, patience) = (session.req_header(), shared.timeouts.client_write);
                        match Stream::new(link, &account, blocked, header, patience) {
                            Some(stream) => drop(streams.spawn(self.serve_stream(stream, session))),
                            None => refuse(shared, session),
                        }
                    }
                    Ok(Some(H2Accept::Rejected)) => {
                        malformed += 1;
                        shared.metrics.failed(Failure::BadRequest);
                        if malformed > MALFORMED_MAX {
                            break false;
                        }
                    }
                    // The client has left, or everything has been said.
                    Ok(None) => break true,
                    Err(_) => break false,
                },
                () = sleep_until(idle_at), if streams.is_empty() => {
                    if blocked.is_blocked() {
                        // Its last reply is not at the client. The deadline for writes runs.
                        idle_at = Instant::now() + shared.timeouts.keepalive;
                    } else if leaving {
                        break true;
                    } else {
                        // The client is told that it may ask no more, and has as long as a header may take to see it.
                        leaving = true;
                        connection.graceful_shutdown();
                        idle_at = Instant::now() + shared.timeouts.header;
                    }
                }
            }
        };
        // The requests under way learn from h2 that their client has gone.
        drop(connection);
        let ends = async {
            while let Some(ended) = streams.join_next().await {
                note_end(&shared.metrics, &ended);
            }
        };
        let _ = timeout(END_PATIENCE, ends).await;
        streams.shutdown().await;
        complete
    }

    /// Serves a request. While it waits for memory it is not with the relay engine, where each request costs some 20 KB.
    fn serve_stream(
        &self,
        stream: Arc<Stream>,
        mut session: HttpSession,
    ) -> impl Future<Output = Served> + Send + use<> {
        let (proxy, stopping, shared) = (self.proxy.clone(), self.stopping.clone(), self.shared.clone());
        async move {
            let grpc = is_grpc(session.req_header());
            let reserved = tokio::select! {
                biased;
                reserved = stream.reserve(grpc) => reserved,
                // The client has reset the stream.
                _ = session.idle() => return Served::Whole,
            };
            if reserved.is_err() {
                refuse(&shared, session);
                return Served::Whole;
            }
            let relay = async move {
                proxy.process_new_http(ServerSession::new_http2(session), &stopping).await;
            };
            stream.serve(relay).await
        }
    }
}

/// Refuses a request that finds no memory. The client may send it again.
fn refuse(shared: &Shared, mut session: HttpSession) {
    shared.metrics.failed(Failure::StreamsFull);
    session.shutdown_with_reason(h2::Reason::REFUSED_STREAM);
}
