//! Splice: two connections whose bytes the kernel moves with `splice(2)` through a pipe in each direction.
//!
//! The whole connection goes to one node; only its first bytes are read. The end of one side is passed on once all
//! bytes before it have been written, so half-closed connections work.

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes moved at a time; the default capacity of a pipe.
const CHUNK_BYTES: usize = 64 << 10;

/// Time of the last progress in either direction. Milliseconds since the connection was spliced.
struct Progress {
    began: Instant,
    at_ms: AtomicU64,
    silent: Duration,
}

impl Progress {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn note(&self) {
        self.at_ms.store(self.now_ms(), Relaxed);
    }

    /// Waits for `ready`, as long as bytes keep moving in either direction.
    async fn wait(&self, ready: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        tokio::pin!(ready);
        loop {
            let moved = Duration::from_millis(self.at_ms.load(Relaxed));
            let due = self.began + moved + self.silent;
            match tokio::time::timeout_at(due.into(), &mut ready).await {
                Ok(ready) => return ready,
                Err(_) if Duration::from_millis(self.at_ms.load(Relaxed)) > moved => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

/// Moves bytes in one direction, from one socket through a pipe to the other. `sent` counts them.
async fn splice_one(
    from: &TcpStream,
    to: &TcpStream,
    (read, write): (OwnedFd, OwnedFd),
    progress: &Progress,
    sent: &AtomicU64,
) -> io::Result<()> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        progress.wait(from.readable()).await?;
        let took =
            from.try_io(Interest::READABLE, || Ok(splice(from, None, &write, None, CHUNK_BYTES, flags)?));
        let mut left = match took {
            Ok(0) => return shutdown(to),
            Ok(took) => took,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        progress.note();
        while left > 0 {
            progress.wait(to.writable()).await?;
            match to.try_io(Interest::WRITABLE, || Ok(splice(&read, None, to, None, left, flags)?)) {
                Ok(moved) => {
                    left -= moved;
                    sent.fetch_add(moved as u64, Relaxed);
                    progress.note();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The two pipes of a connection, one per direction.
pub(super) struct Pipes([(OwnedFd, OwnedFd); 2]);

impl Pipes {
    /// # Errors
    /// The process has no descriptors left.
    pub(super) fn new() -> io::Result<Self> {
        let pipe = || pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC);
        Ok(Self([pipe()?, pipe()?]))
    }
}

/// Moves bytes in both directions until both sides have ended, one has failed, or nothing has moved for `silent`.
/// Returns the bytes sent to the client, and the result. When the node has closed its side, the client need not close
/// its own.
pub(super) async fn splice_both(
    client: TcpStream,
    node: TcpStream,
    Pipes([up, down]): Pipes,
    silent: Duration,
) -> (u64, io::Result<()>) {
    let progress = Progress { began: Instant::now(), at_ms: AtomicU64::new(0), silent };
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    let upward = splice_one(&client, &node, up, &progress, &asked);
    let downward = splice_one(&node, &client, down, &progress, &answered);
    tokio::pin!(upward, downward);
    let ended = tokio::select! {
        ended = &mut downward => ended,
        // The reply continues even if the client has closed its side.
        ended = &mut upward => match ended {
            Ok(()) => downward.await,
            Err(error) => Err(error),
        },
    };
    (answered.load(Relaxed), ended)
}

fn shutdown(stream: &TcpStream) -> io::Result<()> {
    match rustix::net::shutdown(stream, rustix::net::Shutdown::Write) {
        Err(rustix::io::Errno::NOTCONN) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("an address");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.expect("connects"), far.expect("accepts").0)
    }

    #[tokio::test]
    async fn bytes_and_half_closes_pass_in_both_directions() {
        let ((mut client, front), (back, mut node)) = (pair().await, pair().await);
        let pipes = Pipes::new().expect("descriptors");
        let spliced = tokio::spawn(splice_both(front, back, pipes, Duration::from_secs(10)));
        let request: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        let reply: Vec<u8> = (0..2_000_000_u32).map(|n| (n % 241) as u8).collect();
        let (sent, answer) = (request.clone(), reply.clone());
        let asking = tokio::spawn(async move {
            client.write_all(&sent).await.expect("sends");
            client.shutdown().await.expect("half-closes");
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.expect("reads");
            got
        });
        let mut got = Vec::new();
        node.read_to_end(&mut got).await.expect("reads to the half-close");
        assert!(got == request, "the request came as it was sent");
        node.write_all(&answer).await.expect("answers");
        drop(node);
        assert!(asking.await.expect("no panic") == reply, "the reply came as it was sent");
        let (sent, ended) = spliced.await.expect("no panic");
        assert!(ended.is_ok() && sent == reply.len() as u64, "{sent} {ended:?}");
    }

    #[tokio::test]
    async fn a_node_that_closes_first_ends_the_connection() {
        let ((mut client, front), (back, mut node)) = (pair().await, pair().await);
        let pipes = Pipes::new().expect("descriptors");
        let spliced = tokio::spawn(splice_both(front, back, pipes, Duration::from_secs(10)));
        node.write_all(b"bye").await.expect("writes");
        drop(node);
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.expect("reads");
        assert_eq!(got, b"bye");
        let (sent, ended) = spliced.await.expect("no panic");
        assert!(ended.is_ok() && sent == 3, "{sent} {ended:?}");
    }

    #[tokio::test]
    async fn silence_ends_a_connection_and_a_slow_reply_does_not() {
        let ((_client, front), (back, _node)) = (pair().await, pair().await);
        let pipes = Pipes::new().expect("descriptors");
        let (_, ended) = splice_both(front, back, pipes, Duration::from_millis(50)).await;
        assert_eq!(ended.expect_err("nothing moved").kind(), io::ErrorKind::TimedOut);

        let ((mut client, front), (back, mut node)) = (pair().await, pair().await);
        let pipes = Pipes::new().expect("descriptors");
        let spliced = tokio::spawn(splice_both(front, back, pipes, Duration::from_millis(400)));
        client.shutdown().await.expect("half-closes");
        let mut got = Vec::new();
        for _ in 0..6 {
            node.write_all(b"x").await.expect("writes");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        drop(node);
        client.read_to_end(&mut got).await.expect("reads");
        assert_eq!(got.len(), 6, "the whole took longer than may be silent");
        assert!(spliced.await.expect("no panic").1.is_ok());
    }
}
