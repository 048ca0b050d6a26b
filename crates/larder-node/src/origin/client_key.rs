//! The clients that share an origin's slots.
//!
//! The client of a request is the last address in its `X-Forwarded-For`. The node writes that address when a
//! request enters ([`crate::service::Admission`]). If the sender is a trusted relay, the relay has written it;
//! if the sender is a peer, the peer has written it.

use http::header::{HeaderMap, HeaderName};
use larder_edge::forwarded_address;
use std::net::{IpAddr, Ipv4Addr};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The lengths of the address prefixes that count as one client, in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefixes {
    pub(crate) v4: u8,
    pub(crate) v6: u8,
}

/// A client: a network of addresses. `Unknown` is a request that a trusted relay forwards without its client's
/// address, or a request of the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientKey {
    V4(u32),
    V6(u128),
    Unknown,
}

impl ClientKey {
    /// Returns the client of a request. All requests with an invalid last address count as one client.
    pub(crate) fn of(headers: &HeaderMap, prefixes: Prefixes) -> Self {
        if !headers.contains_key(X_FORWARDED_FOR) {
            return Self::Unknown;
        }
        Self::from_address(forwarded_client(headers).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), prefixes)
    }

    fn from_address(address: IpAddr, prefixes: Prefixes) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => {
                Self::V4(v4.to_bits() & u32::MAX.unbounded_shl(32_u32.saturating_sub(prefixes.v4.into())))
            }
            IpAddr::V6(v6) => {
                Self::V6(v6.to_bits() & u128::MAX.unbounded_shl(128_u32.saturating_sub(prefixes.v6.into())))
            }
        }
    }
}

/// Returns the last address in `X-Forwarded-For`; `None` if it is missing or invalid.
fn forwarded_client(headers: &HeaderMap) -> Option<IpAddr> {
    let value = headers.get_all(X_FORWARDED_FOR).iter().next_back()?;
    let last = value.as_bytes().rsplit(|byte| *byte == b',').next()?;
    forwarded_address(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_forwarded_address_identifies_the_client() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(X_FORWARDED_FOR, http::HeaderValue::from_static(value));
            }
            ClientKey::of(&headers, Prefixes { v4: 32, v6: 64 })
        };
        let client = ClientKey::from_address([192, 0, 2, 1].into(), Prefixes { v4: 32, v6: 64 });
        for values in
            [&["192.0.2.1"][..], &["10.0.0.1, 192.0.2.1"], &["10.0.0.1", "x,192.0.2.1 "], &["192.0.2.1:80"]]
        {
            assert_eq!(of(values), client, "{values:?}");
        }
        assert_eq!(of(&["[2001:db8::1]:443"]), of(&["2001:db8::2"]));
        assert_eq!(of(&[]), ClientKey::Unknown);
        assert_eq!(of(&["192.0.2.1, unknown"]), of(&[""]), "one client");
        assert_ne!(of(&[""]), ClientKey::Unknown, "which has a share");
    }

    #[test]
    fn a_network_is_one_client() {
        let network =
            |text: &str| ClientKey::from_address(text.parse().unwrap(), Prefixes { v4: 24, v6: 64 });
        assert_eq!(network("192.0.2.1"), network("192.0.2.200"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:1:ffff::2"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:2::1"));
        let whole = |text: &str| ClientKey::from_address(text.parse().unwrap(), Prefixes { v4: 32, v6: 128 });
        assert_ne!(whole("192.0.2.1"), whole("192.0.2.2"));
        assert_ne!(whole("2001:db8::1"), whole("2001:db8::2"));
    }
}
