//! Replies that the proxy makes itself.

use crate::h1::ReplyHead;
use bytes::Bytes;
use http_body::Body;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A reply that the proxy makes itself.
#[derive(Debug)]
pub struct Answer {
    /// Status and fields. The engine adds the fields that delimit the body. A `Content-Length` in this head
    /// is used for replies without content: replies to HEAD, and 304.
    pub head: ReplyHead,
    /// The content. It is not sent in a reply to HEAD, or with a status that allows no content.
    pub body: Contents,
    /// The next step on the connection after this answer.
    pub then: AfterAnswer,
}

impl Answer {
    /// Creates an answer without fields and content.
    pub fn new(status: u16) -> Self {
        Self { head: ReplyHead::with_status(status), body: Contents::default(), then: AfterAnswer::KeepAlive }
    }
}

/// The next step on a connection after an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterAnswer {
    /// The connection serves the next request, if the client and HTTP allow it.
    #[default]
    KeepAlive,
    /// The connection is closed.
    Close,
    /// The connection leaves HTTP, and [`serve`](super::serve()) returns it. Not possible with HTTP/2.
    Detach,
}

/// The content of an answer.
#[derive(Default)]
pub struct Contents(ContentsKind);

/// The two kinds of content.
enum ContentsKind {
    Bytes(Bytes),
    Stream(Pin<Box<dyn ErasedBody>>),
}

impl Default for ContentsKind {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

/// The body of an answer ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentError;

/// A body of any type. Trailers are dropped.
// The methods are those of `http_body::Body`, without the types of data and error.
trait ErasedBody {
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ContentError>>>;
    fn length(&self) -> Option<u64>;
    fn is_ended(&self) -> bool;
}

impl<B: Body<Data = Bytes>> ErasedBody for B {
    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ContentError>>> {
        loop {
            return Poll::Ready(match ready!(self.as_mut().poll_frame(cx)) {
                None => None,
                Some(Err(_)) => Some(Err(ContentError)),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => Some(Ok(data)),
                    _ => continue,
                },
            });
        }
    }

    fn length(&self) -> Option<u64> {
        self.size_hint().exact()
    }

    fn is_ended(&self) -> bool {
        self.is_end_stream()
    }
}

impl Contents {
    /// Creates content that arrives in pieces. The body is dropped when its last byte is on its way to the
    /// client, or cannot be sent any more.
    pub fn stream(body: impl Body<Data = Bytes> + 'static) -> Self {
        Self(ContentsKind::Stream(Box::pin(body)))
    }

    /// Returns the length in bytes, if it is known.
    pub(super) fn length(&self) -> Option<u64> {
        match &self.0 {
            ContentsKind::Bytes(bytes) => Some(bytes.len() as u64),
            ContentsKind::Stream(body) => body.length(),
        }
    }

    /// Returns the next piece, which is not empty. Returns `None` at the end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ContentError>>> {
        match &mut self.0 {
            ContentsKind::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            ContentsKind::Bytes(bytes) => Poll::Ready(Some(Ok(std::mem::take(bytes)))),
            ContentsKind::Stream(body) => body.as_mut().poll_next(cx),
        }
    }

    /// Returns whether the content has ended. Returns false for a stream that does not yet know that it has
    /// ended.
    pub(super) fn is_ended(&self) -> bool {
        match &self.0 {
            ContentsKind::Bytes(bytes) => bytes.is_empty(),
            ContentsKind::Stream(body) => body.is_ended(),
        }
    }
}

impl<B: Into<Bytes>> From<B> for Contents {
    fn from(bytes: B) -> Self {
        Self(ContentsKind::Bytes(bytes.into()))
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ContentsKind::Bytes(bytes) => write!(f, "Contents({} bytes)", bytes.len()),
            ContentsKind::Stream(_) => f.write_str("Contents(stream)"),
        }
    }
}
