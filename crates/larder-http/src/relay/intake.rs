//! The connection's side of a [`ClientHandle`].

use super::client_session::ClientSession;
use super::client_side::ClientSide;
use super::handle::{BodyFault, Channel, ClientHandle};
use super::scratch;
use crate::h1::{Body, Decoder, Piece, ReplyHead};
use bytes::{Bytes, BytesMut};
use std::io;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

/// A [`ClientHandle`] and the connection's side of it.
#[derive(Debug)]
pub(super) struct BodyIntake {
    pub(super) handle: ClientHandle,
    pub(super) reader: BodyReader,
}

/// The reader that passes the request body from the connection to the proxy.
#[derive(Debug)]
pub(super) struct BodyReader {
    decoder: Decoder,
    /// The client waits for 100 before it sends the body (RFC 9110 section 10.1.1).
    expects_continue: bool,
}

impl BodyIntake {
    /// Creates the intake of the current request of the client.
    pub(super) fn new<D: ClientSide>(client: &ClientSession<D>) -> Self {
        let ClientSession { side, request, protocols, .. } = client;
        let decoder = Decoder::new(side.body(request));
        let body = (!decoder.is_ended(), decoder.left());
        let handle = ClientHandle::new(protocols.clone(), body, !request.is_http10());
        Self { handle, reader: BodyReader { decoder, expects_continue: request.expects_continue() } }
    }

    /// Returns whether the proxy has taken the body.
    pub(super) fn is_body_taken(&self) -> bool {
        self.handle.channel().is_some_and(Channel::is_body_taken)
    }

    /// Takes the content that the proxy has returned; `None` if it has returned none, or the body is not complete.
    pub(super) fn take_returned(&self) -> Option<Vec<u8>> {
        self.handle.channel().filter(|_| self.is_ended()).and_then(Channel::take_returned)
    }

    /// Skips the received part of a body that nobody reads any more, so that the next request can follow.
    pub(super) fn skip<D: ClientSide>(&mut self, client: &mut ClientSession<D>) {
        let has_reader = self.handle.channel().is_some_and(|channel| !channel.is_reader_gone());
        if !has_reader {
            self.reader.skip(client);
        }
    }

    /// Returns whether the complete body has arrived.
    pub(super) const fn is_ended(&self) -> bool {
        self.reader.decoder.is_ended()
    }
}

impl BodyReader {
    /// Sends the pending interim replies.
    ///
    /// # Errors
    /// The client has disconnected.
    pub(super) fn send_interim<D: ClientSide>(
        &self,
        cx: &mut Context<'_>,
        client: &mut ClientSession<D>,
        handle: &ClientHandle,
    ) -> io::Result<()> {
        let Some(channel) = handle.channel() else { return Ok(()) };
        if !client.side.is_drained()
            && let Poll::Ready(drained) = client.side.poll_drain(cx)
        {
            drained?;
        }
        if !client.side.is_drained() {
            // The client accepts nothing. The interim replies stay pending; their number is limited.
            return Ok(());
        }
        for head in channel.take_interim() {
            client.side.send_interim(cx, &head, &mut client.out)?;
        }
        match client.side.poll_drain(cx) {
            Poll::Ready(drained) => drained,
            Poll::Pending => Ok(()),
        }
    }

    /// Skips the received part of the body.
    fn skip<D: ClientSide>(&mut self, client: &mut ClientSession<D>) {
        if !client.unread.is_empty()
            && !self.decoder.is_ended()
            && let Ok((taken, _)) = decode_content(&mut self.decoder, &client.unread)
        {
            client.consume_unread(taken);
        }
    }

    /// Reads a piece of the request body if the proxy waits for one. Returns whether it waits. In that case
    /// this function also detects a disconnect of the client.
    ///
    /// If `sends_continue` is true, a client that waits for 100 gets a 100 (RFC 9110 section 10.1.1).
    ///
    /// # Errors
    /// The client has disconnected.
    pub(super) fn advance<D: ClientSide>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientSession<D>,
        handle: &ClientHandle,
        sends_continue: bool,
    ) -> io::Result<bool> {
        let Some(channel) = handle.channel() else { return Ok(false) };
        if !channel.is_reader_waiting(cx) || self.decoder.is_ended() {
            return Ok(false);
        }
        if std::mem::take(&mut self.expects_continue) && sends_continue && client.unread.is_empty() {
            client.side.send_interim(cx, &ReplyHead::with_status(100), &mut client.out)?;
        }
        match self.poll_piece(cx, client) {
            Poll::Ready(Ok(piece)) => channel.push_piece(piece, self.decoder.is_ended()),
            Poll::Ready(Err(BodyFault::Gone)) => {
                channel.fail(BodyFault::Gone);
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Poll::Ready(Err(fault)) => channel.fail(fault),
            Poll::Pending => {}
        }
        Ok(true)
    }

    /// Reads until content has arrived or the body is complete.
    fn poll_piece<D: ClientSide>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientSession<D>,
    ) -> Poll<Result<Bytes, BodyFault>> {
        let decoder = &mut self.decoder;
        loop {
            if !client.unread.is_empty() {
                let bytes = std::mem::take(&mut client.unread);
                let decoded = decode_content(decoder, &bytes);
                client.unread = bytes;
                let (taken, piece) = decoded?;
                client.consume_unread(taken);
                if !piece.is_empty() || decoder.is_ended() {
                    return Poll::Ready(Ok(piece));
                }
            }
            let ClientSession { side, unread, .. } = &mut *client;
            let read = scratch::with_buffer(|buffer| {
                let mut buffer = ReadBuf::new(buffer);
                match side.poll_fill(cx, &mut buffer) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(())) if buffer.filled().is_empty() && decoder.ends_by_close() => {
                        *decoder = Decoder::new(Body::None);
                        Poll::Ready(Ok(Bytes::new()))
                    }
                    Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                        let (taken, piece) = decode_content(decoder, buffer.filled())?;
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

/// Returns the number of `bytes` that belong to the body, and the content in them.
fn decode_content(decoder: &mut Decoder, bytes: &[u8]) -> Result<(usize, Bytes), BodyFault> {
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
