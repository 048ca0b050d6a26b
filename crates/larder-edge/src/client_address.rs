//! The address of the client that sent a request through relays.

use crate::AddressRanges;
use crate::header::Fields;
use std::net::{IpAddr, SocketAddr};

/// Returns the address of the client that sent a request: the peer of the connection or, if that is a trusted relay,
/// the last address in `X-Forwarded-For` that is not one. Returns `None` if a trusted relay gives no address or an
/// invalid one: using the relay's own address would let all of its clients pass.
pub fn client_address(fields: &impl Fields, sender: IpAddr, relays: &AddressRanges) -> Option<IpAddr> {
    if !relays.contains(sender) {
        return Some(sender);
    }
    let values = fields.each("X-Forwarded-For").collect::<Vec<_>>();
    let listed = values.iter().rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
    let mut first = None;
    for text in listed {
        let address = forwarded_address(text)?;
        if !relays.contains(address) {
            return Some(address);
        }
        first = Some(address);
    }
    first
}

/// Parses an element of `X-Forwarded-For`: an address alone, in brackets, or with a port.
pub fn forwarded_address(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element.trim_ascii()).ok()?;
    let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    alone.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, HeaderValue};

    fn ranges(texts: &[&str]) -> Vec<crate::AddressRange> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn client_is_the_last_address_that_is_not_a_trusted_relay() {
        let relays = AddressRanges(ranges(&["10.0.0.0/8"]));
        for (sender, fields, client) in [
            ("192.0.2.1", &["198.51.100.7"][..], "192.0.2.1"),
            ("10.0.0.1", &[], ""),
            ("10.0.0.1", &["198.51.100.7:4711"], "198.51.100.7"),
            ("10.0.0.1", &["[2001:db8::7]:4711, 10.0.0.2"], "2001:db8::7"),
            ("10.0.0.1", &["[2001:db8::7]"], "2001:db8::7"),
            ("10.0.0.1", &["198.51.100.7"], "198.51.100.7"),
            ("10.0.0.1", &["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
            ("10.0.0.1", &["198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            ("10.0.0.1", &["203.0.113.9", "198.51.100.7", "10.0.0.2, 10.0.0.3"], "198.51.100.7"),
            ("10.0.0.1", &["10.0.0.4, 10.0.0.2"], "10.0.0.4"),
            ("10.0.0.1", &["198.51.100.7, unknown"], ""),
            ("10.0.0.1", &["198.51.100.7, unknown, 10.0.0.2"], ""),
            ("10.0.0.1", &[""], ""),
        ] {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append("x-forwarded-for", HeaderValue::from_static(field));
            }
            let named = client_address(&headers, address(sender), &relays);
            assert_eq!(named, (!client.is_empty()).then(|| address(client)), "{fields:?}");
        }
    }
}
