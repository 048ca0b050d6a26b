//! What a server says of a connection in header fields.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

/// A client's certificate, DER, as it stands in `Client-Cert` (RFC 9440 section 2.2).
pub fn client_cert(der: &[u8]) -> Option<HeaderValue> {
    HeaderValue::try_from(format!(":{}:", STANDARD.encode(der))).ok()
}

/// What a host is asked for, path and query, under `https` at this port; `None` if it is no host.
pub fn under_https(host: &[u8], target: &[u8], port: u16) -> Option<HeaderValue> {
    // The port goes, but no part of an address of IPv6.
    let end = match host.iter().rposition(|byte| *byte == b':') {
        Some(at) if host[at + 1..].iter().all(u8::is_ascii_digit) && !host.ends_with(b"]") => at,
        _ => host.len(),
    };
    if end == 0 {
        return None;
    }
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    let target = if target.starts_with(b"/") { target } else { b"/" };
    HeaderValue::from_bytes(&[b"https://", &host[..end], port.as_bytes(), target].concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_same_under_https() {
        for (host, target, port, found) in [
            ("a.test", "/x?y", 443, Some("https://a.test/x?y")),
            ("a.test:80", "/", 8443, Some("https://a.test:8443/")),
            ("[2001:db8::1]:80", "/x", 443, Some("https://[2001:db8::1]/x")),
            ("[2001:db8::1]", "*", 443, Some("https://[2001:db8::1]/")),
            ("", "/", 443, None),
            (":80", "/", 443, None),
        ] {
            let found = found.map(HeaderValue::from_static);
            assert_eq!(under_https(host.as_bytes(), target.as_bytes(), port), found, "{host}");
        }
    }
}
