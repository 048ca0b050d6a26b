//! One connection that carries one request at a time.
//!
//! Body bytes are counted and discarded. All connections of a thread read into one buffer, which stays in the CPU cache. For
//! large bodies, the kernel discards the bytes without copying them (`MSG_TRUNC`, tcp(7)).

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::deadline::Deadline;
use crate::fault::Fault;
use crate::wire::reply::{ReadStatus, ReplyError, ReplyReader};

/// Size of the read buffer.
const READ_BYTES: usize = 65_536;
/// Minimum number of body bytes for which discarding them in the kernel is cheaper than reading them.
const DROP_BYTES_MIN: u64 = 16_384;
/// Maximum bytes discarded by one call. The kernel requires a buffer of this size but does not write to it.
const DROP_BYTES_MAX: usize = 1 << 20;

/// Buffers that the connections of a thread share.
#[derive(Debug)]
pub(crate) struct Buffers {
    read: Box<[u8]>,
    dropped: Box<[u8]>,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        let dropped = if cfg!(target_os = "linux") { DROP_BYTES_MAX } else { 0 };
        Self { read: vec![0; READ_BYTES].into(), dropped: vec![0; dropped].into() }
    }
}

/// Why an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangeError {
    pub(crate) fault: Fault,
    /// Whether the server closed the connection before the first byte of a reply, as it does with an idle connection.
    pub(crate) may_be_stale: bool,
}

/// An established connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr, deadline: &mut Deadline) -> Result<Self, ExchangeError> {
        let failed = |fault| ExchangeError { fault, may_be_stale: false };
        let mut connecting = std::pin::pin!(TcpStream::connect(address));
        let stream = poll_fn(|cx| match connecting.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(result.map_err(|_| failed(Fault::Connect))),
            Poll::Pending => deadline.poll_passed(cx).map(|()| Err(failed(Fault::Timeout))),
        })
        .await?;
        // A request is sent by one write, so Nagle's algorithm could only delay it.
        let _ = stream.set_nodelay(true);
        Ok(Self { stream })
    }

    /// Sends `request` and reads the reply with `reader`, which must be prepared by `begin`. Returns the time of the reply's
    /// first byte.
    pub(crate) async fn exchange(
        &mut self,
        request: &[u8],
        reader: &mut ReplyReader,
        buffers: &std::cell::RefCell<Buffers>,
        deadline: &mut Deadline,
    ) -> Result<Instant, ExchangeError> {
        let mut sent = 0;
        let mut first_byte = None;
        poll_fn(|cx| {
            let progress = self.poll_exchange(cx, request, &mut sent, reader, buffers, &mut first_byte);
            match progress {
                Poll::Ready(result) => Poll::Ready(result),
                Poll::Pending => deadline
                    .poll_passed(cx)
                    .map(|()| Err(ExchangeError { fault: Fault::Timeout, may_be_stale: false })),
            }
        })
        .await?;
        Ok(first_byte.unwrap_or_else(Instant::now))
    }

    fn poll_exchange(
        &mut self,
        cx: &mut Context<'_>,
        request: &[u8],
        sent: &mut usize,
        reader: &mut ReplyReader,
        buffers: &std::cell::RefCell<Buffers>,
        first_byte: &mut Option<Instant>,
    ) -> Poll<Result<(), ExchangeError>> {
        while *sent < request.len() {
            ready!(self.poll_send(cx, request, sent))?;
        }
        let mut buffers = buffers.borrow_mut();
        loop {
            let step = if cfg!(target_os = "linux") && reader.skippable() >= DROP_BYTES_MIN {
                ready!(self.poll_drop(cx, reader, &mut buffers.dropped))?
            } else {
                ready!(self.poll_read(cx, reader, &mut buffers.read))?
            };
            if first_byte.is_none() && reader.started() {
                *first_byte = Some(Instant::now());
            }
            if step == ReadStatus::Done {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        request: &[u8],
        sent: &mut usize,
    ) -> Poll<Result<(), ExchangeError>> {
        use tokio::io::AsyncWrite;
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &request[*sent..]));
        match written {
            Ok(0) => Poll::Ready(Err(ExchangeError { fault: Fault::Reset, may_be_stale: true })),
            Ok(bytes) => {
                *sent += bytes;
                Poll::Ready(Ok(()))
            }
            Err(_) => Poll::Ready(Err(ExchangeError { fault: Fault::Reset, may_be_stale: true })),
        }
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut ReplyReader,
        memory: &mut [u8],
    ) -> Poll<Result<ReadStatus, ExchangeError>> {
        let mut buffer = ReadBuf::new(memory);
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer));
        Poll::Ready(match result {
            Err(_) => Err(reset(reader)),
            Ok(()) if buffer.filled().is_empty() => closed(reader),
            Ok(()) => reader.feed(buffer.filled()).map_err(reply_error),
        })
    }

    /// Has the kernel discard body bytes.
    fn poll_drop(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut ReplyReader,
        memory: &mut [u8],
    ) -> Poll<Result<ReadStatus, ExchangeError>> {
        loop {
            if ready!(self.stream.poll_read_ready(cx)).is_err() {
                return Poll::Ready(Err(reset(reader)));
            }
            let len = usize::try_from(reader.skippable()).unwrap_or(usize::MAX).min(memory.len());
            let dropped = self.stream.try_io(Interest::READABLE, || {
                let flags = rustix::net::RecvFlags::TRUNC;
                let received = rustix::net::recv(&self.stream, &mut memory[..len], flags);
                received.map(|(_, bytes)| bytes).map_err(io::Error::from)
            });
            return Poll::Ready(match dropped {
                Ok(0) => closed(reader),
                Ok(bytes) => Ok(reader.skip(bytes as u64)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => Err(reset(reader)),
            });
        }
    }
}

fn reset(reader: &ReplyReader) -> ExchangeError {
    ExchangeError { fault: Fault::Reset, may_be_stale: !reader.started() }
}

fn closed(reader: &mut ReplyReader) -> Result<ReadStatus, ExchangeError> {
    match reader.eof() {
        Ok(()) => Ok(ReadStatus::Done),
        Err(_) if !reader.started() => Err(ExchangeError { fault: Fault::NoReply, may_be_stale: true }),
        Err(bad) => Err(reply_error(bad)),
    }
}

fn reply_error(bad: ReplyError) -> ExchangeError {
    let fault = if bad == ReplyError::ShortBody { Fault::ShortBody } else { Fault::BadReply };
    ExchangeError { fault, may_be_stale: false }
}
