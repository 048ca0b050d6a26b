//! Another protocol, once both sides speak it (RFC 9110 section 7.8): bytes both ways.

use super::client::Client;
use super::http1::Http1;
use super::limits::Limits;
use super::wire::Wire;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// Carries bytes both ways until both sides have ended, one has broken off, or neither has sent anything for `limits.server_read`. Returns the number of
/// bytes that the client was sent, and the error of a server that broke off or was silent for too long.
pub(super) async fn carry<T, S>(
    client: &mut Client<Http1<T>>,
    mut server: Wire<S>,
    limits: &Limits,
) -> (u64, Option<io::Error>)
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    client.deadline.set(limits.server_read);
    let early = std::mem::take(&mut client.unread);
    let mut up = Direction { early, ended: client.down.is_half_closed, ..Direction::default() };
    let mut down = Direction::default();
    let timed_out = poll_fn(|cx| {
        loop {
            let sent = up.advance(cx, &mut client.down.wire, &mut server);
            let got = down.advance(cx, &mut server, &mut client.down.wire);
            // A side that has broken off takes nothing more.
            let client_is_gone = up.over && up.broken.is_some();
            if client_is_gone || down.over && (up.over || down.broken.is_some()) {
                return Poll::Ready(false);
            }
            if !sent && !got {
                return client.deadline.poll(cx).map(|()| true);
            }
            client.deadline.set(limits.server_read);
        }
    })
    .await;
    let silent = timed_out.then(|| io::ErrorKind::TimedOut.into());
    (down.bytes, down.broken.or(silent))
}

/// One of the two directions.
#[derive(Debug, Default)]
struct Direction {
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
