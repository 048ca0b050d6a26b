//! Values of header fields that depend on the connection.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

/// Formats a client's certificate (DER) as the value of `Client-Cert` (RFC 9440 section 2.2).
pub fn client_cert(der: &[u8]) -> Option<HeaderValue> {
    HeaderValue::try_from(format!(":{}:", STANDARD.encode(der))).ok()
}

/// Returns the URL of a target (path and query) with the scheme `https` and this port. Returns `None` without a host.
pub fn https_url(host: &[u8], target: &[u8], port: u16) -> Option<HeaderValue> {
    // Remove the port, but no part of an IPv6 address.
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
    fn https_url_keeps_the_target() {
        for (host, target, port, found) in [
            ("a.test", "/x?y", 443, Some("https://a.test/x?y")),
            ("a.test:80", "/", 8443, Some("https://a.test:8443/")),
            ("[2001:db8::1]:80", "/x", 443, Some("https://[2001:db8::1]/x")),
            ("[2001:db8::1]", "*", 443, Some("https://[2001:db8::1]/")),
            ("", "/", 443, None),
            (":80", "/", 443, None),
        ] {
            let found = found.map(HeaderValue::from_static);
            assert_eq!(https_url(host.as_bytes(), target.as_bytes(), port), found, "{host}");
        }
    }
}
