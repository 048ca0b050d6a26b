//! One request on its way to a server, and the reply on its way back.

mod ways;

use super::client::Client;
use super::downstream::Downstream;
use super::fault::ClientFault;
use super::fields::{delimit, remove_hop, were_offered, write_trailers};
use super::limits::Limits;
use super::proxy::{Passage, Proxy};
use super::splice::{Pipe, Transport};
use super::transfer::{Broken, Coding, Transfer};
use super::upstream::Upstream;
use super::worker::Worker;
use crate::h1::{Body, HeadEnd, ReplyHead};
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::ReadBuf;

/// Bytes of a reply's head, and of interim ones before it.
const REPLY_HEAD_MAX: usize = 256 << 10;
/// Interim replies to one request.
const INTERIM_MAX: u32 = 32;
/// Bytes of a request's body that are kept in case another server gets the request.
const REPLAY_MAX: usize = 64 << 10;

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
#[derive(Debug)]
pub(super) enum Outcome {
    /// The client has the reply.
    Done {
        /// The server's connection can serve another request.
        server_goes_on: bool,
    },
    /// Both speak another protocol from here on.
    Tunnel,
    /// The client has left, broke the rules, or took too long.
    Client(ClientFault),
    /// The server has failed or took too long.
    Server(io::Error),
}

const CLIENT_LEFT: Outcome = Outcome::Client(ClientFault::Gone);

/// The server does not speak HTTP.
fn no_http() -> Outcome {
    Outcome::Server(io::ErrorKind::InvalidData.into())
}

/// An exchange under way.
#[derive(Debug)]
pub(super) struct Exchange<'a, D, S, P: Proxy> {
    client: &'a mut Client<D>,
    info: &'a P::Client,
    pub(super) server: Upstream<S>,
    worker: &'a Worker<P>,
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
    /// The client has a part of the reply already.
    resumes: bool,
    server_goes_on: bool,
    /// Contents that pass as they are go through it.
    pipe: Option<Pipe>,
    /// The contents of the reply are the server's own.
    is_unchanged: bool,
    limits: Limits,
}

impl<'a, D, S, P> Exchange<'a, D, S, P>
where
    D: Downstream,
    S: Transport,
    P: Proxy,
{
    pub(super) fn new(
        client: &'a mut Client<D>,
        info: &'a P::Client,
        server: Upstream<S>,
        worker: &'a Worker<P>,
        state: &'a mut P::Exchange,
        limits: Limits,
    ) -> Self {
        client.deadline.set(limits.server_read);
        let (body, resumes) = (client.request.body(), client.sent.status.is_some());
        let is_chunked = body == Body::Chunks && matches!(server, Upstream::Http1(_));
        let coding = if is_chunked { Coding::Chunks } else { Coding::Plain };
        Self {
            upload: Transfer::new(client.down.body(&client.request), coding),
            server,
            upload_failed: false,
            taken: Some(Vec::new()),
            reply: Reply::Head(HeadEnd::new()),
            held: Vec::new(),
            interim: 0,
            server_spoke: false,
            resumes,
            server_goes_on: false,
            pipe: None,
            is_unchanged: false,
            client,
            info,
            worker,
            state,
            limits,
        }
    }

    /// Begins to send the request, or with the reply, if a part of that has come.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>, replied: &[u8]) -> Result<(), Outcome> {
        if !replied.is_empty() {
            return self.receive(cx, replied);
        }
        let Client { request, out, .. } = &mut *self.client;
        self.server.send_head(cx, request, out).map_err(Outcome::Server)
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
            if self.is_client_drained() {
                match self.reply {
                    Reply::Tunnel => return Poll::Ready(Outcome::Tunnel),
                    Reply::Ended => {
                        return Poll::Ready(Outcome::Done { server_goes_on: self.server_goes_on });
                    }
                    Reply::Head(_) | Reply::Body(_) => {}
                }
            }
            if moved {
                let patience = self.patience();
                self.client.deadline.set(patience);
                continue;
            }
            // A client whose body is awaited is watched by that.
            if self.upload.is_ended() && self.client.watch(cx, self.limits.half_close).is_err() {
                return Poll::Ready(CLIENT_LEFT);
            }
            ready!(self.client.deadline.poll(cx));
            if !self.is_client_drained() {
                if let Some(more) = self.client.down.grace(self.limits.client_write) {
                    self.client.deadline.set(more);
                    continue;
                }
                return Poll::Ready(Outcome::Client(ClientFault::Stalled));
            }
            return Poll::Ready(if self.client_is_to_send() {
                Outcome::Client(ClientFault::TimedOut)
            } else {
                Outcome::Server(io::ErrorKind::TimedOut.into())
            });
        }
    }

    /// Whether the client's socket has taken all that came from the server.
    fn is_client_drained(&self) -> bool {
        self.client.down.is_drained() && self.pipe.as_ref().is_none_or(Pipe::is_empty)
    }

    /// The deadline of the side that must send or take bytes.
    fn patience(&self) -> Duration {
        if !self.is_client_drained() {
            self.limits.client_write
        } else if self.client_is_to_send() {
            self.limits.client_read
        } else if self.server.is_drained() {
            self.limits.server_read
        } else {
            self.limits.server_write
        }
    }

    /// Whether all wait for the client's body. A client that waits for 100 need not send (RFC 9110 section 10.1.1).
    fn client_is_to_send(&self) -> bool {
        let waits = self.client.request.expects_continue()
            && self.interim == 0
            && self.taken.as_ref().is_some_and(Vec::is_empty);
        self.is_uploading() && self.server.is_drained() && !waits
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
            let mut buffer = ReadBuf::new(buffer);
            match self.client.down.poll_fill(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let taken = self.upload_piece(cx, buffer.filled())?;
                    self.client.unread.extend_from_slice(&buffer.filled()[taken..]);
                    Ok(true)
                }
                Poll::Ready(Ok(())) if self.upload.ends_by_close() => self.upload_end(cx).map(|()| true),
                Poll::Ready(_) => Err(CLIENT_LEFT),
                Poll::Pending => Ok(moved),
            }
        })
    }

    /// Sends what of `bytes` belongs to the request's body. Returns how many those are.
    fn upload_piece(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<usize, Outcome> {
        let Self { upload, server, client, worker, info, state, .. } = self;
        let mut failed = false;
        client.out.clear();
        // Trailers of a request go no further: a server might take them for fields.
        let taken = upload.pass(
            bytes,
            &mut client.out,
            |_, _| {},
            |piece, is_last, _| worker.proxy.request_body(info, state, piece, is_last).map(|()| false),
            |head, piece| {
                failed |= server.send(cx, head, piece).is_err();
            },
        );
        if upload.is_ended() && taken.is_ok() {
            failed |= server.end_body(cx).is_err();
        }
        let taken = taken.map_err(|broken| match broken {
            Broken::Fault(fault) => Outcome::Client(ClientFault::Malformed(fault)),
            Broken::Refused => Outcome::Client(ClientFault::Refused),
        })?;
        self.upload_failed |= failed;
        self.taken = self.taken.take().filter(|kept| kept.len() + taken <= REPLAY_MAX).map(|mut kept| {
            kept.extend_from_slice(&bytes[..taken]);
            kept
        });
        Ok(taken)
    }

    /// The request's body has ended with its stream.
    fn upload_end(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        let Self { upload, server, client, worker, info, state, .. } = self;
        let mut failed = false;
        let ended = upload.finish(
            &mut client.out,
            &[],
            |piece, is_last, _| worker.proxy.request_body(info, state, piece, is_last).map(|()| false),
            |head, piece| {
                failed |= server.send(cx, head, piece).is_err();
            },
        );
        ended.map_err(|_| Outcome::Client(ClientFault::Refused))?;
        failed |= server.end_body(cx).is_err();
        self.upload_failed |= failed;
        Ok(())
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
        if !self.client.down.is_drained() {
            let before = self.client.down.progress();
            return match self.client.down.poll_drain(cx) {
                Poll::Ready(Ok(())) => Ok(true),
                Poll::Ready(Err(_)) => Err(CLIENT_LEFT),
                Poll::Pending => {
                    if self.client.down.progress() != before {
                        self.client.deadline.set(self.limits.client_write);
                    }
                    Ok(false)
                }
            };
        }
        if matches!(self.reply, Reply::Ended | Reply::Tunnel) && self.is_client_drained() {
            return Ok(false);
        }
        if let Upstream::Http2(_) = self.server {
            return self.download_part(cx);
        }
        if let Some(spliced) = self.splice(cx) {
            return spliced;
        }
        if D::IS_FRAMED {
            return self.download_shared(cx);
        }
        super::scratch::with(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            let Upstream::Http1(wire) = &mut self.server else { return Ok(false) };
            match wire.poll_fill(cx, &mut buffer) {
                Poll::Ready(Ok(())) => self.receive(cx, buffer.filled()).map(|()| true),
                Poll::Ready(Err(error)) => Err(Outcome::Server(error)),
                Poll::Pending => Ok(false),
            }
        })
    }

    /// Bytes of the server; none at the end of its stream.
    fn receive(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<(), Outcome> {
        if bytes.is_empty() {
            return self.end_reply(cx, &[]);
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
        if self.held.len() > REPLY_HEAD_MAX { Err(no_http()) } else { Ok(()) }
    }

    /// Uses bytes of the server. Returns how many; the rest begins a head whose end has not come.
    fn receive_messages(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<usize, Outcome> {
        let mut at = 0;
        while let Reply::Head(end) = &mut self.reply {
            let Some(length) = end.find(&bytes[at..]) else { return Ok(at) };
            self.client.reply.read(&bytes[at..at + length]).map_err(|_| no_http())?;
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
            return Err(no_http());
        }
        self.reply = Reply::Head(HeadEnd::new());
        let Client { down, request, reply, out, .. } = &mut *self.client;
        if request.is_http10() || self.resumes {
            return Ok(());
        }
        remove_hop(&mut reply.fields);
        delimit(&mut reply.fields, Body::None, None).map_err(|_| no_http())?;
        down.send_interim(cx, reply, out).map_err(|_| CLIENT_LEFT)
    }

    /// The head of the final reply has come, with the first bytes of its body.
    fn begin_reply(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        if self.resumes {
            return self.resume_reply(cx, rest);
        }
        let uploading = !self.upload.is_ended();
        let Client { down, request, reply: head, unread, protocols, sent, .. } = &mut *self.client;
        if head.status() == 101 {
            return self.begin_tunnel(cx, rest);
        }
        let (old, body) = (request.is_http10(), head.body(request.method()));
        let goes_on = !uploading && down.goes_on(request, unread);
        *protocols = None;
        self.server_goes_on = head.is_persistent() && body != Body::Close;
        let length = if head.status() == 204 { None } else { head.stated_length() };
        remove_hop(&mut head.fields);
        let passage = self.worker.proxy.reply(self.info, self.state, request, head);
        let passage = passage.map_err(|_| no_http())?;
        self.is_unchanged = passage == Passage::AsIs;
        let written = match (body, passage) {
            (Body::None, _) => Body::None,
            (Body::Length(_), Passage::Changed) | (Body::Chunks | Body::Close, _) if old || D::IS_FRAMED => {
                Body::Close
            }
            (Body::Length(_), Passage::Changed) | (Body::Chunks | Body::Close, _) => Body::Chunks,
            (Body::Length(bytes), _) => Body::Length(bytes),
        };
        let coding = if written == Body::Chunks { Coding::Chunks } else { Coding::Plain };
        delimit(&mut head.fields, written, length.filter(|_| body == Body::None)).map_err(|_| no_http())?;
        sent.ends_by_close = written == Body::Close;
        sent.goes_on = goes_on && written != Body::Close && !self.worker.is_ending();
        sent.length = if let Body::Length(bytes) = written { Some(bytes) } else { None };
        if D::IS_FRAMED {
            // The end of a stream does not end its connection.
        } else if !sent.goes_on {
            append(head, b"close")?;
        } else if old {
            append(head, b"keep-alive")?;
        }
        // A stream has its own end, behind which trailers come; h2 sees to it that the length is as stated.
        let is_length_of_stream = matches!((body, &self.server), (Body::Length(_), Upstream::Http2(_)));
        let transfer = Transfer::new(if is_length_of_stream { Body::Close } else { body }, coding);
        self.reply = if transfer.is_ended() { Reply::Ended } else { Reply::Body(transfer) };
        let Client { down, reply, out, .. } = &mut *self.client;
        down.begin(reply, out);
        self.pass_body(cx, rest)
    }

    /// The rest of a reply that another server has begun.
    fn resume_reply(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        let Client { request, reply: head, sent, out, .. } = &mut *self.client;
        let body = head.body(request.method());
        self.server_goes_on = head.is_persistent();
        remove_hop(&mut head.fields);
        let passage = self.worker.proxy.reply(self.info, self.state, request, head);
        let left = sent.length.and_then(|length| length.checked_sub(sent.body_bytes));
        if passage != Ok(Passage::Rest) || left.map(Body::Length) != Some(body) {
            return Err(no_http());
        }
        self.reply = Reply::Body(Transfer::new(body, Coding::Plain));
        out.clear();
        self.pass_body(cx, rest)
    }

    /// The server switches to another protocol, and these are its first bytes.
    fn begin_tunnel(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        let Client { down, request, reply, out, protocols, sent, .. } = &mut *self.client;
        let offered = protocols.take().ok_or_else(no_http)?;
        // RFC 9110 section 15.2.2.
        if matches!(self.server, Upstream::Http2(_))
            || !self.upload.is_ended()
            || !were_offered(&reply.fields, &offered)
        {
            return Err(no_http());
        }
        let taken: Vec<u8> = reply.fields.get(b"upgrade").unwrap_or_default().to_vec();
        remove_hop(&mut reply.fields);
        let passage = self.worker.proxy.reply(self.info, self.state, request, reply);
        passage.map_err(|_| no_http())?;
        delimit(&mut reply.fields, Body::None, None).map_err(|_| no_http())?;
        append(reply, b"upgrade")?;
        reply.fields.append(b"Upgrade", &taken).map_err(|_| no_http())?;
        (sent.status, sent.body_bytes) = (Some(101), rest.len() as u64);
        self.reply = Reply::Tunnel;
        down.begin(reply, out);
        down.send(cx, out, rest).map_err(|_| CLIENT_LEFT)
    }

    /// Passes bytes of the body on, after the head if that is still to be sent.
    fn pass_body(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<(), Outcome> {
        let Self { client, worker, state, .. } = self;
        let Client { down, out, reply, sent, .. } = &mut **client;
        let (mut written, mut begun) = (Ok(()), false);
        let mut taken = Ok(0);
        if let Reply::Body(transfer) = &mut self.reply {
            let edit = |piece: &[u8], is_last, instead: &mut Vec<u8>| {
                Ok(worker.proxy.reply_body(state, piece, is_last, instead))
            };
            taken = transfer.pass(bytes, out, write_trailers, edit, |head, piece| {
                begun = true;
                if written.is_ok() {
                    written = down.send(cx, head, piece);
                }
            });
            sent.body_bytes += transfer.take_count();
        }
        // A head without contents yet.
        if taken.is_ok() && !out.is_empty() {
            written = written.and_then(|()| down.send(cx, out, &[]));
            out.clear();
        }
        if taken.is_ok() || begun {
            sent.status.get_or_insert(reply.status());
            let trailers = match &self.reply {
                Reply::Body(transfer) if transfer.is_ended() => Some(transfer.trailers()),
                Reply::Ended => Some(&[][..]),
                _ => None,
            };
            written = written.and_then(|()| down.finish(cx, trailers));
        }
        let taken = taken.map_err(|_| no_http())?;
        if matches!(&self.reply, Reply::Body(transfer) if transfer.is_ended()) {
            self.reply = Reply::Ended;
        }
        // Nobody has asked for what follows.
        self.server_goes_on &= taken == bytes.len();
        written.map_err(|_| CLIENT_LEFT)
    }

    /// The server has ended its side, with these lines of trailers.
    fn end_reply(&mut self, cx: &mut Context<'_>, trailers: &[u8]) -> Result<(), Outcome> {
        let broken_off = || Outcome::Server(io::ErrorKind::UnexpectedEof.into());
        let Self { client, worker, state, .. } = self;
        let Reply::Body(transfer) = &mut self.reply else { return Err(broken_off()) };
        if !transfer.ends_by_close() {
            return Err(broken_off());
        }
        let Client { down, out, sent, .. } = &mut **client;
        let edit = |piece: &[u8], is_last, instead: &mut Vec<u8>| {
            Ok(worker.proxy.reply_body(state, piece, is_last, instead))
        };
        let mut written = Ok(());
        let finished = transfer.finish(out, trailers, edit, |head, piece| {
            if written.is_ok() {
                written = down.send(cx, head, piece);
            }
        });
        finished.map_err(|_| no_http())?;
        written = written.and_then(|()| down.finish(cx, Some(trailers)));
        sent.body_bytes += transfer.take_count();
        self.reply = Reply::Ended;
        self.server_goes_on = false;
        written.map_err(|_| CLIENT_LEFT)
    }

    /// Gives back what the thread's exchanges share.
    pub(super) fn end(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            // It was counted on its way into the pipe.
            self.client.sent.body_bytes = self.client.sent.body_bytes.saturating_sub(pipe.held() as u64);
            self.worker.pipes.put(pipe);
        }
    }

    /// Whether the server has all of the request, so that its connection can take another one.
    pub(super) fn is_idle(&self) -> bool {
        self.upload.is_ended() && !self.upload_failed && self.server.is_drained()
    }
}

/// Adds an option of ours, without which the reply could be misread.
fn append(head: &mut ReplyHead, option: &[u8]) -> Result<(), Outcome> {
    head.fields.append(b"Connection", option).map_err(|_| no_http())
}
