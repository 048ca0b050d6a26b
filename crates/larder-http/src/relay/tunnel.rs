//! A tunnel for another protocol after an upgrade (RFC 9110 section 7.8): bytes are relayed in both
//! directions.

use super::buffered_stream::BufferedStream;
use super::deadline::Deadline;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Relays bytes in both directions. Returns when both sides have ended, one side has failed, or both were
/// silent for `timeout`.
///
/// `up` is the direction from the client. Returns the number of bytes that were sent to the client, and the
/// error of a server that failed or was silent for too long.
pub(super) async fn run<T, S>(
    (client, mut server): (&mut BufferedStream<T>, BufferedStream<S>),
    mut up: Direction,
    deadline: &mut Deadline,
    timeout: Duration,
) -> (u64, Option<io::Error>)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    deadline.set(timeout);
    let mut down = Direction::default();
    let timed_out = poll_fn(|cx| {
        loop {
            let sent = up.advance(cx, client, &mut server);
            let got = down.advance(cx, &mut server, client);
            // A side that has failed accepts no more bytes.
            let client_is_gone = up.is_over && up.error.is_some();
            if client_is_gone || down.is_over && (up.is_over || down.error.is_some()) {
                return Poll::Ready(false);
            }
            if !sent && !got {
                return deadline.poll(cx).map(|()| true);
            }
            deadline.set(timeout);
        }
    })
    .await;
    let silent = timed_out.then(|| io::ErrorKind::TimedOut.into());
    (down.bytes, down.error.or(silent))
}

/// One direction of a tunnel.
#[derive(Debug, Default)]
pub(super) struct Direction {
    /// Bytes of the sender that were read before the tunnel started.
    early: Vec<u8>,
    /// The sender has ended its side.
    sender_ended: bool,
    /// The receiver was informed of the end, or accepts no more bytes. The opposite direction continues.
    is_over: bool,
    /// The error with which the connection of the sender has failed.
    error: Option<io::Error>,
    /// Number of bytes that were read from the sender.
    bytes: u64,
}

impl Direction {
    /// Creates the direction from a sender that has sent `early` and may have ended its side.
    pub(super) fn new(early: Vec<u8>, sender_ended: bool) -> Self {
        Self { early, sender_ended, ..Self::default() }
    }

    /// Relays bytes. Returns whether there was progress.
    fn advance<A, B>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut BufferedStream<A>,
        to: &mut BufferedStream<B>,
    ) -> bool
    where
        A: AsyncRead + AsyncWrite + Unpin,
        B: AsyncRead + AsyncWrite + Unpin,
    {
        if self.is_over {
            return false;
        }
        match self.step(cx, from, to) {
            Ok(moved) => moved,
            Err(_) => {
                self.is_over = true;
                true
            }
        }
    }

    /// Relays bytes once. Returns whether there was progress.
    fn step<A, B>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut BufferedStream<A>,
        to: &mut BufferedStream<B>,
    ) -> io::Result<bool>
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
        if self.sender_ended {
            let shut = to.poll_shutdown(cx);
            self.is_over = shut.is_ready();
            return Ok(self.is_over);
        }
        let read = from.poll_read(cx, |_, cx, bytes| {
            self.sender_ended = bytes.is_empty();
            self.bytes += bytes.len() as u64;
            to.send(cx, bytes, &[])
        });
        match read {
            Poll::Ready(Ok(sent)) => sent.map(|()| true),
            // The receiver must be informed of a reset, too.
            Poll::Ready(Err(error)) => {
                self.error = Some(error);
                self.sender_ended = true;
                Ok(true)
            }
            Poll::Pending => Ok(false),
        }
    }
}
