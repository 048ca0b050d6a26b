//! One request on its way to a server, and the reply on its way back.

use super::client::Client;
use super::fields::remove_hop;
use super::proxy::{Proxy, Timeouts};
use super::wire::Wire;
use crate::h1::{Body, Decoder, Fault, HeadEnd, Piece, ReplyHead};
use std::io;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes of a reply's head, and of interim ones before it.
const REPLY_HEAD_MAX: usize = 256 << 10;
/// Interim replies to one request.
const INTERIM_MAX: u32 = 32;

/// How a reply's body is given to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As it comes.
    Same,
    /// Without its chunks, to a client of HTTP/1.0, which knows none.
    Contents,
    /// In chunks, since only the end of the server's connection ends it.
    Chunks,
}

/// What has come of the reply.
#[derive(Debug)]
enum Reply {
    /// Of its head, so many bytes in `held`.
    Head(HeadEnd),
    Body(Decoder, Form),
    Ended,
    /// Another protocol begins.
    Tunnel,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The reply is with the client.
    Done {
        /// The server's connection can serve another request.
        server_goes_on: bool,
        /// So can the client's.
        client_goes_on: bool,
    },
    /// Both speak another protocol from here on.
    Tunnel,
    /// The client has left or took too long.
    Client,
    /// The server has failed or took too long.
    Server {
        /// It took too long.
        timed_out: bool,
    },
}

/// An exchange under way.
#[derive(Debug)]
pub(super) struct Exchange<'a, T, S, P: Proxy> {
    client: &'a mut Client<T>,
    pub(super) server: Wire<S>,
    proxy: &'a P,
    state: &'a mut P::Exchange,
    upload: Decoder,
    /// The server takes no more of the request, and replies perhaps.
    upload_over: bool,
    /// Nothing of the request's body was taken from the client.
    pub(super) replayable: bool,
    reply: Reply,
    /// Bytes of a reply's head whose end has not come.
    held: Vec<u8>,
    interim: u32,
    /// The server has sent something.
    pub(super) server_spoke: bool,
    /// Of the reply whose head was sent to the client.
    pub(super) status: Option<u16>,
    pub(super) body_bytes: u64,
    server_goes_on: bool,
    client_goes_on: bool,
    timeouts: Timeouts,
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
        timeouts: Timeouts,
    ) -> Self {
        client.deadline.set(timeouts.server);
        Self {
            upload: Decoder::new(client.request.body()),
            server: Wire::new(server),
            upload_over: false,
            replayable: true,
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
            timeouts,
        }
    }

    /// Begins to send the request. An error is the server's.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Client { request, out, .. } = &mut *self.client;
        out.clear();
        request.write(out);
        self.server.send(cx, out, &[])
    }

    /// Goes on until nothing can go on.
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
                    Reply::Head(_) | Reply::Body(..) => {}
                }
            }
            if moved {
                let patience = self.timeouts;
                let client_is_due = !self.client.wire.is_drained() || self.is_uploading();
                self.client.deadline.set(if client_is_due { patience.client } else { patience.server });
                continue;
            }
            if let Err(outcome) = self.watch(cx) {
                return Poll::Ready(outcome);
            }
            return self.client.deadline.poll(cx).map(|()| {
                let client_is_due =
                    !self.client.wire.is_drained() || self.is_uploading() && self.server.is_drained();
                if client_is_due { Outcome::Client } else { Outcome::Server { timed_out: true } }
            });
        }
    }

    fn is_uploading(&self) -> bool {
        !self.upload.is_ended() && !self.upload_over
    }

    /// Takes the request's body to the server. Whether something moved.
    fn upload(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        let mut moved = false;
        if !self.server.is_drained() {
            match self.server.poll_drain(cx) {
                Poll::Ready(Ok(())) => moved = true,
                // It may have replied before.
                Poll::Ready(Err(_)) => {
                    self.upload_over = true;
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
        // The buffer is lent while the bytes are looked at.
        let Self { client, server, upload, upload_over, replayable, .. } = self;
        let Client { wire, unread, .. } = &mut **client;
        let read = wire.poll_read(cx, |_, cx, bytes| {
            if bytes.is_empty() {
                return Err(Outcome::Client);
            }
            *replayable = false;
            let taken = advance(upload, bytes).map_err(|_| Outcome::Client)?;
            *upload_over |= server.send(cx, &bytes[..taken], &[]).is_err();
            unread.extend_from_slice(&bytes[taken..]);
            Ok(true)
        });
        match read {
            Poll::Ready(Ok(done)) => done,
            Poll::Ready(Err(_)) => Err(Outcome::Client),
            Poll::Pending => Ok(moved),
        }
    }

    fn upload_piece(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<usize, Outcome> {
        self.replayable = false;
        let taken = advance(&mut self.upload, bytes).map_err(|_| Outcome::Client)?;
        self.upload_over |= self.server.send(cx, &bytes[..taken], &[]).is_err();
        Ok(taken)
    }

    /// Takes the reply to the client. Whether something moved.
    fn download(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        if !self.client.wire.is_drained() {
            return match self.client.wire.poll_drain(cx) {
                Poll::Ready(Ok(())) => Ok(true),
                Poll::Ready(Err(_)) => Err(Outcome::Client),
                Poll::Pending => Ok(false),
            };
        }
        if matches!(self.reply, Reply::Ended | Reply::Tunnel) {
            return Ok(false);
        }
        // The wire is put back below: what shows the bytes needs the rest of the exchange.
        super::scratch::with(|buffer| {
            let mut buffer = tokio::io::ReadBuf::new(buffer);
            match self.server.poll_fill(cx, &mut buffer) {
                Poll::Ready(Ok(())) => self.receive(cx, buffer.filled()).map(|()| true),
                Poll::Ready(Err(_)) => Err(Outcome::Server { timed_out: false }),
                Poll::Pending => Ok(false),
            }
        })
    }

    /// Bytes of the server; none at their end.
    fn receive(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<(), Outcome> {
        const FAILED: Outcome = Outcome::Server { timed_out: false };
        if bytes.is_empty() {
            return self.receive_end(cx);
        }
        self.server_spoke = true;
        let mut held = std::mem::take(&mut self.held);
        let whole = if held.is_empty() {
            bytes
        } else {
            held.extend_from_slice(bytes);
            &held
        };
        let mut rest = whole;
        while let Reply::Head(end) = &mut self.reply {
            let Some(length) = end.find(rest) else {
                if rest.len() > REPLY_HEAD_MAX {
                    return Err(FAILED);
                }
                self.held = rest.to_vec();
                return Ok(());
            };
            let (head, after) = rest.split_at(length);
            rest = after;
            self.client.reply.read(head).map_err(|_| FAILED)?;
            if self.client.reply.is_interim() {
                self.pass_interim(cx)?;
            } else {
                return self.begin_reply(cx, rest);
            }
        }
        if rest.is_empty() { Ok(()) } else { self.pass_body(cx, rest, false) }
    }

    /// Passes an interim reply on to a client that knows such replies (RFC 9110 section 15.2).
    fn pass_interim(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        self.interim += 1;
        if self.interim > INTERIM_MAX {
            return Err(Outcome::Server { timed_out: false });
        }
        self.reply = Reply::Head(HeadEnd::new());
        let Client { wire, request, reply, out, .. } = &mut *self.client;
        if request.is_http10() {
            return Ok(());
        }
        remove_hop(&mut reply.fields);
        out.clear();
        reply.write(out);
        wire.send(cx, out, &[]).map_err(|_| Outcome::Client)
    }

    /// The head of the final reply has come, with the first bytes of its body.
    fn begin_reply(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        const FAILED: Outcome = Outcome::Server { timed_out: false };
        let uploading = self.is_uploading();
        let head = &mut self.client.reply;
        if head.status() == 101 {
            if !self.client.request.asks_for_upgrade() {
                return Err(FAILED);
            }
            self.reply = Reply::Tunnel;
            (self.status, self.body_bytes) = (Some(101), rest.len() as u64);
            self.proxy.reply(self.state, head);
            let Client { wire, reply, out, .. } = &mut *self.client;
            out.clear();
            reply.write(out);
            return wire.send(cx, out, rest).map_err(|_| Outcome::Client);
        }
        let (old, body) = (self.client.request.is_http10(), head.body(self.client.request.method()));
        let form = match body {
            Body::Chunks if old => Form::Contents,
            Body::Close if !old => Form::Chunks,
            _ => Form::Same,
        };
        let ends_by_close = old && matches!(body, Body::Chunks | Body::Close);
        self.client_goes_on =
            self.client.request.is_persistent() && !ends_by_close && !uploading && !self.proxy.is_draining();
        self.server_goes_on = head.is_persistent() && body != Body::Close;
        remove_hop(&mut head.fields);
        self.proxy.reply(self.state, head);
        match form {
            Form::Contents => head.fields.remove(b"transfer-encoding"),
            Form::Chunks => append(head, b"Transfer-Encoding", b"chunked")?,
            Form::Same => {}
        }
        if !self.client_goes_on {
            append(head, b"Connection", b"close")?;
        } else if old {
            append(head, b"Connection", b"keep-alive")?;
        }
        let decoder = Decoder::new(body);
        self.reply = if decoder.is_ended() { Reply::Ended } else { Reply::Body(decoder, form) };
        let Client { reply, out, .. } = &mut *self.client;
        out.clear();
        reply.write(out);
        self.pass_body(cx, rest, true)
    }

    /// Passes bytes of the body on, after the head in `out` if it is still to be sent.
    fn pass_body(&mut self, cx: &mut Context<'_>, bytes: &[u8], with_head: bool) -> Result<(), Outcome> {
        const FAILED: Outcome = Outcome::Server { timed_out: false };
        let Client { wire, out, reply, .. } = &mut *self.client;
        if !with_head {
            out.clear();
        }
        let mut taken = 0;
        if let Reply::Body(decoder, form) = &mut self.reply {
            let same = *form == Form::Same;
            while taken < bytes.len() && !decoder.is_ended() {
                // What is broken off in the middle must not look complete: the fault ends both connections.
                let step = decoder.step(&bytes[taken..]).map_err(|_| FAILED)?;
                let piece = &bytes[taken..taken + step.taken];
                match form {
                    Form::Contents if step.piece == Piece::Data => out.extend_from_slice(piece),
                    Form::Chunks => {
                        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                        out.extend_from_slice(piece);
                        out.extend_from_slice(b"\r\n");
                    }
                    Form::Same | Form::Contents => {}
                }
                taken += step.taken;
            }
            self.body_bytes += taken as u64;
            self.status.get_or_insert(reply.status());
            if decoder.is_ended() {
                self.reply = Reply::Ended;
            }
            wire.send(cx, out, if same { &bytes[..taken] } else { &[] }).map_err(|_| Outcome::Client)?;
        } else {
            self.status.get_or_insert(reply.status());
            wire.send(cx, out, &[]).map_err(|_| Outcome::Client)?;
        }
        // Nobody has asked for what follows.
        self.server_goes_on &= taken == bytes.len();
        Ok(())
    }

    /// The server has ended its side.
    fn receive_end(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        let Reply::Body(decoder, form) = &self.reply else {
            return Err(Outcome::Server { timed_out: false });
        };
        if !decoder.ends_by_close() {
            return Err(Outcome::Server { timed_out: false });
        }
        let last: &[u8] = if *form == Form::Chunks { b"0\r\n\r\n" } else { b"" };
        self.reply = Reply::Ended;
        self.server_goes_on = false;
        self.client.wire.send(cx, last, &[]).map_err(|_| Outcome::Client)
    }

    /// Notices a client that leaves while it waits. A request that comes early is kept, one read of it.
    fn watch(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        if self.is_uploading() || !self.client.unread.is_empty() {
            return Ok(());
        }
        let Client { wire, unread, .. } = &mut *self.client;
        let read = wire.poll_read(cx, |_, _, bytes| unread.extend_from_slice(bytes));
        match read {
            Poll::Ready(Ok(())) if unread.is_empty() => Err(Outcome::Client),
            Poll::Ready(Err(_)) => Err(Outcome::Client),
            _ => Ok(()),
        }
    }

    /// Whether the client may still be sending.
    pub(super) const fn is_cut_short(&self) -> bool {
        !self.upload.is_ended()
    }

    /// Whether the server has all of the request, so that its connection can take another one.
    pub(super) const fn is_idle(&self) -> bool {
        self.upload.is_ended() && !self.upload_over && self.server.is_drained()
    }

    /// Whether the client has got a part of a reply.
    pub(super) const fn has_begun(&self) -> bool {
        self.status.is_some() || self.interim > 0
    }
}

/// How many of `bytes` belong to a body.
fn advance(body: &mut Decoder, bytes: &[u8]) -> Result<usize, Fault> {
    let mut taken = 0;
    while taken < bytes.len() && !body.is_ended() {
        taken += body.step(&bytes[taken..])?.taken;
    }
    Ok(taken)
}

/// Adds a field of ours, without which the reply could be misread.
fn append(head: &mut ReplyHead, name: &[u8], value: &[u8]) -> Result<(), Outcome> {
    head.fields.append(name, value).map_err(|_| Outcome::Server { timed_out: false })
}
