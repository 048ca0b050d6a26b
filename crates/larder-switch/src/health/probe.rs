//! One active check.

use crate::dial::{Dialer, NodeProtocol};
use crate::limits::HealthCheck;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Maximum length of a status line. Bytes.
const STATUS_LINE_MAX: usize = 1024;

/// Checks a node once. The error is the reason of the failure. The caller sets a timeout.
///
/// With TLS, both kinds of checks include the handshake.
pub(super) async fn probe(what: &HealthCheck, dial: &Dialer) -> Result<(), String> {
    let (address, is_http) = (dial.address, matches!(what, HealthCheck::Http { .. }));
    let protocol = if is_http { NodeProtocol::Http1 } else { NodeProtocol::AsRequests };
    let mut tcp = dial.open(None, protocol).await.map_err(|error| error.to_string())?;
    let HealthCheck::Http { path } = what else { return Ok(()) };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: larder-health\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    let sent = async {
        tcp.write_all(request.as_bytes()).await?;
        tcp.flush().await
    };
    sent.await.map_err(|error| format!("no request sent: {error}"))?;
    let mut line = Vec::new();
    loop {
        let mut chunk = [0; 256];
        let read = tcp.read(&mut chunk).await.map_err(|error| format!("no reply: {error}"))?;
        if read == 0 || line.len() > STATUS_LINE_MAX {
            return Err("the reply is not HTTP".to_owned());
        }
        line.extend_from_slice(&chunk[..read]);
        if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
            return check_status(&line[..end]);
        }
    }
}

/// Checks a status line: statuses from 200 to 399 pass.
fn check_status(line: &[u8]) -> Result<(), String> {
    let status = line
        .strip_prefix(b"HTTP/1.")
        .and_then(|rest| rest.get(2..5))
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .and_then(|digits| digits.parse::<u16>().ok());
    match status {
        Some(200..=399) => Ok(()),
        Some(status) => Err(format!("status {status}")),
        None => Err("the reply is not HTTP".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines_are_checked() {
        for (line, good) in [
            ("HTTP/1.1 200 OK\r", true),
            ("HTTP/1.0 304", true),
            ("HTTP/1.1 404 Not Found\r", false),
            ("HTTP/1.1 503", false),
            ("HTTP/2 200", false),
            ("", false),
            ("HTTP/1.1 -20", false),
            ("HTTP/1.", false),
        ] {
            assert_eq!(check_status(line.as_bytes()).is_ok(), good, "{line}");
        }
    }
}
