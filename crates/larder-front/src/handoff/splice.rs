//! Two connections, bytes moved from one to the other inside the kernel: `splice(2)` through a pipe, both ways.
//!
//! The whole connection goes to one node; nothing of it is looked at after its first bytes. An end of one side is passed
//! on when all before it has been written, so that half-closed connections work.

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// What is moved at a time; a pipe holds so much by default. Bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// One direction: from one socket into a pipe and out of it to the other. Gives how many bytes went.
async fn one_way(from: &TcpStream, to: &TcpStream, (read, write): (OwnedFd, OwnedFd)) -> io::Result<u64> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut total = 0;
    loop {
        from.readable().await?;
        let took =
            from.try_io(Interest::READABLE, || Ok(splice(from, None, &write, None, CHUNK_BYTES, flags)?));
        let mut left = match took {
            Ok(0) => return Ok(total),
            Ok(took) => took,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        while left > 0 {
            to.writable().await?;
            match to.try_io(Interest::WRITABLE, || Ok(splice(&read, None, to, None, left, flags)?)) {
                Ok(sent) => {
                    left -= sent;
                    total += sent as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Moves bytes both ways until both sides have ended, or one has failed. `silent` is how long neither may say anything.
/// Gives the bytes that went to the client.
///
/// # Errors
/// A side has failed, or nothing moved for `silent`.
pub(super) async fn both_ways(client: TcpStream, node: TcpStream, silent: Duration) -> io::Result<u64> {
    let pipe = || pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC);
    let (up, down) = (pipe()?, pipe()?);
    let (mut asked, mut answered) = (false, None);
    let (client_ref, node_ref) = (&client, &node);
    let upward = one_way(client_ref, node_ref, up);
    let downward = one_way(node_ref, client_ref, down);
    tokio::pin!(upward, downward);
    // The first side that ends is passed on; the other may go on until it ends too.
    let first = tokio::select! {
        ended = &mut upward => { ended?; asked = true; None }
        ended = &mut downward => Some(ended?),
    };
    if asked {
        shutdown(node_ref)?;
        answered =
            Some(tokio::time::timeout(silent, &mut downward).await.map_err(|_| io::ErrorKind::TimedOut)??);
        shutdown(client_ref)?;
    } else {
        shutdown(client_ref)?;
        // The client has its answer; what it still sends goes to a node that has closed.
        let _ = tokio::time::timeout(silent, &mut upward).await;
    }
    let sent = first.or(answered).unwrap_or_default();
    Ok(sent)
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
    async fn every_byte_goes_both_ways_and_a_half_close_is_passed_on() {
        let ((mut client, front), (back, mut node)) = (pair().await, pair().await);
        let spliced = tokio::spawn(both_ways(front, back, Duration::from_secs(10)));
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
        assert_eq!(spliced.await.expect("no panic").expect("ends well"), reply.len() as u64);
    }

    #[tokio::test]
    async fn a_node_that_closes_first_ends_the_connection() {
        let ((mut client, front), (back, mut node)) = (pair().await, pair().await);
        let spliced = tokio::spawn(both_ways(front, back, Duration::from_millis(200)));
        node.write_all(b"bye").await.expect("writes");
        drop(node);
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.expect("reads");
        assert_eq!(got, b"bye");
        drop(client);
        assert_eq!(spliced.await.expect("no panic").expect("ends well"), 3);
    }
}
