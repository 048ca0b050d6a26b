//! Another protocol, once both sides speak it (RFC 9110 section 7.8): bytes both ways.

use super::client::Client;
use super::proxy::Timeouts;
use super::wire::Wire;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// Carries bytes both ways until both sides have ended, one has failed, or neither has sent anything for `timeouts.client`.
/// Returns the number of bytes that the client was sent.
pub(super) async fn carry<T, S>(client: &mut Client<T>, mut server: Wire<S>, timeouts: Timeouts) -> u64
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    client.deadline.set(timeouts.client);
    let (mut up, mut down) = (Direction::default(), Direction::default());
    let mut early = std::mem::take(&mut client.unread);
    poll_fn(|cx| {
        loop {
            if !early.is_empty() {
                let bytes = std::mem::take(&mut early);
                if server.send(cx, &bytes, &[]).is_err() {
                    return Poll::Ready(());
                }
            }
            let moved = up.advance(cx, &mut client.wire, &mut server).and_then(|moved| {
                down.advance(cx, &mut server, &mut client.wire).map(|other| moved || other)
            });
            match moved {
                Err(_) => return Poll::Ready(()),
                Ok(_) if up.over && down.over => return Poll::Ready(()),
                Ok(true) => client.deadline.set(timeouts.client),
                Ok(false) => return client.deadline.poll(cx),
            }
        }
    })
    .await;
    down.bytes
}

/// One of the two ways.
#[derive(Debug, Default)]
struct Direction {
    /// The side that sends has ended.
    ended: bool,
    /// The other side knows.
    over: bool,
    bytes: u64,
}

impl Direction {
    /// Whether something moved.
    fn advance<A, B>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut Wire<A>,
        to: &mut Wire<B>,
    ) -> io::Result<bool>
    where
        A: AsyncRead + AsyncWrite + Unpin,
        B: AsyncRead + AsyncWrite + Unpin,
    {
        if self.over {
            return Ok(false);
        }
        if !to.is_drained() {
            return match to.poll_drain(cx) {
                Poll::Ready(drained) => drained.map(|()| true),
                Poll::Pending => Ok(false),
            };
        }
        if self.ended {
            return match to.poll_shutdown(cx) {
                Poll::Ready(shut) => {
                    self.over = true;
                    shut.map(|()| true)
                }
                Poll::Pending => Ok(false),
            };
        }
        let read = from.poll_read(cx, |_, cx, bytes| {
            self.ended = bytes.is_empty();
            self.bytes += bytes.len() as u64;
            to.send(cx, bytes, &[])
        });
        match read {
            Poll::Ready(read) => read?.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }
}
