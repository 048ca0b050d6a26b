//! Clients that use HTTP without TLS on a TLS port, such as a browser at `http://example.org:443/`.

use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The response to every such request.
const REPLY: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 62\r\n\
    Cache-Control: no-store\r\nConnection: close\r\n\r\n\
    This port speaks HTTPS. Use a URL that begins with https://.\r\n";

/// Number of bytes of the request that are read, so that closing the connection does not reset it before the response
/// is read.
const DRAINED_MAX: u64 = 64 * 1024;
/// Time limit for the client to close.
const LINGER: Duration = Duration::from_secs(1);

/// Kind of plaintext that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaintextClient {
    Http,
    /// A balancer's announcement (PROXY protocol version 1).
    Announcement,
}

/// Returns the kind of the client's first bytes, or `None` if they may be TLS. A request line begins with a letter (RFC
/// 9112 section 3), TLS with a record type, 22 (RFC 8446 section 5.1).
pub(super) async fn detect(tcp: &TcpStream) -> io::Result<Option<PlaintextClient>> {
    const ANNOUNCEMENT: &[u8] = b"PROXY ";
    let mut first = [0; ANNOUNCEMENT.len()];
    let length = tcp.peek(&mut first).await?;
    let clear = first[..length].first().is_some_and(u8::is_ascii_uppercase);
    let kind = if first == ANNOUNCEMENT { PlaintextClient::Announcement } else { PlaintextClient::Http };
    Ok(clear.then_some(kind))
}

/// Answers with 400 and closes.
pub(super) async fn refuse(mut tcp: TcpStream) {
    if tcp.write_all(REPLY).await.is_err() || tcp.shutdown().await.is_err() {
        return;
    }
    let (mut rest, mut nowhere) = (tcp.take(DRAINED_MAX), tokio::io::sink());
    let drain = tokio::io::copy(&mut rest, &mut nowhere);
    // It does not matter whether the client closed in time.
    let _ = tokio::time::timeout(LINGER, drain).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        (client, listener.accept().await.expect("accepts").0)
    }

    #[tokio::test]
    async fn http_is_distinguished_from_tls() {
        for (bytes, clear) in [
            (&b"GET / HTTP/1.1\r\n"[..], Some(PlaintextClient::Http)),
            (b"PRI * HTTP/2.0", Some(PlaintextClient::Http)),
            (b"PROXY TCP4 ", Some(PlaintextClient::Announcement)),
            (b"\x16\x03\x01", None),
        ] {
            let (mut client, server) = pair().await;
            client.write_all(bytes).await.expect("writes");
            assert_eq!(detect(&server).await.expect("peeks"), clear, "{bytes:?}");
        }
        let (client, server) = pair().await;
        drop(client);
        assert_eq!(detect(&server).await.expect("peeks"), None, "nothing was sent");
    }

    #[tokio::test]
    async fn client_with_a_long_request_gets_the_complete_response() {
        let (mut client, server) = pair().await;
        let refused = tokio::spawn(refuse(server));
        // More than the server has read when it responds.
        let _ = client.write_all(&[b'A'; 32 * 1024]).await;
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).await.expect("reads");
        let text = String::from_utf8(reply).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(
            head.starts_with("HTTP/1.1 400 ")
                && head.contains(&format!("Content-Length: {}\r\n", body.len()))
        );
        assert!(body.contains("https://"), "{body}");
        drop(client);
        refused.await.expect("ends");
    }
}
