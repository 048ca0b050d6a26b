//! An answer of the proxy on its way to the client.

use super::answer::{Answer, BrokenOff, Contents, Then};
use super::client::{Client, Sent};
use super::downstream::Downstream;
use super::fault::ClientFault;
use super::fields::delimit;
use super::intake::Intake;
use super::limits::Limits;
use super::transfer::COPIED_MAX;
use crate::h1::{Body, FieldName};
use bytes::Bytes;
use std::future::poll_fn;
use std::io::{self, Write};
use std::task::{Context, Poll, ready};

impl<D: Downstream> Client<D> {
    /// Answers. The connection `goes_on` or is told to end. The rest of the request's body passes to the proxy meanwhile.
    pub(super) async fn answer(
        &mut self,
        answer: Answer,
        goes_on: bool,
        limits: &Limits,
        intake: Option<&mut Intake>,
    ) -> Result<(), Unanswered> {
        let Answer { head, body, then } = answer;
        self.reply = head;
        let has_contents = self.has_contents();
        let written = match (has_contents, body.length()) {
            (false, _) => Body::None,
            (true, Some(length)) => Body::Length(length),
            (true, None) if D::IS_FRAMED || self.request.is_http10() => Body::Close,
            (true, None) => Body::Chunks,
        };
        let stated = self.stated_length(&body);
        let goes_on = goes_on && (D::IS_FRAMED || written != Body::Close);
        let fields = &mut self.reply.fields;
        // The limit of fields is far above what a proxy puts into an answer of its own.
        let _ = delimit(fields, written, stated);
        if D::IS_FRAMED || then == Then::Leaves {
            // The end of a stream does not end its connection, and a connection that leaves is not one of HTTP.
        } else if !goes_on {
            let _ = fields.append(b"Connection", b"close");
        } else if self.request.is_http10() {
            let _ = fields.append(b"Connection", b"keep-alive");
        }
        self.down.begin(&self.reply, &mut self.out);
        self.sent = Sent {
            status: Some(self.reply.status()),
            ends_by_close: written == Body::Close,
            goes_on,
            ..Sent::default()
        };
        self.deadline.set(limits.client_write);
        let mut sending = Sending {
            body: if has_contents { body } else { Contents::default() },
            left: if let Body::Length(length) = written { Some(length) } else { None },
            is_chunked: written == Body::Chunks,
            begun: false,
            in_chunk: false,
            is_ended: false,
            intake,
        };
        poll_fn(|cx| sending.poll(cx, self, limits)).await
    }

    /// Whether the reply has contents (RFC 9110 section 6.4.1).
    fn has_contents(&self) -> bool {
        !matches!(self.reply.status(), 100..=199 | 204 | 304) && self.request.method() != b"HEAD"
    }

    /// The length that is stated of a reply without contents (RFC 9110 section 8.6).
    fn stated_length(&self, body: &Contents) -> Option<u64> {
        if matches!(self.reply.status(), 100..=199 | 204) {
            return None;
        }
        let stated = self.reply.fields.named(FieldName::ContentLength);
        let stated = stated.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        let is_head = self.request.method() == b"HEAD" && self.reply.status() != 304;
        // An empty body of a reply to HEAD says nothing about the reply to GET.
        stated.or_else(|| body.length().filter(|length| is_head && *length > 0))
    }
}

/// The reason why an answer is not complete at the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// The client has left.
    Gone,
    /// The client takes nothing.
    Stalled,
    /// The contents broke off.
    BrokenOff,
}

impl From<Unanswered> for Option<ClientFault> {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Gone => Some(ClientFault::Gone),
            Unanswered::Stalled => Some(ClientFault::Stalled),
            Unanswered::BrokenOff => None,
        }
    }
}

/// An answer on its way to the client.
#[derive(Debug)]
struct Sending<'a> {
    body: Contents,
    /// Bytes that are to come, if their number is stated.
    left: Option<u64>,
    is_chunked: bool,
    /// The head is on its way.
    begun: bool,
    /// The line that ends a chunk is still to be sent.
    in_chunk: bool,
    is_ended: bool,
    intake: Option<&'a mut Intake>,
}

impl Sending<'_> {
    fn poll<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<D>,
        limits: &Limits,
    ) -> Poll<Result<(), Unanswered>> {
        let gone = |_: io::Error| Unanswered::Gone;
        loop {
            let is_read = match &mut self.intake {
                Some(Intake { handle, reading }) => match reading.advance(cx, client, handle, false) {
                    Ok(is_read) => is_read,
                    // The client sends no more, and reads perhaps (RFC 9112 section 9.5).
                    Err(_) if limits.half_close => false,
                    Err(_) => return Poll::Ready(Err(Unanswered::Gone)),
                },
                None => false,
            };
            let before = client.down.progress();
            match client.down.poll_drain(cx) {
                Poll::Ready(Ok(())) if self.is_ended => return Poll::Ready(Ok(())),
                Poll::Ready(drained) => drained.map_err(gone)?,
                Poll::Pending => {
                    if client.down.progress() != before {
                        client.deadline.set(limits.client_write);
                    }
                    ready!(client.deadline.poll(cx));
                    match client.down.grace(limits.client_write) {
                        Some(more) => client.deadline.set(more),
                        None => return Poll::Ready(Err(Unanswered::Stalled)),
                    }
                    continue;
                }
            }
            let piece = if self.body.is_ended() { Poll::Ready(None) } else { self.body.poll_next(cx) };
            match piece {
                Poll::Ready(Some(Err(BrokenOff))) => return Poll::Ready(Err(Unanswered::BrokenOff)),
                Poll::Ready(Some(Ok(piece))) => {
                    let bytes = piece.len() as u64;
                    if let Some(left) = &mut self.left {
                        // More than was stated would be taken for the next reply.
                        *left = left.checked_sub(bytes).ok_or(Unanswered::BrokenOff)?;
                    }
                    client.sent.body_bytes += bytes;
                    self.send(cx, client, piece).map_err(gone)?;
                }
                Poll::Ready(None) if self.left.is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(Unanswered::BrokenOff));
                }
                Poll::Ready(None) => self.send(cx, client, Bytes::new()).map_err(gone)?,
                Poll::Pending if !self.begun => self.send_head(cx, client).map_err(gone)?,
                Poll::Pending => {
                    if !is_read {
                        client.watch(cx, limits.half_close).map_err(gone)?;
                    }
                    return Poll::Pending;
                }
            }
            client.deadline.set(limits.client_write);
        }
    }

    /// Sends a piece of the contents, the head before it if that is not on its way, and the end behind it if it is the last one.
    fn send<D: Downstream>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut Client<D>,
        piece: Bytes,
    ) -> io::Result<()> {
        let Client { down, out, .. } = client;
        self.begun = true;
        self.is_ended =
            piece.is_empty() || self.left == Some(0) || self.left.is_none() && self.body.is_ended();
        if self.is_chunked && !piece.is_empty() {
            let line_end = if self.in_chunk { "\r\n" } else { "" };
            // Writing to memory does not fail.
            let _ = write!(out, "{line_end}{:x}\r\n", piece.len());
            self.in_chunk = true;
        }
        let mut piece = piece;
        if self.is_chunked && self.is_ended {
            if !piece.is_empty() {
                down.send_shared(cx, out, std::mem::take(&mut piece))?;
                out.clear();
            }
            out.extend_from_slice(if self.in_chunk { b"\r\n0\r\n\r\n" } else { b"0\r\n\r\n" });
        } else if !D::IS_FRAMED && out.len() + piece.len() <= COPIED_MAX {
            out.extend_from_slice(&std::mem::take(&mut piece));
        }
        down.send_shared(cx, out, piece)?;
        out.clear();
        down.finish(cx, self.is_ended.then_some(&[]))
    }

    /// Sends the head while the contents are awaited.
    fn send_head<D: Downstream>(&mut self, cx: &mut Context<'_>, client: &mut Client<D>) -> io::Result<()> {
        let Client { down, out, .. } = client;
        self.begun = true;
        down.send(cx, out, &[])?;
        out.clear();
        down.finish(cx, None)
    }
}
