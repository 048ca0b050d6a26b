//! Paths of a reply to the client other than the copying of HTTP/1 bytes.

use super::{CLIENT_GONE, Outcome, ReplyStage, ServerExchange};
use crate::relay::client_session::ClientSession;
use crate::relay::client_side::ClientSide;
use crate::relay::proxy::Proxy;
use crate::relay::scratch::SharedBuffer;
use crate::relay::server_side::ServerSide;
use crate::relay::server_streams::ReplyPart;
use crate::relay::splice::{SPLICED_MIN, Transport};
use std::io;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

impl<D, S, P> ServerExchange<'_, D, S, P>
where
    D: ClientSide,
    S: Transport,
    P: Proxy,
{
    /// Splices the content of a large reply to the client. Returns whether there was progress, or `None` if
    /// the content must be copied.
    pub(super) fn splice(&mut self, cx: &mut Context<'_>) -> Option<Result<bool, Outcome>> {
        let Self { client, server, reply, pipe, worker, state, is_relayed_unchanged, .. } = self;
        let ServerSide::Http1(stream) = server else { return None };
        let (from, to) = (stream.io().socket()?, client.side.socket()?);
        if let Some(pipe) = pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            return Some(match pipe.poll_drain(cx, to) {
                Poll::Ready(drained) => drained.map(|_| true).map_err(|_| CLIENT_GONE),
                Poll::Pending => Ok(false),
            });
        }
        let ReplyStage::Body(transfer) = reply else { return None };
        let left = transfer.remaining().filter(|_| *is_relayed_unchanged)?;
        if pipe.is_none() {
            *pipe = if left < SPLICED_MIN { None } else { worker.pipes.take() };
        }
        let max = usize::try_from(left).unwrap_or(usize::MAX);
        match pipe.as_mut()?.poll_fill(cx, from, max) {
            Poll::Pending => return Some(Ok(false)),
            Poll::Ready(Ok(0)) => return Some(Err(Outcome::Server(io::ErrorKind::UnexpectedEof.into()))),
            // This socket does not support `splice`.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                *is_relayed_unchanged = false;
                return None;
            }
            Poll::Ready(Err(error)) => return Some(Err(Outcome::Server(error))),
            Poll::Ready(Ok(bytes)) => transfer.record_spliced(bytes as u64),
        }
        client.sent.body_bytes += transfer.take_sent();
        let is_last = transfer.is_ended();
        worker.proxy.reply_body(state, &[], is_last, &mut Vec::new());
        if is_last {
            *reply = ReplyStage::Ended;
        }
        Some(Ok(true))
    }

    /// Reads HTTP/1 bytes into memory that the client side may keep. Returns whether there was progress.
    pub(super) fn download_shared(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        let ServerSide::Http1(stream) = &mut self.server else { return Ok(false) };
        let mut buffer = SharedBuffer::take();
        let mut read = ReadBuf::new(buffer.bytes_mut());
        let length = match stream.poll_fill(cx, &mut read) {
            Poll::Ready(filled) => {
                filled.map_err(Outcome::Server)?;
                read.filled().len()
            }
            Poll::Pending => return Ok(false),
        };
        if length < D::SHARED_BYTES_MIN {
            return self.receive_bytes(cx, &buffer.bytes_mut()[..length]).map(|()| true);
        }
        let read = buffer.share(length);
        self.client.side.set_shared_buffer(Some(read.clone()));
        let received = self.receive_bytes(cx, &read);
        self.client.side.set_shared_buffer(None);
        received.map(|()| true)
    }

    /// Sends a part of an HTTP/2 reply to the client. Returns whether there was one.
    pub(super) fn download_part(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        let Self { client, server, .. } = self;
        let ServerSide::Http2(stream) = server else { return Ok(false) };
        let ClientSession { reply, request, .. } = &mut **client;
        let part = match stream.poll_part(cx, reply, request.method()) {
            Poll::Ready(part) => part.map_err(Outcome::Server)?,
            Poll::Pending => return Ok(false),
        };
        self.server_has_replied = true;
        match part {
            ReplyPart::Head if self.client.reply.is_interim() => self.forward_interim(cx)?,
            ReplyPart::Head => self.begin_reply(cx, &[])?,
            ReplyPart::Data(data) => {
                self.client.out.clear();
                self.forward_body(cx, &data)?;
            }
            ReplyPart::End(trailers) => self.end_reply(cx, &trailers)?,
        }
        Ok(true)
    }
}
