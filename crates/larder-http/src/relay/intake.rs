//! The connection's side of a [`ClientHandle`].

use super::client::Client;
use super::downstream::Downstream;
use super::handle::{BodyFault, Channel, ClientHandle};
use super::scratch;
use crate::h1::{Body, Decoder, Piece, ReplyHead};
use bytes::{Bytes, BytesMut};
use std::io;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

/// A [`ClientHandle`] and the connection's side of it.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) handle: ClientHandle,
    pub(super) reading: Reading,
}

/// The connection's side of a [`ClientHandle`].
#[derive(Debug)]
pub(super) struct Reading {
    decoder: Decoder,
    /// The client waits for 100 before it sends the body (RFC 9110 section 10.1.1).
    expects_continue: bool,
}

impl Intake {
    /// The intake of the client's current request.
    pub(super) fn new<D: Downstream>(client: &Client<D>) -> Self {
        let Client { down, request, protocols, .. } = client;
        let decoder = Decoder::new(down.body(request));
        let body = (!decoder.is_ended(), decoder.left());
        let handle = ClientHandle::new(protocols.clone(), body, !request.is_http10());
        Self { handle, reading: Reading { decoder, expects_continue: request.expects_continue() } }
    }

    /// Whether the proxy has taken the body.
    pub(super) fn is_taken(&self) -> bool {
        self.handle.channel().is_some_and(Channel::is_taken)
    }

    /// Takes what has come of a body that nobody reads any more, so that the next request can follow.
    pub(super) fn skip<D: Downstream>(&mut self, client: &mut Client<D>) {
        let has_reader = self.handle.channel().is_some_and(|channel| !channel.is_left());
        if !has_reader {
            self.reading.skip(client);
        }
    }

    /// Whether the body has come to its end.
    pub(super) const fn is_ended(&self) -> bool {
        self.reading.decoder.is_ended()
    }
}

impl Reading {
    /// Sends the interim replies that wait.
    ///
    /// # Errors
    /// The client has left.
    pub(super) fn send_interim<D: Downstream>(
        &self,
        cx: &mut Context<'_>,
        client: &mut Client<D>,
        handle: &ClientHandle,
    ) -> io::Result<()> {
        let Some(channel) = handle.channel() else { return Ok(()) };
        if !client.down.is_drained()
            && let Poll::Ready(drained) = client.down.poll_drain(cx)
        {
            drained?;
        }
        if !client.down.is_drained() {
            // The client takes nothing: they wait within their limit.
            return Ok(());
        }
        for head in channel.take_interim() {
            client.down.send_interim(cx, &head, &mut client.out)?;
        }
        match client.down.poll_drain(cx) {
            Poll::Ready(drained) => drained,
            Poll::Pending => Ok(()),
        }
    }

    fn skip<D: Downstream>(&mut self, client: &mut Client<D>) {
        if !client.unread.is_empty()
            && !self.decoder.is_ended()
            && let Ok((taken, _)) = decode(&mut self.decoder, &client.unread)
        {
            client.take_unread(taken);
        }
    }

    /// Reads a piece of the request's body if the proxy waits for one. Returns whether it does, so that the departure of the client is
    /// noticed here. `asks`: a client that waits for 100 is sent it.
    ///
    /// # Errors
    /// The client has left.
    pub(super) fn advance<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<D>,
        handle: &ClientHandle,
        asks: bool,
    ) -> io::Result<bool> {
        let Some(channel) = handle.channel() else { return Ok(false) };
        if !channel.is_wanted(cx) || self.decoder.is_ended() {
            return Ok(false);
        }
        if std::mem::take(&mut self.expects_continue) && asks && client.unread.is_empty() {
            client.down.send_interim(cx, &ReplyHead::with_status(100), &mut client.out)?;
        }
        match self.read(cx, client) {
            Poll::Ready(Ok(piece)) => channel.give(piece, self.decoder.is_ended()),
            Poll::Ready(Err(BodyFault::Gone)) => {
                channel.fail(BodyFault::Gone);
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Poll::Ready(Err(fault)) => channel.fail(fault),
            Poll::Pending => {}
        }
        Ok(true)
    }

    /// Reads until there are contents, or the body has ended.
    fn read<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<D>,
    ) -> Poll<Result<Bytes, BodyFault>> {
        let decoder = &mut self.decoder;
        loop {
            if !client.unread.is_empty() {
                let bytes = std::mem::take(&mut client.unread);
                let decoded = decode(decoder, &bytes);
                client.unread = bytes;
                let (taken, piece) = decoded?;
                client.take_unread(taken);
                if !piece.is_empty() || decoder.is_ended() {
                    return Poll::Ready(Ok(piece));
                }
            }
            let Client { down, unread, .. } = &mut *client;
            let read = scratch::with(|buffer| {
                let mut buffer = ReadBuf::new(buffer);
                match down.poll_fill(cx, &mut buffer) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(())) if buffer.filled().is_empty() && decoder.ends_by_close() => {
                        *decoder = Decoder::new(Body::None);
                        Poll::Ready(Ok(Bytes::new()))
                    }
                    Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                        let (taken, piece) = decode(decoder, buffer.filled())?;
                        unread.extend_from_slice(&buffer.filled()[taken..]);
                        Poll::Ready(Ok(piece))
                    }
                    Poll::Ready(_) => Poll::Ready(Err(BodyFault::Gone)),
                }
            });
            match read {
                Poll::Ready(Ok(piece)) if piece.is_empty() && !decoder.is_ended() => {}
                read => return read,
            }
        }
    }
}

/// The contents in `bytes`, and how many of these belong to the body.
fn decode(decoder: &mut Decoder, bytes: &[u8]) -> Result<(usize, Bytes), BodyFault> {
    let (mut taken, mut contents) = (0, BytesMut::new());
    while taken < bytes.len() && !decoder.is_ended() {
        let step = decoder.step(&bytes[taken..]).map_err(BodyFault::Malformed)?;
        if step.piece == Piece::Data {
            contents.extend_from_slice(&bytes[taken..taken + step.taken]);
        }
        taken += step.taken;
    }
    Ok((taken, contents.freeze()))
}
