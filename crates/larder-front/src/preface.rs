//! A look at the first bytes of a connection: whether its client begins with HTTP/2.

use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The client's connection preface (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Time between two looks at a connection whose first bytes are too few to tell.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Whether a connection begins with the preface, as that of a client does which knows that HTTP/2 is spoken here (RFC 9113 section
/// 3.3). Nothing is taken from it. What takes longer than `patience` does not.
pub(crate) async fn begins_http2(tcp: &TcpStream, patience: Duration) -> bool {
    let look = async {
        let (mut bytes, mut pause) = ([0; PREFACE.len()], PAUSE);
        loop {
            match tcp.peek(&mut bytes).await {
                Ok(seen) if seen > 0 && bytes[..seen] == PREFACE[..seen] => {
                    if seen == PREFACE.len() {
                        return true;
                    }
                    // There is something to read all the time, so that waiting for it would not wait.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                _ => return false,
            }
        }
    };
    timeout(patience, look).await.unwrap_or(false)
}
