//! One request on its way to a server, and the reply on its way back.

use super::client::Client;
use super::fields::{delimit, remove_hop, were_offered, write_trailers};
use super::proxy::{Limits, Proxy};
use super::wire::Wire;
use crate::h1::{Body, Decoder, HeadEnd, Piece, ReplyHead};
use std::io::{self, Write};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes of a reply's head, and of interim ones before it.
const REPLY_HEAD_MAX: usize = 256 << 10;
/// Interim replies to one request.
const INTERIM_MAX: u32 = 32;
/// Bytes of a head and contents that are put together: a small copy costs less than a call with two parts.
const COPIED_MAX: usize = 4 << 10;
/// Bytes of a request's body that are kept in case another server gets the request.
const REPLAY_MAX: usize = 64 << 10;

/// The way in which a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    /// Its contents alone.
    Plain,
    /// In chunks.
    Chunks,
}

/// A body on its way.
#[derive(Debug)]
struct Transfer {
    decoder: Decoder,
    coding: Coding,
    /// A chunk has been written, whose line end is missing.
    in_chunk: bool,
}

/// The progress of the reply.
#[derive(Debug)]
enum Reply {
    /// The end of its head has not come.
    Head(HeadEnd),
    Body(Transfer),
    Ended,
    /// Another protocol begins.
    Tunnel,
}

/// The end of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The client has the reply.
    Done {
        /// The server's connection can serve another request.
        server_goes_on: bool,
        /// The client's connection can.
        client_goes_on: bool,
    },
    /// Both speak another protocol from here on.
    Tunnel,
    /// The client has left, broke the rules, or took too long.
    Client {
        /// It has sent too little for too long, and waits for a reply perhaps.
        timed_out: bool,
    },
    /// The server has failed or took too long.
    Server(io::ErrorKind),
}

const CLIENT_LEFT: Outcome = Outcome::Client { timed_out: false };
const NO_HTTP: Outcome = Outcome::Server(io::ErrorKind::InvalidData);

/// An exchange under way.
#[derive(Debug)]
pub(super) struct Exchange<'a, T, S, P: Proxy> {
    client: &'a mut Client<T>,
    pub(super) server: Wire<S>,
    proxy: &'a P,
    state: &'a mut P::Exchange,
    upload: Transfer,
    /// The server takes no more of the request, and replies perhaps.
    upload_failed: bool,
    /// The bytes of the request's body that were taken from the client, unless they are too many to keep.
    taken: Option<Vec<u8>>,
    reply: Reply,
    /// The beginning of a reply's head.
    held: Vec<u8>,
    interim: u32,
    /// The server has sent something.
    pub(super) server_spoke: bool,
    /// The status that the client has got.
    pub(super) status: Option<u16>,
    pub(super) body_bytes: u64,
    server_goes_on: bool,
    client_goes_on: bool,
    limits: Limits,
}

impl<'a, T, S, P> Exchange<'a, T, S, P>
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
    P: Proxy,
{
    pub(super) fn new(
        client: &'a mut Client<T>,
        server: S,
        proxy: &'a P,
        state: &'a mut P::Exchange,
        limits: Limits,
    ) -> Self {
        client.deadline.set(limits.server);
        let body = client.request.body();
        Self {
            upload: Transfer::new(body, if body == Body::Chunks { Coding::Chunks } else { Coding::Plain }),
            server: Wire::new(server),
            upload_failed: false,
            taken: Some(Vec::new()),
            reply: Reply::Head(HeadEnd::new()),
            held: Vec::new(),
            interim: 0,
            server_spoke: false,
            status: None,
            body_bytes: 0,
            server_goes_on: false,
            client_goes_on: false,
            client,
            proxy,
            state,
            limits,
        }
    }

    /// Begins to send the request.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        let Client { request, out, .. } = &mut *self.client;
        out.clear();
        request.write(out);
        self.server.send(cx, out, &[]).map_err(|error| Outcome::Server(error.kind()))
    }

    /// Goes on until both sides must be waited for.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        loop {
            let mut moved = false;
            for step in [Self::upload, Self::download] {
                match step(self, cx) {
                    Ok(step) => moved |= step,
                    Err(outcome) => return Poll::Ready(outcome),
                }
            }
            if self.client.wire.is_drained() {
                match self.reply {
                    Reply::Tunnel => return Poll::Ready(Outcome::Tunnel),
                    Reply::Ended => {
                        let (server_goes_on, client_goes_on) = (self.server_goes_on, self.client_goes_on);
                        return Poll::Ready(Outcome::Done { server_goes_on, client_goes_on });
                    }
                    Reply::Head(_) | Reply::Body(_) => {}
                }
            }
            if moved {
                let limits = self.limits;
                let patience = if self.is_client_due() { limits.client } else { limits.server };
                self.client.deadline.set(patience);
                continue;
            }
            // A client whose body is awaited is watched by that.
            if self.upload.is_ended() && self.client.watch(cx, self.limits.half_close).is_err() {
                return Poll::Ready(CLIENT_LEFT);
            }
            return self.client.deadline.poll(cx).map(|()| {
                if self.is_client_due() {
                    Outcome::Client { timed_out: true }
                } else {
                    Outcome::Server(io::ErrorKind::TimedOut)
                }
            });
        }
    }

    /// Whether the client is the one who must send or take bytes. One that waits for 100 need not send (RFC 9110 section 10.1.1).
    fn is_client_due(&self) -> bool {
        let waits = self.client.request.expects_continue()
            && self.interim == 0
            && self.taken.as_ref().is_some_and(Vec::is_empty);
        !self.client.wire.is_drained() || self.is_uploading() && self.server.is_drained() && !waits
    }

    fn is_uploading(&self) -> bool {
        !self.upload.is_ended() && !self.upload_failed
    }

    /// Takes the request's body to the server. Whether something moved.
    fn upload(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        let mut moved = false;
        if !self.server.is_drained() && !self.upload_failed {
            match self.server.poll_drain(cx) {
                Poll::Ready(Ok(())) => moved = true,
                // It may have replied before.
                Poll::Ready(Err(_)) => {
                    self.upload_failed = true;
                    return Ok(false);
                }
                Poll::Pending => return Ok(false),
            }
        }
        if !self.is_uploading() {
            return Ok(moved);
        }
        if !self.client.unread.is_empty() {
            let bytes = std::mem::take(&mut self.client.unread);
            let taken = self.upload_piece(cx, &bytes)?;
            self.client.unread = bytes;
            self.client.take_unread(taken);
            return Ok(true);
        }
        super::scratch::with(|buffer| {
            let mut buffer = tokio::io::ReadBuf::new(buffer);
            match self.client.wire.poll_fill(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let taken = self.upload_piece(cx, buffer.filled())?;
                    self.client.unread.extend_from_slice(&buffer.filled()[taken..]);
                    Ok(true)
                }
                Poll::Ready(_) => Err(CLIENT_LEFT),
                Poll::Pending => Ok(moved),
            }
        })
    }

    /// Sends what of `bytes` belongs to the request's body. Returns how many those are.
    fn upload_piece(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<usize, Outcome> {
        let Self { upload, server, client, .. } = self;
        let mut failed = false;
        client.out.clear();
        // Trailers of a request go no further: a server might take them for fields.
        let taken = upload.pass(
            bytes,
            &mut client.out,
            |_, _| {},
            |head, piece| {
                failed |= server.send(cx, head, piece).is_err();
            },
        );
        let taken = taken.map_err(|_| CLIENT_LEFT)?;
        self.upload_failed |= failed;
        self.taken = self.taken.take().filter(|kept| kept.len() + taken <= REPLAY_MAX).map(|mut kept| {
            kept.extend_from_slice(&bytes[..taken]);
            kept
        });
        Ok(taken)
    }

    /// Gives back the bytes of the request's body that were taken, for another attempt. Whether all are there.
    pub(super) fn rewind(&mut self) -> bool {
        let Some(mut taken) = self.taken.take() else { return false };
        if !taken.is_empty() {
            taken.append(&mut self.client.unread);
            self.client.unread = taken;
        }
        true
    }

    /// Takes the reply to the client. Whether something moved.
    fn download(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        if !self.client.wire.is_drained() {
            let before = self.client.wire.left();
            return match self.client.wire.poll_drain(cx) {
                Poll::Ready(Ok(())) => Ok(true),
                Poll::Ready(Err(_)) => Err(CLIENT_LEFT),
                Poll::Pending => {
                    if self.client.wire.left() < before {
                        self.client.deadline.set(self.limits.client);
                    }
                    Ok(false)
                }
            };
        }
        if matches!(self.reply, Reply::Ended | Reply::Tunnel) {
            return Ok(false);
        }
        super::scratch::with(|buffer| {
            let mut buffer = tokio::io::ReadBuf::new(buffer);
            match self.server.poll_fill(cx, &mut buffer) {
                Poll::Ready(Ok(())) => self.receive(cx, buffer.filled()).map(|()| true),
                Poll::Ready(Err(error)) => Err(Outcome::Server(error.kind())),
                Poll::Pending => Ok(false),
            }
        })
    }

    /// Bytes of the server; none at the end of its stream.
    fn receive(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<(), Outcome> {
        if bytes.is_empty() {
            return self.receive_end(cx);
        }
        self.server_spoke = true;
        if self.held.is_empty() {
            let used = self.receive_messages(cx, bytes)?;
            self.held.extend_from_slice(&bytes[used..]);
        } else {
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(bytes);
            let used = self.receive_messages(cx, &held)?;
            held.drain(..used);
            self.held = held;
        }
        if self.held.len() > REPLY_HEAD_MAX { Err(NO_HTTP) } else { Ok(()) }
    }

    /// Uses bytes of the server. Returns how many; the rest begins a head whose end has not come.
    fn receive_messages(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<usize, Outcome> {
        let mut at = 0;
        while let Reply::Head(end) = &mut self.reply {
            let Some(length) = end.find(&bytes[at..]) else { return Ok(at) };
            self.client.reply.read(&bytes[at..at + length]).map_err(|_| NO_HTTP)?;
            at += length;
            if self.client.reply.is_interim() {
                self.pass_interim(cx)?;
            } else {
                self.begin_reply(cx, &bytes[at..])?;
                return Ok(bytes.len());
            }
        }
        self.client.out.clear();
        self.pass_body(cx, &bytes[at..])?;
        Ok(bytes.len())
    }

    /// Passes an interim reply on to a client that knows such replies (RFC 9110 section 15.2).
    fn pass_interim(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        self.interim += 1;
        if self.interim > INTERIM_MAX {
            return Err(NO_HTTP);
        }
        self.reply = Reply::Head(HeadEnd::new());
        let Client { wire, request, reply, out, .. } = &mut *self.client;
        if request.is_http10() {
            return Ok(());
        }
        remove_hop(&mut reply.fields);
        delimit(&mut reply.fields, Body::None, None).map_err(|_| NO_HTTP)?;
        out.clear();
        reply.write(out);
        wire.send(cx, out, &[]).map_err(|_| CLIENT_LEFT)
    }

    /// The head of the final reply has come, with the first bytes of its body.
    fn begin_reply(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        let uploading = !self.upload.is_ended();
        let Client { request, reply: head, unread, protocols, is_half_closed, .. } = &mut *self.client;
        if head.status() == 101 {
            return self.begin_tunnel(cx, rest);
        }
        let (old, body) = (request.is_http10(), head.body(request.method()));
        let coding =
            if !old && matches!(body, Body::Chunks | Body::Close) { Coding::Chunks } else { Coding::Plain };
        let ends_by_close = old && matches!(body, Body::Chunks | Body::Close);
        // Early bytes after a wish for another protocol are perhaps no request.
        let is_clear = unread.is_empty() || !request.asks_for_upgrade();
        self.client_goes_on = request.is_persistent()
            && !ends_by_close
            && !uploading
            && is_clear
            && !*is_half_closed
            && !self.proxy.is_draining();
        *protocols = None;
        self.server_goes_on = head.is_persistent() && body != Body::Close;
        let length = if head.status() == 204 { None } else { head.stated_length() };
        remove_hop(&mut head.fields);
        self.proxy.reply(self.state, head);
        let written = match (body, coding) {
            (Body::Chunks | Body::Close, Coding::Chunks) => Body::Chunks,
            (Body::Chunks, Coding::Plain) => Body::Close,
            (body, _) => body,
        };
        delimit(&mut head.fields, written, length.filter(|_| body == Body::None)).map_err(|_| NO_HTTP)?;
        if !self.client_goes_on {
            append(head, b"close")?;
        } else if old {
            append(head, b"keep-alive")?;
        }
        let transfer = Transfer::new(body, coding);
        self.reply = if transfer.is_ended() { Reply::Ended } else { Reply::Body(transfer) };
        let Client { reply, out, .. } = &mut *self.client;
        out.clear();
        reply.write(out);
        self.pass_body(cx, rest)
    }

    /// The server switches to another protocol, and these are its first bytes.
    fn begin_tunnel(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        let Client { wire, reply, out, protocols, .. } = &mut *self.client;
        let offered = protocols.take().ok_or(NO_HTTP)?;
        // RFC 9110 section 15.2.2.
        if !self.upload.is_ended() || !were_offered(&reply.fields, &offered) {
            return Err(NO_HTTP);
        }
        let taken: Vec<u8> = reply.fields.get(b"upgrade").unwrap_or_default().to_vec();
        remove_hop(&mut reply.fields);
        self.proxy.reply(self.state, reply);
        delimit(&mut reply.fields, Body::None, None).map_err(|_| NO_HTTP)?;
        append(reply, b"upgrade")?;
        reply.fields.append(b"Upgrade", &taken).map_err(|_| NO_HTTP)?;
        (self.status, self.body_bytes) = (Some(101), rest.len() as u64);
        self.reply = Reply::Tunnel;
        out.clear();
        reply.write(out);
        wire.send(cx, out, rest).map_err(|_| CLIENT_LEFT)
    }

    /// Passes bytes of the body on, after the head in `out` if that is still to be sent.
    fn pass_body(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<(), Outcome> {
        let Client { wire, out, reply, .. } = &mut *self.client;
        let (mut sent, mut begun) = (Ok(()), false);
        let mut send = |head: &[u8], piece: &[u8]| {
            begun = true;
            if sent.is_ok() {
                sent = wire.send(cx, head, piece);
            }
        };
        let taken = match &mut self.reply {
            Reply::Body(transfer) => transfer.pass(bytes, out, write_trailers, &mut send),
            _ => Ok(0),
        };
        // A head without contents yet.
        if taken.is_ok() && !out.is_empty() {
            send(out, &[]);
            out.clear();
        }
        if begun {
            self.status.get_or_insert(reply.status());
        }
        let taken = taken.map_err(|_| NO_HTTP)?;
        if matches!(&self.reply, Reply::Body(transfer) if transfer.is_ended()) {
            self.reply = Reply::Ended;
        }
        self.body_bytes += taken as u64;
        // Nobody has asked for what follows.
        self.server_goes_on &= taken == bytes.len();
        sent.map_err(|_| CLIENT_LEFT)
    }

    /// The server has ended its side.
    fn receive_end(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        const BROKEN_OFF: Outcome = Outcome::Server(io::ErrorKind::UnexpectedEof);
        let Reply::Body(transfer) = &self.reply else { return Err(BROKEN_OFF) };
        if !transfer.decoder.ends_by_close() {
            return Err(BROKEN_OFF);
        }
        let last: &[u8] = match (transfer.coding, transfer.in_chunk) {
            (Coding::Plain, _) => b"",
            (Coding::Chunks, false) => b"0\r\n\r\n",
            (Coding::Chunks, true) => b"\r\n0\r\n\r\n",
        };
        self.reply = Reply::Ended;
        self.server_goes_on = false;
        self.client.wire.send(cx, last, &[]).map_err(|_| CLIENT_LEFT)
    }

    /// Whether the server has all of the request, so that its connection can take another one.
    pub(super) fn is_idle(&self) -> bool {
        self.upload.is_ended() && !self.upload_failed && self.server.is_drained()
    }
}

impl Transfer {
    const fn new(body: Body, coding: Coding) -> Self {
        Self { decoder: Decoder::new(body), coding, in_chunk: false }
    }

    const fn is_ended(&self) -> bool {
        self.decoder.is_ended()
    }

    /// Passes the part of `bytes` that belongs to the body on to `send`, after what is in `out`. Returns how many bytes that is.
    ///
    /// Chunks are written anew: the recipient does not see how the sender spelt them.
    fn pass(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        trailers: impl Fn(&[u8], &mut Vec<u8>),
        mut send: impl FnMut(&[u8], &[u8]),
    ) -> Result<usize, crate::h1::Fault> {
        let mut taken = 0;
        while taken < bytes.len() && !self.decoder.is_ended() {
            let step = self.decoder.step(&bytes[taken..])?;
            let piece = &bytes[taken..taken + step.taken];
            taken += step.taken;
            if step.piece == Piece::Data {
                if self.coding == Coding::Chunks {
                    let line_end = if self.in_chunk { "\r\n" } else { "" };
                    // Writing to memory does not fail.
                    let _ = write!(out, "{line_end}{:x}\r\n", piece.len());
                    self.in_chunk = true;
                }
                if out.len() + piece.len() <= COPIED_MAX {
                    out.extend_from_slice(piece);
                    send(out, &[]);
                } else {
                    send(out, piece);
                }
                out.clear();
            }
        }
        if self.decoder.is_ended() && self.coding == Coding::Chunks {
            out.extend_from_slice(if self.in_chunk { b"\r\n0\r\n" } else { b"0\r\n" });
            trailers(self.decoder.trailers(), out);
            out.extend_from_slice(b"\r\n");
            send(out, &[]);
            out.clear();
        }
        Ok(taken)
    }
}

/// Adds an option of ours, without which the reply could be misread.
fn append(head: &mut ReplyHead, option: &[u8]) -> Result<(), Outcome> {
    head.fields.append(b"Connection", option).map_err(|_| NO_HTTP)
}
