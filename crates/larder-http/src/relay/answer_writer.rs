//! An answer of the proxy on its way to the client.

use super::answer::{AfterAnswer, Answer, ContentError, Contents};
use super::client_session::{ClientSession, SentReply};
use super::client_side::ClientSide;
use super::fault::ClientFault;
use super::fields::delimit;
use super::intake::BodyIntake;
use super::limits::Limits;
use super::transfer::COPIED_MAX;
use crate::h1::{Body, FieldName};
use bytes::Bytes;
use std::future::poll_fn;
use std::io::{self, Write};
use std::task::{Context, Poll, ready};

impl<D: ClientSide> ClientSession<D> {
    /// Sends an answer. `keep_alive` tells whether the connection continues. The rest of the request body is
    /// passed to the proxy meanwhile.
    pub(super) async fn answer(
        &mut self,
        answer: Answer,
        keep_alive: bool,
        limits: &Limits,
        intake: Option<&mut BodyIntake>,
    ) -> Result<(), AnswerError> {
        let Answer { head, body, then } = answer;
        self.reply = head;
        let has_contents = self.has_contents();
        let written = match (has_contents, body.length()) {
            (false, _) => Body::None,
            (true, Some(length)) => Body::Length(length),
            (true, None) if D::IS_FRAMED || self.request.is_http10() => Body::Close,
            (true, None) => Body::Chunks,
        };
        let declared = self.declared_length(&body);
        let keep_alive = keep_alive && (D::IS_FRAMED || written != Body::Close);
        let fields = &mut self.reply.fields;
        // The limit on fields is far above the number of fields in an answer.
        let _ = delimit(fields, written, declared);
        if D::IS_FRAMED || then == AfterAnswer::Detach {
            // An HTTP/2 connection continues after the end of a stream. A connection that the proxy takes
            // over is no HTTP connection any more.
        } else if !keep_alive {
            let _ = fields.append(b"Connection", b"close");
        } else if self.request.is_http10() {
            let _ = fields.append(b"Connection", b"keep-alive");
        }
        self.side.begin_reply(&self.reply, &mut self.out);
        self.sent = SentReply {
            status: Some(self.reply.status()),
            ends_by_close: written == Body::Close,
            keep_alive,
            ..SentReply::default()
        };
        self.deadline.set(limits.client_write);
        let mut answer_writer = AnswerWriter {
            body: if has_contents { body } else { Contents::default() },
            left: if let Body::Length(length) = written { Some(length) } else { None },
            is_chunked: written == Body::Chunks,
            begun: false,
            in_chunk: false,
            is_ended: false,
            intake,
        };
        poll_fn(|cx| answer_writer.poll(cx, self, limits)).await
    }

    /// Returns whether the reply has content (RFC 9110 section 6.4.1).
    fn has_contents(&self) -> bool {
        !matches!(self.reply.status(), 100..=199 | 204 | 304) && self.request.method() != b"HEAD"
    }

    /// Returns the length to declare in a reply without content (RFC 9110 section 8.6).
    fn declared_length(&self, body: &Contents) -> Option<u64> {
        if matches!(self.reply.status(), 100..=199 | 204) {
            return None;
        }
        let declared = self.reply.fields.named(FieldName::ContentLength);
        let declared = declared.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
        let is_head = self.request.method() == b"HEAD" && self.reply.status() != 304;
        // An empty body of a reply to HEAD does not show the length of the reply to GET.
        declared.or_else(|| body.length().filter(|length| is_head && *length > 0))
    }
}

/// Reason why the client has no complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerError {
    /// The client has disconnected.
    Gone,
    /// The client accepts no bytes.
    Stalled,
    /// The content ended early, or has another length than declared.
    Content,
}

impl From<AnswerError> for Option<ClientFault> {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Gone => Some(ClientFault::Gone),
            AnswerError::Stalled => Some(ClientFault::Stalled),
            AnswerError::Content => None,
        }
    }
}

/// An answer on its way to the client.
#[derive(Debug)]
struct AnswerWriter<'a> {
    body: Contents,
    /// Bytes to come, if the length is declared.
    left: Option<u64>,
    is_chunked: bool,
    /// The head was sent.
    begun: bool,
    /// The line end after the data of the last chunk has not been sent.
    in_chunk: bool,
    is_ended: bool,
    intake: Option<&'a mut BodyIntake>,
}

impl AnswerWriter<'_> {
    fn poll<D: ClientSide>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientSession<D>,
        limits: &Limits,
    ) -> Poll<Result<(), AnswerError>> {
        let client_gone = |_: io::Error| AnswerError::Gone;
        loop {
            let is_body_read = match &mut self.intake {
                Some(BodyIntake { handle, reader }) => match reader.advance(cx, client, handle, false) {
                    Ok(is_body_read) => is_body_read,
                    // The client sends no more, but may still read (RFC 9112 section 9.5).
                    Err(_) if limits.half_close => false,
                    Err(_) => return Poll::Ready(Err(AnswerError::Gone)),
                },
                None => false,
            };
            let before = client.side.progress();
            match client.side.poll_drain(cx) {
                Poll::Ready(Ok(())) if self.is_ended => return Poll::Ready(Ok(())),
                Poll::Ready(drained) => drained.map_err(client_gone)?,
                Poll::Pending => {
                    if client.side.progress() != before {
                        client.deadline.set(limits.client_write);
                    }
                    ready!(client.deadline.poll(cx));
                    match client.side.extra_time(limits.client_write) {
                        Some(extra_time) => client.deadline.set(extra_time),
                        None => return Poll::Ready(Err(AnswerError::Stalled)),
                    }
                    continue;
                }
            }
            let piece = if self.body.is_ended() { Poll::Ready(None) } else { self.body.poll_next(cx) };
            match piece {
                Poll::Ready(Some(Err(ContentError))) => return Poll::Ready(Err(AnswerError::Content)),
                Poll::Ready(Some(Ok(piece))) => {
                    let bytes = piece.len() as u64;
                    if let Some(left) = &mut self.left {
                        // Bytes beyond the declared length would be read as the next reply.
                        *left = left.checked_sub(bytes).ok_or(AnswerError::Content)?;
                    }
                    client.sent.body_bytes += bytes;
                    self.send(cx, client, piece).map_err(client_gone)?;
                }
                Poll::Ready(None) if self.left.is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(AnswerError::Content));
                }
                Poll::Ready(None) => self.send(cx, client, Bytes::new()).map_err(client_gone)?,
                Poll::Pending if !self.begun => self.send_head(cx, client).map_err(client_gone)?,
                Poll::Pending => {
                    if !is_body_read {
                        client.check_disconnect(cx, limits.half_close).map_err(client_gone)?;
                    }
                    return Poll::Pending;
                }
            }
            client.deadline.set(limits.client_write);
        }
    }

    /// Sends a piece of the content, preceded by the head if that was not sent. If the piece is the last one,
    /// the end of the body follows.
    fn send<D: ClientSide>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientSession<D>,
        piece: Bytes,
    ) -> io::Result<()> {
        let ClientSession { side, out, .. } = client;
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
                side.send_shared(cx, out, std::mem::take(&mut piece))?;
                out.clear();
            }
            out.extend_from_slice(if self.in_chunk { b"\r\n0\r\n\r\n" } else { b"0\r\n\r\n" });
        } else if !D::IS_FRAMED && out.len() + piece.len() <= COPIED_MAX {
            out.extend_from_slice(&std::mem::take(&mut piece));
        }
        side.send_shared(cx, out, piece)?;
        out.clear();
        side.flush_pieces(cx, self.is_ended.then_some(&[]))
    }

    /// Sends the head while the first piece of the content is not available.
    fn send_head<D: ClientSide>(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientSession<D>,
    ) -> io::Result<()> {
        let ClientSession { side, out, .. } = client;
        self.begun = true;
        side.send(cx, out, &[])?;
        out.clear();
        side.flush_pieces(cx, None)
    }
}
