//! Detects HTTP/2 by the first bytes of a connection.

use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Connection preface of a client (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time between two peeks at a connection whose first bytes are too few to decide.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Whether a connection begins with the HTTP/2 preface, as clients with prior knowledge send it (RFC 9113 section
/// 3.3). Consumes no bytes. Returns false after `patience`.
pub(crate) async fn begins_http2(tcp: &TcpStream, patience: Duration) -> bool {
    let look = async {
        let (mut bytes, mut pause) = ([0; PREFACE.len()], PAUSE);
        loop {
            match tcp.peek(&mut bytes).await {
                Ok(seen) if seen > 0 && bytes[..seen] == PREFACE[..seen] => {
                    if seen == PREFACE.len() {
                        return true;
                    }
                    // The socket is readable all the time, so waiting for readability would not wait.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                _ => return false,
            }
        }
    };
    timeout(patience, look).await.unwrap_or(false)
}
