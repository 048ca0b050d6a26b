//! Splicing of large bodies from socket to socket through a kernel pipe, without a copy to this process
//! (`splice(2)`).

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
    /// Returns the socket, if it carries the bytes of the connection unchanged. TLS has none.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// Returns the number of written bytes that the socket has accepted, if it is known. TLS buffers some
    /// bytes itself.
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

/// Smallest body that is spliced, in bytes. For a smaller body the system calls cost more than copies.
pub(super) const SPLICED_MIN: u64 = 256 << 10;
/// Capacity of a pipe in bytes, if the system allows it (`fs.pipe-max-size`).
const PIPE_BYTES: usize = 1 << 20;
/// Largest number of pipes of a thread. Further content is copied, because each pipe takes two file
/// descriptors, which connections need too.
const PIPES_MAX: usize = 128;
/// Largest number of idle pipes that a thread keeps.
const IDLE_PIPES_MAX: usize = 16;

/// A kernel pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes in the pipe.
    len: usize,
    /// The number of open pipes of the thread, including this one.
    open_count: Rc<Cell<usize>>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.open_count.set(self.open_count.get() - 1);
    }
}

/// The pipes of a thread.
#[derive(Debug, Default)]
pub(super) struct Pipes {
    /// Number of open pipes, idle and in use.
    idle: RefCell<Vec<Pipe>>,
    open_count: Rc<Cell<usize>>,
}

impl Pipes {
    /// Takes an empty pipe. Returns `None` if the thread has [`PIPES_MAX`] pipes, or the system refuses one.
    pub(super) fn take(&self) -> Option<Pipe> {
        if let Some(pipe) = self.idle.borrow_mut().pop() {
            return Some(pipe);
        }
        if self.open_count.get() == PIPES_MAX {
            return None;
        }
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // A smaller pipe is sufficient.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        self.open_count.set(self.open_count.get() + 1);
        Some(Pipe { read, write, len: 0, open_count: self.open_count.clone() })
    }

    /// Keeps an empty pipe for later. Closes a pipe that is not empty, or if enough pipes are idle.
    pub(super) fn put(&self, pipe: Pipe) {
        let mut idle = self.idle.borrow_mut();
        if pipe.len == 0 && idle.len() < IDLE_PIPES_MAX {
            idle.push(pipe);
        }
    }
}

impl Pipe {
    /// Returns the number of bytes in the pipe.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads up to `max` bytes from a socket into the pipe. Returns 0 at the end of the stream.
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
                    self.len += bytes;
                    return Poll::Ready(Ok(bytes));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Writes the bytes in the pipe to a socket as far as the socket accepts them. Returns the number of
    /// written bytes.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            ready!(to.poll_write_ready(cx))?;
            let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
            let drained =
                to.try_io(Interest::WRITABLE, || Ok(splice(&self.read, None, to, None, self.len, flags)?));
            match drained {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    self.len -= bytes.min(self.len);
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
        assert_eq!((pipes.idle.borrow().len(), pipes.open_count.get()), (IDLE_PIPES_MAX, IDLE_PIPES_MAX));
        assert!(pipes.take().is_some());
        // The bytes of one reply must not precede another reply.
        let mut used = pipes.take().expect("a pipe");
        used.len = 1;
        pipes.put(used);
        assert!(pipes.idle.borrow().iter().all(Pipe::is_empty));
    }
}
