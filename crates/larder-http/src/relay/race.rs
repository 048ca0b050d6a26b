//! Hedged requests: where a server has not begun to reply after a while, another one is asked too, and the first reply is taken.
//!
//! After Dean and Barroso, *The Tail at Scale* (Communications of the ACM 56(2), 2013). Only requests without a body are hedged.

use super::fault::{Failure, Stage};
use super::limits::Limits;
use super::proxy::{Proxy, RaceEvent};
use super::wire::Wire;
use super::worker::Worker;
use crate::h1::{HeadEnd, ReplyHead};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Bytes of a reply's head, and of interim ones before it.
const REPLY_HEAD_MAX: usize = 256 << 10;

/// A server that has begun to reply.
#[derive(Debug)]
pub(super) struct Replied<S> {
    pub(super) wire: Wire<S>,
    /// All that has come: the head, and perhaps more.
    pub(super) bytes: Vec<u8>,
    pub(super) reused: bool,
    /// The time that its connection took to open.
    pub(super) connected: Option<Duration>,
    status: u16,
}

/// The request of a race.
pub(super) struct Race<'a, P: Proxy> {
    pub(super) worker: &'a Worker<P>,
    pub(super) info: &'a P::Client,
    pub(super) limits: &'a Limits,
    /// The request as it is written.
    pub(super) request: &'a [u8],
}

impl<P: Proxy> Race<'_, P> {
    /// Asks `first`, and after a while another server. Returns the server whose reply is taken, and whether that is the second one.
    ///
    /// A server's fault (500 to 599) is kept until the other server has replied: the first one's for a while only, since without a
    /// hedge it would be the reply.
    pub(super) async fn run(
        &self,
        first: &P::Server,
        (after, may_reuse): (Duration, bool),
        state: &mut P::Exchange,
    ) -> Result<(Replied<P::Stream>, Option<P::Server>), Failure> {
        let proxy = &self.worker.proxy;
        let mut asked_first = pin!(self.ask(first, may_reuse));
        if let Ok(reply) = timeout(after, &mut asked_first).await {
            return reply.map(|replied| (replied, None));
        }
        let Some(second) = proxy.rival(self.info, state) else {
            return asked_first.await.map(|replied| (replied, None));
        };
        let mut asked_second = pin!(self.ask(&second, true));
        let (mut first_open, mut second_open) = (true, true);
        // A server's fault that came first, and whether it is the second one's.
        let mut fault: Option<(bool, Replied<P::Stream>)> = None;
        let mut failed: Option<Failure> = None;
        let mut grace = pin!(sleep(after));
        let winner = loop {
            let (is_second, reply) = tokio::select! {
                reply = &mut asked_first, if first_open => (false, reply),
                reply = &mut asked_second, if second_open => (true, reply),
                () = &mut grace, if matches!(fault, Some((false, _))) => break fault.take(),
                else => break fault.take(),
            };
            *(if is_second { &mut second_open } else { &mut first_open }) = false;
            match reply {
                Ok(reply) if reply.status < 500 => break Some((is_second, reply)),
                Ok(reply) => {
                    if fault.is_some() || !(first_open || second_open) {
                        break fault.take().or(Some((is_second, reply)));
                    }
                    grace.as_mut().reset(Instant::now() + after);
                    fault = Some((is_second, reply));
                }
                Err(failure) => {
                    proxy.on_race(state, RaceEvent::Failed { is_second, failure: &failure });
                    if !is_second || failed.is_none() {
                        failed = Some(failure);
                    }
                }
            }
        };
        if let Some((is_second, Replied { status, .. })) = fault {
            proxy.on_race(state, RaceEvent::Discarded { is_second, status });
        }
        match winner {
            Some((is_second, reply)) => {
                proxy.on_race(state, RaceEvent::Won { is_second });
                Ok((reply, is_second.then(|| second.clone())))
            }
            None => Err(failed.unwrap_or_else(|| failure(Stage::Connect, io::ErrorKind::TimedOut.into()))),
        }
    }

    /// Asks a server until the head of its reply has come. A server may have closed a connection that waited: then it is asked once
    /// more.
    async fn ask(&self, server: &P::Server, may_reuse: bool) -> Result<Replied<P::Stream>, Failure> {
        let waiting = if may_reuse { self.worker.pool.take(server) } else { None };
        if let Some(waiting) = waiting {
            match self.reply(Wire::new(waiting), None).await {
                Err(error) if error.kind() != io::ErrorKind::TimedOut => {}
                reply => return reply.map_err(|error| failure(Stage::Request { reused: true }, error)),
            }
        }
        let began = super::Clock::now();
        let connect = timeout(self.limits.connect, self.worker.proxy.connect(self.info, server));
        let connected = connect.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = connected.map_err(|error| failure(Stage::Connect, error))?;
        let took = super::Clock::now().saturating_duration_since(began);
        let reply = self.reply(Wire::new(stream), Some(took)).await;
        reply.map_err(|error| failure(Stage::Request { reused: false }, error))
    }

    async fn reply(
        &self,
        mut wire: Wire<P::Stream>,
        connected: Option<Duration>,
    ) -> io::Result<Replied<P::Stream>> {
        let (mut bytes, mut sent) = (Vec::new(), false);
        let head = poll_fn(|cx| {
            if !std::mem::replace(&mut sent, true) {
                wire.send(cx, self.request, &[])?;
            }
            if !wire.is_drained() {
                let _ = wire.poll_drain(cx)?;
            }
            loop {
                let came = match wire.poll_read(cx, |_, _, more| {
                    bytes.extend_from_slice(more);
                    more.len()
                }) {
                    Poll::Ready(came) => came?,
                    Poll::Pending => return Poll::Pending,
                };
                if came == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                if let Some(status) = final_status(&bytes)? {
                    return Poll::Ready(Ok(status));
                }
            }
        });
        let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut));
        let status = timeout(self.limits.server_read, head).await.unwrap_or_else(late)?;
        Ok(Replied { wire, bytes, reused: connected.is_none(), connected, status })
    }
}

fn failure(stage: Stage, error: io::Error) -> Failure {
    Failure { stage, error, replayable: true, resumable: None }
}

/// The status of the final reply, once its head is complete.
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
