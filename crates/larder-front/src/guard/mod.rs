//! Guards: which requests a route refuses before any node is asked.
//!
//! A guard decides by the client's network, by HTTP basic authentication (RFC 7617) and by the size of the request's body. It runs
//! after the redirect to `https`, so that no password is asked for in clear where TLS is wanted, and before the route's own answers.
//! Challenges of ACME are answered before it. Guarded routes are relayed: a connection that is handed to a node would bring its
//! later requests past the guard.

mod users;

pub use users::{Users, UsersError};

use crate::config_error::ConfigError;
use crate::config_error::route_error;
use crate::failure::Failure;
use larder_edge::{AddressRange, Fields};
use std::net::IpAddr;
use std::sync::Arc;

/// The conditions that a route's requests have to meet; none by default.
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
        Err(route_error(at, "guard.realm", what))
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
    pub(crate) async fn authenticate(&self, fields: &impl Fields) -> Result<(), Failure> {
        let Some(users) = &self.users else { return Ok(()) };
        let mut values = fields.each("Authorization");
        match (values.next(), values.next()) {
            (Some(value), None) => users.check(value).await,
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
