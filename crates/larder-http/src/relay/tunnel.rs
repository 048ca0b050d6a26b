//! Another protocol, once both sides speak it (RFC 9110 section 7.8): bytes both ways.

use super::deadline::Deadline;
use super::wire::Wire;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Carries bytes both ways until both sides have ended, one has broken off, or neither has sent anything for `patience`. `up` is the
/// direction from the client. Returns the number of bytes that the client was sent, and the error of a server that broke off or was
/// silent for too long.
pub(super) async fn carry<T, S>(
    (client, mut server): (&mut Wire<T>, Wire<S>),
    mut up: Direction,
    deadline: &mut Deadline,
    patience: Duration,
) -> (u64, Option<io::Error>)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    deadline.set(patience);
    let mut down = Direction::default();
    let timed_out = poll_fn(|cx| {
        loop {
            let sent = up.advance(cx, client, &mut server);
            let got = down.advance(cx, &mut server, client);
            // A side that has broken off takes nothing more.
            let client_is_gone = up.over && up.broken.is_some();
            if client_is_gone || down.over && (up.over || down.broken.is_some()) {
                return Poll::Ready(false);
            }
            if !sent && !got {
                return deadline.poll(cx).map(|()| true);
            }
            deadline.set(patience);
        }
    })
    .await;
    let silent = timed_out.then(|| io::ErrorKind::TimedOut.into());
    (down.bytes, down.broken.or(silent))
}

/// One of the two directions.
#[derive(Debug, Default)]
pub(super) struct Direction {
    /// Bytes that were read before.
    early: Vec<u8>,
    /// The side that sends has ended.
    ended: bool,
    /// The other side knows, or takes no more bytes. The opposite direction goes on.
    over: bool,
    /// The side that sends has broken off.
    broken: Option<io::Error>,
    bytes: u64,
}

impl Direction {
    /// The direction from a side that has sent `early`, and perhaps `ended`.
    pub(super) fn new(early: Vec<u8>, ended: bool) -> Self {
        Self { early, ended, ..Self::default() }
    }

    /// Whether something moved.
    fn advance<A, B>(&mut self, cx: &mut Context<'_>, from: &mut Wire<A>, to: &mut Wire<B>) -> bool
    where
        A: AsyncRead + AsyncWrite + Unpin,
        B: AsyncRead + AsyncWrite + Unpin,
    {
        if self.over {
            return false;
        }
        match self.step(cx, from, to) {
            Ok(moved) => moved,
            Err(_) => {
                self.over = true;
                true
            }
        }
    }

    fn step<A, B>(&mut self, cx: &mut Context<'_>, from: &mut Wire<A>, to: &mut Wire<B>) -> io::Result<bool>
    where
        A: AsyncRead + AsyncWrite + Unpin,
        B: AsyncRead + AsyncWrite + Unpin,
    {
        if !self.early.is_empty() {
            to.send(cx, &std::mem::take(&mut self.early), &[])?;
            return Ok(true);
        }
        if !to.is_drained() {
            return match to.poll_drain(cx) {
                Poll::Ready(drained) => drained.map(|()| true),
                Poll::Pending => Ok(false),
            };
        }
        if self.ended {
            let shut = to.poll_shutdown(cx);
            self.over = shut.is_ready();
            return Ok(self.over);
        }
        let read = from.poll_read(cx, |_, cx, bytes| {
            self.ended = bytes.is_empty();
            self.bytes += bytes.len() as u64;
            to.send(cx, bytes, &[])
        });
        match read {
            Poll::Ready(Ok(sent)) => sent.map(|()| true),
            // A reset is an end that the other side must learn of.
            Poll::Ready(Err(error)) => {
                self.broken = Some(error);
                self.ended = true;
                Ok(true)
            }
            Poll::Pending => Ok(false),
        }
    }
}
