//! Hedged requests: if a server has not started its reply after a delay, a second server is asked, and the
//! first reply is used.
//!
//! The technique is described by Dean and Barroso, *The Tail at Scale* (Communications of the ACM 56(2),
//! 2013). Only requests without a body are hedged.

use super::buffered_stream::BufferedStream;
use super::fault::{Failure, Stage};
use super::limits::Limits;
use super::proxy::{HedgeEvent, Proxy};
use super::worker::Worker;
use crate::h1::{HeadEnd, ReplyHead};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Largest size of the head of a reply and of interim replies before it, in bytes.
const REPLY_HEAD_MAX: usize = 256 << 10;

/// A server connection on which a reply has started.
#[derive(Debug)]
pub(super) struct ServerReply<S> {
    pub(super) stream: BufferedStream<S>,
    /// The bytes that were received: the head, and possibly a part of the body.
    pub(super) bytes: Vec<u8>,
    /// The connection had served other requests.
    pub(super) reused: bool,
    /// Time for which the connection was being opened; `None` if it was reused.
    pub(super) connect_time: Option<Duration>,
    status: u16,
}

/// A hedged request.
pub(super) struct HedgedRequest<'a, P: Proxy> {
    pub(super) worker: &'a Worker<P>,
    pub(super) client_data: &'a P::Client,
    pub(super) limits: &'a Limits,
    /// The head of the request in HTTP/1.1.
    pub(super) request_bytes: &'a [u8],
}

impl<P: Proxy> HedgedRequest<'_, P> {
    /// Asks `first`, and after the delay a second server. Returns the reply to use, and the second server if
    /// the reply is from that one.
    ///
    /// A reply with a server error (500 to 599) is kept until the other server has reply. If it is from the
    /// first server, it is kept only for the delay, because it would be the reply without hedging.
    pub(super) async fn run(
        &self,
        first: &P::Server,
        (delay, may_reuse): (Duration, bool),
        state: &mut P::Exchange,
    ) -> Result<(ServerReply<P::Stream>, Option<P::Server>), Failure> {
        let proxy = &self.worker.proxy;
        let mut first_reply = pin!(self.ask_server(first, may_reuse));
        if let Ok(reply) = timeout(delay, &mut first_reply).await {
            return reply.map(|reply| (reply, None));
        }
        let Some(second) = proxy.hedge_server(self.client_data, state) else {
            return first_reply.await.map(|reply| (reply, None));
        };
        let mut second_reply = pin!(self.ask_server(&second, true));
        let (mut first_open, mut second_open) = (true, true);
        // A reply with a server error that arrived first, and whether it is from the second server.
        let mut error_reply: Option<(bool, ServerReply<P::Stream>)> = None;
        let mut failed: Option<Failure> = None;
        let mut error_timer = pin!(sleep(delay));
        let winner = loop {
            let (is_second, reply) = tokio::select! {
                reply = &mut first_reply, if first_open => (false, reply),
                reply = &mut second_reply, if second_open => (true, reply),
                () = &mut error_timer, if matches!(error_reply, Some((false, _))) => break error_reply.take(),
                else => break error_reply.take(),
            };
            *(if is_second { &mut second_open } else { &mut first_open }) = false;
            match reply {
                Ok(reply) if reply.status < 500 => break Some((is_second, reply)),
                Ok(reply) => {
                    if error_reply.is_some() || !(first_open || second_open) {
                        break error_reply.take().or(Some((is_second, reply)));
                    }
                    error_timer.as_mut().reset(Instant::now() + delay);
                    error_reply = Some((is_second, reply));
                }
                Err(failure) => {
                    proxy.on_hedge_event(state, HedgeEvent::Failed { is_second, failure: &failure });
                    if !is_second || failed.is_none() {
                        failed = Some(failure);
                    }
                }
            }
        };
        if let Some((is_second, ServerReply { status, .. })) = error_reply {
            proxy.on_hedge_event(state, HedgeEvent::Discarded { is_second, status });
        }
        match winner {
            Some((is_second, reply)) => {
                proxy.on_hedge_event(state, HedgeEvent::Won { is_second });
                Ok((reply, is_second.then(|| second.clone())))
            }
            None => {
                Err(failed
                    .unwrap_or_else(|| replayable_failure(Stage::Connect, io::ErrorKind::TimedOut.into())))
            }
        }
    }

    /// Asks a server, and waits for the head of its reply. If the server has closed an idle connection, the
    /// server is asked again on a new connection.
    async fn ask_server(
        &self,
        server: &P::Server,
        may_reuse: bool,
    ) -> Result<ServerReply<P::Stream>, Failure> {
        let idle = if may_reuse { self.worker.pool.take(server) } else { None };
        if let Some(idle) = idle {
            match self.wait_for_head(BufferedStream::new(idle), None).await {
                Err(error) if error.kind() != io::ErrorKind::TimedOut => {}
                reply => {
                    return reply.map_err(|error| replayable_failure(Stage::Request { reused: true }, error));
                }
            }
        }
        let began = super::Clock::now();
        let connect = timeout(self.limits.connect, self.worker.proxy.connect(self.client_data, server));
        let stream = connect.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = stream.map_err(|error| replayable_failure(Stage::Connect, error))?;
        let took = super::Clock::now().saturating_duration_since(began);
        let reply = self.wait_for_head(BufferedStream::new(stream), Some(took)).await;
        reply.map_err(|error| replayable_failure(Stage::Request { reused: false }, error))
    }

    /// Sends the request on a connection, and waits for the head of the final reply.
    async fn wait_for_head(
        &self,
        mut stream: BufferedStream<P::Stream>,
        connect_time: Option<Duration>,
    ) -> io::Result<ServerReply<P::Stream>> {
        let (mut bytes, mut sent) = (Vec::new(), false);
        let head = poll_fn(|cx| {
            if !std::mem::replace(&mut sent, true) {
                stream.send(cx, self.request_bytes, &[])?;
            }
            if !stream.is_drained() {
                let _ = stream.poll_drain(cx)?;
            }
            loop {
                let length = match stream.poll_read(cx, |_, _, more| {
                    bytes.extend_from_slice(more);
                    more.len()
                }) {
                    Poll::Ready(length) => length?,
                    Poll::Pending => return Poll::Pending,
                };
                if length == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                if let Some(status) = final_status(&bytes)? {
                    return Poll::Ready(Ok(status));
                }
            }
        });
        let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
        let status = timeout(self.limits.server_read, head).await.unwrap_or_else(late)?;
        Ok(ServerReply { stream, bytes, reused: connect_time.is_none(), connect_time, status })
    }
}

/// Creates a failure of a request without a body, of whose reply the client has nothing.
fn replayable_failure(stage: Stage, error: io::Error) -> Failure {
    Failure { stage, error, replayable: true, resumable: None }
}

/// Returns the status of the final reply, or `None` if its head is incomplete.
fn final_status(mut bytes: &[u8]) -> io::Result<Option<u16>> {
    if bytes.len() > REPLY_HEAD_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut head = ReplyHead::new();
    while let Some(length) = HeadEnd::new().find(bytes) {
        head.read(&bytes[..length]).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        if !head.is_interim() {
            return Ok(Some(head.status()));
        }
        bytes = &bytes[length..];
    }
    Ok(None)
}
