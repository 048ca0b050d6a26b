//! Guards: which requests a route refuses before any node is asked.
//!
//! A guard decides by the client's network, by HTTP basic authentication (RFC 7617) and by the size of the request's body. It runs
//! after the redirect to `https`, so that no password is asked for in clear where TLS is wanted, and before the route's own answers.
//! Challenges of ACME are answered before it. Guarded routes are relayed: a connection that is handed to a node would bring its
//! later requests past the guard.

mod users;

pub use users::{Users, UsersError};

use crate::config::ConfigError;
use crate::failure::Failure;
use crate::routes::wrong;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use larder_edge::{AddressRange, Announcers};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What a route demands of its requests; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Networks whose clients may make requests; empty for all. Outcome: 403 `denied`.
    pub allow: Vec<AddressRange>,
    /// Networks whose clients may not, even if `allow` has them. Outcome: 403 `denied`.
    pub deny: Vec<AddressRange>,
    /// The accounts of which a request has to name one, with its password. `None`: no password is asked for. Outcome: 401
    /// `unauthorized`.
    pub users: Option<Arc<Users>>,
    /// The name of the protected space, which browsers show. Printable ASCII without `"` and `\`.
    pub realm: String,
    /// Whether nodes see `Authorization`. If not, it is removed once it has been checked, so that caches may share the replies
    /// (RFC 9111 section 3.5).
    pub pass_authorization: bool,
    /// The largest body of a request. Bytes; `None`: any. Outcome: 413 `body_too_large`.
    pub body_bytes_max: Option<u64>,
}

impl Guard {
    /// Checks that the realm can stand in a header field.
    pub(crate) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        let fits = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if self.realm.len() <= 256 && self.realm.bytes().all(fits) {
            return Ok(());
        }
        let what = "printable ASCII without quotes and backslashes, 256 bytes at most".to_owned();
        Err(wrong(at, "guard.realm", what))
    }

    /// Whether clients of this address may make requests.
    pub(crate) fn admits(&self, address: IpAddr) -> bool {
        let within = |ranges: &[AddressRange]| ranges.iter().any(|range| range.contains(address));
        !within(&self.deny) && (self.allow.is_empty() || within(&self.allow))
    }

    /// Whether the guard has to know the client's address.
    pub(crate) fn looks_at_addresses(&self) -> bool {
        !(self.allow.is_empty() && self.deny.is_empty())
    }

    /// Checks the name and the password that a request carries.
    ///
    /// # Errors
    /// [`Failure::Unauthorized`] if it carries none or wrong ones, [`Failure::RateLimited`] if too many passwords wait to be checked.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(users) = &self.users else { return Ok(()) };
        let mut values = headers.get_all(AUTHORIZATION).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => users.check(value.as_bytes()).await,
            _ => Err(Failure::Unauthorized),
        }
    }

    /// The value of `WWW-Authenticate` that asks for a name and a password.
    pub(crate) fn challenge(&self) -> String {
        format!("Basic realm=\"{}\", charset=\"UTF-8\"", self.realm)
    }

    /// Whether the guard takes `Authorization` away from what nodes see.
    pub(crate) fn hides_authorization(&self) -> bool {
        self.users.is_some() && !self.pass_authorization
    }

    /// Whether a body of this size is too large.
    pub(crate) fn body_is_too_large(&self, bytes: u64) -> bool {
        self.body_bytes_max.is_some_and(|max| bytes > max)
    }
}

/// The address of the client that a request is from: the sender of the connection or, if that is a trusted relay, the last address
/// in `X-Forwarded-For` that is none. `None` if a trusted relay names nobody, or something that is no address: its own address would
/// let all of its clients pass.
pub(crate) fn client_address(headers: &HeaderMap, sender: IpAddr, relays: &Announcers) -> Option<IpAddr> {
    if !relays.trusts(sender) {
        return Some(sender);
    }
    let values = headers.get_all(X_FORWARDED_FOR).iter().collect::<Vec<_>>();
    let listed = values.iter().rev().flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
    let mut first = None;
    for text in listed {
        let address = address(std::str::from_utf8(text).ok()?.trim())?;
        if !relays.trusts(address) {
            return Some(address);
        }
        first = Some(address);
    }
    first
}

/// An address as relays write it: alone, in brackets, or with a port.
fn address(text: &str) -> Option<IpAddr> {
    let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    alone.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn ranges(texts: &[&str]) -> Vec<AddressRange> {
        texts.iter().map(|text| text.parse().expect(text)).collect()
    }

    fn parsed(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn deny_has_precedence_and_an_empty_allow_admits_all() {
        let guard = |allow: &[&str], deny: &[&str]| Guard {
            allow: ranges(allow),
            deny: ranges(deny),
            ..Guard::default()
        };
        for (allow, deny, client, admitted) in [
            (&[][..], &[][..], "192.0.2.1", true),
            (&["10.0.0.0/8"], &[], "10.1.2.3", true),
            (&["10.0.0.0/8"], &[], "11.1.2.3", false),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.1.2.3", false),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.2.2.3", true),
            (&[], &["2001:db8::/32"], "2001:db8::1", false),
            (&[], &["2001:db8::/32"], "2001:db9::1", true),
            (&["10.0.0.0/8"], &[], "::ffff:10.1.2.3", true),
            (&[], &["10.0.0.0/8"], "::ffff:10.1.2.3", false),
        ] {
            assert_eq!(guard(allow, deny).admits(parsed(client)), admitted, "{allow:?} {deny:?} {client}");
        }
    }

    #[test]
    fn the_client_is_the_last_address_that_no_trusted_relay_has() {
        let relays = Announcers(ranges(&["10.0.0.0/8"]));
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
                headers.append(X_FORWARDED_FOR, HeaderValue::from_static(field));
            }
            let named = client_address(&headers, parsed(sender), &relays);
            assert_eq!(named, (!client.is_empty()).then(|| parsed(client)), "{fields:?}");
        }
    }
}
