//! Ways of a reply to the client other than by a copy of bytes of HTTP/1.

use super::{CLIENT_LEFT, Exchange, Outcome, Reply};
use crate::relay::client::Client;
use crate::relay::downstream::Downstream;
use crate::relay::proxy::Proxy;
use crate::relay::scratch::Buffer;
use crate::relay::splice::{SPLICED_MIN, Transport};
use crate::relay::streams::Part;
use crate::relay::upstream::Upstream;
use std::io;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

impl<D, S, P> Exchange<'_, D, S, P>
where
    D: Downstream,
    S: Transport,
    P: Proxy,
{
    /// Takes the contents of a large reply to the client without a copy. Whether something moved; nothing if the contents must be copied.
    pub(super) fn splice(&mut self, cx: &mut Context<'_>) -> Option<Result<bool, Outcome>> {
        let Self { client, server, reply, pipe, worker, state, is_unchanged, .. } = self;
        let Upstream::Http1(wire) = server else { return None };
        let (from, to) = (wire.io().socket()?, client.down.socket()?);
        if let Some(pipe) = pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            return Some(match pipe.poll_drain(cx, to) {
                Poll::Ready(drained) => drained.map(|_| true).map_err(|_| CLIENT_LEFT),
                Poll::Pending => Ok(false),
            });
        }
        let Reply::Body(transfer) = reply else { return None };
        let left = transfer.left().filter(|_| *is_unchanged)?;
        if pipe.is_none() {
            *pipe = if left < SPLICED_MIN { None } else { worker.pipes.take() };
        }
        let max = usize::try_from(left).unwrap_or(usize::MAX);
        match pipe.as_mut()?.poll_fill(cx, from, max) {
            Poll::Pending => return Some(Ok(false)),
            Poll::Ready(Ok(0)) => return Some(Err(Outcome::Server(io::ErrorKind::UnexpectedEof.into()))),
            // This socket cannot be spliced.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                *is_unchanged = false;
                return None;
            }
            Poll::Ready(Err(error)) => return Some(Err(Outcome::Server(error))),
            Poll::Ready(Ok(bytes)) => transfer.skip(bytes as u64),
        }
        client.sent.body_bytes += transfer.take_count();
        let is_last = transfer.is_ended();
        worker.proxy.reply_body(state, &[], is_last, &mut Vec::new());
        if is_last {
            *reply = Reply::Ended;
        }
        Some(Ok(true))
    }

    /// Reads bytes of HTTP/1 into memory that the client's side may keep. Whether something moved.
    pub(super) fn download_shared(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        let Upstream::Http1(wire) = &mut self.server else { return Ok(false) };
        let mut buffer = Buffer::take();
        let mut read = ReadBuf::new(buffer.room());
        let length = match wire.poll_fill(cx, &mut read) {
            Poll::Ready(filled) => {
                filled.map_err(Outcome::Server)?;
                read.filled().len()
            }
            Poll::Pending => return Ok(false),
        };
        if length < D::SHARED_MIN {
            return self.receive(cx, &buffer.room()[..length]).map(|()| true);
        }
        let read = buffer.share(length);
        self.client.down.lend(Some(read.clone()));
        let received = self.receive(cx, &read);
        self.client.down.lend(None);
        received.map(|()| true)
    }

    /// Takes a part of a reply of HTTP/2 to the client. Whether there was one.
    pub(super) fn download_part(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        let Self { client, server, .. } = self;
        let Upstream::Http2(stream) = server else { return Ok(false) };
        let Client { reply, request, .. } = &mut **client;
        let part = match stream.poll_part(cx, reply, request.method()) {
            Poll::Ready(part) => part.map_err(Outcome::Server)?,
            Poll::Pending => return Ok(false),
        };
        self.server_spoke = true;
        match part {
            Part::Head if self.client.reply.is_interim() => self.pass_interim(cx)?,
            Part::Head => self.begin_reply(cx, &[])?,
            Part::Data(data) => {
                self.client.out.clear();
                self.pass_body(cx, &data)?;
            }
            Part::End(trailers) => self.end_reply(cx, &trailers)?,
        }
        Ok(true)
    }
}
