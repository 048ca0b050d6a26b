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
    /// Status and fields. The engine adds the fields that delimit the body. A length that is stated here holds for replies without
    /// contents: those to HEAD, and 304.
    pub head: ReplyHead,
    /// The contents; not sent with a status that has none, or to HEAD.
    pub body: Contents,
    /// The next event on the connection.
    pub then: Then,
}

impl Answer {
    /// An answer without fields and contents.
    pub fn new(status: u16) -> Self {
        Self { head: ReplyHead::with_status(status), body: Contents::default(), then: Then::GoesOn }
    }
}

/// The next event on a connection after an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// The next request, if the client and HTTP allow it.
    #[default]
    GoesOn,
    /// The end.
    Closes,
    /// The connection is no longer one of HTTP: [`serve`](super::serve()) returns it. Not possible with HTTP/2.
    Leaves,
}

/// The contents of an answer.
#[derive(Default)]
pub struct Contents(Kind);

enum Kind {
    Bytes(Bytes),
    Stream(Pin<Box<dyn Source>>),
}

impl Default for Kind {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

/// The contents broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BrokenOff;

/// A body of any type. Trailers are dropped.
trait Source {
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>>;
    fn length(&self) -> Option<u64>;
    fn is_ended(&self) -> bool;
}

impl<B: Body<Data = Bytes>> Source for B {
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        loop {
            return Poll::Ready(match ready!(self.as_mut().poll_frame(cx)) {
                None => None,
                Some(Err(_)) => Some(Err(BrokenOff)),
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
    /// Contents that come in pieces. The body is dropped when its last byte is on its way to the client, or never will be.
    pub fn stream(body: impl Body<Data = Bytes> + 'static) -> Self {
        Self(Kind::Stream(Box::pin(body)))
    }

    /// The length, if it is known.
    pub(super) fn length(&self) -> Option<u64> {
        match &self.0 {
            Kind::Bytes(bytes) => Some(bytes.len() as u64),
            Kind::Stream(body) => body.length(),
        }
    }

    /// The next piece, which is not empty; nothing at the end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenOff>>> {
        match &mut self.0 {
            Kind::Bytes(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Bytes(bytes) => Poll::Ready(Some(Ok(std::mem::take(bytes)))),
            Kind::Stream(body) => body.as_mut().poll_next(cx),
        }
    }

    /// Whether nothing more comes. A stream may learn only later that it has ended.
    pub(super) fn is_ended(&self) -> bool {
        match &self.0 {
            Kind::Bytes(bytes) => bytes.is_empty(),
            Kind::Stream(body) => body.is_ended(),
        }
    }
}

impl<B: Into<Bytes>> From<B> for Contents {
    fn from(bytes: B) -> Self {
        Self(Kind::Bytes(bytes.into()))
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Bytes(bytes) => write!(f, "Contents({} bytes)", bytes.len()),
            Kind::Stream(_) => f.write_str("Contents(stream)"),
        }
    }
}
