//! An exchange: a request on its way to a server, and the reply on its way back.

mod paths;

use super::client_session::ClientSession;
use super::client_side::ClientSide;
use super::fault::ClientFault;
use super::fields::{are_all_offered, delimit, remove_hop_of_reply, write_trailers};
use super::limits::Limits;
use super::proxy::{Proxy, ReplyForwarding};
use super::server_side::ServerSide;
use super::splice::{Pipe, Transport};
use super::transfer::{BodyCoding, BodyTransfer, TransferError};
use super::worker::Worker;
use crate::h1::{Body, HeadEnd, ReplyHead};
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::ReadBuf;

/// Largest size of the head of a reply, in bytes.
const REPLY_HEAD_MAX: usize = 256 << 10;
/// Largest number of interim replies to one request.
const INTERIM_MAX: u32 = 32;
/// Largest part of a request body that is kept for another attempt, in bytes. A body that was complete in memory before
/// is kept whatever its size.
const REPLAY_MAX: usize = 64 << 10;

/// The progress of the reply.
#[derive(Debug)]
enum ReplyStage {
    /// The end of the head has not arrived.
    Head(HeadEnd),
    Body(BodyTransfer),
    Ended,
    /// The server has switched to another protocol.
    Tunnel,
}

/// The result of an exchange.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The client has the complete reply.
    Done {
        /// The connection to the server can serve another request.
        server_keep_alive: bool,
    },
    /// The client and the server continue with another protocol.
    Tunnel,
    /// The client has disconnected, violated HTTP, or exceeded a timeout.
    Client(ClientFault),
    /// The server has failed or exceeded a timeout.
    Server(io::Error),
}

const CLIENT_GONE: Outcome = Outcome::Client(ClientFault::Gone);

/// Returns the outcome for a server that violates HTTP.
fn invalid_reply() -> Outcome {
    Outcome::Server(io::ErrorKind::InvalidData.into())
}

/// An exchange of one request and its reply with one server.
#[derive(Debug)]
pub(super) struct ServerExchange<'a, D, S, P: Proxy> {
    client: &'a mut ClientSession<D>,
    client_data: &'a P::Client,
    pub(super) server: ServerSide<S>,
    worker: &'a Worker<P>,
    state: &'a mut P::Exchange,
    upload: BodyTransfer,
    /// The server accepts no more bytes of the request. It may still reply.
    upload_failed: bool,
    /// The bytes of the request body that were taken from the client; `None` if they exceed [`REPLAY_MAX`].
    replay_bytes: Option<Vec<u8>>,
    reply: ReplyStage,
    /// The beginning of a reply head whose end has not arrived.
    partial_head: Vec<u8>,
    interim: u32,
    /// The server has sent at least one byte.
    pub(super) server_has_replied: bool,
    /// The client already has a part of the reply.
    is_resumed: bool,
    server_keep_alive: bool,
    /// The pipe through which content is spliced.
    pipe: Option<Pipe>,
    /// The proxy relays the content of the reply unchanged.
    is_relayed_unchanged: bool,
    limits: Limits,
}

impl<'a, D, S, P> ServerExchange<'a, D, S, P>
where
    D: ClientSide,
    S: Transport,
    P: Proxy,
{
    pub(super) fn new(
        client: &'a mut ClientSession<D>,
        client_data: &'a P::Client,
        server: ServerSide<S>,
        worker: &'a Worker<P>,
        state: &'a mut P::Exchange,
        limits: Limits,
    ) -> Self {
        client.deadline.set(limits.server_read);
        let (body, is_resumed) = (client.request.body(), client.sent.status.is_some());
        let is_chunked = body == Body::Chunks && matches!(server, ServerSide::Http1(_));
        let coding = if is_chunked { BodyCoding::Chunks } else { BodyCoding::Plain };
        Self {
            upload: BodyTransfer::new(client.side.body(&client.request), coding),
            server,
            upload_failed: false,
            replay_bytes: Some(Vec::new()),
            reply: ReplyStage::Head(HeadEnd::new()),
            partial_head: Vec::new(),
            interim: 0,
            server_has_replied: false,
            is_resumed,
            server_keep_alive: false,
            pipe: None,
            is_relayed_unchanged: false,
            client,
            client_data,
            worker,
            state,
            limits,
        }
    }

    /// Starts to send the request. If `received` has a part of the reply already, starts with the reply
    /// instead.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>, received: &[u8]) -> Result<(), Outcome> {
        if !received.is_empty() {
            return self.receive_bytes(cx, received);
        }
        let ClientSession { request, out, .. } = &mut *self.client;
        self.server.send_head(cx, request, out).map_err(Outcome::Server)
    }

    /// Makes progress until both sides must be waited for.
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
                    ReplyStage::Tunnel => return Poll::Ready(Outcome::Tunnel),
                    ReplyStage::Ended => {
                        return Poll::Ready(Outcome::Done { server_keep_alive: self.server_keep_alive });
                    }
                    ReplyStage::Head(_) | ReplyStage::Body(_) => {}
                }
            }
            if moved {
                let timeout = self.current_timeout();
                self.client.deadline.set(timeout);
                continue;
            }
            // If the body of the request is not complete, reading it detects a disconnect.
            if self.upload.is_ended() && self.client.check_disconnect(cx, self.limits.half_close).is_err() {
                return Poll::Ready(CLIENT_GONE);
            }
            ready!(self.client.deadline.poll(cx));
            if !self.is_client_drained() {
                if let Some(more) = self.client.side.extra_time(self.limits.client_write) {
                    self.client.deadline.set(more);
                    continue;
                }
                return Poll::Ready(Outcome::Client(ClientFault::Stalled));
            }
            return Poll::Ready(if self.awaits_client_body() {
                Outcome::Client(ClientFault::TimedOut)
            } else {
                Outcome::Server(io::ErrorKind::TimedOut.into())
            });
        }
    }

    /// Returns whether the socket of the client has accepted all bytes from the server.
    fn is_client_drained(&self) -> bool {
        self.client.side.is_drained() && self.pipe.as_ref().is_none_or(Pipe::is_empty)
    }

    /// Returns the timeout of the side that must send or accept bytes.
    fn current_timeout(&self) -> Duration {
        if !self.is_client_drained() {
            self.limits.client_write
        } else if self.awaits_client_body() {
            self.limits.client_read
        } else if self.server.is_drained() {
            self.limits.server_read
        } else {
            self.limits.server_write
        }
    }

    /// Returns whether the body of the client is the only thing missing. A client that waits for 100 need not
    /// send (RFC 9110 section 10.1.1).
    fn awaits_client_body(&self) -> bool {
        let waits = self.client.request.expects_continue()
            && self.interim == 0
            && self.replay_bytes.as_ref().is_some_and(Vec::is_empty);
        self.is_uploading() && self.server.is_drained() && !waits
    }

    /// Returns whether the request body is incomplete and the server accepts it.
    fn is_uploading(&self) -> bool {
        !self.upload.is_ended() && !self.upload_failed
    }

    /// Sends the request body to the server. Returns whether there was progress.
    fn upload(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        let mut moved = false;
        if !self.server.is_drained() && !self.upload_failed {
            match self.server.poll_drain(cx) {
                Poll::Ready(Ok(())) => moved = true,
                // The server may have replied before.
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
            self.client.consume_unread(taken);
            return Ok(true);
        }
        super::scratch::with_buffer(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            match self.client.side.poll_fill(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let taken = self.upload_piece(cx, buffer.filled())?;
                    self.client.unread.extend_from_slice(&buffer.filled()[taken..]);
                    Ok(true)
                }
                Poll::Ready(Ok(())) if self.upload.ends_by_close() => self.upload_end(cx).map(|()| true),
                Poll::Ready(_) => Err(CLIENT_GONE),
                Poll::Pending => Ok(moved),
            }
        })
    }

    /// Sends the part of `bytes` that belongs to the request body. Returns the length of this part.
    fn upload_piece(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<usize, Outcome> {
        let Self { upload, server, client, worker, client_data, state, .. } = self;
        let mut failed = false;
        client.out.clear();
        // Trailers of a request are not relayed, because a server might take them for header fields.
        let taken = upload.forward(
            bytes,
            &mut client.out,
            |_, _| {},
            |piece, is_last, _| worker.proxy.request_body(client_data, state, piece, is_last).map(|()| false),
            |head, piece| {
                failed |= server.send(cx, head, piece).is_err();
            },
        );
        if upload.is_ended() && taken.is_ok() {
            failed |= server.end_body(cx).is_err();
        }
        let taken = taken.map_err(|error| match error {
            TransferError::Fault(fault) => Outcome::Client(ClientFault::Malformed(fault)),
            TransferError::Refused => Outcome::Client(ClientFault::Refused),
        })?;
        self.upload_failed |= failed;
        let replay_max = if self.client.request.holds_body() { usize::MAX } else { REPLAY_MAX };
        self.replay_bytes =
            self.replay_bytes.take().filter(|kept| kept.len() + taken <= replay_max).map(|mut kept| {
                kept.extend_from_slice(&bytes[..taken]);
                kept
            });
        Ok(taken)
    }

    /// Ends a request body that ends with its stream.
    fn upload_end(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        let Self { upload, server, client, worker, client_data, state, .. } = self;
        let mut failed = false;
        let ended = upload.finish(
            &mut client.out,
            &[],
            |piece, is_last, _| worker.proxy.request_body(client_data, state, piece, is_last).map(|()| false),
            |head, piece| {
                failed |= server.send(cx, head, piece).is_err();
            },
        );
        ended.map_err(|_| Outcome::Client(ClientFault::Refused))?;
        failed |= server.end_body(cx).is_err();
        self.upload_failed |= failed;
        Ok(())
    }

    /// Puts the bytes of the request body back, for another attempt. Returns false if some of them were not
    /// kept.
    pub(super) fn rewind(&mut self) -> bool {
        let Some(mut taken) = self.replay_bytes.take() else { return false };
        if !taken.is_empty() {
            taken.append(&mut self.client.unread);
            self.client.unread = taken;
        }
        true
    }

    /// Sends the reply to the client. Returns whether there was progress.
    fn download(&mut self, cx: &mut Context<'_>) -> Result<bool, Outcome> {
        if !self.client.side.is_drained() {
            let before = self.client.side.progress();
            return match self.client.side.poll_drain(cx) {
                Poll::Ready(Ok(())) => Ok(true),
                Poll::Ready(Err(_)) => Err(CLIENT_GONE),
                Poll::Pending => {
                    if self.client.side.progress() != before {
                        self.client.deadline.set(self.limits.client_write);
                    }
                    Ok(false)
                }
            };
        }
        if matches!(self.reply, ReplyStage::Ended | ReplyStage::Tunnel) && self.is_client_drained() {
            return Ok(false);
        }
        if let ServerSide::Http2(_) = self.server {
            return self.download_part(cx);
        }
        if let Some(spliced) = self.splice(cx) {
            return spliced;
        }
        if D::IS_FRAMED {
            return self.download_shared(cx);
        }
        super::scratch::with_buffer(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            let ServerSide::Http1(stream) = &mut self.server else { return Ok(false) };
            match stream.poll_fill(cx, &mut buffer) {
                Poll::Ready(Ok(())) => self.receive_bytes(cx, buffer.filled()).map(|()| true),
                Poll::Ready(Err(error)) => Err(Outcome::Server(error)),
                Poll::Pending => Ok(false),
            }
        })
    }

    /// Processes bytes from the server. `bytes` is empty at the end of the connection.
    fn receive_bytes(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<(), Outcome> {
        if bytes.is_empty() {
            return self.end_reply(cx, &[]);
        }
        self.server_has_replied = true;
        if self.partial_head.is_empty() {
            let used = self.receive_messages(cx, bytes)?;
            self.partial_head.extend_from_slice(&bytes[used..]);
        } else {
            let mut partial_head = std::mem::take(&mut self.partial_head);
            partial_head.extend_from_slice(bytes);
            let used = self.receive_messages(cx, &partial_head)?;
            partial_head.drain(..used);
            self.partial_head = partial_head;
        }
        if self.partial_head.len() > REPLY_HEAD_MAX { Err(invalid_reply()) } else { Ok(()) }
    }

    /// Processes heads and content from the server. Returns the number of used bytes. The others are the
    /// beginning of a head.
    fn receive_messages(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<usize, Outcome> {
        let mut at = 0;
        while let ReplyStage::Head(end) = &mut self.reply {
            let Some(length) = end.find(&bytes[at..]) else { return Ok(at) };
            self.client.reply.read(&bytes[at..at + length]).map_err(|_| invalid_reply())?;
            at += length;
            if self.client.reply.is_interim() {
                self.forward_interim(cx)?;
            } else {
                self.begin_reply(cx, &bytes[at..])?;
                return Ok(bytes.len());
            }
        }
        self.client.out.clear();
        self.forward_body(cx, &bytes[at..])?;
        Ok(bytes.len())
    }

    /// Relays an interim reply to a client whose version supports it (RFC 9110 section 15.2).
    fn forward_interim(&mut self, cx: &mut Context<'_>) -> Result<(), Outcome> {
        self.interim += 1;
        if self.interim > INTERIM_MAX {
            return Err(invalid_reply());
        }
        self.reply = ReplyStage::Head(HeadEnd::new());
        let ClientSession { side, request, reply, out, .. } = &mut *self.client;
        if request.is_http10() || self.is_resumed {
            return Ok(());
        }
        remove_hop_of_reply(&mut reply.fields);
        delimit(&mut reply.fields, Body::None, None).map_err(|_| invalid_reply())?;
        side.send_interim(cx, reply, out).map_err(|_| CLIENT_GONE)
    }

    /// Starts the final reply, whose head has arrived with the first bytes of its body.
    fn begin_reply(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        if self.is_resumed {
            return self.resume_reply(cx, rest);
        }
        let uploading = !self.upload.is_ended();
        let ClientSession { side, request, reply: head, unread, protocols, sent, .. } = &mut *self.client;
        if head.status() == 101 {
            return self.begin_tunnel(cx, rest);
        }
        let (old, body) = (request.is_http10(), head.body(request.method()));
        let client_keep_alive = !uploading && side.can_continue(request, unread);
        *protocols = None;
        self.server_keep_alive = head.is_persistent() && body != Body::Close;
        let length = if head.status() == 204 { None } else { head.declared_length() };
        remove_hop_of_reply(&mut head.fields);
        let forwarding = self.worker.proxy.reply(self.client_data, self.state, request, head);
        let forwarding = forwarding.map_err(|_| invalid_reply())?;
        self.is_relayed_unchanged = forwarding == ReplyForwarding::AsIs;
        if request.holds_body() {
            // A stream may last for hours, and no other server is asked any more.
            self.replay_bytes = None;
        }
        let written = match (body, forwarding) {
            (Body::None, _) => Body::None,
            (Body::Length(_), ReplyForwarding::Changed) | (Body::Chunks | Body::Close, _)
                if old || D::IS_FRAMED =>
            {
                Body::Close
            }
            (Body::Length(_), ReplyForwarding::Changed) | (Body::Chunks | Body::Close, _) => Body::Chunks,
            (Body::Length(bytes), _) => Body::Length(bytes),
        };
        let coding = if written == Body::Chunks { BodyCoding::Chunks } else { BodyCoding::Plain };
        delimit(&mut head.fields, written, length.filter(|_| body == Body::None))
            .map_err(|_| invalid_reply())?;
        sent.ends_by_close = written == Body::Close;
        sent.keep_alive = client_keep_alive && written != Body::Close && !self.worker.is_ending();
        sent.length = if let Body::Length(bytes) = written { Some(bytes) } else { None };
        if D::IS_FRAMED {
            // The end of a stream does not end its connection.
        } else if !sent.keep_alive {
            append_connection_option(head, b"close")?;
        } else if old {
            append_connection_option(head, b"keep-alive")?;
        }
        // An HTTP/2 stream has its own end, and trailers may follow the body. The h2 crate checks that the
        // length is as declared.
        let is_length_of_stream = matches!((body, &self.server), (Body::Length(_), ServerSide::Http2(_)));
        let transfer = BodyTransfer::new(if is_length_of_stream { Body::Close } else { body }, coding);
        self.reply = if transfer.is_ended() { ReplyStage::Ended } else { ReplyStage::Body(transfer) };
        let ClientSession { side, reply, out, .. } = &mut *self.client;
        side.begin_reply(reply, out);
        self.forward_body(cx, rest)
    }

    /// Continues a reply that another server has started.
    fn resume_reply(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        let ClientSession { request, reply: head, sent, out, .. } = &mut *self.client;
        let body = head.body(request.method());
        self.server_keep_alive = head.is_persistent();
        remove_hop_of_reply(&mut head.fields);
        let forwarding = self.worker.proxy.reply(self.client_data, self.state, request, head);
        let left = sent.length.and_then(|length| length.checked_sub(sent.body_bytes));
        if forwarding != Ok(ReplyForwarding::Rest) || left.map(Body::Length) != Some(body) {
            return Err(invalid_reply());
        }
        self.reply = ReplyStage::Body(BodyTransfer::new(body, BodyCoding::Plain));
        out.clear();
        self.forward_body(cx, rest)
    }

    /// Starts a tunnel. `rest` has the first bytes of the other protocol from the server.
    fn begin_tunnel(&mut self, cx: &mut Context<'_>, rest: &[u8]) -> Result<(), Outcome> {
        let ClientSession { side, request, reply, out, protocols, sent, .. } = &mut *self.client;
        let offered = protocols.take().ok_or_else(invalid_reply)?;
        // The server may switch only to an offered protocol, and only after the complete request (RFC 9110
        // section 15.2.2).
        if matches!(self.server, ServerSide::Http2(_))
            || !self.upload.is_ended()
            || !are_all_offered(&reply.fields, &offered)
        {
            return Err(invalid_reply());
        }
        let taken: Vec<u8> = reply.fields.get(b"upgrade").unwrap_or_default().to_vec();
        remove_hop_of_reply(&mut reply.fields);
        let forwarding = self.worker.proxy.reply(self.client_data, self.state, request, reply);
        forwarding.map_err(|_| invalid_reply())?;
        delimit(&mut reply.fields, Body::None, None).map_err(|_| invalid_reply())?;
        append_connection_option(reply, b"upgrade")?;
        reply.fields.append(b"Upgrade", &taken).map_err(|_| invalid_reply())?;
        (sent.status, sent.body_bytes) = (Some(101), rest.len() as u64);
        self.reply = ReplyStage::Tunnel;
        side.begin_reply(reply, out);
        side.send(cx, out, rest).map_err(|_| CLIENT_GONE)
    }

    /// Relays bytes of the body, preceded by the head if it has not been sent.
    fn forward_body(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Result<(), Outcome> {
        let Self { client, worker, state, .. } = self;
        let ClientSession { side, out, reply, sent, .. } = &mut **client;
        let (mut written, mut begun) = (Ok(()), false);
        let mut taken = Ok(0);
        if let ReplyStage::Body(transfer) = &mut self.reply {
            let edit = |piece: &[u8], is_last, instead: &mut Vec<u8>| {
                Ok(worker.proxy.reply_body(state, piece, is_last, instead))
            };
            taken = transfer.forward(bytes, out, write_trailers, edit, |head, piece| {
                begun = true;
                if written.is_ok() {
                    written = side.send(cx, head, piece);
                }
            });
            sent.body_bytes += transfer.take_sent();
        }
        // The head must be sent, although no content has arrived yet.
        if taken.is_ok() && !out.is_empty() {
            written = written.and_then(|()| side.send(cx, out, &[]));
            out.clear();
        }
        if taken.is_ok() || begun {
            sent.status.get_or_insert(reply.status());
            let trailers = match &self.reply {
                ReplyStage::Body(transfer) if transfer.is_ended() => Some(transfer.trailers()),
                ReplyStage::Ended => Some(&[][..]),
                _ => None,
            };
            written = written.and_then(|()| side.flush_pieces(cx, trailers));
        }
        let taken = taken.map_err(|_| invalid_reply())?;
        if matches!(&self.reply, ReplyStage::Body(transfer) if transfer.is_ended()) {
            self.reply = ReplyStage::Ended;
        }
        // Bytes after the reply belong to no request. The connection is not reused.
        self.server_keep_alive &= taken == bytes.len();
        written.map_err(|_| CLIENT_GONE)
    }

    /// Ends the reply, because the server has ended its connection or stream. `trailers` has trailer field
    /// lines.
    fn end_reply(&mut self, cx: &mut Context<'_>, trailers: &[u8]) -> Result<(), Outcome> {
        let incomplete = || Outcome::Server(io::ErrorKind::UnexpectedEof.into());
        let Self { client, worker, state, .. } = self;
        let ReplyStage::Body(transfer) = &mut self.reply else { return Err(incomplete()) };
        if !transfer.ends_by_close() {
            return Err(incomplete());
        }
        let ClientSession { side, out, sent, .. } = &mut **client;
        let edit = |piece: &[u8], is_last, instead: &mut Vec<u8>| {
            Ok(worker.proxy.reply_body(state, piece, is_last, instead))
        };
        let mut written = Ok(());
        let finished = transfer.finish(out, trailers, edit, |head, piece| {
            if written.is_ok() {
                written = side.send(cx, head, piece);
            }
        });
        finished.map_err(|_| invalid_reply())?;
        written = written.and_then(|()| side.flush_pieces(cx, Some(trailers)));
        sent.body_bytes += transfer.take_sent();
        self.reply = ReplyStage::Ended;
        self.server_keep_alive = false;
        written.map_err(|_| CLIENT_GONE)
    }

    /// Returns the pipe to the worker.
    pub(super) fn return_pipe(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            // The bytes in the pipe were counted when they were read.
            self.client.sent.body_bytes = self.client.sent.body_bytes.saturating_sub(pipe.len() as u64);
            self.worker.pipes.put(pipe);
        }
    }

    /// Returns whether the server has the complete request, so that its connection can be reused.
    pub(super) fn is_idle(&self) -> bool {
        self.upload.is_ended() && !self.upload_failed && self.server.is_drained()
    }
}

/// Appends an option to the `Connection` field. Without it the reply could be delimited wrongly.
fn append_connection_option(head: &mut ReplyHead, option: &[u8]) -> Result<(), Outcome> {
    head.fields.append(b"Connection", option).map_err(|_| invalid_reply())
}
