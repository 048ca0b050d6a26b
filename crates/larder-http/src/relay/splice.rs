//! Large bodies pass from socket to socket through a pipe in the kernel, without a copy to this process (`splice(2)`).

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;

/// A connection to a client or a server.
pub trait Transport: AsyncRead + AsyncWrite + Unpin {
    /// The socket, if its bytes are those of the connection. With TLS there is none.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// Bytes that the socket has taken of what was written, if the transport knows. TLS holds some for itself.
    fn sent(&self) -> Option<u64> {
        None
    }
}

impl Transport for TcpStream {
    fn socket(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Transport for tokio::io::DuplexStream {}
impl<T: AsyncRead + AsyncWrite + Unpin> Transport for tokio_rustls::server::TlsStream<T> {}
impl<T: AsyncRead + AsyncWrite + Unpin> Transport for tokio_rustls::client::TlsStream<T> {}

/// Bytes of a body from which on it is spliced: below, the calls cost more than the copies.
pub(super) const SPLICED_MIN: u64 = 256 << 10;
/// Bytes that a pipe may hold, if the system allows it (`fs.pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;
/// Pipes of a thread. Beyond them contents are copied: each pipe takes two file descriptors, which connections need too.
const PIPES_MAX: usize = 128;
/// Pipes of a thread that are kept while they are not in use.
const IDLE_MAX: usize = 16;

/// A pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes in it.
    held: usize,
    /// The pipes of its thread, which it is one of.
    open: Rc<Cell<usize>>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
    }
}

/// The pipes of a thread.
#[derive(Debug, Default)]
pub(super) struct Pipes {
    idle: RefCell<Vec<Pipe>>,
    open: Rc<Cell<usize>>,
}

impl Pipes {
    /// An empty pipe; none if there are [`PIPES_MAX`], or the system has none.
    pub(super) fn take(&self) -> Option<Pipe> {
        if let Some(pipe) = self.idle.borrow_mut().pop() {
            return Some(pipe);
        }
        if self.open.get() == PIPES_MAX {
            return None;
        }
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // A smaller pipe does as well.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        self.open.set(self.open.get() + 1);
        Some(Pipe { read, write, held: 0, open: self.open.clone() })
    }

    /// Keeps a pipe for later, if it is empty.
    pub(super) fn put(&self, pipe: Pipe) {
        let mut idle = self.idle.borrow_mut();
        if pipe.held == 0 && idle.len() < IDLE_MAX {
            idle.push(pipe);
        }
    }
}

impl Pipe {
    /// The number of bytes in it.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Takes up to `max` bytes from a socket; 0 at the end of its stream.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        max: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(from.poll_read_ready(cx))?;
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            let filled = from.try_io(Interest::READABLE, || {
                Ok(splice(from, None, &self.write, None, max.min(PIPE_BYTES), flags)?)
            });
            match filled {
                Ok(bytes) => {
                    self.held += bytes;
                    return Poll::Ready(Ok(bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Sends what the pipe holds to a socket as far as that takes it. Returns how many bytes that were.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            let drained =
                to.try_io(Interest::WRITABLE, || Ok(splice(&self.read, None, to, None, self.held, flags)?));
            match drained {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    self.held -= bytes.min(self.held);
                    return Poll::Ready(Ok(bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pipes_of_a_thread_are_limited() {
        let pipes = Pipes::default();
        let taken: Vec<Pipe> = std::iter::from_fn(|| pipes.take()).collect();
        assert_eq!(taken.len(), PIPES_MAX);
        taken.into_iter().for_each(|pipe| pipes.put(pipe));
        assert_eq!((pipes.idle.borrow().len(), pipes.open.get()), (IDLE_MAX, IDLE_MAX));
        assert!(pipes.take().is_some());
        // Bytes of one reply must not come before another.
        let mut used = pipes.take().expect("a pipe");
        used.held = 1;
        pipes.put(used);
        assert!(pipes.idle.borrow().iter().all(Pipe::is_empty));
    }
}
